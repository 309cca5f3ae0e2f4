"""Regions that our kernels compute: described from steps, and run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import vtc
from captures import program_of
from vtc.kernels.convolution_dot import dot_kernels
from vtc.kernels.depthwise import depthwise_kernels
from vtc.kernels.pooling import Pooling, pooling_kernels
from vtc.lowering import own
from vtc.lowering.check import check
from vtc.lowering.described import described
from vtc.lowering.description import Undescribed
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import Pricing, isolated
from vtc.runtime.executable import Executable
from vtc.virtual import cost, search


class Branch(nn.Sequential):
    """The branch of a ShuffleNet unit: pointwise, depthwise, pointwise, with batch norms."""

    def __init__(self, channels: int) -> None:
        c = channels
        super().__init__(
            nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, c, 3, 1, 1, groups=c, bias=False), nn.BatchNorm2d(c),
            nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),
        )  # fmt: skip


class Net(nn.Module):
    """A stem, two shuffled units, and a concat of the parts of a C3K2 block."""

    def __init__(self, channels: int = 20) -> None:
        super().__init__()
        half = channels // 2
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.BatchNorm2d(channels))
        self.units = nn.ModuleList([Branch(half), Branch(half)])
        self.mid, self.inner = nn.Conv2d(channels, channels, 1), nn.Conv2d(half, half, 3, padding=1)
        self.out = nn.Conv2d(channels + half, 6, 3, padding=1)

    def forward(self, x):
        x = F.silu(self.stem(x))
        for unit in self.units:
            kept, branch = x.chunk(2, 1)
            x = torch.cat([kept, unit(branch)], 1)
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        parts = list(F.silu(self.mid(x)).chunk(2, 1))
        parts.append(parts[-1] + F.silu(self.inner(parts[-1])))
        y = torch.cat(parts, 1)
        return self.out(y), F.interpolate(F.max_pool2d(y, 3, 1, 1), scale_factor=2.0).sum(1)


class First:
    """Takes the first kernel of each step, unmeasured."""

    def __init__(self) -> None:
        self.steps = 0

    def fastest(self, step):
        self.steps += 1
        found = described(step)
        if isinstance(found.problem, Pooling):
            kernels = pooling_kernels(found.problem)
        else:
            kernels = depthwise_kernels(found.problem) + dot_kernels(found.problem)
        return own.as_step(kernels[0].launch(), found.results)


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(5)
    model = Net().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    x = torch.randn(2, 3, 18, 14)
    program, inputs = program_of(model, x)
    with torch.no_grad():
        exact = model.double()(x.double())
        model.float()
    return own.own_plan(program), inputs, exact


def strategy_of(plan: Plan, chosen: bool):
    if not chosen:
        return NOTHING
    static = cost.StaticCost(plan.graph, plan.vtog, plan.engine, cost.GPU, "latency")
    pricing = Pricing(plan, static, vtc.Options(min_gain_us=0.1))
    return search.greedy(plan.graph, plan.vtog, plan.engine, pricing).strategy


@pytest.mark.parametrize("chosen", [False, True], ids=["nothing virtual", "chosen"])
def test_our_kernels_compute_a_model_through_its_maps(captured, chosen):
    plan, inputs, exact = captured
    schedule = plan.schedule(strategy_of(plan, chosen))
    check(schedule, plan.program)
    tuner = First()
    steps = [implement(s, plan.program, freeze=False, tuner=tuner) for s in schedule.steps]
    outputs = Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)
    assert tuner.steps == len(plan.own) >= 9
    for found, expected in zip(outputs, exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        assert found.stride() == expected.stride()


def test_a_chosen_plan_reads_a_concat_and_stores_where_the_result_lies(captured):
    plan, _, _ = captured

    def moved(chosen: bool) -> tuple[int, int]:
        """Concats that kernels read through, and kernels that store into a base."""
        steps = plan.schedule(strategy_of(plan, chosen)).steps
        kernels = [s for s in steps if s.implementation == "kernel"]
        nodes = [n for s in kernels for n in s.graph.graph.nodes]
        read = sum(n.target is torch.ops.aten.cat.default for n in nodes)
        return read, sum(bool(s.stores) for s in kernels)

    assert moved(False) == (0, 0)
    assert moved(True) == (1, 1)


def test_a_step_that_adds_up_what_it_pools_is_not_described(captured):
    plan, _, _ = captured
    (other,) = (r for r in plan.grouping.regions if r.name not in plan.own)
    with pytest.raises(Undescribed, match="another shape than the anchor's"):
        described(isolated(other, plan.homes(NOTHING)))


def test_an_operand_of_many_pieces_is_copied_first(captured):
    plan, _, _ = captured
    chosen = plan.schedule(strategy_of(plan, True))
    for step in chosen.steps:
        problem = described(step).problem if step.implementation == "kernel" else None
        if problem is not None:
            assert len(problem.source.pieces) <= 8

"""Matmuls of a few rows that our kernels compute: how regions are cut for them, and their values in
Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from captures import program_of
from vtc.kernels import matmul_candidates
from vtc.kernels.convolution import Launch
from vtc.kernels.matmul import Matmul
from vtc.kernels.matmul_text import build
from vtc.lowering import own
from vtc.lowering.check import check
from vtc.lowering.described import described
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.runtime.executable import Executable

WIDTH, HEADS, INNER = 48, 3, 80


class Layer(nn.Module):
    """A decoder layer without its cache: normed, rotated query, key and value; a gated unit."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=b) for b in (1, 0, 0))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.act = {"silu": F.silu, "hardswish": F.hardswish}[gate]

    def norm(self, x):
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def rotated(self, x, cos, sin):
        x = x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(self, x, cos, sin):
        y = self.norm(x)
        q, k = (self.rotated(p(y), cos, sin) for p in (self.query, self.key))
        v = self.value(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2)
        heads = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(heads.transpose(1, 2).reshape(x.shape))
        y = self.norm(x)
        return self.norm(x + self.down(self.act(self.gate(y)) * self.up(y)))


class First:
    """Takes one tiling of each kind in turn, unmeasured."""

    def __init__(self) -> None:
        self.problems: list[Matmul] = []

    def fastest(self, step):
        found = described(step)
        tilings = matmul_candidates.likely(found.problem)
        self.problems.append(found.problem)
        config = tilings[len(self.problems) % len(tilings)]
        return own.as_step(Launch("", build(found.problem, config)), found.results)


def planned(model: nn.Module, *args: torch.Tensor) -> tuple[Plan, list]:
    program, inputs = program_of(model, *args)
    return own.own_plan(program), inputs


def arguments(rows: int, tokens: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(rows)
    table = (torch.randn(1, 1, tokens, WIDTH // HEADS) for _ in range(2))
    return (torch.randn(rows, tokens, WIDTH), *table)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (3, 1), (2, 9)])
@pytest.mark.parametrize("gate", ["silu", "hardswish"])
def test_a_layer_computed_by_our_kernels_equals_float64(rows: int, tokens: int, gate: str) -> None:
    args = arguments(rows, tokens)
    model = Layer(gate).eval()
    plan, inputs = planned(model, *args)
    schedule = plan.schedule(NOTHING)
    check(schedule, plan.program)
    tuner = First()
    steps = [implement(s, plan.program, freeze=False, tuner=tuner) for s in schedule.steps]
    (got,) = Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)
    with torch.no_grad():
        exact = model.double()(*(a.double() for a in args))
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5)
    assert [p.m for p in tuner.problems] == [rows * tokens] * 4


def test_projections_of_one_input_are_one_launch() -> None:
    plan, _ = planned(Layer("silu").eval(), *arguments(1, 1))
    homes = plan.homes(NOTHING)
    regions = [r for r in plan.grouping.regions if r.name in plan.own]
    found = [described(own.isolated(r, homes)).problem for r in regions]
    parts = [[len(part.rights) for part in problem.parts] for problem in found]
    assert parts == [[1, 1, 1], [1], [2], [1]]


def test_what_a_norm_alone_reads_is_not_a_result_of_the_matmul() -> None:
    plan, _ = planned(Layer("silu").eval(), *arguments(1, 1))
    targets = {r.name: {str(n.target) for n in r.nodes} for r in plan.grouping.regions}
    own_targets = set().union(*(targets[name] for name in plan.own))
    assert "aten.add.Tensor" in own_targets  # the residual that is read again
    assert not own_targets & {"aten.pow.Tensor_Scalar", "aten.mean.dim", "aten.rsqrt.default"}


class Shared(nn.Module):
    """Two projections of one input, the second of which waits for a reduction over the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)

    def forward(self, x):
        weights = torch.softmax(self.first(x), -1)
        return weights * self.second(x), weights


class Chained(Shared):
    """The second takes part in what it is computed from: one launch could not wait for itself."""

    def forward(self, x):
        y = self.first(x)
        scale = torch.softmax(y, -1).amax()
        return self.second(x) * scale + y


@pytest.mark.parametrize("model", [Shared, Chained])
def test_projections_around_a_reduction_equal_float64(model: type[nn.Module]) -> None:
    torch.manual_seed(2)
    x, module = torch.randn(2, WIDTH), model().eval()
    plan, inputs = planned(module, x)
    schedule = plan.schedule(NOTHING)
    check(schedule, plan.program)
    steps = [implement(s, plan.program, freeze=False, tuner=First()) for s in schedule.steps]
    got = Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)
    with torch.no_grad():
        exact = module.double()(x.double())
    exact = exact if isinstance(exact, tuple) else (exact,)
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    assert plan.own


def test_many_rows_stay_with_the_libraries() -> None:
    plan, _ = planned(Layer("silu").eval(), *arguments(2, 40))
    assert not plan.own

"""Residual copies that our kernels carry along."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from captures import program_of
from lowering.test_own import First, captured, strategy_of
from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_dot import dot_kernels
from vtc.lowering import own
from vtc.lowering.carried import carried
from vtc.lowering.check import check
from vtc.lowering.described import described
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING
from vtc.lowering.schedule import Schedule, Step
from vtc.runtime.executable import Executable

assert captured  # a fixture

aten = torch.ops.aten


class Stated:
    """Times that are stated: of kernels that carry a copy, of other kernels, and of copies."""

    def __init__(self, joined: float, plain: float, copy: float) -> None:
        self.joined, self.plain, self.copy = joined, plain, copy
        self.prepared: list[Step] = []

    def prepare(self, steps: list[Step]) -> None:
        self.prepared += steps

    def microseconds(self, step: Step) -> float:
        return self.joined if step in self.prepared else self.plain

    def generated(self, step: Step) -> float:
        return self.copy


def moving(schedule: Schedule) -> int:
    """Generated steps with a concat."""
    return sum(
        step.implementation == "inductor"
        and any(n.target is aten.cat.default for n in step.graph.graph.nodes)
        for step in schedule.steps
    )


def carry(schedule: Schedule) -> Schedule:
    return carried(schedule, Stated(1.5, 1.0, 1.0))


@pytest.mark.parametrize("chosen", [False, True], ids=["nothing virtual", "chosen"])
def test_a_shuffled_concat_is_stored_by_the_kernel_of_its_last_part(captured, chosen):
    plan, inputs, exact = captured
    before = plan.schedule(strategy_of(plan, chosen))
    schedule = carry(before)
    assert moving(before) - moving(schedule) >= 1
    check(schedule, plan.program)
    tuner = First()
    steps = [implement(s, plan.program, freeze=False, tuner=tuner) for s in schedule.steps]
    outputs = Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)
    for found, expected in zip(outputs, exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize(("together", "stays"), [(2.0, False), (2.02, False), (2.1, True)])
def test_a_copy_that_is_faster_by_itself_stays(captured, together, stays):
    plan, *_ = captured
    schedule = plan.schedule(strategy_of(plan, True))
    after = carried(schedule, Stated(together, 1.0, 1.0))
    assert (after.steps == schedule.steps) == stays


def test_what_is_carried_into_a_shuffle_is_stored_as_one(captured):
    """The two halves of a concat behind a shuffle alternate in memory."""
    plan, *_ = captured
    schedule = carry(plan.schedule(strategy_of(plan, True)))
    problems = [described(s).problem for s in schedule.steps if s.implementation == "kernel"]
    found = [dot_kernels(p) for p in problems if isinstance(p, Convolution)]
    texts = [kernels[0].source for kernels in found if kernels]
    assert any(text.count("tl.interleave") == text.count("tl.store") == 1 for text in texts)


class Pair(nn.Module):
    """A shuffled concat of an input and a convolution of it; `how` says what else is there."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        width = 6 if how == "another width" else 4
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(4 + width, 4, 1)

    def forward(self, x):
        y = self.first(x).relu()
        both = torch.cat([x, y], 1)
        out = self.last(both.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2))
        return (out, y) if self.how == "returned" else out


@pytest.mark.parametrize(("how", "carries"), [("", 1), ("returned", 1), ("another width", 0)])
def test_what_is_carried_leaves_other_results_as_they_are(how, carries):
    torch.manual_seed(0)
    model = Pair(how).eval()
    x = torch.randn(2, 4, 9, 7).to(memory_format=torch.channels_last)
    program, inputs = program_of(model, x)
    with torch.no_grad():
        expected = model(x)
    plan = own.own_plan(program)
    before = plan.schedule(NOTHING)
    schedule = carry(before)
    assert moving(before) - moving(schedule) == carries
    check(schedule, plan.program)
    steps = [implement(s, plan.program, freeze=False, tuner=First()) for s in schedule.steps]
    outputs = Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)
    for got, want in zip(outputs, expected if how == "returned" else [expected], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

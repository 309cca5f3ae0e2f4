"""Norms between matmuls in two halves, computed by the kernels around them: which are recognised,
and their values in Triton's interpreter."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from captures import program_of
from lowering.test_own_matmul import WIDTH, First, Layer, arguments
from vtc.kernels.normalized import NORMALIZED, SQUARE_SUMS
from vtc.lowering import norms, own
from vtc.lowering.check import check
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.runtime.executable import Executable


class Norm(nn.Module):
    """A norm as models write it: in float32, rounded, then weighted."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.how = how

    def forward(self, x):
        wide = x.to(torch.float32)
        square = wide * wide if self.how == "product" else wide.pow(3 if self.how == "cube" else 2)
        mean = square.mean(0 if self.how == "columns" else -1, keepdim=True)
        unit = wide * torch.rsqrt(mean + 1e-5)
        if self.how == "behind":
            return (unit * self.weight).to(x.dtype)
        return self.weight * unit.to(x.dtype)


class Between(nn.Module):
    """how: "returned", the norm is a result as well; "read", something else reads it; "bias", the
    product behind it has one; "far", no matmul is in front of it; "alias", it has two names."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        self.how, self.norm = how, Norm(how)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, 2 * WIDTH, bias=how == "bias")
        self.third = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x, y):
        h = x + (y.sin() if self.how == "far" else self.first(y))
        n = self.norm(h)
        again = torch.ops.aten.alias(n) if self.how == "alias" else n
        out = F.silu(self.second(again)) * self.third(n)
        more = n.amax(-1, keepdim=True) if self.how == "read" else 0.0
        return (out + more, h, n) if self.how == "returned" else (out + more, h)


def split(model: nn.Module, *args: torch.Tensor) -> tuple[Plan | None, list]:
    program, inputs = program_of(model, *args)
    before = str(program)
    found = norms.split(program)
    assert str(program) == before, "the program changed"
    return found, inputs


def run(plan: Plan, inputs: list) -> tuple[torch.Tensor, ...]:
    schedule = plan.schedule(NOTHING)
    check(schedule, plan.program)
    steps = [implement(s, plan.program, freeze=False, tuner=First()) for s in schedule.steps]
    return Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)


def targets(plan: Plan) -> Counter:
    return Counter(n.target for n in plan.program.nodes)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (4, 1), (2, 9)])
@pytest.mark.parametrize("how", ["plain", "product", "behind", "alias"])
def test_a_norm_in_two_halves_equals_float64(rows: int, tokens: int, how: str) -> None:
    torch.manual_seed(rows)
    x, y = (torch.randn(rows, tokens, WIDTH) for _ in range(2))
    model = Between(how).eval()
    plan, inputs = split(model, x, y)
    assert plan is not None
    assert targets(plan)[SQUARE_SUMS] == 1
    assert targets(plan)[NORMALIZED] == 2
    assert torch.ops.aten.rsqrt.default not in targets(plan)
    assert len(plan.schedule(NOTHING).steps) == 2, "nothing lies between the two kernels"
    got = run(plan, inputs)
    with torch.no_grad():
        exact = model.double()(x.double(), y.double())
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_half_precision_is_as_near_to_float64_as_eager() -> None:
    torch.manual_seed(5)
    model = Between().eval().bfloat16()
    x, y = (torch.randn(3, 2, WIDTH, dtype=torch.bfloat16) for _ in range(2))
    plan, inputs = split(model, x, y)
    assert plan is not None
    with torch.no_grad():
        # The interpreter's products of bfloat16 are not those of the device.
        got, _ = plan.program.graph_module(*inputs)
        eager, _ = model(x, y)
        exact, _ = model.double()(x.double(), y.double())
    ours, theirs = ((t.double() - exact).square().mean().sqrt() for t in (got, eager))
    assert ours <= 1.2 * theirs


@pytest.mark.parametrize("how", ["returned", "read", "bias", "far", "cube", "columns"])
def test_a_norm_that_others_read_and_other_arithmetic_stay(how: str) -> None:
    plan, _ = split(Between(how).eval(), torch.randn(2, 1, WIDTH), torch.randn(2, 1, WIDTH))
    assert plan is None


def test_half_floats_stay() -> None:
    model = Between().eval().half()
    x, y = (torch.randn(2, 1, WIDTH, dtype=torch.float16) for _ in range(2))
    assert split(model, x, y)[0] is None


def test_many_rows_stay() -> None:
    plan, _ = split(Between().eval(), *(torch.randn(2, 40, WIDTH) for _ in range(2)))
    assert plan is None


def test_a_layer_with_a_split_norm_equals_float64() -> None:
    args = arguments(3, 1)
    model = Layer("silu").eval()
    plan, inputs = split(model, *args)
    assert plan is not None
    (got,) = run(plan, inputs)
    with torch.no_grad():
        exact = model.double()(*(a.double() for a in args))
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_form_is_planned(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = program_of(Between().eval(), *(torch.randn(2, 1, WIDTH) for _ in range(2)))
    plan = own.own_plan(program)

    def microseconds(step: object, tuner: object) -> float:
        halves = any(n.target is SQUARE_SUMS for n in step.graph.graph.nodes)  # type: ignore[attr-defined]
        return 1.0 if halves == faster else 5.0

    monkeypatch.setattr(norms, "_microseconds", microseconds)
    monkeypatch.setattr(own.Tuner, "prepare", lambda *_: None)
    found, said = norms.with_split_norms(program, plan, None, lambda _: None)  # type: ignore[arg-type]
    assert (found is not plan) == faster
    assert len(said) == faster
    assert (SQUARE_SUMS in targets(found)) == faster

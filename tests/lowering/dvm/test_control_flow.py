"""Branches and loops that Dynamo captures, and slices whose bounds the call tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import vtc
from lowering.dvm.evaluated import check
from vtc.lowering.dvm.plan import ModuleStep

r = torch.randn

SLICES: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]] = {
    "the last": (
        lambda x, n: x[:, -n:] * 2,
        ((r(3, 8), 2), (r(3, 8), 11), (r(3, 5), 5), (r(4, 5), 3)),
    ),
    "between": (
        lambda x, n, m: x[n:m] + 1,
        (
            *((r(9, 4), n, m) for n, m in ((2, 5), (-2, 5), (3, -2), (-4, -1), (-20, 30))),
            (r(4, 4), 6, 3),
            (r(4, 4), 3, 3),
        ),
    ),
    "every third": (
        lambda x, n, m: (x[n:m:3] + 1, x.exp()[:, n::3].sum(0)),
        ((r(9, 7), 2, 8), (r(9, 7), -6, -1), (r(4, 7), 9, 2)),
    ),
    "a view": (lambda x, n: x[:, -n:], ((r(3, 8), 2), (r(3, 8), 11), (r(3, 5), 5))),
    "a view of a result": (
        lambda x, n: (x + 1)[-n:],
        ((r(6, 3), 2), (r(6, 3), 11), (r(5, 3), 5)),
    ),
    "twice": (
        lambda x, n, m: x[-n:][:, m:].softmax(-1),
        ((r(6, 9), 2, 3), (r(6, 9), 9, -4), (r(5, 9), 5, -20)),
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_bounds_of_slices_are_clamped(name: str) -> None:
    fn, calls = SLICES[name]
    compiled = check(fn, *calls)
    assert any(plan.bounds for plan in compiled.plans)


def test_bounds_of_slices_may_depend_on_data() -> None:
    def f(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        n = lengths.max().item()
        return x[:, :n].softmax(-1), x[n:] + n

    calls = [(r(9, 8), torch.tensor([1, n])) for n in (3, 13, 1, 8)]
    check(f, *calls, eager=["aten.item.default"])


class Branch(torch.nn.Module):
    """Two ways with results of equal shapes, one of them with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(
            x.sum() > 0,
            lambda t: self.linear(t).relu() + t.mean(-1, keepdim=True),
            lambda t: t.softmax(-1) * 2,
            (x,),
        )
        return y + 1


def test_both_arms_of_a_branch() -> None:
    calls = [(sign * r(n, 6).abs(),) for n in (3, 8) for sign in (1, -1)]
    check(Branch(), *calls)


def test_a_branch_on_a_size_is_python() -> None:
    check(lambda x: x * 2 if x.shape[0] > 4 else x - 1, (r(9, 3),), (r(2, 3),), captures=2)


def while_doubling(x: Tensor) -> tuple[Tensor, Tensor]:
    def small(n: Tensor, y: Tensor) -> Tensor:
        return (y.abs().max() < 50) & (n < 30)

    def step(n: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return n + 1, y * 2 + y.tanh()

    n, y = torch._higher_order_ops.while_loop(
        small, step, (torch.zeros((), dtype=torch.long), x * 2)
    )
    return n * 2, (y + 1).softmax(-1)


def test_a_loop_that_dynamo_captures_runs_between_programs() -> None:
    calls = [(scale * r(n, 5),) for n, scale in ((3, 1.0), (7, 1e-3), (2, 100.0))]
    with pytest.warns(vtc.errors.FallbackWarning, match="while_loop runs as eager PyTorch"):
        compiled = check(while_doubling, *calls, eager=["while_loop"])
    (plan,) = compiled.plans
    assert [isinstance(s, ModuleStep) for s in plan.steps] == [True, False, True]


def test_a_loop_that_dynamo_unrolls_is_part_of_the_program() -> None:
    def f(x: Tensor) -> Tensor:
        for k in range(4):
            x = torch.tanh(x) * (k + 1) + x.mean(-1, keepdim=True)
        return x

    check(f, (r(3, 5),), (r(1, 7),))

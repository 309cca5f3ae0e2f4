"""Schedules of random legal strategies compute what eager PyTorch does, bit for bit.

Their steps run as eager PyTorch here, so that nothing but where values are kept can differ. The
exceptions are calls that a strategy rewrites (attention and matmul on heads that are not repeated)
and library kernels on operands with other strides, whose sums may be taken in another order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from arguments import fresh
from lowering.harness import NAMES, Captured, captured, eager
from vtc.graph.strides import seen
from vtc.kernels.operators import ANCHORS
from vtc.lowering.schedule import Schedule

STRATEGIES = 10
# Where the shape functions of PyTorch's operators say other strides than its kernels give.
OTHER_STRIDES = {"channels_last_chunks"}


def tensors(values: Any) -> list[Tensor]:
    return [v for v in pytree.tree_leaves(values) if isinstance(v, Tensor)]


def sharing(results: list[Tensor], args: list[Tensor]) -> list[bool]:
    """Which results share storage, with arguments and with each other."""
    storages = [t.untyped_storage().data_ptr() * bool(t.numel()) for t in (*results, *args)]
    return [a == b for a, b in itertools.combinations(storages, 2)]


def reassociates(schedule: Schedule) -> bool:
    """May a step compute a sum in another order than eager PyTorch does?"""
    nodes = [n for step in schedule.steps for n in step.graph.graph.nodes]
    targets = {n.meta.get("origin", n).target for n in nodes}
    return bool(targets & ANCHORS)


def compare(ours: list[Tensor], theirs: list[Tensor], *, exact: bool) -> None:
    for a, b in zip(ours, theirs, strict=True):
        if exact:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b)


class Counted:
    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.calls = run, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.run(*args)


def run_both(case: Captured, schedule: Schedule) -> None:
    run = case.run = Counted(eager(schedule, case.program))
    ours, theirs = fresh(case.args), fresh(case.args)
    with torch.no_grad():
        results, expected = case.call(*ours), case.fn(*theirs)
    assert run.calls == 1
    exact = not reassociates(schedule)
    compare(tensors(results), tensors(expected), exact=exact)
    compare(tensors(ours), tensors(theirs), exact=exact)
    if case.fn.__qualname__.partition(".")[0] not in OTHER_STRIDES:
        for a, b in zip(tensors(results), tensors(expected), strict=True):
            assert seen(a.shape, a.stride()) == seen(b.shape, b.stride())
    assert sharing(tensors(results), tensors(ours)) == sharing(tensors(expected), tensors(theirs))


@pytest.mark.parametrize("name", NAMES)
def test_any_legal_strategy_computes_what_eager_does(name: str) -> None:
    case = captured(name)
    for strategy, schedule in case.schedules(STRATEGIES):
        try:
            run_both(case, schedule)
        except Exception as error:
            error.add_note(f"strategy {sorted(strategy)}\n{schedule}")
            raise


@pytest.mark.parametrize("name", ["key_and_value_caches", "counter_and_cache"])
def test_a_second_call_sees_what_the_first_left(name: str) -> None:
    case = captured(name)
    for _, schedule in case.schedules(3):
        case.run = eager(schedule, case.program)
        ours, theirs = fresh(case.args), fresh(case.args)
        with torch.no_grad():
            for _ in range(2):
                results, expected = case.call(*ours), case.fn(*theirs)
                compare(tensors(results), tensors(expected), exact=False)
        compare(tensors(ours), tensors(theirs), exact=False)


def test_outputs_of_one_call_outlive_the_next() -> None:
    case = captured("cat_of_cats")
    for _, schedule in case.schedules(4):
        case.run = eager(schedule, case.program)
        with torch.no_grad():
            first = case.call(*case.args)
            kept = first.clone()
            case.call(*[a + 1 for a in case.args])
        assert torch.equal(first, kept)


def test_the_empty_strategy_is_one_step_without_an_arena() -> None:
    for name in NAMES:
        if not captured(name).program.updates:
            schedule = captured(name).plan.schedule(frozenset())
            assert not schedule.buffers
            assert len(schedule.steps) <= 1

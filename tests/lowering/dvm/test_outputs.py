"""What is returned shares storage with inputs and other results as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from arguments import fresh
from lowering.dvm.evaluated import Compiled, assert_close

r = torch.randn
Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]


def returned_scatter(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """The value that is left in x, as a tensor of its own."""
    y = x.index_copy(0, i, v)
    x.copy_(y)
    return y


CASES: dict[str, Case] = {
    "an operator that changes nothing": (lambda x: x.ceil(), lambda: (torch.arange(6),)),
    "a scan of a number": (lambda x: x.cumsum(0), lambda: (torch.tensor(3.0),)),
    "the same value twice": (lambda x: (x + 1, x + 1, x + 1), lambda: (r(4, 3),)),
    "one tensor twice": (lambda x: (y := x + 1, y, y.t()), lambda: (r(4, 3),)),
    "views of an input": (lambda x: (x.t(), x[1:], x.unsqueeze(0)), lambda: (r(4, 3),)),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), lambda: (r(4), r(3))),
    "meshgrid of one": (lambda x: torch.meshgrid(x, indexing="ij"), lambda: (r(4),)),
    "views of a value": (
        lambda x: ((y := x * 2)[:, 1:], y.t(), y.expand(2, 4, 3)),
        lambda: (r(4, 3),),
    ),
    "a copy of a view": (lambda x: (x.t().clone(), x.t().contiguous()), lambda: (r(4, 3),)),
    "contiguous already": (lambda x: x.contiguous(), lambda: (r(4, 3),)),
    "an updated input": (lambda x: (x.add_(1), x.t()), lambda: (r(4, 3),)),
    "a scatter that is kept": (
        returned_scatter,
        lambda: (r(5, 3), torch.tensor([1, 3]), r(2, 3)),
    ),
    "a piece beside a join of pieces": (
        lambda x: ((y := torch.tensor_split(x, 3, 2)[2]), torch.cat([y, x], 2)),
        lambda: (r(3, 4, 5),),
    ),
}

AFTER_CALLS: dict[str, Case] = {
    "a fold of a call's result over one element": (
        lambda x: ((y := x.cummax(0).values).amax(1), y), lambda: (r(4, 1, 3),),
    ),
    "a fold that keeps the dimension": (
        lambda x: ((y := x.cummax(0).values).amax(1, keepdim=True), y), lambda: (r(4, 1, 3),),
    ),
    "a fold of a part": (
        lambda x: ((y := x.cummax(0).values).split(1)[1].amax(0), y), lambda: (r(4, 3),),
    ),
}  # fmt: skip

BITS: dict[str, Case] = {
    "bits of a value": (lambda x: ((y := x + 1), y.view(torch.int32)), lambda: (r(4, 3),)),
    "bits of a view": (
        lambda x: ((y := torch.cat([x, x], 1)).chunk(2, 1)[1].view(torch.int32), y.t()),
        lambda: (r(4, 3),),
    ),
    "bits of a copy": (lambda x: ((y := x.tile(1, 1)), y.view(torch.int32)), lambda: (r(4, 3),)),
    "bits of an input": (lambda x: (x.view(torch.int32), x + 1), lambda: (r(4, 3),)),
    "bits of a fold over one element": (
        lambda x: (x.amax(-1).view(torch.int32), x.view(torch.int32)), lambda: (r(4, 1),),
    ),
    "a fold over nothing of bits": (
        lambda x: x.view(torch.int32).amax(()), lambda: (torch.tensor(0.5),),
    ),
}  # fmt: skip


def homes(results: Any, args: Sequence[Any]) -> list[tuple[str, int] | None]:
    known: dict[int, tuple[str, int]] = {}
    for k, tensor in enumerate(args):
        known.setdefault(tensor.untyped_storage().data_ptr(), ("argument", k))
    found = []
    for k, tensor in enumerate(pytree.tree_leaves(results)):
        home = known.setdefault(tensor.untyped_storage().data_ptr(), ("result", k))
        found.append(None if home == ("result", k) else home)
    return found


@torch.no_grad()
def test_views_of_two_parts_of_one_tensor() -> None:
    torch._dynamo.reset()

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return y.t(), x[1:], y[2:]

    compiled = Compiled(f)
    for rows in (8, 10):
        a = r(rows, 3)
        args = a[:4], a[rows - 4 :]
        got, want = compiled(*args), f(*args)
        assert [(t.data_ptr(), t.stride()) for t in got] == [
            (t.data_ptr(), t.stride()) for t in want
        ]


@torch.no_grad()
def test_views_that_begin_where_data_says() -> None:
    torch._dynamo.reset()
    x, at = r(7, 3), torch.tensor([2, 5])
    compiled = Compiled(torch.tensor_split)
    got, want = compiled(x, at), torch.tensor_split(x, at)
    assert_close(got, want)
    assert homes(got, [x]) == homes(want, [x])


@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_storage_is_shared_as_in_eager_pytorch(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    fn, arguments = CASES[name]
    args = arguments()
    ours, theirs = fresh(args), fresh(args)
    want, got = fn(*theirs), Compiled(fn)(*ours)
    assert_close(got, want)
    assert_close(ours, theirs)
    assert homes(got, ours) == homes(want, theirs)


@pytest.mark.filterwarnings("ignore::vtc.errors.VtcWarning")
@pytest.mark.parametrize("name", [*AFTER_CALLS, *BITS])
@torch.no_grad()
def test_results_of_eager_calls_are_shared_as_in_eager_pytorch(name: str) -> None:
    """A call gets the tensor that it returns a view of, and what is computed of its result is none
    of its views."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    fn, arguments = (AFTER_CALLS | BITS)[name]
    args = arguments()
    got, want = Compiled(fn)(*args), fn(*args)
    assert_close(got, want)
    assert homes(got, args) == homes(want, args)
    leaves = zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)
    assert all(one.stride() == other.stride() for one, other in leaves)


@pytest.mark.filterwarnings("ignore::vtc.errors.VtcWarning")
@torch.no_grad()
def test_bits_of_a_fold_over_one_element_outlive_an_update() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        bits = x.amax(1).view(torch.int32)
        x[1:] = y
        return bits

    torch._dynamo.reset()
    x, y = r(4, 1, 3), r(3, 1, 3)
    want = f(x.clone(), y)
    assert torch.equal(Compiled(f)(x, y), want)

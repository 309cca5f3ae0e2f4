"""Views that are written, or address storage, and arguments that get another shape: as in eager
PyTorch, wherever in its storage an argument begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import vtc
from compiling import QUICK

pytestmark = [
    pytest.mark.usefixtures("clean_dynamo"),
    pytest.mark.filterwarnings("ignore::vtc.errors.FallbackWarning"),
]

Function = Callable[[Tensor], tuple[Tensor, ...]]


@pytest.fixture(params=["inductor", "dvm", "dvm of known sizes"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def compile_(model: Callable[..., Any]) -> Callable[..., Any]:
        if request.param == "inductor":
            return vtc.compile(model, objective="bytes", dynamic=False, options=QUICK)
        return vtc.compile(model, engine="dvm", dynamic=None if request.param == "dvm" else False)

    return compile_


def run(call: Function, start: int) -> list[Tensor]:
    """The outputs of a call, its argument, and all of the storage in which that begins there."""
    base = torch.arange(40.0)
    x = base[start : start + 12].view(3, 4)
    with torch.no_grad():
        return [*call(x), x, base]


def assert_as_eager(call: Function, function: Function) -> None:
    for start in (0, 5, 2):
        ours, theirs = run(call, start), run(function, start)
        assert [(t.shape, t.stride()) for t in ours] == [(t.shape, t.stride()) for t in theirs]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        shared = [
            [a.untyped_storage()._cdata == r[-1].untyped_storage()._cdata for a in r[:-1]]
            for r in (ours, theirs)
        ]
        assert shared[0] == shared[1]


def written(view: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        own = view(x)
        own.add_(1)
        return own, own * 2, x.sum(0)

    return f


def after_an_update(view: Callable[[Tensor], Tensor]) -> Function:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        before = view(x)
        x.mul_(2)
        return view(x) + 1, before * 3

    return f


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "relative": lambda x: x.as_strided((2, 3), (6, 2)),
    "relative to a slice": lambda x: x[1:].as_strided((2, 3), (3, 1)),
    "inside": lambda x: x.as_strided((2, 2), (1, 2), 7),
    "from the start": lambda x: x.as_strided((2, 2), (1, 2), 0),
    "behind the end": lambda x: x.as_strided((2, 2), (1, 2), 20),
    "by its own offset": lambda x: x.as_strided((2, 2), (1, 2), x.storage_offset() + 1),
    "overlapping": lambda x: x.as_strided((2, 2), (1, 1)),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("use", [written, after_an_update])
def test_as_strided_addresses_storage(compiled: Callable[..., Any], use: Any, name: str) -> None:
    function = use(STRIDED[name])
    assert_as_eager(compiled(function), function)


def test_as_strided_of_a_tensor_of_the_graph(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = (x * 2).view(-1)[2:]
        y.add_(1)
        return y, y.as_strided((2, 2), (1, 2), 0) + 1, y.as_strided((2, 2), (1, 2)) + 1

    assert_as_eager(compiled(f), f)


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "dropout of nothing": lambda x: F.dropout(x, p=0.0),
    "part of a dropout": lambda x: torch.dropout(x, 0.5, train=False)[1:],
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1)[1],
    "unsafe_split": lambda x: x.unsafe_split(2)[1],
    "unsafe_split_with_sizes": lambda x: x.unsafe_split_with_sizes([1, 2])[1],
}


@pytest.mark.parametrize("name", HIDDEN)
def test_views_that_no_schema_tells_are_views(compiled: Callable[..., Any], name: str) -> None:
    function = written(HIDDEN[name])
    assert_as_eager(compiled(function), function)


def reshaped(change: Callable[[Tensor], Any]) -> Function:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        x.add_(1)
        change(x)
        return x * 2, x

    return f


def with_data(x: Tensor) -> None:
    x.data = x.t() + 1


RESHAPED: dict[str, Callable[[Tensor], Any]] = {
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 2)),
    "data": with_data,
    "resize_": lambda x: x.resize_(2, 2),
    "resize_as_": lambda x: x.resize_as_(torch.empty(2, 5)),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_an_argument_gets_the_shape_that_it_gets_in_eager_pytorch(
    compiled: Callable[..., Any], name: str
) -> None:
    function = reshaped(RESHAPED[name])
    assert_as_eager(compiled(function), function)

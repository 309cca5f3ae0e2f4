"""How tests of the public functions compile: quickly, and with virtual tensors wherever a plan has
any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor
from torch.utils import _pytree as pytree

import vtc
import vtc.compiler
from arguments import fresh

QUICK = {"cost": "static", "verify": False}


def compiled(model: Callable[..., Any], *, dynamic: bool | None = False, **options: Any) -> Any:
    """`model` compiled for the fewest bytes, without measuring anything."""
    return vtc.compile(model, objective="bytes", dynamic=dynamic, options={**QUICK, **options})


def exported(model: Callable[..., Any], *args: Any, freeze: bool = True, **kwargs: Any) -> Any:
    options = {**QUICK, "freeze": freeze}
    return vtc.export(model, args, kwargs, objective="bytes", options=options)


def other_values(args: Sequence[Any]) -> list[Any]:
    """Copies of the arguments with other floating-point values."""
    made = fresh(args)
    for a in {id(a): a for a in made if isinstance(a, Tensor)}.values():
        if a.is_floating_point():
            a.copy_(torch.randn(a.shape))
    return made


def assert_like(got: Any, want: Any, precise: Any) -> None:
    """Equal to eager PyTorch by its distance from float64, leaf by leaf; exact for integers."""
    leaves, spec = pytree.tree_flatten(got)
    expected, expected_spec = pytree.tree_flatten(want)
    assert spec == expected_spec
    for one, two, three in zip(leaves, expected, pytree.tree_leaves(precise), strict=True):
        if not isinstance(two, Tensor):
            assert one == two
            continue
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        if two.is_floating_point():
            assert torch._dynamo.utils.same(one, two, three, tol=1e-5), (one - two).abs().max()
        else:
            assert torch.equal(one, two)


def in_float64(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, list[Any]]:
    """What the function answers to float64 arguments, and the arguments afterwards."""
    made: dict[int, Any] = {
        id(a): a.double() if a.is_floating_point() else a.clone()
        for a in args
        if isinstance(a, Tensor)
    }
    own = [made.get(id(a), a) for a in args]
    return fn(*own), own


@contextmanager
def one_fallback(match: str) -> Iterator[list[Any]]:
    """Exactly one FallbackWarning is given, and it matches; yields the list it will be in."""
    ours: list[Any] = []
    with pytest.warns(vtc.errors.VtcWarning) as given:
        yield ours
    ours[:] = [w for w in given if issubclass(w.category, vtc.errors.VtcWarning)]
    assert [w.category for w in ours] == [vtc.errors.FallbackWarning], list(map(str, ours))
    assert match in str(ours[0].message)


class Compilations:
    """Counts the graphs that are compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compile_graph = vtc.compiler.compile_graph

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return compile_graph(*args, **kwargs)

        monkeypatch.setattr(vtc.compiler, "compile_graph", counting)


quick_and_strict = [
    pytest.mark.filterwarnings("error::vtc.errors.VtcWarning"),
    pytest.mark.usefixtures("clean_dynamo"),
]

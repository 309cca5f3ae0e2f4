"""Is a result what eager PyTorch gives? Values, dtypes, shapes, strides, aliasing, what became of
the inputs, and the state of the random generator.

Where a value is not the same, float64 decides: a result may be as far from it as eager PyTorch's
own is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# How often eager PyTorch's own distance from float64 a result may be from it.
SLACK = 4.0
# (relative, absolute), as `torch.testing.assert_close` has them.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}


class Wrong(Exception):  # noqa: N818 - a verdict, no error
    """What differs from eager PyTorch."""


@dataclass(frozen=True)
class Outcome:
    """Results of a call, its inputs after it, and the generator's state.

    homes: for each result the first tensor whose storage it shares: ("input", k), ("result", k),
    or None; with the offset from there in elements.
    """

    results: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    homes: tuple[Any, ...]
    generator: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [r for r in self.results if isinstance(r, Tensor)]

    @staticmethod
    def of(results: Sequence[Any], inputs: Sequence[Tensor]) -> Outcome:
        known: dict[int, tuple[str, int, Tensor]] = {}
        for k, tensor in enumerate(inputs):
            if has_storage(tensor):
                known.setdefault(tensor.untyped_storage()._cdata, ("input", k, tensor))
        homes = []
        for k, result in enumerate(results):
            if not isinstance(result, Tensor) or not has_storage(result):
                homes.append(None)
                continue
            kind, number, base = known.setdefault(
                result.untyped_storage()._cdata, ("result", k, result)
            )
            own = kind == "result" and number == k
            offset = result.storage_offset() - base.storage_offset()
            homes.append(None if own else (kind, number, offset))
        return Outcome(tuple(results), tuple(inputs), tuple(homes), torch.get_rng_state())


def has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0


def judge(got: Outcome, want: Outcome, precise: Callable[[], Any], *, values: bool = True) -> None:
    """Raises Wrong. `precise` gives the results on float64 inputs, and after them those inputs as
    they are left; `values` False leaves values out of it."""
    if len(got.results) != len(want.results):
        raise Wrong(f"{len(got.results)} results, {len(want.results)} in eager")
    reference = _Reference(precise)
    for k, (one, two) in enumerate(zip(got.results, want.results, strict=True)):
        compare(k, one, two, reference, values)
    if got.homes != want.homes:
        raise Wrong(f"aliases {got.homes}, {want.homes} in eager")
    for k, (one, two) in enumerate(zip(got.inputs, want.inputs, strict=True)):
        try:
            compare(k, one, two, reference.after(len(want.results)), values)
        except Wrong as error:
            raise Wrong(f"input afterwards: {error}") from error
    if not torch.equal(got.generator, want.generator):
        raise Wrong("another state of the random generator")


class _Reference:
    """Values on float64 inputs, computed when first asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute
        self.found: tuple[Any, ...] | None = None

    def after(self, count: int) -> _Reference:
        """What comes after the first `count` of them."""
        return _Reference(lambda: self.all()[count:])

    def of(self, k: int) -> Tensor | None:
        found = self.all()
        value = found[k] if k < len(found) else None
        return value if isinstance(value, Tensor) else None

    def all(self) -> tuple[Any, ...]:
        if self.found is None:
            try:
                with torch.no_grad():
                    torch.manual_seed(1)
                    self.found = tuple(pytree.tree_leaves(self.compute()))
            except Exception:  # not every operator takes float64
                self.found = ()
        return self.found


def compare(k: int, got: Any, want: Any, reference: _Reference, values: bool) -> None:
    """One result. Raises Wrong."""
    if not isinstance(want, Tensor):
        if not isinstance(got, type(want)) or (got != want and got == got):
            raise Wrong(f"result {k} is {got!r}, {want!r} in eager")
        return
    if not isinstance(got, Tensor):
        raise Wrong(f"result {k} is {type(got).__name__}, a tensor in eager")
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(got, what) != getattr(want, what):
            raise Wrong(
                f"result {k} has {what} {getattr(got, what)}, {getattr(want, what)} in eager"
            )
    if want.layout is not torch.strided:
        got, want = got.to_dense(), want.to_dense()
    elif want.numel() > 0 and any(
        s > 1 and a != b for s, a, b in zip(want.shape, got.stride(), want.stride(), strict=True)
    ):
        raise Wrong(f"result {k} has strides {got.stride()}, {want.stride()} in eager")
    if values:
        compare_values(k, plain(got), plain(want), reference)


def plain(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().detach()


def compare_values(k: int, got: Tensor, want: Tensor, reference: _Reference) -> None:
    if got.dtype is torch.complex32:  # in which torch does not compare
        got, want = got.to(torch.complex64), want.to(torch.complex64)
    if got.dtype not in TOLERANCES:
        if not torch.equal(got, want):
            at = (got != want).nonzero()[0].tolist()
            raise Wrong(
                f"result {k} at {at} is {got[tuple(at)].item()}, {want[tuple(at)].item()} in eager"
            )
        return
    relative, absolute = TOLERANCES[got.dtype]
    bad = ~torch.isclose(got, want, relative, absolute, equal_nan=True)
    if not bad.any():
        return
    precise = reference.of(k)
    told = ""
    if precise is not None and precise.shape == want.shape:
        exact = plain(precise).to(wide(want.dtype))
        ours, theirs = gaps(got, exact), gaps(want, exact)
        # Where eager PyTorch itself is infinitely far, that says nothing of other elements.
        judged = theirs.isfinite()
        one, two = (float(torch.where(judged, gap, 0.0).max()) for gap in (ours, theirs))
        bad &= judged
        if one <= SLACK * two or not bad.any():
            return
        told = f", {one:.3g} from float64 where eager is {two:.3g}"
    at = bad.nonzero()[0].tolist()
    raise Wrong(
        f"result {k} at {at} is {got[tuple(at)].item()}, {want[tuple(at)].item()} in eager{told}"
    )


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def gaps(tensor: Tensor, exact: Tensor) -> Tensor:
    """The distance of each element; where both are not finite and the same, none, and where they
    are not, an infinite one."""
    own = tensor.to(exact.dtype)
    gap = (own - exact).abs()
    rounded = exact.to(tensor.dtype).to(exact.dtype)  # overflow of the narrow type is no error
    same = (own == rounded) | (own.isnan() & exact.isnan())
    return torch.where(same, 0.0, gap).nan_to_num(math.inf, math.inf)


def in_float64(values: Sequence[Any]) -> list[Any]:
    """Floating-point tensors as float64, and floating-point dtypes."""

    def widened(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    def wider(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return widened(leaf)
        narrow = isinstance(leaf, torch.dtype) and leaf.is_floating_point
        return torch.float64 if narrow else leaf

    return [wider(leaf) for leaf in values]

"""A piece of an index map: one box of the output index space and what its elements are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vtc.index import affine, sizes, substitution
from vtc.index.affine import Affine, Interval
from vtc.index.expr import from_affine, to_affine
from vtc.index.sizes import Expr, Size


@dataclass(frozen=True)
class Fill:
    """A fixed value, cast to the dtype of the tensor that is made."""

    value: float | int | bool


@dataclass(frozen=True, init=False)
class Piece:
    """Output elements of the half-open box [lower, upper), read from ``source`` at ``index``.

    ``index`` has one expression per source dimension, in ``coords(len(lower))``, which are the
    output coordinates themselves (not shifted by ``lower``); it is () for a Fill and for a source
    of no dimensions. Expressions may be given as sympy, as Affine or as sizes.
    """

    lower: tuple[Size, ...]
    upper: tuple[Size, ...]
    source: int | Fill
    forms: tuple[Affine, ...]

    def __init__(
        self,
        lower: Sequence[Any],
        upper: Sequence[Any],
        source: int | Fill,
        index: Sequence[Any] = (),
    ) -> None:
        if len(lower) != len(upper):
            raise ValueError(f"box corners of {len(lower)} and {len(upper)} dimensions")
        if isinstance(source, Fill) and len(index):
            raise ValueError("a fill has no source index")
        set_field = object.__setattr__
        set_field(self, "lower", tuple(sizes.as_size(x) for x in lower))
        set_field(self, "upper", tuple(sizes.as_size(x) for x in upper))
        set_field(self, "source", source)
        set_field(self, "forms", tuple(to_affine(e) for e in index))

    @cached_property
    def index(self) -> tuple[Expr, ...]:
        """The source index as sympy expressions."""
        return tuple(from_affine(a) for a in self.forms)

    @cached_property
    def _hash(self) -> int:
        return hash((self.lower, self.upper, self.source, self.forms))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def bounds(self) -> tuple[Interval, ...]:
        """The closed interval of each output coordinate in the box."""
        return tuple(
            (low, sizes.sub(high, 1)) for low, high in zip(self.lower, self.upper, strict=True)
        )

    @property
    def extent(self) -> tuple[Size, ...]:
        """The size of the box in each dimension."""
        return tuple(sizes.sub(high, low) for low, high in zip(self.lower, self.upper, strict=True))

    @property
    def empty(self) -> bool:
        """True if the box is known to hold no element."""
        return any(sizes.le(n, 0) for n in self.extent)

    def simplify(self) -> Piece:
        """The same piece with its index simplified under the bounds of its box."""
        if isinstance(self.source, Fill) or self.empty:
            return self
        forms = tuple(substitution.simplify(a, self.bounds) for a in self.forms)
        return self if forms == self.forms else self.with_index(forms)

    def with_index(self, index: Sequence[Affine]) -> Piece:
        """The same box and source with another index."""
        return Piece(self.lower, self.upper, self.source, index)

    def lookups(self) -> frozenset[int]:
        """The numbers of the runtime index tensors the index reads."""
        return frozenset().union(*(affine.lookups(a) for a in self.forms))

    def __str__(self) -> str:
        box = ", ".join(
            f"i{k} in {low}:{high}"
            for k, (low, high) in enumerate(zip(self.lower, self.upper, strict=True))
        )
        if isinstance(self.source, Fill):
            return f"[{box}] = {self.source.value}"
        index = ", ".join(affine.text(a) for a in self.forms)
        return f"[{box}] = source{self.source}[{index}]"

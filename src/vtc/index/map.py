"""Index maps: which source element each output element of a data movement is.

See ``IndexMap``. All operations are pure functions of maps; none looks at tensors except
``materialize``, which defines what a map means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch

from vtc.index import (
    affine,
    boxes,
    compose,
    expr,
    inverse,
    materialize,
    sizes,
    strided,
    substitution,
)
from vtc.index.affine import Affine
from vtc.index.boxes import Box
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import Size
from vtc.index.strided import Class, Contiguity, Strided, Strides


@dataclass(frozen=True, init=False)
class IndexMap:
    """A tensor of ``shape`` described element by element: output index -> source element or fill.

    ``pieces`` are disjoint boxes of the output index space. They normally cover the shape; a map
    whose boxes do not is *partial*, and describes the elements in its domain only. Sizes are ints
    or sympy expressions of positive integer symbols. Source and lookup numbers are the caller's.
    """

    shape: tuple[Size, ...]
    pieces: tuple[Piece, ...]

    def __init__(self, shape: Sequence[Any], pieces: Sequence[Piece]) -> None:
        object.__setattr__(self, "shape", tuple(sizes.as_size(s) for s in shape))
        object.__setattr__(self, "pieces", tuple(pieces))
        for piece in self.pieces:
            if len(piece.lower) != len(self.shape):
                raise ValueError(f"{piece} does not fit the shape {self.shape}")

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.pieces))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def single(shape: Sequence[Any], index: Sequence[Any], source: int = 0) -> IndexMap:
        """Every element of ``shape`` read from one source at ``index`` (in ``coords``)."""
        return IndexMap(shape, (Piece((0,) * len(shape), shape, source, index),))

    @staticmethod
    def identity(shape: Sequence[Any], source: int = 0) -> IndexMap:
        """The source itself."""
        return IndexMap.single(shape, expr.axes(len(shape)), source)

    @staticmethod
    def fill(shape: Sequence[Any], value: float | int | bool) -> IndexMap:
        """One fixed value everywhere."""
        return IndexMap(shape, (Piece((0,) * len(shape), shape, Fill(value)),))

    @staticmethod
    def permute(source_shape: Sequence[Any], dims: Sequence[int], source: int = 0) -> IndexMap:
        """``source.permute(dims)``; negative dims count from the end."""
        rank = len(source_shape)
        order = [d % rank for d in dims]
        index = [affine.coordinate(order.index(d)) for d in range(rank)]
        return IndexMap.single([source_shape[d] for d in order], index, source)

    @staticmethod
    def reshape(source_shape: Sequence[Any], shape: Sequence[Any], source: int = 0) -> IndexMap:
        """``source.reshape(shape)``; the element counts must agree."""
        # Dimensions that stay at the front and at the back are themselves, whatever their sizes.
        source_shape, shape = list(source_shape), list(shape)
        front = _alike(source_shape, shape)
        behind = _alike(source_shape[front:][::-1], shape[front:][::-1])
        axes, last = expr.axes(len(shape)), len(shape) - behind
        middle = expr.unravel(
            expr.ravel(axes[front:last], shape[front:last]),
            source_shape[front : len(source_shape) - behind],
        )
        index = [*axes[:front], *middle, *axes[last:]]
        return IndexMap.single(shape, index, source).simplify()

    @staticmethod
    def strided_view(
        source_shape: Sequence[Any],
        shape: Sequence[Any],
        stride: Sequence[Any],
        offset: Any = 0,
        source: int = 0,
    ) -> IndexMap:
        """``source.contiguous().as_strided(shape, stride, offset)``, inside the source."""
        position = affine.constant(offset)
        for k, step in enumerate(stride):
            position = affine.add(position, affine.scale(affine.coordinate(k), sizes.as_size(step)))
        index = expr.unravel(position, source_shape)
        return IndexMap.single(shape, index, source).simplify()

    def covers(self) -> bool:
        """True if the pieces are known to cover the whole shape."""
        total = sizes.product(self.shape)
        held: Size = 0
        for piece in self.pieces:
            if not piece.empty:
                held = sizes.add(held, boxes.volume((piece.lower, piece.upper)))
        return bool(held == total)

    def domain(self) -> tuple[Box, ...]:
        """The boxes (lower, upper) of the elements that the map describes, adjacent ones merged."""
        plain = [Piece(p.lower, p.upper, Fill(0)) for p in self.pieces]
        return tuple((p.lower, p.upper) for p in compose.merge(plain))

    def sources(self) -> frozenset[int]:
        """The numbers of the sources that are read."""
        return frozenset(p.source for p in self.pieces if not isinstance(p.source, Fill))

    def lookups(self) -> frozenset[int]:
        """The numbers of the runtime index tensors that are read."""
        return self._lookups

    @cached_property
    def _lookups(self) -> frozenset[int]:
        return frozenset(n for piece in self.pieces for n in piece.lookups())

    def compose(self, inner: Mapping[int, IndexMap]) -> IndexMap:
        """Read each source k of this map through ``inner[k]``.

        Sources of the result are those of the inner maps; a source without an inner map stays.
        Lookup numbers of both are taken to mean the same tensors (see ``renumber``). A runtime
        index that feeds an inner map has its wrap made explicit, as ``lookup % size``. Raises
        NotRepresentable where the result is not a reasonable number of boxes.
        """
        pieces: list[Piece] = []
        for piece in self.pieces:
            through = None if isinstance(piece.source, Fill) else inner.get(piece.source)
            if through is None:
                pieces.append(piece)
            else:
                pieces.extend(compose.through(piece, through.shape, through.pieces))
        return IndexMap(self.shape, compose.merge(pieces))

    def restrict(self, lower: Sequence[Any], upper: Sequence[Any]) -> IndexMap:
        """The box [lower, upper) of the output as a tensor of its own, coordinates from 0."""
        box = (
            tuple(sizes.as_size(x) for x in lower),
            tuple(sizes.as_size(x) for x in upper),
        )
        parts = (compose.restrict(p, box) for p in self.pieces)
        shape = [sizes.sub(b, a) for a, b in zip(*box, strict=True)]
        return IndexMap(shape, [p for p in parts if p is not None])

    def simplify(self) -> IndexMap:
        """The same map in normal form: simplified indexes, no empty pieces, neighbours merged."""
        return self._simplified

    @cached_property
    def _simplified(self) -> IndexMap:
        pieces = compose.merge(self.pieces)
        return self if pieces == self.pieces else IndexMap(self.shape, pieces)

    def renumber(
        self, sources: Mapping[int, int] | None = None, lookups: Mapping[int, int] | None = None
    ) -> IndexMap:
        """The map with other source and lookup numbers; numbers not mentioned stay."""
        sources, lookups = sources or {}, lookups or {}

        def moved(piece: Piece) -> Piece:
            source = piece.source
            if not isinstance(source, Fill):
                source = sources.get(source, source)
            index = piece.forms
            if piece.lookups():
                index = tuple(
                    substitution.rewrite(a, lambda s: s, lambda n: lookups.get(n, n)) for a in index
                )
            return Piece(piece.lower, piece.upper, source, index)

        return IndexMap(self.shape, [moved(p) for p in self.pieces])

    def substitute(self, mapping: Mapping[Any, Any]) -> IndexMap:
        """The map with size symbols replaced by sizes, simplified."""
        values = {symbol: sympy.sympify(sizes.as_size(size)) for symbol, size in mapping.items()}

        def size(s: Size) -> Size:
            return s if isinstance(s, int) else sizes.as_size(s.xreplace(values))

        def index(a: Affine) -> Affine:
            return substitution.rewrite(a, size, lambda n: n)

        pieces = [
            Piece(
                [size(x) for x in p.lower],
                [size(x) for x in p.upper],
                p.source,
                [index(a) for a in p.forms],
            )
            for p in self.pieces
        ]
        return IndexMap([size(s) for s in self.shape], pieces).simplify()

    def inverse(self, source: int, source_shape: Sequence[Any]) -> IndexMap | None:
        """Source index -> output index: where each element of a source goes.

        A map of ``source_shape`` whose source number 0 is this map's output; partial if some
        source elements are not read. None where an element is read twice, or where the answer is
        not a reasonable number of boxes (a slice with a step of a long dimension, a lookup).
        """
        shape = tuple(sizes.as_size(s) for s in source_shape)
        pieces = inverse.inverse_pieces(self.simplify().pieces, source, shape)
        return None if pieces is None else IndexMap(shape, pieces)

    def strided(self, source_strides: Sequence[Any], source: int = 0) -> Strided | None:
        """The map as a view of one source: what ``torch.as_strided`` makes it, or None.

        ``source_strides`` are the source's strides in elements; the offset of the result is
        relative to the source's first element. None for partial maps, fills, several sources,
        runtime lookups, and steps backwards (torch has no negative strides).
        """
        strides = tuple(sizes.as_size(s) for s in source_strides)
        return strided.strided(self.shape, self.simplify().pieces, strides, source)

    def contiguity(self, source_strides: Strides) -> Contiguity:
        """How long the contiguous runs of addresses are, walking the output in row-major order.

        ``source_strides`` are the strides, in elements, of the only source, or a mapping from
        source number to strides. See ``Contiguity`` for the exact meaning.
        """
        return strided.contiguity(self.shape, self.simplify().pieces, source_strides)

    def classify(self, source_strides: Strides, itemsize: int = 4, transaction: int = 32) -> Class:
        """The profitability class of the VTC paper, section 4.3.

        "I": addresses are those of the contiguous output plus a constant. "partial": runs hold at
        least ``transaction`` bytes, elements being of ``itemsize`` bytes. "II": anything else.
        """
        pieces = self.simplify().pieces
        return strided.classify(self.shape, pieces, source_strides, itemsize, transaction)

    def materialize(
        self, sources: Sequence[torch.Tensor], lookups: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """The described tensor, of the dtype and device of the first source that is read.

        ``sources[k]`` is source k, ``lookups[n]`` runtime index tensor n (int64 or int32). A
        negative runtime index counts from the end of its dimension; one out of range raises
        IndexError. Elements outside the domain of a partial map are 0. Raises ValueError for
        symbolic sizes.
        """
        return materialize.materialize(self, sources, lookups)

    def __str__(self) -> str:
        shape = ", ".join(str(s) for s in self.shape)
        return "\n".join([f"({shape})", *(f"  {p}" for p in self.pieces)])


__all__ = ["Fill", "IndexMap", "Piece"]


def _alike(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many sizes agree from the first on."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if sizes.sub(sizes.as_size(one), sizes.as_size(other)) != 0:
            break
        count += 1
    return count

"""Movement that PyTorch does by strides alone: diagonals, sliding windows, `as_strided`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtc.graph.rules import (
    Entry,
    Index,
    Movement,
    Operand,
    axis_of,
    box,
    coordinates,
    copying,
    mapped,
    same,
    whole,
)
from vtc.index import IndexMap, NotRepresentable, Size, sizes

aten = torch.ops.aten


# Diagonal: loads only. Its elements are no box of the source, so that a store map has no domain.
def diagonal(
    shape: Sequence[Size], target: Sequence[Size], offset: int, first: int, second: int
) -> Movement:
    """`diagonal`; `target` is the output's shape, with the diagonal as last dimension."""
    load = whole(target, diagonal_index(len(shape), offset, first, second))
    return Movement("Diagonal", tuple(target), 1, load, (None,), view=True)


def diagonal_index(rank: int, offset: int, first: int, second: int) -> list[Index]:
    """The index in `x` of an element of its diagonal."""
    a, b = axis_of(first, rank), axis_of(second, rank)
    *rest, along = coordinates(rank - 1)
    others = iter(rest)
    places = {a: along + max(-offset, 0), b: along + max(offset, 0)}
    return [places[d] if d in places else next(others) for d in range(rank)]


def _diagonal(result: Operand, x: Operand, offset: int, dim1: int, dim2: int) -> Movement:
    return diagonal(x.shape, result.shape, offset, dim1, dim2)


# Unfold: windows that overlap give elements several homes, and gaps between windows leave no box.
# Windows side by side are a reshape of the part that they cover.
def unfold(shape: Sequence[Size], axis: int, size: int, step: int) -> Movement:
    """`Tensor.unfold`: windows of `size` every `step` indices, elements in a last dimension."""
    d = axis_of(axis, len(shape))
    at = coordinates(len(shape) + 1)
    if not shape:
        # A scalar counts as one element.
        return Movement("Unfold", (size,), 1, whole((size,), ()), (None,), view=True)
    windows = sizes.add(sizes.floor_div(sizes.sub(shape[d], size), step), 1)
    target = (*shape[:d], windows, *shape[d + 1 :], size)
    load = whole(target, [*at[:d], at[d] * step + at[-1], *at[d + 1 : -1]])
    back = None
    if step == size or windows == 1:
        own = coordinates(len(shape))
        lower, upper = [0] * len(shape), list(shape)
        upper[d] = windows * size
        within = (own[d], own[d] - own[d]) if windows == 1 else (own[d] % size, own[d] // size)
        home = [*own[:d], within[1], *own[d + 1 :], within[0]]
        back = mapped(shape, [box(lower, upper, home)])
    return Movement("Unfold", target, 1, load, (back,), view=True)


def _unfold(result: Operand, x: Operand, dimension: int, size: int, step: int) -> Movement | None:
    return None if x.rank and size == 0 else unfold(x.shape, dimension, size, step)


# As_strided: reads the storage. It is a map where the source holds all of the storage that is read,
# row-major in some order of its dimensions. B where the map can be inverted.
def as_strided(
    source: Operand, shape: Sequence[Size], stride: Sequence[Size], offset: Size
) -> Movement | None:
    """Views the storage of `source` from element `offset` on; None where that cannot be told."""
    start = sizes.sub(offset, source.offset)
    order = _storage_order(source)
    reach = _reach(shape, stride)
    if order is None or reach is None or not isinstance(start, int):
        return None
    total = sizes.product(source.shape)
    inside = isinstance(total, int) and start >= 0 and start + reach <= total
    if not inside and 0 not in shape:
        return None
    stored = IndexMap.strided_view([source.shape[d] for d in order], shape, stride, start)
    # From the storage's order of dimensions to the source's.
    place = IndexMap.permute(source.shape, order)
    try:
        load = stored.compose({0: place})
        back = load.inverse(0, source.shape)
    except NotRepresentable:
        return None
    return Movement("AsStrided", tuple(shape), 1, load, (back,), view=True)


def _storage_order(x: Operand) -> list[int] | None:
    """The dimensions from largest to smallest stride, if they then fill the storage row-major."""
    if not all(isinstance(s, int) for s in (*x.shape, *x.strides)):
        kept = same(1, 1) and all(map(same, x.strides, Operand(x.shape).strides))
        return list(range(x.rank)) if kept else None
    order = sorted(range(x.rank), key=lambda d: (x.strides[d], x.shape[d]), reverse=True)
    expected = Operand(tuple(x.shape[d] for d in order)).strides
    filled = all(x.shape[d] == 1 or x.strides[d] == e for d, e in zip(order, expected, strict=True))
    return order if filled or 0 in x.shape else None


def _reach(shape: Sequence[Size], stride: Sequence[Size]) -> int | None:
    """One more than the largest offset, in elements; None if symbolic."""
    if not all(isinstance(s, int) for s in (*shape, *stride)):
        return None
    return 1 + sum(max(s - 1, 0) * t for s, t in zip(shape, stride, strict=True))


def _as_strided(
    result: Operand,
    x: Operand,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None,
) -> Movement | None:
    offset = x.offset if storage_offset is None else storage_offset
    return as_strided(x, size, stride, offset)


ENTRIES = (
    Entry(
        "Diagonal",
        (),
        "A",
        "a diagonal of two dimensions",
        diagonal,
        {aten.diagonal.default: _diagonal, aten.diagonal_copy.default: copying(_diagonal)},
    ),
    Entry(
        "Unfold",
        (),
        "AB",
        "sliding windows of one dimension (B where they lie side by side)",
        unfold,
        {aten.unfold.default: _unfold, aten.unfold_copy.default: copying(_unfold)},
    ),
    Entry(
        "AsStrided",
        (),
        "AB",
        "a dense source's storage read by other strides (B where one-to-one)",
        as_strided,
        {aten.as_strided.default: _as_strided, aten.as_strided_copy.default: copying(_as_strided)},
    ),
)

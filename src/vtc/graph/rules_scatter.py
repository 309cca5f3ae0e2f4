"""Movement into a part of a tensor whose other elements pass through: scatters.

The first source is the tensor that is updated (`inplace`): the output may live in its storage as a
newer version. The second is stored through a map, direction B. Its elements have one home each as
long as runtime indices do not repeat; when they do, PyTorch leaves either value.
"""

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
    lookup,
    mapped,
    overlapping,
    same_shape,
    whole,
)
from vtc.graph.rules_gather import indexed, indexed_shape, integer_indices
from vtc.graph.rules_slice import range_start, wrapped_index
from vtc.graph.rules_strided import diagonal_index
from vtc.index import IndexMap, Piece, Size

aten = torch.ops.aten


def _scattered(
    name: str,
    shape: Sequence[Size],
    store: IndexMap,
    lookups: tuple[int, ...] = (),
    load: IndexMap | None = None,
) -> Movement:
    return Movement(name, tuple(shape), 2, load, (None, store), inplace=0, lookups=lookups)


# ScatterElements: the inverse of GatherElements. Only the part of the updates that the index tensor
# covers is written (ATen allows larger ones).
def scatter_elements(
    shape: Sequence[Size], indices: Sequence[Size], updates: Sequence[Size], axis: int = 0
) -> Movement:
    """ONNX ScatterElements without reduction and `scatter`: data, indices, updates."""
    at: list[Index] = list(coordinates(len(indices)))
    d = axis_of(axis, len(shape))
    at[d] = lookup(0, at)
    store = mapped(updates, [box([0] * len(indices), indices, at)])
    return _scattered("ScatterElements", shape, store, (1,))


def _scatter(
    result: Operand, x: Operand, dim: int, index: Operand, source: Operand
) -> Movement | None:
    if not x.rank == index.rank == source.rank or not x.rank:
        return None
    return scatter_elements(x.shape, index.shape, source.shape, dim)


# ScatterND: the inverse of GatherND.
def scatter_nd(shape: Sequence[Size], indices: Sequence[Size]) -> Movement:
    """ONNX ScatterND without reduction: data, indices, updates."""
    length = indices[-1]
    if not isinstance(length, int):
        raise TypeError(f"ScatterND with index tuples of symbolic length {length}")
    updates = (*indices[:-1], *shape[length:])
    at = coordinates(len(updates))
    outer = at[: len(indices) - 1]
    home = [*(lookup(0, (*outer, k)) for k in range(length)), *at[len(outer) :]]
    return _scattered("ScatterND", shape, whole(updates, home), (1,))


# IndexCopy: the inverse of Gather along one dimension with an index of rank 1.
def index_copy(shape: Sequence[Size], updates: Sequence[Size], axis: int) -> Movement:
    """`index_copy`: data, indices of shape (n,), updates."""
    at: list[Index] = list(coordinates(len(updates)))
    d = axis_of(axis, len(shape))
    at[d] = lookup(0, (at[d],))
    return _scattered("IndexCopy", shape, whole(updates, at), (1,))


def _index_copy(
    result: Operand, x: Operand, dim: int, index: Operand, source: Operand
) -> Movement | None:
    if index.rank != 1 or source.rank != x.rank or not x.rank:
        return None
    return index_copy(x.shape, source.shape, dim)


# IndexPut: the inverse of Index. Values that broadcast have several homes: not movement.
def index_put(
    shape: Sequence[Size], indices: Sequence[Sequence[Size] | None], updates: Sequence[Size]
) -> Movement | None:
    """`x[indices] = updates`: data, the indices that are not None, updates."""
    target, _, _ = indexed_shape(shape, indices)
    missing = len(target) - len(updates)
    if missing < 0 or not same_shape((*(1,) * missing, *updates), target):
        return None
    at: list[Index] = [0] * missing + list(coordinates(len(updates)))
    count = sum(i is not None for i in indices)
    store = whole(updates, indexed(shape, indices, at))
    return _scattered("IndexPut", shape, store, tuple(range(1, count + 1)))


def _index_put(
    result: Operand,
    x: Operand,
    indices: Sequence[Operand | None],
    values: Operand,
    accumulate: bool,
) -> Movement | None:
    shapes = integer_indices(indices)
    if accumulate or shapes is None:
        return None
    return index_put(x.shape, shapes, values.shape)


# The next three keep the strides of the data in PyTorch, so that a write into data that overlaps
# itself (windows of `unfold`) shows in several elements: not movement.


# SliceScatter: the part is a box, so that loads hold too: the box from the updates, the rest from
# the data. A step of several leaves no boxes, and then there is the store only.
def slice_scatter(
    shape: Sequence[Size], axis: int, start: Size, length: Size, step: int = 1
) -> Movement:
    """`x[..., start : start + length * step : step, ...] = updates` in dimension `axis`."""
    d = axis_of(axis, len(shape))
    updates = (*shape[:d], length, *shape[d + 1 :])
    at = list(coordinates(len(shape)))
    home = [*at[:d], at[d] * step + start, *at[d + 1 :]]
    load = None
    if step == 1 or length == 1:
        inside = box(
            *_slab(shape, d, start, start + length), [*at[:d], at[d] - start, *at[d + 1 :]]
        )
        load = mapped(shape, _around(shape, d, start, start + length, inside))
    return _scattered("SliceScatter", shape, whole(updates, home), load=load)


def _slab(shape: Sequence[Size], d: int, first: Size, last: Size) -> tuple[list[Size], list[Size]]:
    """The box of `shape` where coordinate d is in [first, last)."""
    lower: list[Size] = [0] * len(shape)
    upper = list(shape)
    lower[d], upper[d] = first, last
    return lower, upper


def _around(
    shape: Sequence[Size], d: int, first: Size, last: Size, inside: Piece
) -> tuple[Piece, ...]:
    """`inside` from source 1, and what is before and after it in dimension d from source 0."""
    at = coordinates(len(shape))
    before, after = _slab(shape, d, 0, first), _slab(shape, d, last, shape[d])
    middle = Piece(inside.lower, inside.upper, 1, inside.forms)
    return box(*before, at), middle, box(*after, at)


def _slice_scatter(
    result: Operand,
    x: Operand,
    source: Operand,
    dim: int,
    start: Size | None,
    end: Size | None,
    step: Size,
) -> Movement | None:
    d = axis_of(dim, x.rank)
    begin = range_start(x.shape[d], start, end, source.shape[d], step)
    if begin is None or not isinstance(step, int) or overlapping(x):
        return None
    return slice_scatter(x.shape, d, begin, source.shape[d], step)


# SelectScatter: as SliceScatter with a length of 1.
def select_scatter(shape: Sequence[Size], axis: int, position: Size) -> Movement:
    """`x[..., position, ...] = updates` in dimension `axis`; `position` counts from 0."""
    d = axis_of(axis, len(shape))
    updates = (*shape[:d], *shape[d + 1 :])
    own = coordinates(len(updates))
    store = whole(updates, [*own[:d], position, *own[d:]])
    at = coordinates(len(shape))
    inside = box(*_slab(shape, d, position, position + 1), [*at[:d], *at[d + 1 :]])
    load = mapped(shape, _around(shape, d, position, position + 1, inside))
    return _scattered("SelectScatter", shape, store, load=load)


def _select_scatter(
    result: Operand, x: Operand, source: Operand, dim: int, index: Size
) -> Movement | None:
    d = axis_of(dim, x.rank)
    position = wrapped_index(index, x.shape[d])
    if position is None or overlapping(x):
        return None
    return select_scatter(x.shape, d, position)


# DiagonalScatter: a diagonal is no box, so there is the store only.
def diagonal_scatter(
    shape: Sequence[Size], updates: Sequence[Size], offset: int, first: int, second: int
) -> Movement:
    """`x.diagonal(offset, first, second)[...] = updates`."""
    home = diagonal_index(len(shape), offset, first, second)
    return _scattered("DiagonalScatter", shape, whole(updates, home))


def _diagonal_scatter(
    result: Operand, x: Operand, source: Operand, offset: int, dim1: int, dim2: int
) -> Movement | None:
    if overlapping(x):
        return None
    return diagonal_scatter(x.shape, source.shape, offset, dim1, dim2)


ENTRIES = (
    Entry(
        "ScatterElements",
        ("ScatterElements",),
        "B",
        "elements written where one coordinate is a runtime index",
        scatter_elements,
        {aten.scatter.src: _scatter},
    ),
    Entry(
        "ScatterND",
        ("ScatterND",),
        "B",
        "blocks written at runtime index tuples",
        scatter_nd,
    ),
    Entry(
        "IndexCopy",
        (),
        "B",
        "indices of one dimension written at runtime positions",
        index_copy,
        {aten.index_copy.default: _index_copy},
    ),
    Entry(
        "IndexPut",
        (),
        "B",
        "blocks written at runtime indices that broadcast; no accumulation, no masks",
        index_put,
        {aten.index_put.default: _index_put, aten._unsafe_index_put.default: _index_put},
    ),
    Entry(
        "SliceScatter",
        (),
        "AB",
        "a range of a dimension written (A for step 1)",
        slice_scatter,
        {aten.slice_scatter.default: _slice_scatter},
    ),
    Entry(
        "SelectScatter",
        (),
        "AB",
        "one index of a dimension written",
        select_scatter,
        {aten.select_scatter.default: _select_scatter},
    ),
    Entry(
        "DiagonalScatter",
        (),
        "B",
        "a diagonal written",
        diagonal_scatter,
        {aten.diagonal_scatter.default: _diagonal_scatter},
    ),
)

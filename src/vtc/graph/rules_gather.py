"""Movement whose source index comes from a runtime index tensor: gathers.

All of them load only. Which source element goes where is known at run time only, and one element
may be read many times. A negative runtime index counts from the end, as `Lookup` says; operators
that refuse negative indices in PyTorch are never given any.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtc.graph.rules import (
    Entry,
    Index,
    Movement,
    Operand,
    Shape,
    axis_of,
    broadcast_index,
    coordinates,
    lookup,
    whole,
)
from vtc.index import Size

aten = torch.ops.aten


# Gather: one dimension indexed by a tensor of any rank, whose dimensions take its place.
def gather(shape: Sequence[Size], indices: Sequence[Size], axis: int = 0) -> Movement:
    """ONNX Gather, `index_select` and `embedding`; operands are the source and the indices."""
    d = axis_of(axis, len(shape))
    target = (*shape[:d], *indices, *shape[d + 1 :])
    at = coordinates(len(target))
    middle = d + len(indices)
    found = lookup(0, at[d:middle])
    load = whole(target, [*at[:d], found, *at[middle:]])
    return Movement("Gather", target, 1, load, (None,), lookups=(1,))


def _index_select(result: Operand, x: Operand, dim: int, index: Operand) -> Movement:
    if x.rank == 0:
        # A scalar counts as one element, and the index selects it.
        return Movement("Gather", (), 1, whole((), ()), (None,), lookups=(1,))
    indices = index.shape or (1,)
    moved = gather(x.shape, indices, dim)
    return moved if index.rank else _scalar_index(moved, x, dim)


def _scalar_index(moved: Movement, x: Operand, dim: int) -> Movement:
    """As `moved`, reading an index tensor without dimensions where that has one."""
    at: list[Index] = list(coordinates(x.rank))
    at[axis_of(dim, x.rank)] = lookup(0, ())
    return Movement("Gather", moved.shape, 1, whole(moved.shape, at), (None,), lookups=(1,))


def _embedding(result: Operand, weight: Operand, indices: Operand, *_: object) -> Movement:
    return gather(weight.shape, indices.shape, 0)


# GatherElements: the index tensor has the shape of the output and replaces one coordinate.
def gather_elements(shape: Sequence[Size], indices: Sequence[Size], axis: int = 0) -> Movement:
    """ONNX GatherElements and `gather`."""
    at: list[Index] = list(coordinates(len(indices)))
    d = axis_of(axis, len(shape))
    at[d] = lookup(0, at)
    return Movement("GatherElements", tuple(indices), 1, whole(indices, at), (None,), lookups=(1,))


def _gather(
    result: Operand, x: Operand, dim: int, index: Operand, *, sparse_grad: bool
) -> Movement:
    if x.rank and index.rank:
        return gather_elements(x.shape, index.shape, dim)
    # A scalar source or index counts as one of shape (1,).
    at = coordinates(index.rank)
    load = whole(index.shape, [lookup(0, at)] * x.rank)
    return Movement("GatherElements", index.shape, 1, load, (None,), lookups=(1,))


def _take_along_dim(
    result: Operand, x: Operand, indices: Operand, dim: int | None
) -> Movement | None:
    if dim is None:
        # Without a dimension the flat order is indexed: exact where it is one dimension already.
        return gather_elements(x.shape, indices.shape, 0) if x.rank == indices.rank == 1 else None
    if x.rank != indices.rank:
        return None
    d = axis_of(dim, x.rank)
    at: list[Index] = list(coordinates(x.rank))
    place = broadcast_index((*indices.shape[:d], result.shape[d], *indices.shape[d + 1 :]), at)
    here = list(broadcast_index((*x.shape[:d], result.shape[d], *x.shape[d + 1 :]), at))
    here[d] = lookup(0, place)
    load = whole(result.shape, here)
    return Movement("GatherElements", result.shape, 1, load, (None,), lookups=(1,))


# GatherND: the last dimension of one index tensor holds index tuples.
def gather_nd(shape: Sequence[Size], indices: Sequence[Size], batch_dims: int = 0) -> Movement:
    """ONNX GatherND. The length of the index tuples, `indices[-1]`, is an int."""
    length = indices[-1]
    if not isinstance(length, int):
        raise TypeError(f"GatherND with index tuples of symbolic length {length}")
    target = (*indices[:-1], *shape[batch_dims + length :])
    at = coordinates(len(target))
    outer = at[: len(indices) - 1]
    found = [lookup(0, (*outer, k)) for k in range(length)]
    load = whole(target, [*at[:batch_dims], *found, *at[len(outer) :]])
    return Movement("GatherND", target, 1, load, (None,), lookups=(1,))


# Index: several dimensions, each indexed by a tensor of its own.
def indexed_shape(
    shape: Sequence[Size], indices: Sequence[Sequence[Size] | None]
) -> tuple[Shape, int, int]:
    """The shape of `x[indices]`, and where in it the dimensions of the indices start and end.

    None keeps a dimension. The indices broadcast; theirs take the place of the indexed dimensions
    where those are adjacent, and come first otherwise.
    """
    used = [d for d, index in enumerate(indices) if index is not None]
    rank = max(len(indices[d] or ()) for d in used)
    common: list[Size] = [1] * rank
    for d in used:
        own = indices[d] or ()
        for e, size in enumerate(own, rank - len(own)):
            common[e] = size if common[e] == 1 else common[e]
    adjacent = used == list(range(used[0], used[-1] + 1))
    start = used[0] if adjacent else 0
    kept = [s for d, s in enumerate(shape) if d not in used]
    return (*kept[:start], *common, *kept[start:]), start, start + rank


def indexed(
    shape: Sequence[Size], indices: Sequence[Sequence[Size] | None], at: Sequence[Index]
) -> list[Index]:
    """The index in `x` of element `at` of `x[indices]`; lookups number the indices not None."""
    _, start, end = indexed_shape(shape, indices)
    kept = iter((*at[:start], *at[end:]))
    common = at[start:end]
    found: list[Index] = []
    number = 0
    for d in range(len(shape)):
        index = indices[d] if d < len(indices) else None
        if index is None:
            found.append(next(kept))
        else:
            found.append(lookup(number, broadcast_index(index, common)))
            number += 1
    return found


def index(shape: Sequence[Size], indices: Sequence[Sequence[Size] | None]) -> Movement:
    """`x[indices]` with integer tensors of these shapes, None for a dimension that is kept."""
    target, _, _ = indexed_shape(shape, indices)
    load = whole(target, indexed(shape, indices, coordinates(len(target))))
    count = sum(i is not None for i in indices)
    return Movement("Index", target, 1, load, (None,), lookups=tuple(range(1, count + 1)))


def integer_indices(indices: Sequence[Operand | None]) -> list[Shape | None] | None:
    """The shapes of index operands; None where one is a mask, which is not movement."""
    given = [i for i in indices if i is not None]
    if not given or any(i.dtype in (torch.bool, torch.uint8) for i in given):
        return None
    return [None if i is None else i.shape for i in indices]


def _index(result: Operand, x: Operand, indices: Sequence[Operand | None]) -> Movement | None:
    shapes = integer_indices(indices)
    return None if shapes is None else index(x.shape, shapes)


ENTRIES = (
    Entry(
        "Gather",
        ("Gather",),
        "A",
        "one dimension indexed by a runtime tensor",
        gather,
        {aten.index_select.default: _index_select, aten.embedding.default: _embedding},
    ),
    Entry(
        "GatherElements",
        ("GatherElements",),
        "A",
        "one coordinate of each element replaced by a runtime index",
        gather_elements,
        {aten.gather.default: _gather, aten.take_along_dim.default: _take_along_dim},
    ),
    Entry(
        "GatherND",
        ("GatherND",),
        "A",
        "leading dimensions indexed by runtime tuples",
        gather_nd,
    ),
    Entry(
        "Index",
        (),
        "A",
        "dimensions indexed by runtime tensors that broadcast; masks are not movement",
        index,
        {aten.index.Tensor: _index, aten._unsafe_index.Tensor: _index},
    ),
)

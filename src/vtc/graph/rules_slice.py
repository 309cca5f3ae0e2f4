"""Movement that selects a box of its source: slices, parts of a split, and mirrored dimensions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from vtc.graph.rules import (
    Entry,
    Movement,
    Operand,
    axis_of,
    box,
    coordinates,
    copying,
    mapped,
    max_zero,
    whole,
)
from vtc.index import IndexMap, Size
from vtc.index.sizes import add, le, nonnegative, sub

aten = torch.ops.aten


# A box of the source. Loads hold for any step. A store map's domain is the box of the source that
# is kept, which exists for steps 1 and -1 only (a larger step keeps no box).
def boxed(
    name: str,
    shape: Sequence[Size],
    starts: Sequence[Size],
    steps: Sequence[int],
    sizes: Sequence[Size],
    view: bool = True,
) -> Movement:
    """Output index i reads the source at `starts + steps * i`; the output has shape `sizes`."""
    at = coordinates(len(shape))
    load = whole(sizes, [a + k * c for a, k, c in zip(starts, steps, at, strict=True)])
    return Movement(
        name, tuple(sizes), 1, load, (_unboxed(shape, starts, steps, sizes),), view=view
    )


def _unboxed(
    shape: Sequence[Size], starts: Sequence[Size], steps: Sequence[int], sizes: Sequence[Size]
) -> IndexMap | None:
    lower, upper, index = [], [], []
    for c, start, step, size in zip(coordinates(len(shape)), starts, steps, sizes, strict=True):
        forward = step == 1 or size == 1 or size == 0
        if not (forward or step == -1):
            return None
        lower.append(start if forward else start - size + 1)
        upper.append(start + size if forward else start + 1)
        index.append(c - start if forward else start - c)
    return mapped(shape, [box(lower, upper, index)])


# Slice: one box, see above.
def slice_(
    shape: Sequence[Size],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Movement:
    """ONNX Slice (sizes of the sliced dimensions are ints), which clamps as Python does."""
    axes = range(len(starts)) if axes is None else axes
    begin: list[Size] = [0] * len(shape)
    stride, sizes = [1] * len(shape), list(shape)
    for number, axis in enumerate(axes):
        d = axis_of(axis, len(shape))
        step = 1 if steps is None else steps[number]
        size = sizes[d]
        if not isinstance(size, int):
            raise TypeError(f"Slice of a symbolic dimension {size}")
        end = ends[number] if step > 0 or ends[number] >= -size else None
        taken = range(*slice(starts[number], end, step).indices(size))
        begin[d], stride[d], sizes[d] = taken.start, step, len(taken)
    # PyTorch has no negative steps, so that such a Slice is a copy.
    return boxed("Slice", shape, begin, stride, sizes, view=all(s > 0 for s in stride))


def sliced_start(size: Size, start: Size | None, length: Size) -> Size | None:
    """Where a PyTorch slice that starts at `start` and keeps `length` elements starts; None where
    that depends on the symbols. A start past the end is clamped, but then nothing is kept."""
    if start is None or length == 0:
        return 0
    if nonnegative(start):
        return start
    if not le(start, -1):
        return None
    # A negative start counts from the end; before the first element it is clamped to 0.
    wrapped = add(start, size)
    return max_zero(wrapped)


def _slice(
    result: Operand, x: Operand, dim: int, start: Size | None, end: Size | None, step: Size
) -> Movement | None:
    d = axis_of(dim, x.rank)
    begin = range_start(x.shape[d], start, end, result.shape[d], step)
    if begin is None or not isinstance(step, int):
        return None
    return _along(x, d, begin, result.shape[d], step)


def range_start(
    size: Size, start: Size | None, end: Size | None, length: Size, step: Size
) -> Size | None:
    """As `sliced_start`, where the end may tell what the sign of a symbolic start does not."""
    begin = sliced_start(size, start, length)
    to_the_end = end is None or end == sys.maxsize
    return sub(size, length) if begin is None and to_the_end and step == 1 else begin


def _along(x: Operand, d: int, start: Size, length: Size, step: int = 1) -> Movement:
    starts: list[Size] = [0] * x.rank
    starts[d] = start
    steps, sizes = [1] * x.rank, list(x.shape)
    steps[d], sizes[d] = step, length
    return boxed("Slice", x.shape, starts, steps, sizes)


def _narrow(result: Operand, x: Operand, dim: int, start: Size, length: Size) -> Movement | None:
    return _slice(result, x, dim, start, None, 1)


def wrapped_index(index: Size, size: Size) -> Size | None:
    """A possibly negative position as one from 0 on; None where that depends on the symbols."""
    if nonnegative(index):
        return index
    return add(index, size) if le(index, -1) else None


# Select: a box of length 1 whose dimension is dropped.
def select(shape: Sequence[Size], axis: int, index: Size) -> Movement:
    """`select`, and ONNX Gather at one constant index. `index` counts from 0."""
    d = axis_of(axis, len(shape))
    target = (*shape[:d], *shape[d + 1 :])
    at = coordinates(len(target))
    load = whole(target, [*at[:d], index, *at[d:]])
    ours = coordinates(len(shape))
    lower, upper = [0] * d + [index] + [0] * (len(target) - d), list(shape)
    upper[d] = index + 1
    back = mapped(shape, [box(lower, upper, [c for e, c in enumerate(ours) if e != d])])
    return Movement("Select", target, 1, load, (back,), view=True)


def _select(result: Operand, x: Operand, dim: int, index: Size) -> Movement | None:
    d = axis_of(dim, x.rank)
    at = wrapped_index(index, x.shape[d])
    return None if at is None else select(x.shape, d, at)


# Split: output `part` is a box. The other parts are movements of their own from the same source.
def split(
    shape: Sequence[Size],
    axis: int,
    part: int,
    sizes: Sequence[Size] | None = None,
    num_outputs: int | None = None,
) -> Movement:
    """Output `part` of ONNX Split, into `sizes` or into `num_outputs` parts as equal as can be."""
    d = axis_of(axis, len(shape))
    if sizes is None:
        total = shape[d]
        if num_outputs is None or not isinstance(total, int):
            raise TypeError("Split needs sizes, or a number of outputs and an int dimension")
        each = -(-total // num_outputs)
        sizes = [max(0, min(each, total - each * k)) for k in range(num_outputs)]
    start = sum(sizes[:part], start=0)
    return replace(_along(Operand(tuple(shape)), d, start, sizes[part]), operator="Split")


def _split_at(x: Operand, result: Operand, dim: int, start: Size) -> Movement:
    d = axis_of(dim, x.rank)
    return replace(_along(x, d, start, result.shape[d]), operator="Split")


def _split(result: Operand, x: Operand, size: Size, dim: int, *, part: int) -> Movement:
    return _split_at(x, result, dim, size * part)


def _split_sizes(
    result: Operand, x: Operand, sizes: Sequence[Size], dim: int, *, part: int
) -> Movement:
    return _split_at(x, result, dim, sum(sizes[:part], start=0))


def _chunk(result: Operand, x: Operand, chunks: int, dim: int, *, part: int) -> Movement | None:
    size = x.shape[axis_of(dim, x.rank)]
    # Of symbolic parts only the first can be placed: whether the last is short is unknown.
    if not isinstance(size, int):
        return _split_at(x, result, dim, 0) if part == 0 else None
    return _split_at(x, result, dim, -(-size // chunks) * part)


def _sections(
    result: Operand, x: Operand, sections: Size, dim: int, *, part: int
) -> Movement | None:
    size = x.shape[axis_of(dim, x.rank)]
    if not isinstance(size, int) or not isinstance(sections, int):
        return None
    each, longer = divmod(size, sections)
    return _split_at(x, result, dim, part * each + min(part, longer))


def _indices(
    result: Operand, x: Operand, indices: Sequence[Size], dim: int, *, part: int
) -> Movement | None:
    d = axis_of(dim, x.rank)
    begin = sliced_start(x.shape[d], indices[part - 1] if part else 0, result.shape[d])
    return None if begin is None else _split_at(x, result, d, begin)


def _unbind(result: Operand, x: Operand, dim: int, *, part: int) -> Movement:
    return replace(select(x.shape, dim, part), operator="Split")


# Flip: a bijection that is its own inverse.
def flip(shape: Sequence[Size], axes: Sequence[int]) -> Movement:
    turned = {axis_of(a, len(shape)) for a in axes}
    index = [
        s - 1 - c if d in turned else c
        for d, (c, s) in enumerate(zip(coordinates(len(shape)), shape, strict=True))
    ]
    mirror = whole(shape, index)
    return Movement("Flip", tuple(shape), 1, mirror, (mirror,))


def _flip(result: Operand, x: Operand, dims: Sequence[int]) -> Movement:
    return flip(x.shape, dims)


def _fliplr(result: Operand, x: Operand) -> Movement:
    return flip(x.shape, [1])


def _flipud(result: Operand, x: Operand) -> Movement:
    return flip(x.shape, [0])


# Rot90: mirrored dimensions, swapped for a quarter turn; a bijection.
def rot90(shape: Sequence[Size], turns: int, axes: Sequence[int]) -> Movement:
    """`turns` quarter turns from the first of `axes` towards the second."""
    a, b = (axis_of(d, len(shape)) for d in axes)
    turns %= 4
    target, order = list(shape), list(range(len(shape)))
    if turns % 2:
        target[a], target[b] = shape[b], shape[a]
        order[a], order[b] = b, a
    ours, theirs = coordinates(len(shape)), coordinates(len(shape))
    load = [ours[order[d]] for d in range(len(shape))]
    back = [theirs[order[d]] for d in range(len(shape))]
    # The source dimensions that run backwards: one turn reads the second axis from its end.
    for d in {0: (), 1: (b,), 2: (a, b), 3: (a,)}[turns]:
        load[d] = shape[d] - 1 - load[d]
        back[order[d]] = shape[d] - 1 - theirs[d]
    return Movement("Rot90", tuple(target), 1, whole(target, load), (whole(shape, back),))


def _rot90(result: Operand, x: Operand, k: int, dims: Sequence[int]) -> Movement:
    return rot90(x.shape, k, dims)


ENTRIES = (
    Entry(
        "Slice",
        ("Slice",),
        "AB",
        "every k-th index of a range (B for steps of 1 and -1)",
        slice_,
        {
            aten.slice.Tensor: _slice,
            aten.narrow.default: _narrow,
            aten.slice_copy.Tensor: copying(_slice),
            aten.narrow_copy.default: copying(_narrow),
        },
    ),
    Entry(
        "Select",
        (),
        "AB",
        "one index of a dimension, which is dropped",
        select,
        {aten.select.int: _select, aten.select_copy.int: copying(_select)},
    ),
    Entry(
        "Split",
        ("Split",),
        "AB",
        "consecutive ranges of one dimension, each an output",
        split,
        parts={
            aten.split.Tensor: _split,
            aten.split.sizes: _split_sizes,
            aten.split_with_sizes.default: _split_sizes,
            aten.chunk.default: _chunk,
            aten.tensor_split.sections: _sections,
            aten.tensor_split.indices: _indices,
            aten.unbind.int: _unbind,
            aten.unsafe_split.Tensor: _split,
            aten.unsafe_split_with_sizes.default: _split_sizes,
            aten.unsafe_chunk.default: _chunk,
            aten.split_copy.Tensor: copying(_split),
            aten.split_with_sizes_copy.default: copying(_split_sizes),
            aten.unbind_copy.int: copying(_unbind),
        },
    ),
    Entry(
        "Flip",
        (),
        "AB",
        "dimensions read backwards",
        flip,
        {
            aten.flip.default: _flip,
            aten.fliplr.default: _fliplr,
            aten.flipud.default: _flipud,
        },
    ),
    Entry(
        "Rot90", (), "AB", "a plane turned by quarter turns", rot90, {aten.rot90.default: _rot90}
    ),
)

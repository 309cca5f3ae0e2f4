"""Movement that joins sources, or reads one source more than once: concat, expand, tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from vtc.graph.rules import (
    Entry,
    Index,
    Movement,
    Operand,
    Rule,
    Shape,
    axis_of,
    box,
    broadcast_index,
    coordinates,
    copying,
    mapped,
    whole,
)
from vtc.index import Size, sizes, unravel

aten = torch.ops.aten


# Concat. One box a source, so loads hold; each source element has one home, so stores hold too.
def joined(
    name: str,
    shapes: Sequence[Sequence[Size]],
    units: Sequence[Sequence[int]],
    axis: int,
) -> Movement:
    """Concatenation along `axis` of sources that first get unit dimensions at `units`."""
    padded = [with_units(shape, unit) for shape, unit in zip(shapes, units, strict=True)]
    lengths = [shape[axis] for shape in padded]
    ends = list(accumulate(lengths))
    target = list(padded[0])
    target[axis] = ends[-1]
    at = coordinates(len(target))
    pieces, stores = [], []
    for source, (shape, unit) in enumerate(zip(shapes, units, strict=True)):
        size, end = lengths[source], ends[source]
        lower: list[Size] = [0] * len(target)
        upper = list(target)
        lower[axis], upper[axis] = end - size, end
        index = [*at[:axis], at[axis] - (end - size), *at[axis + 1 :]]
        kept = [e for d, e in enumerate(index) if d not in unit]
        pieces.append(box(lower, upper, kept, source))
        home = list(with_units(coordinates(len(shape)), unit, 0))
        home[axis] = home[axis] + (end - size)
        stores.append(whole(shape, home))
    return Movement(name, tuple(target), len(shapes), mapped(target, pieces), tuple(stores))


def with_units(values: Sequence[Index], units: Sequence[int], unit: Index = 1) -> tuple[Index, ...]:
    """`values` with `unit` put in at each of the positions `units` of the result."""
    rest = iter(values)
    return tuple(unit if d in units else next(rest) for d in range(len(values) + len(units)))


def concat(shapes: Sequence[Sequence[Size]], axis: int) -> Movement:
    """ONNX Concat and `cat`."""
    return joined("Concat", shapes, [()] * len(shapes), axis_of(axis, len(shapes[0])))


def stack(shapes: Sequence[Sequence[Size]], axis: int) -> Movement:
    """`stack`: Concat after Unsqueeze, with the directions of Concat."""
    d = axis_of(axis, len(shapes[0]) + 1)
    return joined("Stack", shapes, [(d,)] * len(shapes), d)


def _cat(result: Operand, tensors: Sequence[Operand], dim: int) -> Movement:
    # PyTorch skips operands of shape (0,) whatever the rank of the others is.
    used = [n for n, t in enumerate(tensors) if result.rank == 1 or t.shape != (0,)]
    if len(used) == len(tensors):
        return concat([t.shape for t in tensors], dim)
    part = concat([tensors[n].shape for n in used], dim)
    assert part.load is not None
    stores = dict(zip(used, part.store, strict=True))
    store = tuple(stores.get(n, mapped(t.shape, [])) for n, t in enumerate(tensors))
    load = part.load.renumber(dict(enumerate(used)))
    return Movement("Concat", part.shape, len(tensors), load, store)


def _stack(result: Operand, tensors: Sequence[Operand], dim: int) -> Movement:
    return stack([t.shape for t in tensors], dim)


def _stacked(units: Callable[[int], Sequence[int]], axis: Callable[[int], int]) -> Rule:
    """hstack and its kin: units put into a source of the given rank, then joined along an axis."""

    def rule(result: Operand, tensors: Sequence[Operand]) -> Movement:
        padding = [units(t.rank) for t in tensors]
        rank = tensors[0].rank + len(padding[0])
        return joined("Concat", [t.shape for t in tensors], padding, axis(rank))

    return rule


_HSTACK = _stacked(lambda rank: () if rank else (0,), lambda rank: 0 if rank == 1 else 1)
_VSTACK = _stacked(lambda rank: {0: (0, 1), 1: (0,)}.get(rank, ()), lambda rank: 0)
_DSTACK = _stacked(lambda rank: {0: (0, 1, 2), 1: (0, 2), 2: (2,)}.get(rank, ()), lambda rank: 2)
_COLUMNS = _stacked(lambda rank: {0: (0, 1), 1: (1,)}.get(rank, ()), lambda rank: 1)


# Expand. An element has many homes: a store would be replicated, so there are loads only.
def expand(shape: Sequence[Size], target: Sequence[Size]) -> Movement:
    """ONNX Expand and `expand`; `target` is the broadcast shape already (see `expand_target`)."""
    load = whole(target, broadcast_index(shape, coordinates(len(target))))
    return Movement("Expand", tuple(target), 1, load, (None,), view=True)


def expand_target(shape: Sequence[Size], target: Sequence[Size]) -> tuple[Size, ...]:
    """The output shape of ONNX Expand, which broadcasts both ways."""
    rank = max(len(shape), len(target))
    a, b = ((1,) * (rank - len(s)) + tuple(s) for s in (shape, target))
    return tuple(t if s == 1 else s for s, t in zip(a, b, strict=True))


def _expand(result: Operand, x: Operand, *_: object, **__: object) -> Movement:
    return expand(x.shape, result.shape)


# Meshgrid: output k is source k, expanded along all other dimensions.
def meshgrid(lengths: Sequence[Size], part: int, swapped: bool = False) -> Movement:
    """Output `part` of `meshgrid`; `swapped` is its indexing "xy"."""
    order = list(range(len(lengths)))
    if swapped:
        order[0], order[1] = 1, 0
    target = [lengths[d] for d in order]
    load = whole(target, [coordinates(len(lengths))[order.index(part)]])
    return Movement("Expand", tuple(target), 1, load, (None,), view=True, operands=(part,))


def _meshgrid(
    result: Operand, tensors: Sequence[Operand], *, part: int, indexing: str = "ij"
) -> Movement | None:
    if any(t.rank != 1 for t in tensors):
        return None
    lengths = [t.shape[0] for t in tensors]
    return meshgrid(lengths, part, indexing == "xy" and len(lengths) > 1)


# Tile. As for Expand, an element has many homes: loads only.
def tile(shape: Sequence[Size], repeats: Sequence[Size]) -> Movement:
    """ONNX Tile, `repeat` and `tile`; missing leading dimensions or repeats count as 1."""
    rank = max(len(shape), len(repeats))
    own, times = ((1,) * (rank - len(s)) + tuple(s) for s in (shape, repeats))
    target = tuple(s * t for s, t in zip(own, times, strict=True))
    at = coordinates(rank)[rank - len(shape) :]
    again = times[rank - len(shape) :]
    index = [
        0 if s in (0, 1) else c if t == 1 else c % s
        for c, s, t in zip(at, shape, again, strict=True)
    ]
    return Movement("Tile", target, 1, whole(target, index), (None,))


def _tile(result: Operand, x: Operand, repeats: Sequence[Size]) -> Movement:
    return tile(x.shape, repeats)


# Repeat_interleave: loads only, for the same reason.
def repeat_interleave(shape: Sequence[Size], repeats: Size, axis: int | None = None) -> Movement:
    """Every index of `axis` (None: of the flattened source) `repeats` times in a row."""
    if axis is None:
        target: Shape = (sizes.product(shape) * repeats,)
        (position,) = coordinates(1)
        index = unravel(0 if repeats == 0 else position // repeats, shape)
        return Movement("RepeatInterleave", target, 1, whole(target, index), (None,))
    d = axis_of(axis, len(shape))
    target = tuple(s * repeats if e == d else s for e, s in enumerate(shape))
    at: list[Index] = list(coordinates(len(target)))
    at[d] = 0 if repeats == 0 else at[d] // repeats
    return Movement("RepeatInterleave", target, 1, whole(target, at), (None,))


def _repeat_interleave(
    result: Operand, x: Operand, repeats: Size, dim: int | None, *, output_size: Size | None
) -> Movement:
    return repeat_interleave(x.shape, repeats, dim)


ENTRIES = (
    Entry(
        "Concat",
        ("Concat",),
        "AB",
        "sources side by side along one dimension",
        concat,
        {
            aten.cat.default: _cat,
            aten.concat.default: _cat,
            aten.concatenate.default: _cat,
            aten.hstack.default: _HSTACK,
            aten.vstack.default: _VSTACK,
            aten.row_stack.default: _VSTACK,
            aten.dstack.default: _DSTACK,
            aten.column_stack.default: _COLUMNS,
        },
    ),
    Entry(
        "Stack",
        (),
        "AB",
        "sources side by side along a new dimension",
        stack,
        {aten.stack.default: _stack},
    ),
    Entry(
        "Expand",
        ("Expand",),
        "A",
        "unit dimensions repeated, dimensions added in front",
        expand,
        {
            aten.expand.default: _expand,
            aten.expand_as.default: _expand,
            aten.broadcast_to.default: _expand,
            aten.expand_copy.default: copying(_expand),
        },
        {aten.meshgrid.default: _meshgrid, aten.meshgrid.indexing: _meshgrid},
    ),
    Entry(
        "Tile",
        ("Tile",),
        "A",
        "the whole source repeated along its dimensions",
        tile,
        {aten.repeat.default: _tile, aten.tile.default: _tile},
    ),
    Entry(
        "RepeatInterleave",
        (),
        "A",
        "each index of a dimension repeated in a row",
        repeat_interleave,
        {aten.repeat_interleave.self_int: _repeat_interleave},
    ),
)

"""Movement that pieces its output together from segments of each dimension: Pad and Roll."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as every

import torch

from vtc.graph.rules import (
    Entry,
    Index,
    Movement,
    Operand,
    axis_of,
    box,
    coordinates,
    filled,
    mapped,
    max_zero,
    whole,
)
from vtc.index import IndexMap, Size, ravel, sizes, unravel

aten = torch.ops.aten

Segment = tuple[Size, Size, Index]
"""Half-open bounds of one output coordinate, and the source index as an expression of it."""


def segmented(shape: Sequence[Size], segments: Sequence[Sequence[Segment]]) -> IndexMap:
    """The map whose boxes are the products of each dimension's segments."""
    pieces = []
    for chosen in every(*segments):
        lower, upper, index = zip(*chosen, strict=True) if chosen else ((), (), ())
        pieces.append(box(lower, upper, index))
    return mapped(shape, pieces)


# Pad. The interior keeps its order, so that a producer can store into a constant-padded tensor
# whose borders were filled before. In the other modes an element at the border has several homes:
# loads only.
def pad(
    shape: Sequence[Size],
    pads: Sequence[tuple[Size, Size]],
    mode: str = "constant",
    value: float | int | bool = 0,
) -> Movement | None:
    """`pads` gives what is added before and after each dimension; negative amounts crop.

    `mode` is ONNX's: "constant", "reflect", "edge" or "wrap".
    """
    amounts = [p for pair in pads for p in pair]
    added = [a for a in map(max_zero, amounts) if a is not None]
    cropped = [c for c in (max_zero(-p) for p in amounts) if c is not None]
    if not len(added) == len(cropped) == len(amounts):
        return None
    target = tuple(low + s + high for s, (low, high) in zip(shape, pads, strict=True))
    load: IndexMap | None
    if mode == "constant":
        load = _bordered(target, pads, added, value)
    else:
        found = [
            _segments(mode, c, s, p)
            for c, s, p in zip(coordinates(len(shape)), shape, pads, strict=True)
        ]
        segments = [f for f in found if f is not None]
        if len(segments) < len(found):
            return None
        load = segmented(target, segments)
    back = None
    if mode == "constant" or not any(added):
        at = coordinates(len(shape))
        kept = [s - high for s, high in zip(shape, cropped[1::2], strict=True)]
        home = [c + p[0] for c, p in zip(at, pads, strict=True)]
        back = mapped(shape, [box(cropped[::2], kept, home)])
    return Movement("Pad", target, 1, load, (back,))


def _bordered(
    target: Sequence[Size],
    pads: Sequence[tuple[Size, Size]],
    added: Sequence[Size],
    value: float | int | bool,
) -> IndexMap:
    inside = [(low, s - high) for low, high, s in zip(added[::2], added[1::2], target, strict=True)]
    index = [c - p[0] for c, p in zip(coordinates(len(target)), pads, strict=True)]
    pieces = [box([b[0] for b in inside], [b[1] for b in inside], index)]
    for d, (low, high) in enumerate(inside):
        # The borders of dimension d span the inside of earlier dimensions and all of later ones.
        for first, last in ((0, low), (high, target[d])):
            bounds = [*inside[:d], (first, last), *((0, s) for s in target[d + 1 :])]
            pieces.append(filled([b[0] for b in bounds], [b[1] for b in bounds], value))
    return mapped(target, pieces)


def _segments(mode: str, c: Index, size: Size, pads: tuple[Size, Size]) -> list[Segment] | None:
    """A dimension's segments; None where sizes that are not known decide which ones there are."""
    low, high = pads
    if all(isinstance(n, int) for n in (size, low, high)):
        return _SEGMENTS[mode](c, size, low, high)
    if max_zero(low) == max_zero(high) == 0:
        return [(0, low + size + high, c - low)]
    # What is cropped on one side may be more than there is, and reach into the other.
    grows = max_zero(-low) == max_zero(-high) == 0
    return _SEGMENTS[mode](c, size, low, high) if grows else None


def _edge(c: Index, size: Size, low: Size, high: Size) -> list[Segment] | None:
    total = low + size + high
    if not isinstance(size, int):
        return [(0, low, 0), (low, low + size, c - low), (low + size, total, size - 1)]
    return _cut(total, [(0, low, 0), (low, low + size, c - low), (low + size, total, size - 1)])


def _reflect(c: Index, size: Size, low: Size, high: Size) -> list[Segment] | None:
    total = low + size + high
    if size == 1:
        return [(0, total, 0)]
    if not (isinstance(size, int) and isinstance(low, int) and isinstance(high, int)):
        # PyTorch requires that less than the size is reflected.
        end = low + size
        return [(0, low, low - c), (low, end, c - low), (end, total, 2 * (end - 1) - low - c)]
    if size == 0:
        return [] if total <= 0 else None
    turn = size - 1
    segments: list[Segment] = [(low, low + size, c - low)]
    for k in range(1, 2 + max(high, 0) // turn):
        at = low + k * turn
        segments.append((at + 1, at + turn + 1, _mirrored(c, at, turn, k % 2 == 1)))
    for k in range(1, 2 + max(low, 0) // turn):
        at = low - k * turn
        segments.append((at, at + turn, _mirrored(c, at, turn, k % 2 == 1)))
    return _cut(total, segments)


def _mirrored(c: Index, start: int, turn: int, backwards: bool) -> Index:
    return start + turn - c if backwards else c - start


def _wrap(c: Index, size: Size, low: Size, high: Size) -> list[Segment] | None:
    total = low + size + high
    if not (isinstance(size, int) and isinstance(low, int) and isinstance(high, int)):
        # PyTorch requires that at most the size is wrapped.
        end = low + size
        return [(0, low, c - low + size), (low, end, c - low), (end, total, c - end)]
    if size == 0:
        return [] if total <= 0 else None
    first, last = -(-max(low, 0) // size), -(-max(high, 0) // size)
    starts = [low + k * size for k in range(-first, last + 1)]
    return _cut(total, [(at, at + size, c - at) for at in starts])


def _cut(total: Size, segments: Sequence[Segment]) -> list[Segment]:
    """The parts of the segments that lie in [0, total)."""
    assert isinstance(total, int)
    cut = [(max(0, low), min(total, up), e) for low, up, e in segments]
    return [(low, up, e) for low, up, e in cut if low < up]


_SEGMENTS = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def onnx_pads(
    rank: int, pads: Sequence[int], axes: Sequence[int] | None = None
) -> list[tuple[Size, Size]]:
    """ONNX Pad's flat `pads` (all starts, then all ends, of `axes`) as pairs, one a dimension."""
    chosen = range(rank) if axes is None else axes
    pairs: list[tuple[Size, Size]] = [(0, 0)] * rank
    for axis, low, high in zip(chosen, pads, pads[len(pads) // 2 :], strict=False):
        pairs[axis_of(axis, rank)] = (low, high)
    return pairs


def _torch_pads(rank: int, padding: Sequence[Size]) -> list[tuple[Size, Size]]:
    """PyTorch lists pairs from the last dimension backwards."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _pad(
    result: Operand, x: Operand, padding: Sequence[Size], mode: str, value: float | None
) -> Movement | None:
    pairs = _torch_pads(x.rank, padding)
    mixed = any(isinstance(p, int) and p < 0 for pair in pairs for p in pair) and any(
        p != 0 and not (isinstance(p, int) and p < 0) for pair in pairs for p in pair
    )
    # PyTorch crops before it wraps, which is not what the rule says.
    if mode == "circular" and mixed:
        return None
    return pad(x.shape, pairs, _MODES[mode], 0 if value is None else value)


def _constant(
    result: Operand, x: Operand, padding: Sequence[Size], value: float | int | bool
) -> Movement | None:
    return pad(x.shape, _torch_pads(x.rank, padding), "constant", value)


def _reflection(result: Operand, x: Operand, padding: Sequence[Size]) -> Movement | None:
    return pad(x.shape, _torch_pads(x.rank, padding), "reflect")


def _replication(result: Operand, x: Operand, padding: Sequence[Size]) -> Movement | None:
    return pad(x.shape, _torch_pads(x.rank, padding), "edge")


def _circular(result: Operand, x: Operand, padding: Sequence[Size]) -> Movement | None:
    return _pad(result, x, padding, "circular", None)


# Roll: two boxes a rolled dimension, and a bijection.
def roll(shape: Sequence[Size], shifts: Sequence[Size], axes: Sequence[int]) -> Movement:
    """Moves elements `shifts` towards larger indices, around the end."""
    by: list[Size] = [0] * len(shape)
    for shift, axis in zip(shifts, axes, strict=True):
        d = axis_of(axis, len(shape))
        by[d] = by[d] + shift
    load, back = _rolled(shape, by), _rolled(shape, [-s for s in by])
    return Movement("Roll", tuple(shape), 1, load, (back,))


def _rolled(shape: Sequence[Size], by: Sequence[Size]) -> IndexMap:
    segments: list[list[Segment]] = []
    for c, size, shift in zip(coordinates(len(shape)), shape, by, strict=True):
        if shift == 0 or size == 0:
            segments.append([(0, size, c)])
        elif isinstance(size, int) and isinstance(shift, int):
            first = shift % size
            segments.append([(0, first, c + (size - first)), (first, size, c - first)])
        else:
            # Where a symbolic roll breaks is unknown; the remainder holds for any shift.
            segments.append([(0, size, (c - shift) % size)])
    return segmented(shape, segments)


def roll_flat(shape: Sequence[Size], shift: Size) -> Movement:
    """`roll` without dimensions, which rolls the row-major order."""
    total = sizes.product(shape)
    if total == 0:
        same = IndexMap.identity(shape)
        return Movement("Roll", tuple(shape), 1, same, (same,))
    position = ravel(coordinates(len(shape)), shape)
    load, back = (whole(shape, unravel((position + by) % total, shape)) for by in (-shift, shift))
    return Movement("Roll", tuple(shape), 1, load, (back,))


def _roll(result: Operand, x: Operand, shifts: Sequence[Size], dims: Sequence[int]) -> Movement:
    return roll(x.shape, shifts, dims) if dims else roll_flat(x.shape, shifts[0])


ENTRIES = (
    Entry(
        "Pad",
        ("Pad",),
        "AB",
        "borders of a constant (AB), or of reflected, repeated or wrapped elements (A)",
        pad,
        {
            aten.pad.default: _pad,
            aten.constant_pad_nd.default: _constant,
            aten.reflection_pad1d.default: _reflection,
            aten.reflection_pad2d.default: _reflection,
            aten.reflection_pad3d.default: _reflection,
            aten.replication_pad1d.default: _replication,
            aten.replication_pad2d.default: _replication,
            aten.replication_pad3d.default: _replication,
            aten._pad_circular.default: _circular,
        },
    ),
    Entry(
        "Roll",
        (),
        "AB",
        "dimensions, or the flat order, rotated",
        roll,
        {aten.roll.default: _roll},
    ),
)

"""What addresses a map reads: torch views, contiguous runs, and the class of an access."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from vtc.index import affine, boxes, digits, materialize, sizes, substitution
from vtc.index.affine import Affine
from vtc.index.digits import Cut, Digits
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import Size

Class: TypeAlias = Literal["I", "partial", "II"]
Strides: TypeAlias = Sequence[Any] | Mapping[int, Sequence[Any]]

# Up to this many elements a question that algebra leaves open is settled by looking at them all.
ENUMERATED = 1 << 16


@dataclass(frozen=True)
class Strided:
    """A view: ``torch.as_strided(source, shape, stride, offset)``, all in elements."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


@dataclass(frozen=True)
class Contiguity:
    """Contiguous runs, in elements.

    Walking the output in row-major order through the box of a piece, every block of ``run``
    elements, counted from where the walk enters the box, is consecutive in the output and in
    addresses, and the address of each block's first element is a multiple of ``alignment`` (0:
    all blocks start at address 0). With concrete sizes and no lookup both are the largest such
    numbers, of the worst piece; only beyond 65536 elements, and there only where divisions do not
    line up with the box, may they be smaller.
    """

    run: int
    alignment: int


def strides_by_source(pieces: Sequence[Piece], strides: Strides) -> dict[int, tuple[Size, ...]]:
    """Normal strides of every source that the pieces read."""
    used = {p.source for p in pieces if not isinstance(p.source, Fill)}
    if isinstance(strides, Mapping):
        return {k: tuple(sizes.as_size(x) for x in strides[k]) for k in used}
    if len(used) > 1:
        raise ValueError(f"strides of one source given for a map that reads {sorted(used)}")
    return {k: tuple(sizes.as_size(x) for x in strides) for k in used}


def offset_of(piece: Piece, strides: Sequence[Size]) -> Affine:
    """The address of an element of the piece relative to the source's first, in elements."""
    total = affine.constant(0)
    for form, stride in zip(piece.forms, strides, strict=True):
        total = affine.add(total, affine.scale(form, stride))
    return substitution.simplify(affine.recombine(total, piece.bounds), piece.bounds)


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides of a shape, in elements, as torch gives them (a size 0 counts as 1)."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = sizes.mul(step, 1 if size == 0 else size)
    return tuple(reversed(strides))


def strided(
    shape: tuple[Size, ...],
    pieces: Sequence[Piece],
    source_strides: tuple[Size, ...],
    source: int,
) -> Strided | None:
    """See IndexMap.strided."""
    if any(s == 0 for s in shape):
        return Strided(shape, contiguous_strides(shape), 0)
    if any(p.source != source or p.lookups() for p in pieces):
        return None
    held: Size = 0
    for p in pieces:
        held = sizes.add(held, boxes.volume((p.lower, p.upper)))
    if held != sizes.product(shape):
        return None
    offsets = [offset_of(p, source_strides) for p in pieces]
    line = _line(shape, pieces, offsets)
    if line is None:
        return None
    for piece, offset in zip(pieces, offsets, strict=True):
        if not _equal(offset, line, piece):
            return None
    stride: list[Size] = []
    for k in reversed(range(len(shape))):
        if shape[k] == 1:
            # A single element has no step; torch's contiguous step keeps is_contiguous true.
            outer = sizes.mul(stride[-1], shape[k + 1]) if stride else 1
            stride.append(outer)
        else:
            stride.append(line.terms.get(k, 0))
    return Strided(shape, tuple(reversed(stride)), line.const)


def _line(
    shape: tuple[Size, ...], pieces: Sequence[Piece], offsets: Sequence[Affine]
) -> Affine | None:
    """The only affine address function that can equal the map: fitted at 0 and the unit steps."""
    zero = [0] * len(shape)
    start = _value(zero, pieces, offsets)
    if start is None:
        return None
    line = affine.constant(start)
    for k, size in enumerate(shape):
        if size == 1:
            continue
        if sizes.lt(1, size):
            unit = _value([int(k == d) for d in range(len(shape))], pieces, offsets)
            step = None if unit is None else sizes.sub(unit, start)
        else:
            step = _coefficient(k, pieces, offsets)
        if step is None or not sizes.nonnegative(step):
            return None
        line = affine.add(line, affine.scale(affine.coordinate(k), step))
    return line


def _value(point: Sequence[int], pieces: Sequence[Piece], offsets: Sequence[Affine]) -> Size | None:
    for piece, offset in zip(pieces, offsets, strict=True):
        inside = all(
            sizes.le(a, x) and (sizes.lt(x, b) or x == 0)
            for a, x, b in zip(piece.lower, point, piece.upper, strict=True)
        )
        if inside:
            return substitution.substitute(offset, [affine.constant(x) for x in point], ()).const
    return None


def _coefficient(k: int, pieces: Sequence[Piece], offsets: Sequence[Affine]) -> Size | None:
    """The step of a symbolic dimension, which may be 1, from the piece at the origin."""
    for piece, offset in zip(pieces, offsets, strict=True):
        if all(x == 0 for x in piece.lower):
            nested = (t for t in offset.terms if not isinstance(t, int))
            if any(k in affine.coordinates(Affine(0, {t: 1})) for t in nested):
                return None
            return offset.terms.get(k, 0)
    return None


def _equal(offset: Affine, line: Affine, piece: Piece) -> bool:
    """True if both are the same number everywhere in the piece; never by accident."""
    if substitution.simplify(line, piece.bounds) == offset:
        return True
    if all(isinstance(t, int) for t in offset.terms):
        return False
    corners = [*piece.lower, *piece.upper, *offset.terms.values(), *line.terms.values()]
    if all(type(x) is int for x in corners):
        difference = affine.add(offset, affine.scale(line, -1))
        if not _vanishes_on_sample(difference, piece):
            return False
        # The sample says that it is a view: worth a look at many elements to be sure.
        if boxes.volume((piece.lower, piece.upper)) <= 64 * ENUMERATED:
            return not bool(_values(difference, piece).any())
    parts = digits.split((piece.lower, piece.upper), (offset, line), Cut.UNIT)
    return parts is not None and all(p.forms[0] == p.forms[1] for p in parts)


def _vanishes_on_sample(difference: Affine, piece: Piece) -> bool:
    chance = random.Random(0)
    points = [
        [chance.randrange(int(a), int(b)) for a, b in zip(piece.lower, piece.upper, strict=True)]
        for _ in range(32)
    ]
    columns = [torch.tensor(column) for column in zip(*points, strict=True)]
    return not bool(materialize.evaluate(difference, columns).any())


def _values(form: Affine, piece: Piece) -> torch.Tensor:
    """The values of a form in the concrete box of a piece, in row-major order."""
    lower = [int(x) for x in piece.lower]
    upper = [int(x) for x in piece.upper]
    grid = materialize.grids(lower, upper)
    extent = [b - a for a, b in zip(lower, upper, strict=True)]
    return materialize.evaluate(form, grid).expand(extent).reshape(-1)


def contiguity(shape: Sequence[Size], pieces: Sequence[Piece], strides: Strides) -> Contiguity:
    """See IndexMap.contiguity; a map that reads nothing has one empty run."""
    known = strides_by_source(pieces, strides)
    runs: list[int] = []
    alignment = 0
    for piece in pieces:
        if isinstance(piece.source, Fill) or piece.empty:
            continue
        found = piece_contiguity(piece, shape, known[piece.source])
        runs.append(found.run)
        alignment = math.gcd(alignment, found.alignment)
    return Contiguity(min(runs, default=0), alignment)


def piece_contiguity(piece: Piece, shape: Sequence[Size], strides: Sequence[Size]) -> Contiguity:
    """The contiguity of one piece, in an output of ``shape``; source strides in elements."""
    found = _box_contiguity(piece, strides)
    # The walk through the output leaves the box behind the last dimension that it does not span.
    extent = piece.extent
    partial = [k for k in range(len(shape)) if extent[k] != shape[k]]
    segment = sizes.product(extent[partial[-1] :]) if partial else sizes.product(extent)
    run = math.gcd(found.run, sizes.integer_content(segment))
    if run == found.run:
        return found
    return Contiguity(run, math.gcd(found.alignment, run))


def _box_contiguity(piece: Piece, strides: Sequence[Size]) -> Contiguity:
    """Contiguity of the addresses alone, walking the box as if it were the whole output."""
    offset = offset_of(piece, strides)
    box = (piece.lower, piece.upper)
    parts = digits.split(box, (offset,), Cut.NONE)
    if parts is not None:
        return _digit_runs(parts[0])
    volume = boxes.volume(box)
    if type(volume) is int and volume <= ENUMERATED and not affine.lookups(offset):
        values = [*offset.terms.values(), offset.const]
        if all(type(x) is int for x in values):
            return _enumerated_runs(_values(offset, piece))
    return _row_runs(piece, offset)


def _digit_runs(part: Digits) -> Contiguity:
    """Runs of an address that is affine in the digits, innermost digit first."""
    part = part.ascending()
    (offset,) = part.forms
    opaque = [t for t in offset.terms if not isinstance(t, int)]
    broken = affine.coordinates(Affine(0, dict.fromkeys(opaque, 1)))
    run: Size = 1
    inner = len(part.extent)
    while inner > 0 and inner - 1 not in broken and offset.terms.get(inner - 1, 0) == run:
        inner -= 1
        run = sizes.mul(run, part.extent[inner])
    alignment = sizes.integer_content(offset.const)
    for atom, coefficient in offset.terms.items():
        if not isinstance(atom, int) or atom < inner:
            alignment = math.gcd(alignment, sizes.integer_content(coefficient))
    length = sizes.integer_content(run)
    if length != run:
        # A symbolic run is known by a divisor only, so blocks start inside it too.
        alignment = math.gcd(alignment, length)
    return Contiguity(length, alignment)


def _enumerated_runs(addresses: torch.Tensor) -> Contiguity:
    breaks = (addresses.diff() != 1).nonzero().flatten() + 1
    run = math.gcd(len(addresses), *breaks.tolist())
    return Contiguity(run, math.gcd(*addresses[::run].tolist()))


def _row_runs(piece: Piece, offset: Affine) -> Contiguity:
    """Runs inside the innermost dimension only: a bound from below where digits do not line up."""
    parts = digits.split((piece.lower, piece.upper), (offset,), Cut.UNIT)
    if not parts or not piece.lower:
        return Contiguity(1, 1)
    run = sizes.integer_content(piece.extent[-1])
    alignment = 0
    for part in (p.ascending() for p in parts):
        row = part.coords[-1]
        found = _digit_runs(part)
        begin = sizes.sub(row.const, piece.lower[-1])
        inner = [part.extent[j] for j in row.terms if isinstance(j, int)]
        length = math.gcd(found.run, sizes.integer_content(sizes.product(inner)))
        run = math.gcd(run, length, sizes.integer_content(begin))
        alignment = math.gcd(alignment, found.alignment)
    return Contiguity(run, math.gcd(alignment, run))


def classify(
    shape: tuple[Size, ...],
    pieces: Sequence[Piece],
    strides: Strides,
    itemsize: int,
    transaction: int,
) -> Class:
    """See IndexMap.classify."""
    known = strides_by_source(pieces, strides)
    if len(known) == 1:
        ((source, own),) = known.items()
        view = strided(shape, pieces, own, source)
        if view is not None and _is_contiguous(view):
            return "I"
    if any(s == 0 for s in shape):
        return "I"
    run = contiguity(shape, pieces, known).run
    return "partial" if run * itemsize >= transaction or run == 0 else "II"


def _is_contiguous(view: Strided) -> bool:
    expected = contiguous_strides(view.shape)
    return all(
        size == 1 or own == step
        for size, own, step in zip(view.shape, view.stride, expected, strict=True)
    )

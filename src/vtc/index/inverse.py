"""Inverse of an index map: from source elements back to output elements.

Each piece is brought to digit normal form. If the digits of every source dimension form a mixed
radix number (each weight is the product of the smaller extents), the image is an interval of that
dimension and every digit is read back as (x // weight) % extent. Where a reshape mixes dimensions
that do not nest, the same is tried on the row-major offset over several source dimensions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TypeAlias

from vtc.index import affine, boxes, compose, digits, expr, sizes, substitution
from vtc.index.affine import Affine, Div, Rem
from vtc.index.boxes import Box
from vtc.index.digits import Cut, Digits
from vtc.index.piece import Piece
from vtc.index.sizes import Size

Group: TypeAlias = tuple[int, ...]  # source dimensions read as one row-major number


@functools.lru_cache(maxsize=1 << 12)
def inverse_pieces(
    pieces: tuple[Piece, ...], source: int, shape: tuple[Size, ...]
) -> tuple[Piece, ...] | None:
    """Pieces over the index space of the source, reading source 0 = the output; None if illegal."""
    found: list[Piece] = []
    for piece in pieces:
        if piece.source != source or piece.empty:
            continue
        if piece.lookups():
            return None
        part = _inverse_piece(piece, shape)
        if part is None or len(found) + len(part) > boxes.LIMIT:
            return None
        found.extend(part)
    if not boxes.all_disjoint([(p.lower, p.upper) for p in found]):
        return None
    return compose.merge(found)


def _inverse_piece(piece: Piece, shape: tuple[Size, ...]) -> list[Piece] | None:
    """The inverse with the fewest cuts that are needed."""
    found = _attempt(piece, shape, [(d,) for d in range(len(shape))], Cut.NONE)
    if found is not None:
        # The usual case, decided before the work of finding other ways to read the dimensions.
        return found
    flat = _flattened(piece)
    variants = [(piece, _groupings(piece, shape)), (flat, _groupings(flat, shape))]
    for cut in Cut:
        for variant, groupings in variants:
            # Cutting into single values is a costly last resort: only where it is likely to work.
            for groups in groupings[:3] if cut == Cut.UNIT else groupings:
                found = _attempt(variant, shape, groups, cut)
                if found is not None:
                    return found if variant is piece else [_unflattened(p, piece) for p in found]
    return None


def _flattened(piece: Piece) -> Piece:
    """The piece with its box read as one row-major number, for reshapes of the output side."""
    index = expr.unravel(affine.coordinate(0), piece.extent)
    box = [affine.add(x, affine.constant(low)) for x, low in zip(index, piece.lower, strict=True)]
    count = sizes.product(piece.extent)
    bounds = ((0, sizes.sub(count, 1)),)
    inside = [substitution.simplify(x, bounds) for x in box]
    forms = [substitution.substitute(a, inside, bounds) for a in piece.forms]
    return Piece((0,), (count,), piece.source, forms)


def _unflattened(found: Piece, piece: Piece) -> Piece:
    """An inverse of the flattened piece as an inverse of the piece."""
    index = expr.unravel(found.forms[0], piece.extent)
    box = [affine.add(x, affine.constant(low)) for x, low in zip(index, piece.lower, strict=True)]
    return found.with_index(box).simplify()


def _groupings(piece: Piece, shape: tuple[Size, ...]) -> list[list[Group]]:
    """Ways to read the source dimensions as numbers, in the order in which they are tried."""
    rank = len(shape)
    alone: list[Group] = [(d,) for d in range(rank)]
    found = [alone]
    merged = _merged_groups(piece, shape)
    if merged not in found:
        found.append(merged)
    for length in range(2, rank + 1):
        for first in range(rank - length + 1):
            run = tuple(range(first, first + length))
            groups = [*alone[:first], run, *alone[first + length :]]
            if groups not in found:
                found.append(groups)
    return found


def _merged_groups(piece: Piece, shape: tuple[Size, ...]) -> list[Group]:
    """Dimensions joined, in any order, wherever that undoes a division: m (x // m) + x % m = x."""
    parts: list[tuple[Group, Affine]] = [
        ((d,), substitution.simplify(a, piece.bounds)) for d, a in enumerate(piece.forms)
    ]
    joined = True
    while joined:
        joined = False
        for (a, left), (b, right) in itertools.permutations(parts, 2):
            size = sizes.product(shape[d] for d in b)
            both = substitution.simplify(affine.add(affine.scale(left, size), right), piece.bounds)
            if _divisions(both) < _divisions(left) + _divisions(right):
                parts = [p for p in parts if p[0] not in (a, b)]
                parts.append(((*a, *b), both))
                joined = True
                break
    return sorted(dims for dims, _ in parts)


def _divisions(a: Affine) -> int:
    return sum(1 + _divisions(t.arg) for t in a.terms if isinstance(t, (Div, Rem)))


def _attempt(
    piece: Piece, shape: tuple[Size, ...], groups: Sequence[Group], cut: Cut
) -> list[Piece] | None:
    forms = [
        substitution.simplify(
            expr.ravel([piece.forms[d] for d in dims], [shape[d] for d in dims]), piece.bounds
        )
        for dims in groups
    ]
    pending = digits.split((piece.lower, piece.upper), forms, cut)
    if pending is None:
        return None
    result: list[Piece] = []
    while pending:
        part = pending.pop()
        weights = _weights(part)
        if weights is None:
            return None
        gap = next((j for j, weight in weights.items() if weight is None), None)
        if gap is not None:
            units = part.units(gap) if cut >= Cut.UNIT else None
            if units is None:
                return None
            pending.extend(units)
        else:
            known = {j: w for j, w in weights.items() if w is not None}
            image = _image(part, known, shape, groups, cut)
            if image is None:
                return None
            result.extend(image)
        if len(pending) + len(result) > boxes.LIMIT:
            return None
    return result


def _weights(part: Digits) -> dict[int, Size | None] | None:
    """The weight of each digit in its form, None for one above a gap; None if not one-to-one."""
    seen: dict[int, Size | None] = {}
    for form in part.forms:
        open_digits = {j: c for j, c in form.terms.items() if isinstance(j, int)}
        if len(open_digits) != len(form.terms) or any(j in seen for j in open_digits):
            return None
        weight: Size = 1
        while open_digits:
            negative = sizes.mul(-1, weight)
            j = next((j for j, c in open_digits.items() if c in (weight, negative)), None)
            if j is None:
                seen.update(dict.fromkeys(open_digits))
                break
            seen[j] = open_digits.pop(j)
            weight = sizes.mul(weight, part.extent[j])
    return seen if len(seen) == len(part.extent) else None


def _image(
    part: Digits,
    weights: dict[int, Size],
    shape: tuple[Size, ...],
    groups: Sequence[Group],
    cut: Cut,
) -> list[Piece] | None:
    """The source boxes that the part reads, each with the output index of its elements."""
    ranges: list[list[Box]] = []
    values: dict[int, Affine] = {}
    for dims, form in zip(groups, part.forms, strict=True):
        group_shape = [shape[d] for d in dims]
        start, count = form.const, sizes.product(part.extent[j] for j in _digits_of(form))
        for j in _digits_of(form):
            if sizes.le(weights[j], -1):
                start = sizes.add(start, sizes.mul(weights[j], sizes.sub(part.extent[j], 1)))
        found = interval_boxes(start, count, group_shape)
        if found is None or (cut == Cut.NONE and len(found) > 1):
            return None
        ranges.append(found)
        axes = [affine.coordinate(d) for d in dims]
        position = affine.add(expr.ravel(axes, group_shape), affine.constant(sizes.mul(-1, start)))
        for j in _digits_of(form):
            values[j] = _read_digit(position, weights[j], part.extent[j])
    digit_values = [values[j] for j in range(len(part.extent))]
    pieces = []
    for choice in itertools.product(*ranges):
        lower, upper = _by_dimension(groups, choice)
        bounds = boxes.bounds_of((lower, upper))
        simple = [substitution.simplify(v, bounds) for v in digit_values]
        index = [substitution.substitute(a, simple, bounds) for a in part.coords]
        pieces.append(Piece(lower, upper, 0, index).simplify())
    return pieces


def _by_dimension(groups: Sequence[Group], choice: Sequence[Box]) -> Box:
    """One box of each group's dimensions put together in the order of the dimensions."""
    lower: dict[int, Size] = {}
    upper: dict[int, Size] = {}
    for dims, box in zip(groups, choice, strict=True):
        lower.update(zip(dims, box[0], strict=True))
        upper.update(zip(dims, box[1], strict=True))
    rank = range(len(lower))
    return tuple(lower[d] for d in rank), tuple(upper[d] for d in rank)


def _digits_of(form: Affine) -> list[int]:
    return [j for j in form.terms if isinstance(j, int)]


def _read_digit(position: Affine, weight: Size, extent: Size) -> Affine:
    """The digit of ``weight`` in a position that counts from the start of the image."""
    down = sizes.le(weight, -1)
    size = sizes.mul(weight, -1) if down else weight
    digit = affine.modulo(affine.floor_div(position, size, ()), extent, ())
    if not down:
        return digit
    return affine.add(affine.constant(sizes.sub(extent, 1)), affine.scale(digit, -1))


def interval_boxes(start: Size, count: Size, shape: Sequence[Size]) -> list[Box] | None:
    """Row-major positions [start, start + count) of a tensor of ``shape`` as boxes.

    At most two boxes a dimension and one more; None where symbolic sizes leave it open.
    """
    if len(shape) == 1:
        return [((start,), (sizes.add(start, count),))]
    inner = sizes.product(shape[1:])
    row, begin = sizes.exact_div(start, inner), sizes.exact_div(count, inner)
    if row is not None and begin is not None:
        rest = tuple(shape[1:])
        return [((row, *(0 for _ in rest)), (sizes.add(row, begin), *rest))]
    if not all(type(x) is int for x in (start, count, inner)):
        return None
    found: list[Box] = []
    position, stop = int(start), int(start) + int(count)
    while position < stop:
        r, offset = divmod(position, int(inner))
        rows = (stop - position) // int(inner) if offset == 0 else 0
        if rows:
            whole = interval_boxes(position, rows * int(inner), shape)
            assert whole is not None
            found.extend(whole)
            position += rows * int(inner)
            continue
        length = min(stop - position, int(inner) - offset)
        below = interval_boxes(offset, length, shape[1:])
        if below is None:
            return None
        found.extend(((r, *low), (r + 1, *high)) for low, high in below)
        position += length
    return found

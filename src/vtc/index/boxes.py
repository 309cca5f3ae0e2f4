"""Half-open boxes of integer points, and the preimage of a box under index expressions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vtc.index import affine, sizes, substitution
from vtc.index.affine import Affine, Bounds, Div, Rem
from vtc.index.sizes import NotRepresentable, Size

# More boxes than this from one operation is no longer a compact description of an access.
LIMIT = 4096

Corner: TypeAlias = tuple[Size, ...]
Box: TypeAlias = tuple[Corner, Corner]


@dataclass(frozen=True)
class Constraint:
    """low <= form < high."""

    form: Affine
    low: Size
    high: Size


def bounds_of(box: Box) -> Bounds:
    """The closed interval of each coordinate in the box."""
    return tuple((low, sizes.sub(high, 1)) for low, high in zip(*box, strict=True))


def is_empty(box: Box) -> bool:
    """True if the box is known to hold no point."""
    return any(sizes.le(high, low) for low, high in zip(*box, strict=True))


def volume(box: Box) -> Size:
    """The number of points of a box that is not inverted."""
    return sizes.product(sizes.sub(high, low) for low, high in zip(*box, strict=True))


def intersect(a: Box, b: Box) -> Box | None:
    """The common box, or None if it is empty; NotRepresentable where sizes cannot be ordered."""
    lower = tuple(sizes.maximum(x, y) for x, y in zip(a[0], b[0], strict=True))
    upper = tuple(sizes.minimum(x, y) for x, y in zip(a[1], b[1], strict=True))
    return None if is_empty((lower, upper)) else (lower, upper)


def disjoint(a: Box, b: Box) -> bool:
    """True if no point is in both boxes, for certain."""
    return any(sizes.le(a[1][k], b[0][k]) or sizes.le(b[1][k], a[0][k]) for k in range(len(a[0])))


def all_disjoint(boxes: Sequence[Box]) -> bool:
    """True if no two boxes share a point, for certain."""
    ordered = boxes
    sweep = (
        bool(boxes)
        and bool(boxes[0][0])
        and all(type(low[0]) is int and type(high[0]) is int for low, high in boxes)
    )
    if sweep:
        ordered = sorted(boxes, key=lambda b: b[0][0])
    for n, a in enumerate(ordered):
        for b in ordered[n + 1 :]:
            if sweep and b[0][0] >= a[1][0]:
                break
            if not disjoint(a, b):
                return False
    return True


def replace(box: Box, k: int, low: Size, high: Size) -> Box:
    """The box with other bounds of coordinate k."""
    lower, upper = box
    return (*lower[:k], low, *lower[k + 1 :]), (*upper[:k], high, *upper[k + 1 :])


def preimage(box: Box, constraints: Sequence[Constraint]) -> list[Box]:
    """Disjoint boxes that together hold the points of ``box`` meeting all constraints.

    Raises NotRepresentable where that takes more than LIMIT boxes or cannot be decided (symbolic
    sizes, values of runtime lookups).
    """
    found: list[Box] = []
    if is_empty(box):
        return found
    pending = [(box, list(constraints))]
    while pending:
        current, todo = pending.pop()
        if not todo:
            found.append(current)
        else:
            pending.extend(_step(current, todo))
        if len(found) + len(pending) > LIMIT:
            raise NotRepresentable(f"more than {LIMIT} boxes")
    return found[::-1]


def _step(box: Box, todo: list[Constraint]) -> Iterator[tuple[Box, list[Constraint]]]:
    """Decide, solve or split on the first constraint; yields sub-boxes and what is left to meet."""
    constraint, rest = todo[0], todo[1:]
    bounds = bounds_of(box)
    form = substitution.simplify(constraint.form, bounds)
    low, high = affine.interval(form, bounds)
    above = low is not None and sizes.le(constraint.low, low)
    below = high is not None and sizes.lt(high, constraint.high)
    if above and below:
        yield box, rest
        return
    if low is not None and sizes.le(constraint.high, low):
        return
    if high is not None and sizes.lt(high, constraint.low):
        return
    if len(form.terms) == 1:
        ((atom, coefficient),) = form.terms.items()
        solved = _solve(constraint, form, coefficient)
        if isinstance(atom, Div):
            by = atom.by
            inner = Constraint(atom.arg, sizes.mul(solved[0], by), sizes.mul(solved[1], by))
            yield box, [inner, *rest]
            return
        if isinstance(atom, int):
            # A side that holds already needs no comparison of symbolic sizes.
            start_holds, stop_holds = (above, below) if coefficient == 1 else (False, False)
            first = box[0][atom] if start_holds else sizes.maximum(box[0][atom], solved[0])
            last = box[1][atom] if stop_holds else sizes.minimum(box[1][atom], solved[1])
            narrowed = replace(box, atom, first, last)
            if not is_empty(narrowed):
                yield narrowed, rest
            return
    axis, cuts = _cuts(form, constraint, box)
    for first, last in itertools.pairwise(cuts):
        yield replace(box, axis, first, last), [constraint, *rest]


def _solve(constraint: Constraint, form: Affine, coefficient: Size) -> tuple[Size, Size]:
    """[first, last) of x with low <= coefficient * x + const < high."""
    low = sizes.sub(constraint.low, form.const)
    high = sizes.sub(constraint.high, form.const)
    if sizes.le(1, coefficient):
        return sizes.ceil_div(low, coefficient), sizes.ceil_div(high, coefficient)
    if sizes.le(coefficient, -1):
        # With y = -x: low <= c y < high for c = -coefficient, then negate the interval.
        positive = sizes.mul(coefficient, -1)
        first, last = sizes.ceil_div(low, positive), sizes.ceil_div(high, positive)
        return sizes.sub(1, last), sizes.sub(1, first)
    raise NotRepresentable(f"the sign of {coefficient} is not known")


def _cuts(form: Affine, constraint: Constraint, box: Box) -> tuple[int, list[int]]:
    """An axis and increasing positions from lower to upper that divide the box on it."""
    extents = {}
    for k in sorted(affine.coordinates(form)):
        first, last = box[0][k], box[1][k]
        if type(first) is int and type(last) is int and last - first > 1:
            extents[k] = last - first
    if not extents:
        raise NotRepresentable(f"{form} in {constraint.low}:{constraint.high} is not decidable")
    if len(form.terms) == 1:
        ((atom, _),) = form.terms.items()
        if isinstance(atom, Rem):
            wrapped = _wraps(atom, box)
            if wrapped is not None:
                return wrapped
    direct = {k: form.terms[k] for k in extents if type(form.terms.get(k)) is int}
    if direct:
        axis = max(direct, key=lambda k: abs(direct[k]) * extents[k])
        cuts = _undecided(form, constraint, box, axis)
        if len(cuts) > 2:
            return axis, cuts
    axis = max(extents, key=lambda k: extents[k])
    start, stop = int(box[0][axis]), int(box[1][axis])
    return axis, [start, (start + stop) // 2, stop]


def _wraps(atom: Rem, box: Box) -> tuple[int, list[int]] | None:
    """The places where x % m starts again, for x = +-k // a + const of one coordinate k."""
    arg, period = atom.arg, atom.by
    sign = 1
    shift: Size = 0
    while len(arg.terms) == 1:
        ((inner, coefficient),) = arg.terms.items()
        if coefficient not in (1, -1) or (coefficient == -1 and isinstance(inner, Div)):
            return None
        shift = sizes.add(shift, arg.const)
        if isinstance(inner, int):
            sign = 1 if coefficient == 1 else -1
            break
        if not isinstance(inner, Div):
            return None
        period, shift, arg = sizes.mul(period, inner.by), sizes.mul(shift, inner.by), inner.arg
    else:
        return None
    start, stop = box[0][inner], box[1][inner]
    if not all(type(x) is int for x in (start, stop, shift, period)):
        return None
    # x wraps where sign * k + shift enters another multiple of the period.
    first = -shift if sign == 1 else shift + 1
    begin = start + (first - start) % int(period)
    cuts = [start, *(c for c in range(begin, stop, int(period)) if c > start), stop]
    if len(cuts) > LIMIT:
        raise NotRepresentable(f"more than {LIMIT} boxes")
    return (inner, cuts) if len(cuts) > 2 else None


def _undecided(form: Affine, constraint: Constraint, box: Box, axis: int) -> list[int]:
    """Cuts on ``axis`` between where the constraint holds, fails, and depends on other axes."""
    factor = form.terms[axis]
    others = Affine(form.const, {t: c for t, c in form.terms.items() if t != axis})
    low, high = affine.interval(others, bounds_of(box))
    start, stop = int(box[0][axis]), int(box[1][axis])
    numbers = (low, high, constraint.low, constraint.high)
    if not all(type(x) is int for x in numbers):
        return [start, stop]
    inside = _solve(
        Constraint(form, sizes.sub(constraint.low, low), sizes.sub(constraint.high, high)),
        affine.constant(0),
        factor,
    )
    touching = _solve(
        Constraint(form, sizes.sub(constraint.low, high), sizes.sub(constraint.high, low)),
        affine.constant(0),
        factor,
    )
    marks = {start, stop, *(int(x) for x in (*inside, *touching))}
    for first, last in ((touching[0], inside[0]), (inside[1], touching[1])):
        width = range(max(int(first), start), min(int(last), stop))
        if len(width) <= LIMIT:
            marks.update(width)
    return sorted(m for m in marks if start <= m <= stop)

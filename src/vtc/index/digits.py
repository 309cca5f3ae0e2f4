"""Digit normal form: coordinates split until given expressions are affine in the digits.

A coordinate that is used as ``i // 3`` and ``i % 3`` is written i = 3 q + r with digits q and r; in
terms of them both uses are affine, and questions about the map (is it one-to-one, is it strided,
how long are its runs) become arithmetic on strides. Where a division does not line up with the
box, the box is cut first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from vtc.index import affine, boxes, sizes, substitution
from vtc.index.affine import Affine, Bounds, Div, Look, Rem
from vtc.index.boxes import Box
from vtc.index.sizes import Size

# Work limits of one split: more boxes than this is no compact answer.
BOXES = 256
STEPS = 2048


class Cut(IntEnum):
    """How far a box may be cut to make its expressions affine."""

    NONE = 0
    ALIGN = 1  # where a division starts again
    UNIT = 2  # into single values of a short digit


@dataclass(frozen=True)
class Digits:
    """A box in digits: digit j ranges over [0, extent[j]).

    ``coords[k]`` is output coordinate k and ``forms`` the given expressions, all affine in the
    digits. Digits are numbered in row-major order of the coordinates: the last one moves fastest.
    """

    extent: tuple[Size, ...]
    coords: tuple[Affine, ...]
    forms: tuple[Affine, ...]

    @property
    def bounds(self) -> Bounds:
        """The closed interval of each digit."""
        return tuple((0, sizes.sub(n, 1)) for n in self.extent)

    def replace(self, j: int, extents: Sequence[Size], value: Affine) -> Digits:
        """Digit j written as ``value`` in new digits j .. of ``extents``; later ones move up."""
        extent = (*self.extent[:j], *extents, *self.extent[j + 1 :])
        grown = len(extents) - 1
        values = [
            value if k == j else affine.coordinate(k if k < j else k + grown)
            for k in range(len(self.extent))
        ]
        bounds = tuple((0, sizes.sub(n, 1)) for n in extent)
        return Digits(
            extent,
            tuple(substitution.substitute(a, values, bounds) for a in self.coords),
            tuple(substitution.substitute(a, values, bounds) for a in self.forms),
        )

    def ascending(self) -> Digits:
        """The same box with every digit counting up where its coordinate does."""
        part = self
        for form in self.coords:
            for j, coefficient in form.terms.items():
                if isinstance(j, int) and sizes.le(coefficient, -1):
                    part = part.reverse(j)
        return part

    def reverse(self, j: int) -> Digits:
        """Digit j counting the other way; it keeps its place in the order of the coordinates."""
        last = affine.constant(sizes.sub(self.extent[j], 1))
        down = affine.add(last, affine.scale(affine.coordinate(j), -1))
        return self.replace(j, (self.extent[j],), down)

    def narrow(self, j: int, start: Size, stop: Size) -> Digits:
        """The part where digit j is in [start, stop); the digit disappears if that is one value."""
        if sizes.sub(stop, start) == 1:
            return self.replace(j, (), affine.constant(start))
        moved = affine.add(affine.coordinate(j), affine.constant(start))
        return self.replace(j, (sizes.sub(stop, start),), moved)

    def cuts(self, j: int, marks: Sequence[int]) -> list[Digits]:
        """The box cut at increasing positions of digit j, which include both its ends."""
        return [self.narrow(j, a, b) for a, b in itertools.pairwise(marks)]

    def units(self, j: int) -> list[Digits] | None:
        """The box cut into single values of digit j, or None if they are too many."""
        n = self.extent[j]
        return self.cuts(j, range(n + 1)) if type(n) is int and n <= BOXES else None


def whole(box: Box, forms: Sequence[Affine]) -> Digits:
    """A box with one digit for each coordinate that has more than one value."""
    extent: list[Size] = []
    values: list[Affine] = []
    for low, high in zip(*box, strict=True):
        size = sizes.sub(high, low)
        if size == 1:
            values.append(affine.constant(low))
        else:
            values.append(affine.add(affine.coordinate(len(extent)), affine.constant(low)))
            extent.append(size)
    bounds = tuple((0, sizes.sub(n, 1)) for n in extent)
    shifted = tuple(substitution.substitute(a, values, bounds) for a in forms)
    return Digits(tuple(extent), tuple(values), shifted)


def split(box: Box, forms: Sequence[Affine], cut: Cut) -> list[Digits] | None:
    """The box as parts in which all forms are affine, or None if ``cut`` does not allow it.

    Runtime lookups stay, as atoms whose arguments are affine.
    """
    return refine([whole(box, forms)], cut) if not boxes.is_empty(box) else []


def refine(parts: Sequence[Digits], cut: Cut) -> list[Digits] | None:
    """``split`` continued on parts that are digits already."""
    done: list[Digits] = []
    pending = list(reversed(parts))
    steps = 0
    while pending:
        part = pending.pop()
        atom = next((found for a in part.forms if (found := _inner(a)) is not None), None)
        if atom is None:
            done.append(part)
        else:
            smaller = _split_for(part, atom, cut)
            if smaller is None:
                return None
            pending.extend(reversed(smaller))
        steps += 1
        if len(done) + len(pending) > BOXES or steps > STEPS:
            return None
    return done


def _inner(a: Affine) -> Div | Rem | None:
    """A division in a whose argument is affine, if there is any division."""
    for atom in a.terms:
        if isinstance(atom, Look):
            for arg in atom.args:
                found = _inner(arg)
                if found is not None:
                    return found
        elif isinstance(atom, (Div, Rem)):
            found = _inner(atom.arg)
            if found is not None:
                return found
            # A wrapped lookup counts as the lookup: nothing divides it into digits.
            if not _opaque(atom.arg):
                return atom
    return None


def _opaque(a: Affine) -> bool:
    return any(
        isinstance(t, Look) or (isinstance(t, (Div, Rem)) and _opaque(t.arg)) for t in a.terms
    )


def _split_for(part: Digits, atom: Div | Rem, cut: Cut) -> list[Digits] | None:
    """Parts in which ``atom`` is nearer to affine."""
    terms = [(j, c) for j, c in atom.arg.terms.items() if isinstance(j, int)]
    if len(terms) == 1:
        ((j, coefficient),) = terms
        if coefficient == -1:
            return [part.reverse(j)]
        if coefficient == 1:
            return _aligned(part, j, atom.arg.const, atom.by, cut)
    for j, coefficient in terms:
        factor: Size = atom.by
        for other, scaled in terms:
            if other != j:
                factor = sizes.common_factor(factor, scaled)
        count = None if factor == 1 else sizes.exact_div(part.extent[j], factor)
        if count is not None and count != 1 and sizes.exact_div(coefficient, factor) is None:
            return [_radix(part, j, count, factor)]
    if cut < Cut.UNIT:
        return None
    known = [(n, j) for j, _ in terms if type(n := part.extent[j]) is int]
    return part.units(min(known)[1]) if known else None


def _aligned(part: Digits, j: int, shift: Size, by: Size, cut: Cut) -> list[Digits] | None:
    """Digit j, used as (j + shift) // by or % by with shift in [0, by), split by ``by``."""
    extent = part.extent[j]
    if shift == 0:
        count = sizes.exact_div(extent, by)
        if count is not None:
            return [_radix(part, j, count, by)]
    if cut < Cut.ALIGN or not all(type(x) is int for x in (extent, shift, by)):
        return None
    first = int(sizes.sub(by, shift)) if shift != 0 else 0
    last = first + (int(extent) - first) // int(by) * int(by)
    marks = sorted({0, *(m for m in (first, last) if 0 < m < int(extent)), int(extent)})
    return part.cuts(j, marks)


def _radix(part: Digits, j: int, count: Size, by: Size) -> Digits:
    """Digit j as by * q + r, with q of ``count`` values."""
    if count == 1:
        return part
    value = affine.add(affine.scale(affine.coordinate(j), by), affine.coordinate(j + 1))
    return part.replace(j, (count, by), value)

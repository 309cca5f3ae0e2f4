"""Composition of index maps, restriction to a box, and the merging of adjacent pieces."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from vtc.index import affine, boxes, sizes, substitution
from vtc.index.affine import Affine
from vtc.index.boxes import Box, Constraint
from vtc.index.piece import Piece
from vtc.index.sizes import NotRepresentable, Size


@functools.lru_cache(maxsize=1 << 14)
def through(piece: Piece, shape: tuple[Size, ...], inner: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """``piece`` with its source, a tensor of ``shape``, read through the pieces of its map."""
    if len(piece.forms) != len(shape):
        raise ValueError(f"{piece} reads a source of shape {tuple(shape)}")
    if piece.empty:
        return ()
    box = (piece.lower, piece.upper)
    forms = [substitution.simplify(a, piece.bounds) for a in piece.forms]
    values = [affine.wrapped_lookup(a, size) for a, size in zip(forms, shape, strict=True)]
    result: list[Piece] = []
    for part in inner:
        constraints = _constraints(values, shape, part)
        found = boxes.preimage(box, constraints) if constraints else [box]
        for lower, upper in found:
            bounds = boxes.bounds_of((lower, upper))
            index = tuple(substitution.substitute(a, values, bounds) for a in part.forms)
            result.append(Piece(lower, upper, part.source, index).simplify())
        if len(result) > boxes.LIMIT:
            raise NotRepresentable(f"more than {boxes.LIMIT} pieces")
    return tuple(result)


def _constraints(values: Sequence[Affine], shape: Sequence[Size], part: Piece) -> list[Constraint]:
    """What the source index must meet to fall into ``part``; nothing for a whole dimension."""
    return [
        Constraint(value, low, high)
        for value, size, low, high in zip(values, shape, part.lower, part.upper, strict=True)
        if not (low == 0 and high == size)
    ]


def restrict(piece: Piece, box: Box) -> Piece | None:
    """The part of the piece inside ``box``, in coordinates that start at the box's corner."""
    common = boxes.intersect((piece.lower, piece.upper), box)
    if common is None:
        return None
    lower, upper = (
        tuple(sizes.sub(x, start) for x, start in zip(corner, box[0], strict=True))
        for corner in common
    )
    moved = [
        affine.add(affine.coordinate(k), affine.constant(start)) for k, start in enumerate(box[0])
    ]
    bounds = boxes.bounds_of((lower, upper))
    index = tuple(substitution.substitute(a, moved, bounds) for a in piece.forms)
    return Piece(lower, upper, piece.source, index).simplify()


def merge(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Simplified pieces without empty ones, adjacent ones joined where one index serves both."""
    current = [p.simplify() for p in pieces if not p.empty]
    if len(current) < 2:
        return tuple(current)
    rank = len(current[0].lower)
    changed = True
    while changed and len(current) > 1:
        changed = False
        for axis in reversed(range(rank)):
            merged = _merge_axis(current, axis)
            changed = changed or len(merged) < len(current)
            current = merged
    if all(type(x) is int for p in current for x in p.lower):
        current.sort(key=lambda p: p.lower)
    return tuple(current)


def _merge_axis(pieces: Sequence[Piece], axis: int) -> list[Piece]:
    """One pass of joins along one axis."""
    groups: dict[object, list[Piece]] = {}
    for piece in pieces:
        others = (
            piece.source,
            piece.lower[:axis] + piece.lower[axis + 1 :],
            piece.upper[:axis] + piece.upper[axis + 1 :],
        )
        groups.setdefault(others, []).append(piece)
    result: list[Piece] = []
    for group in groups.values():
        if len(group) == 1:
            result.append(group[0])
            continue
        starts = {p.lower[axis]: p for p in group}
        joined: set[Size] = set()
        ends = {p.upper[axis] for p in group}
        heads = [p for p in group if p.lower[axis] not in ends] or list(group)
        for head in heads:
            while True:
                joined.add(head.lower[axis])
                follower = starts.get(head.upper[axis])
                if follower is None or follower.lower[axis] in joined:
                    result.append(head)
                    break
                union = _join(head, follower, axis)
                if union is None:
                    result.append(head)
                    head = follower
                else:
                    joined.add(follower.lower[axis])
                    head = union
    return result


def _join(a: Piece, b: Piece, axis: int) -> Piece | None:
    """a and b, adjacent on ``axis``, as one piece, or None."""
    upper = (*a.upper[:axis], b.upper[axis], *a.upper[axis + 1 :])
    if a.forms == b.forms:
        return Piece(a.lower, upper, a.source, a.forms)
    guess = _line(a, b, axis)
    for forms in (b.forms, a.forms, guess):
        if forms is None:
            continue
        if _agrees(forms, a) and _agrees(forms, b):
            return Piece(a.lower, upper, a.source, forms).simplify()
    return None


def _agrees(forms: Sequence[Affine], piece: Piece) -> bool:
    return all(
        substitution.simplify(f, piece.bounds) == own
        for f, own in zip(forms, piece.forms, strict=True)
    )


def _line(a: Piece, b: Piece, axis: int) -> tuple[Affine, ...] | None:
    """Where both pieces are one element thick on ``axis``: the straight line through them."""
    if a.extent[axis] != 1 or b.extent[axis] != 1:
        return None
    along = affine.add(affine.coordinate(axis), affine.constant(sizes.mul(-1, a.lower[axis])))
    forms = []
    for first, second in zip(a.forms, b.forms, strict=True):
        step = affine.add(second, affine.scale(first, -1))
        if step.terms:
            return None
        forms.append(affine.add(first, affine.scale(along, step.const)))
    return tuple(forms)

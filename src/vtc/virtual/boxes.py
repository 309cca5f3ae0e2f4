"""What planning asks of boxes: what is left of a shape, and what box a map's pieces touch.

A box is (lower, upper), half open. Sizes may be symbolic; a question that then has no certain
answer is answered on the safe side: boxes are said to meet, a piece to touch whole dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vtc.index import affine, sizes
from vtc.index.boxes import Box, disjoint, is_empty
from vtc.index.map import IndexMap
from vtc.index.piece import Piece
from vtc.index.sizes import Size

__all__ = ["Box", "any_meet", "box_of", "domain", "meet", "reach", "remainder", "whole"]


def box_of(piece: Piece) -> Box:
    """The box of index space that a piece describes."""
    return piece.lower, piece.upper


def whole(shape: Iterable[Size]) -> Box:
    """The box that is a whole tensor."""
    upper = tuple(map(sizes.as_size, shape))
    return (0,) * len(upper), upper


def domain(map: IndexMap) -> tuple[Box, ...]:
    """The boxes of index space on which a map is defined, fills included."""
    return tuple(box_of(piece) for piece in map.pieces if not piece.empty)


def meet(a: Box, b: Box) -> bool:
    """True unless the boxes certainly have no common element."""
    return not (disjoint(a, b) or is_empty(a) or is_empty(b))


def any_meet(a: Sequence[Box], b: Sequence[Box]) -> bool:
    """True unless no box of `a` has an element in common with one of `b`, for certain."""
    return any(meet(one, other) for one in a for other in b)


def common(a: Box, b: Box) -> Box | None:
    """The common elements; all of `a` where they are no certain box; None where there are none."""
    if not meet(a, b):
        return None
    lower, upper = [], []
    for low, high, start, stop in zip(*a, *b, strict=True):
        if not (sizes.le(low, start) or sizes.le(start, low)):
            return a
        if not (sizes.le(high, stop) or sizes.le(stop, high)):
            return a
        lower.append(start if sizes.le(low, start) else low)
        upper.append(high if sizes.le(high, stop) else stop)
    return tuple(lower), tuple(upper)


def subtract(box: Box, other: Box) -> list[Box]:
    """`box` without `other`, as disjoint boxes; all of it where ends have no certain order."""
    if not meet(box, other):
        return [box]
    low, high = list(box[0]), list(box[1])
    parts: list[Box] = []
    for d, (start, stop) in enumerate(zip(*other, strict=True)):
        if not (sizes.le(low[d], start) or sizes.le(start, low[d])):
            return [box]
        if not (sizes.le(high[d], stop) or sizes.le(stop, high[d])):
            return [box]
        if sizes.le(low[d], start):
            parts.append((tuple(low), (*high[:d], start, *high[d + 1 :])))
            low[d] = start
        if sizes.le(stop, high[d]):
            parts.append(((*low[:d], stop, *low[d + 1 :]), tuple(high)))
            high[d] = stop
    return [part for part in parts if not is_empty(part)]


def remainder(shape: Iterable[Size], taken: Iterable[Box]) -> list[Box]:
    """The elements of `shape` that are in none of the boxes, as disjoint boxes."""
    left = [whole(shape)]
    for box in taken:
        left = [part for one in left for part in subtract(one, box)]
    return [box for box in left if not is_empty(box)]


def reach(piece: Piece, shape: Sequence[Size]) -> Box:
    """The smallest box of the piece's source, of shape `shape`, known to hold all it touches.

    A runtime lookup touches its whole dimension.
    """
    lower: list[Size] = []
    upper: list[Size] = []
    for form, size in zip(piece.forms, shape, strict=True):
        low, high = affine.interval(form, piece.bounds)
        lower.append(0 if low is None or sizes.le(low, 0) else low)
        end = size if high is None else sizes.add(high, 1)
        upper.append(size if sizes.le(size, end) else end)
    return tuple(lower), tuple(upper)

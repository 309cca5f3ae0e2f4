"""Two stores whose elements alternate in memory, as one store of adjacent elements.

    before: store(base + 2*c, a); store(base + 2*c + 1, b)
    after:  store(base + lane, interleave(a, b))            lane = 2*c0, 2*c0 + 1, ..

A concat of two halves behind a channel shuffle of two groups is stored so: one by one, each of the
two stores would fill every other element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vtc.index.access import Access
from vtc.kernels.address import Coordinate, Space
from vtc.kernels.text import Lines, size_text


def pairs(stores: Mapping[int, Access]) -> dict[int, tuple[int, int]]:
    """Of numbered stores those that alternate: the later number -> the numbers of the one with the
    even and of the one with the odd elements."""
    found: dict[int, tuple[int, int]] = {}
    open_stores: list[int] = []
    for number, piece in stores.items():
        other = next((k for k in open_stores if _alternate(stores[k], piece)), None)
        if other is None:
            open_stores.append(number)
            continue
        open_stores.remove(other)
        even, odd = sorted((other, number), key=lambda k: _base(stores[k]))
        found[number] = even, odd
    return found


def _base(piece: Access) -> int:
    assert isinstance(piece.base, int)
    return piece.base


def _alternate(a: Access, b: Access) -> bool:
    """Do both go to every second element, and one to those that the other leaves out?"""
    plain = all(p.rest is None and not p.mask and isinstance(p.base, int) for p in (a, b))
    alike = (a.source, a.stride, a.box) == (b.source, b.stride, b.box)
    return plain and alike and a.stride[-1] == 2 and abs(_base(a) - _base(b)) == 1


def widened(space: Space, lines: Lines) -> Space | None:
    """The space with two lanes for each one along its last dimension; None where that is not the
    last coordinate, counting up to a known limit."""
    last = len(space.shape) - 1
    at = space.coordinates[-1] if space.coordinates else None
    if at is None or at.dims != (last,) or at.start is None or at.limit is None:
        return None
    if at.length is None or not at.length.isdigit():
        return None
    length = 2 * int(at.length)
    lane = lines.bind("lane", f"{at.start} * 2 + tl.arange(0, {length})")
    text = f"{lane}[{'None, ' * last}:]"
    limit = 2 * at.limit
    valid = None if space.valid[-1] is None else f"{text} < {size_text(limit)}"
    lanes = Coordinate(text, at.dims, f"({at.start} * 2)", str(length), 2 * at.multiple, limit)
    return replace(
        space,
        coordinates=(*space.coordinates[:-1], lanes),
        shape=(*space.shape[:-1], str(length)),
        valid=(*space.valid[:-1], valid),
    )


def joined(even: Access) -> Access:
    """The access of both stores over the widened space, from that of the even elements."""
    upper = (*even.upper[:-1], 2 * even.upper[-1])
    return replace(even, upper=upper, stride=(*even.stride[:-1], 1), contiguity=None)

"""The channels of a convolution's input: runs of them in whatever holds them.

Movement between convolutions (concat, split, channel shuffle, slices) is a map on the channel, the
contracted dimension. It is followed with the channel as a run start + step * j, which is cut where
a piece of a map ends and into residues where the map divides. What is left is a few runs, each in
one tensor, at affine addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vtc.index import Affine, Fill, Piece, Size, affine, sizes, substitution
from vtc.index.affine import Atom, Div, Rem
from vtc.lowering.dvm.body import Body
from vtc.lowering.dvm.domain import Index
from vtc.lowering.dvm.instructions import Indirect, Needs, Split
from vtc.lowering.dvm.memory import Home
from vtc.lowering.dvm.nodes import Move, Node
from vtc.program.tile import Access, Panel

# More runs than this, and the tensor is stored as it is read.
MOST_RUNS = 64
# Output points that lie in a row would be read in runs shorter than this, where an index divides
# (an upsampled input): storing the input first is cheaper.
SHORTEST_RUN = 7


class Planned:
    """Where a node will be that is not in memory yet: at its home, or at one of its own.

    panels: for right operands of products the node that holds them packed.
    """

    def __init__(
        self,
        homes: dict[Node, Home],
        strides: Callable[[Node], tuple[Size, ...]],
        panels: dict[Node, tuple[Node, Panel]],
    ) -> None:
        self.homes, self.strides, self.panels = homes, strides, panels

    def __call__(self, node: Node) -> Home:
        return self.homes.get(node) or Home(-1, 0, self.strides(node))


@dataclass(frozen=True)
class Run:
    """Channels start + step * j of the input, for j < count, at `access`."""

    access: Access
    start: int
    step: int
    count: Size


@dataclass(frozen=True)
class _Found:
    """Channels start + step * j, for j < count: element `index` of a node, in which j takes the
    place of the channel."""

    node: Node
    index: Index
    start: int
    step: int
    count: Size


def channel_runs(
    body: Body,
    top: Node,
    index: Index,
    extra: Sequence[Size],
    channel: int,
    planned: Planned,
) -> list[Run]:
    """The channels of `top`, whose element `index` has coordinates of the domain and further ones,
    of sizes `extra`: windows, and the contracted channel. `channel` is the coordinate of the
    channel among all of these; a depthwise convolution's is one of the domain.

    Raises Needs for what has to be in memory first.
    """
    search = _Search(body, tuple(extra), channel, planned)
    count = (*body.domain.sizes, *extra)[channel]
    try:
        found = search.runs(_Found(top, index, 0, 1, count))
    except Indirect:
        raise Needs(top) from None
    for run in found:
        if body.homes(run.node) is None:
            raise Needs(run.node)
    body.seen |= search.passed
    return [Run(search.access(run), run.start, run.step, run.count) for run in found]


class _Search:
    """Follows movement from a convolution's input to what is, or will be, in memory."""

    def __init__(self, body: Body, extra: tuple[Size, ...], channel: int, planned: Planned) -> None:
        self.body, self.extra, self.channel, self.planned = body, extra, channel, planned
        self.all = (*body.bounds, *((0, sizes.sub(size, 1)) for size in extra))
        self.passed: set[Node] = set()

    def runs(self, at: _Found) -> list[_Found]:
        """The run in pieces that each lie in one tensor. Raises Indirect."""
        node = at.node
        if self.body.homes(node) is None and node.op == "move":
            try:
                found = self.deeper(at)
            except Indirect:
                pass
            else:
                self.passed.add(node)
                return found
        self.access(at)
        return [at]

    def access(self, at: _Found) -> Access:
        """Where a run is, or will be. Raises Indirect where its address is not affine."""
        home = self.body.homes(at.node) or self.planned(at.node)
        extra = list(self.extra)
        if self.channel >= len(self.body.domain.sizes):
            extra[self.channel - len(self.body.domain.sizes)] = at.count
        try:
            return self.body.access(home, at.node.shape, at.index, extra)
        except Split as split:
            if isinstance(split.factor, int) and split.factor < SHORTEST_RUN:
                raise Indirect from None
            raise

    def deeper(self, at: _Found) -> list[_Found]:
        """The run in the sources of a movement. Raises Indirect."""
        move: Move = at.node.constant
        found: list[_Found] = []
        for piece in move.load.pieces:
            if piece.lookups():
                raise Indirect
            part = self.within(at, piece)
            if part is None:
                continue
            if isinstance(piece.source, Fill):
                if piece.source.value != 0:
                    raise Indirect
                continue
            bounds = self.bounds(part.count)
            forms = tuple(substitution.substitute(f, part.index, bounds) for f in piece.forms)
            source = at.node.operands[piece.source]
            for own in self.residues(_Found(source, forms, part.start, part.step, part.count)):
                found += self.runs(own)
            if len(found) > MOST_RUNS:
                raise Indirect
        if not found:
            raise Indirect
        return found

    def bounds(self, count: Size) -> affine.Bounds:
        """Those of all coordinates, with `count` places in the run."""
        own = (0, sizes.sub(count, 1))
        return (*self.all[: self.channel], own, *self.all[self.channel + 1 :])

    def within(self, at: _Found, piece: Piece) -> _Found | None:
        """The part of a run that is in the box of a piece; None if that is nothing."""
        bounds = self.bounds(at.count)
        first: int = 0
        last: Size = at.count
        for form, low, high, size in zip(
            at.index, piece.lower, piece.upper, at.node.shape, strict=True
        ):
            if low == 0 and high == size:
                continue
            least, most = affine.interval(form, bounds)
            if least is not None and most is not None:
                if sizes.le(low, least) and sizes.lt(most, high):
                    continue
                if sizes.lt(most, low) or sizes.le(high, least):
                    return None
            step = form.terms.get(self.channel)
            known = all(isinstance(n, int) for n in (form.const, low, high, last, step))
            if not known or len(form.terms) != 1 or step <= 0:  # type: ignore[operator]
                raise Indirect
            # Between which places of the run the form is in the box.
            first = max(first, -((form.const - low) // step))  # type: ignore[operator]
            last = min(last, -((form.const - high) // step))  # type: ignore[operator]
        if first == 0 and last == at.count:
            return at
        if last <= first:
            return None
        return self.moved(at, first, 1, last - first)

    def moved(self, at: _Found, first: int, by: int, count: Size) -> _Found:
        """Every `by`-th channel of a run, from the one at place `first` on."""
        bounds = self.bounds(count)
        values = [affine.coordinate(d) for d in range(len(bounds))]
        own = affine.scale(affine.coordinate(self.channel), by)
        values[self.channel] = affine.add(own, affine.constant(first))
        index = tuple(substitution.substitute(f, values, bounds) for f in at.index)
        return _Found(at.node, index, at.start + at.step * first, at.step * by, count)

    def residues(self, at: _Found) -> list[_Found]:
        """The run in parts in which the index does not divide the channel."""
        by = next((n for f in at.index if (n := self.divisor(f)) is not None), None)
        if by is None or by == 1:
            return [at]
        if not isinstance(at.count, int):
            raise Indirect
        found: list[_Found] = []
        # `by` places in a row, among which the quotient stays, or every `by`-th place.
        blocks = -(-at.count // by)
        if blocks <= min(by, MOST_RUNS) and self.aligned(at, by):
            for block in range(blocks):
                count = min(by, at.count - block * by)
                found += self.residues(self.moved(at, block * by, 1, count))
            return found
        if by > MOST_RUNS:
            raise Indirect
        for rest in range(min(by, at.count)):
            count = sizes.ceil_div(at.count - rest, by)
            found += self.residues(self.moved(at, rest, by, count))
        return found

    def aligned(self, at: _Found, by: int) -> bool:
        """Do all divisions of the index by the channel go away in each block of `by` places?"""
        block = self.moved(at, 0, 1, min(by, at.count))
        return all(self.divisor(form) is None for form in block.index)

    def divisor(self, form: Affine) -> int | None:
        """By how much the place in a run is to be multiplied for a division to go away."""
        for atom in form.terms:
            if isinstance(atom, Div | Rem):
                inner = self.divisor(atom.arg)
                if inner is not None:
                    return inner
                step = atom.arg.terms.get(self.channel)
                if step is not None:
                    return self._multiple(atom, step)
        return None

    def _multiple(self, atom: Atom, step: Size) -> int:
        assert isinstance(atom, Div | Rem)
        if not isinstance(atom.by, int) or not isinstance(step, int):
            raise Indirect
        multiple = atom.by // math.gcd(step, atom.by)
        if multiple == 1:
            raise Indirect
        return multiple

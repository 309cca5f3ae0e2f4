"""Writing the body of a kernel: nodes at an index -> instructions of a tile program.

`Body.value(node, index)` is the value of one element of a node, its index being quasi-affine in
the kernel's coordinates. Movement is followed by substitution, so that what is left at a load is an
address; a division that the kernel's dimensions can be split for raises Split, and what must lie in
memory first raises Needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vtc.graph.rules import same
from vtc.index import Affine, Fill, Piece, Size, affine, sizes, substitution
from vtc.index.affine import Atom, Div, Look, Rem
from vtc.lowering.dvm.domain import Index, broadcast_index, coordinate_number, coordinates_of
from vtc.lowering.dvm.graph import Graph
from vtc.lowering.dvm.instructions import VALUES, Instructions, Mask, Needs, bare_look, look
from vtc.lowering.dvm.memory import Home
from vtc.lowering.dvm.nodes import Fold, Move, Node
from vtc.program.dtypes import DType
from vtc.program.scalars import SCALARS
from vtc.program.tile import ANCHORS, Bound

# What costs more cycles a vector than this is not computed again for every row.
DEAR = 10
# What costs more is not computed again for every tile of a product.
LINE_COST = 100
# A kernel of more loads is written as several: a device has room for 64 accesses.
MOST_LOADS = 56
# A kernel of longer chains of operators is, too: Python's stack ends somewhere.
MOST_NESTED = 100


@dataclass
class Body(Instructions):
    """The instructions of one kernel, from nodes. `homes` holds what is in memory when it runs,
    `anchor` writes the value of an anchor."""

    homes: Callable[[Node], Home | None] = field(kw_only=True)
    anchor: Callable[[Body, Node, Index], int] = field(kw_only=True)
    values: dict[tuple[Node, Index, Mask, int | None], int] = field(default_factory=dict)
    inlined: dict[Node, tuple[Index, int]] = field(default_factory=dict)
    seen: set[Node] = field(default_factory=set)
    nested: int = 0

    # Values of nodes.

    def value(self, node: Node, index: Index, mask: Mask = (), other: int | None = None) -> int:
        """One element of the node where `mask` holds, and value `other` (or anything) elsewhere."""
        key = (node, index, mask, other)
        found = self.values.get(key)
        if found is None:
            found = self.values[key] = self._value(node, index, mask, other)
        return found

    def _value(self, node: Node, index: Index, mask: Mask, other: int | None) -> int:
        home = self.homes(node)
        if home is not None:
            return self.load(node, home, index, mask, other)
        if node.op == "move":
            return self.moved(node, index, mask, other)
        if node.op in ("input", "external", "scatter", "arm"):
            raise Needs(node)
        if node.op in ("const", "iota"):
            made = self.generated(node, index)
        elif node.op == "reduce":
            made = self.reduced_value(node, index, mask)
        elif node.op == "scan":
            made = self.scanned(node, index, mask)
        elif node.op in ANCHORS:
            if mask or self.domain.anchor is not node or index != self.domain.anchor_index:
                raise Needs(node)
            made = self.anchor(self, node, index)
        else:
            if self._wasteful(node, index):
                raise Needs(node)
            made = self.computed(node, index, mask)
        self.seen.add(node)
        if not mask and node.op not in ("const", "iota"):
            self.inlined.setdefault(node, (index, made))
        return made if other is None else self.chosen(mask, made, other, node.dtype)

    def generated(self, node: Node, index: Index) -> int:
        if node.op == "const":
            return self.add("const", (), node.dtype.compute, constant=node.constant)
        form = index[node.constant]
        look = bare_look(form)
        if look is not None:
            form = self.wrapped(look, node.shape[node.constant])
        return self.integer(form)

    def computed(self, node: Node, index: Index, mask: Mask) -> int:
        if self.nested == MOST_NESTED:
            raise Needs(node)
        self.nested += 1
        args = tuple(self.value(o, broadcast_index(o.shape, index), mask) for o in node.operands)
        self.nested -= 1
        if node.op == "cast":
            return self.cast(args[0], node.operands[0].dtype, node.dtype)
        return self.add(node.op, args, node.dtype.compute)

    def cast(self, value: int, source: DType, target: DType) -> int:
        """A value of a node of dtype `source` as one of `target`."""
        widens = target is target.compute is source.compute
        if source is target or widens:
            return value
        return self.add("cast", (value,), target.compute, constant=target)

    def _wasteful(self, node: Node, index: Index) -> bool:
        """Would a dear value be computed again for other points that share it?"""
        if node.cost < DEAR or all(s == 1 for s in node.shape):
            return False
        used = coordinates_of(index)
        if self._line(index) and node.cost < LINE_COST:
            return False
        repeated = any(
            d not in used and s != 1 and d not in self.reduced
            for d, s in enumerate(self.domain.sizes)
        )
        return repeated or any(affine.lookups(i) for i in index)

    def _line(self, index: Index) -> bool:
        """Does an element depend on the column of a product only? One value a column of a tile is
        little beside the product."""
        columns = coordinates_of(self.domain.anchor_index[-1:])
        anchored = self.domain.anchor is not None
        return anchored and coordinates_of(index) <= columns and not _looks(index)

    def load(self, node: Node, home: Home, index: Index, mask: Mask, other: int | None) -> int:
        access = replace(self.access(home, node.shape, index), mask=self.needed(node, index, mask))
        if other is not None and not access.mask and mask:
            # Every address is inside, but the value is wanted under the mask only.
            access = replace(access, mask=mask)
        args = () if other is None or not access.mask else (other,)
        if len(self.instrs) >= MOST_LOADS:
            self.lighten()
        return self.add("load", args, node.dtype.compute, access)

    def lighten(self) -> None:
        """Raises Needs, of a kernel that has as many loads as it may, for the value that most of
        them are for: first for one that is computed at several places."""
        if sum(i.op == "load" for i in self.instrs) < MOST_LOADS:
            return
        times = Counter(node for node, *_ in self.values)
        found = [
            n for n in times if n.leaves > 1 and (n.op in SCALARS or n.op in ("cast", "reduce"))
        ]
        if found:
            raise Needs(max(found, key=lambda n: (times[n] > 1, n.leaves)))

    def needed(self, node: Node, index: Index, mask: Mask) -> Mask:
        """The mask, or none where every index is inside of the node anyway."""
        for form, size in zip(index, node.shape, strict=True):
            low, high = affine.interval(form, self.bounds)
            if (
                low is None
                or high is None
                or not sizes.nonnegative(low)
                or not sizes.lt(high, size)
            ):
                return mask
        return ()

    # Folds.

    def reduced_value(self, node: Node, index: Index, mask: Mask) -> int:
        """The fold of the node's operand, if the kernel folds the same dimensions there."""
        fold: Fold = node.constant
        operand = node.operands[0]
        kept = [i for d, i in enumerate(index) if d not in fold.dims]
        outer = {d for d, s in enumerate(self.domain.sizes) if d not in self.reduced and s != 1}
        lengths = [operand.shape[d] for d in fold.dims]
        own = [size for _, size in self.domain.folds]
        fits = len(own) == len(lengths) and all(
            sizes.sub(a, b) == 0 for a, b in zip(own, lengths, strict=True)
        )
        if mask or not fits or coordinates_of(kept) != outer or _looks(index):
            raise Needs(node)
        places = iter(form for form, _ in self.domain.folds)
        inner = tuple(next(places) if d in fold.dims else i for d, i in enumerate(index))
        value = self.value(operand, inner)
        dtype = DType.I64 if fold.name in ("argmax", "argmin") else node.dtype.compute
        return self.add("reduce", (value,), dtype, constant=fold.name)

    def scanned(self, node: Node, index: Index, mask: Mask) -> int:
        fold: Fold = node.constant
        (dim,) = fold.dims
        folds = self.domain.folds
        whole = {d for d, s in enumerate(self.domain.sizes) if s != 1}
        others = [i for d, i in enumerate(index) if d != dim]
        fits = (
            len(folds) == 1
            and index[dim] == folds[0][0]
            and len(self.reduced) == 1
            and not self.reduced & coordinates_of(others)
            and coordinates_of(index) == whole
        )
        if mask or not fits or _looks(index):
            raise Needs(node)
        value = self.value(node.operands[0], index)
        return self.add("scan", (value,), node.dtype.compute, constant=fold.name)

    # Movement.

    def moved(self, node: Node, index: Index, mask: Mask, other: int | None) -> int:
        """The value of a movement operator's element: that of its source's."""
        move: Move = node.constant
        self.seen.add(node)
        pieces = move.load.pieces
        index = self.settled(node, index, pieces)
        cases: list[tuple[Piece, Mask]] = []
        for piece in pieces:
            bounds = self.box(node, piece, index)
            if bounds is not None:
                cases.append((piece, bounds))
        # Fills first: they need no address, so that the rest is loaded over them.
        cases.sort(key=lambda case: not isinstance(case[0].source, Fill))
        result, default = other, None
        for piece, bounds in cases:
            if isinstance(piece.source, Fill):
                fill = self.filled(piece.source.value, node.dtype)
                if result is None:
                    result = default = fill
                elif fill != default:
                    result = self.chosen((*mask, *bounds), fill, result, node.dtype)
                continue
            source = node.operands[piece.source]
            joined = (*mask, *bounds)
            forms = self.forms(node, piece, index, joined)
            result = self.value(source, forms, joined, result)
        return self.filled(0, node.dtype) if result is None else result

    def filled(self, value: Any, dtype: DType) -> int:
        number = Graph().const(value, dtype).constant
        return self.add("const", (), dtype.compute, constant=number)

    def forms(self, node: Node, piece: Piece, index: Index, mask: Mask) -> Index:
        """The index in the piece's source, its lookups loaded."""
        move: Move = node.constant
        lookups = node.operands[move.sources :]
        found = [substitution.substitute(f, index, self.bounds) for f in piece.forms]
        return tuple(self.looked_up(f, lookups, mask) for f in found)

    def looked_up(self, form: Affine, lookups: Sequence[Node], mask: Mask) -> Affine:
        """The form with every lookup replaced by the value that it gives."""
        if not any(n < VALUES for n in affine.lookups(form)):
            return form
        result = affine.constant(form.const)
        for atom, coefficient in form.terms.items():
            one = self._looked_up(atom, lookups, mask)
            result = affine.add(result, affine.scale(one, coefficient))
        return result

    def _looked_up(self, atom: Atom, lookups: Sequence[Node], mask: Mask) -> Affine:
        if isinstance(atom, Look) and atom.tensor < VALUES:
            table = lookups[atom.tensor]
            at = tuple(self.looked_up(a, lookups, mask) for a in atom.args)
            value = self.value(table, at, mask)
            if table.dtype.compute is not DType.I64:
                value = self.add("cast", (value,), DType.I64, constant=DType.I64)
            return look(value)
        if isinstance(atom, Div | Rem):
            inner = self.looked_up(atom.arg, lookups, mask)
            return Affine(0, {type(atom)(inner, atom.by): 1})
        return Affine(0, {atom: 1})

    def settled(self, node: Node, index: Index, pieces: Sequence[Piece]) -> Index:
        """The index, an index given at run time counted from the front unless the one piece hands
        it on to a dimension of the same size."""
        settled = list(index)
        for k, form in enumerate(index):
            found = bare_look(form)
            if found is None:
                continue
            if not _handed_on(node, k, pieces):
                settled[k] = self.wrapped(found, node.shape[k])
        return tuple(settled)

    def box(self, node: Node, piece: Piece, index: Index) -> Mask | None:
        """What the piece's box demands of the coordinates; None if no point is in it."""
        bounds: list[Bound] = []
        for k, (low, high) in enumerate(zip(piece.lower, piece.upper, strict=True)):
            if low == 0 and high == node.shape[k]:
                continue
            form = index[k]
            first, last = affine.interval(form, self.bounds)
            above = first is not None and sizes.le(low, first)
            below = last is not None and sizes.lt(last, high)
            if above and below:
                continue
            outside = (last is not None and sizes.lt(last, low)) or (
                first is not None and sizes.le(high, first)
            )
            if outside:
                return None
            bounds.append(self._bound(node, form, low, high, above, below))
        return tuple(bounds)

    def _bound(
        self, node: Node, form: Affine, low: Size, high: Size, above: bool, below: bool
    ) -> Bound:
        """low <= form < high as a bound of a coordinate; a side that holds anyway is left open."""
        if len(form.terms) != 1:
            raise Needs(node)
        ((atom, step),) = form.terms.items()
        if not isinstance(atom, int) or step not in (1, -1):
            raise Needs(node)
        if step == 1:
            first, last = sizes.sub(low, form.const), sizes.sub(high, form.const)
            lower_open, upper_open = above, below
        else:
            first = sizes.add(sizes.sub(form.const, high), 1)
            last = sizes.add(sizes.sub(form.const, low), 1)
            lower_open, upper_open = below, above
        return Bound(
            atom, 0 if lower_open else first, self.domain.sizes[atom] if upper_open else last
        )


def _handed_on(node: Node, k: int, pieces: Sequence[Piece]) -> bool:
    """Is dimension k a dimension of the source, all of it?"""
    if len(pieces) != 1:
        return False
    (piece,) = pieces
    uses = [(d, f) for d, f in enumerate(piece.forms) if k in affine.coordinates(f)]
    shape = node.operands[piece.source].shape if isinstance(piece.source, int) else ()
    return all(coordinate_number(f) == k and same(shape[d], node.shape[k]) for d, f in uses)


def _looks(index: Index) -> bool:
    return any(affine.lookups(i) for i in index)

"""Integers that are known functions of their place, whatever the sizes: positions, and what is
compared of them.

Models compute much of this kind at each call: position ids are counted, and compared with those
before them, to find where packed sequences begin. Closed forms tell what is a constant, and which
indices are no more than places.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from vtc.index import Affine, Fill, IndexMap, Piece, Size, affine, sizes, substitution
from vtc.index.affine import Look
from vtc.lowering.dvm.nodes import Move, Node
from vtc.program.dtypes import DType

# Expressions are followed this deep; those of models have some ten operators.
DEEPEST = 100
# Constants below this are numbers of all these dtypes.
LARGEST = 1 << 24
EXACT = (DType.I64, DType.BOOL, DType.F32, DType.F64)

COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip

Form = Affine | None


class ClosedForms:
    """The closed form of a node's elements: an expression of their coordinates, of 64-bit integers;
    None where it has none. Truth values are 0 and 1, a float is a form if it is a constant."""

    def __init__(self) -> None:
        self.known: dict[Node, Form] = {}

    def __call__(self, node: Node) -> Form:
        if node.depth > DEEPEST or 0 in node.shape:
            return None
        if node not in self.known:
            self.known[node] = self._form(node)
        return self.known[node]

    def constant(self, node: Node) -> int | None:
        """The number that all elements of the node are, if there is one."""
        form = self(node)
        return None if form is None or form.terms else _integer(form.const)

    def difference(self, a: Node, b: Node, rank: int) -> Form:
        """a - b, in the coordinates of the shape of `rank` dimensions that they broadcast to."""
        if not {a.dtype, b.dtype} <= {DType.I64, DType.BOOL}:
            return None
        one, two = (self._broadcast(x, rank) for x in (a, b))
        return None if one is None or two is None else one - two

    def followed(
        self, load: IndexMap, sources: Sequence[Node], lookups: Sequence[Node]
    ) -> tuple[IndexMap, Sequence[Node]]:
        """The map with indices written out that are looked up in tensors of known values, and the
        lookups that are left: x[arange(n)] is x."""
        if not any(self(table) is not None for table in lookups):
            return load, lookups
        pieces = [self._followed(piece, sources, lookups) for piece in load.pieces]
        found = IndexMap(load.shape, pieces)
        left = sorted(found.lookups())
        numbers = {old: new for new, old in enumerate(left)}
        return found.renumber(lookups=numbers), [lookups[number] for number in left]

    def _followed(self, piece: Piece, sources: Sequence[Node], lookups: Sequence[Node]) -> Piece:
        if isinstance(piece.source, Fill):
            return piece
        source = sources[piece.source]
        forms = [
            self._looked_up(form, size, lookups, piece.bounds)
            for form, size in zip(piece.forms, source.shape, strict=True)
        ]
        return piece.with_index(forms)

    def _looked_up(
        self, form: Affine, size: Size, lookups: Sequence[Node], bounds: affine.Bounds
    ) -> Affine:
        """The index, as the table holds it where that is known to be a place in the dimension."""
        atom = next(iter(form.terms), None)
        if not isinstance(atom, Look) or form != Affine(0, {atom: 1}):
            return form
        known = self(lookups[atom.tensor])
        if known is None or any(affine.lookups(a) for a in atom.args):
            return form
        found = substitution.substitute(known, atom.args, bounds)
        return found if _inside(affine.interval(found, bounds), 0, size) else form

    def compared(self, name: str, a: Node, b: Node, rank: int) -> bool | None:
        """What a comparison gives for all elements alike; None where that is not known."""
        left = self.difference(a, b, rank)
        value = None if left is None or left.terms else _integer(left.const)
        return None if value is None else COMPARISONS[name](value, 0)

    def _form(self, node: Node) -> Form:
        if node.op == "const":
            return _number(node.constant, node.dtype)
        if node.op == "move":
            return self._moved(node)
        if node.op == "cast":
            return self._cast(node)
        if node.dtype is not DType.I64:
            return None
        if node.op == "iota":
            return affine.coordinate(node.constant)
        if node.op in ("add", "sub", "mul"):
            one, two = (self._broadcast(o, len(node.shape)) for o in node.operands)
            return None if one is None or two is None else _arithmetic(node.op, one, two)
        return None

    def _broadcast(self, node: Node, rank: int) -> Form:
        """The node's form in the coordinates of a shape of `rank` dimensions."""
        form = self(node)
        if form is None or not form.terms:
            return form
        first = rank - len(node.shape)
        values = [
            affine.constant(0) if size == 1 else affine.coordinate(first + d)
            for d, size in enumerate(node.shape)
        ]
        return substitution.substitute(form, values, ((0, None),) * rank)

    def _cast(self, node: Node) -> Form:
        (source,) = node.operands
        if node.dtype is DType.I64:
            return self(source)
        value = self.constant(source)
        if value is None or node.dtype is not DType.BOOL:
            return None
        return affine.constant(int(value != 0))

    def _moved(self, node: Node) -> Form:
        """The form that all pieces have: the last one's, if it is that of the others in their
        boxes, as that of [-1, 0, 1, ...] is."""
        move: Move = node.constant
        forms = [self._piece(node, piece) for piece in move.load.pieces]
        if not forms or not move.load.covers():
            return None
        last = forms[-1]
        if last is None:
            return None
        for piece, form in zip(move.load.pieces, forms, strict=True):
            if form is None or not agree(last, form, piece.bounds):
                return None
        return last

    def _piece(self, node: Node, piece: Piece) -> Form:
        if isinstance(piece.source, Fill):
            return _number(piece.source.value, node.dtype)
        source = node.operands[piece.source]
        form = self(source)
        if form is not None and not form.terms:
            return form
        if piece.lookups():
            return None
        if form is None and source.op == "move":
            form = self._part(source, piece.forms, piece.bounds)
        return None if form is None else substitution.substitute(form, piece.forms, piece.bounds)

    def _part(self, node: Node, index: Sequence[Affine], bounds: affine.Bounds) -> Form:
        """The form of the one piece of a movement operator's result that an index lies in."""
        move: Move = node.constant
        within = [affine.interval(form, bounds) for form in index]
        for piece in move.load.pieces:
            box = zip(within, piece.lower, piece.upper, strict=True)
            if all(_inside(interval, low, high) for interval, low, high in box):
                return self._piece(node, piece)
        return None


def agree(a: Affine, b: Affine, bounds: affine.Bounds) -> bool:
    """Are two forms the same wherever the bounds hold?"""
    left = substitution.simplify(a - b, bounds)
    return not left.terms and left.const == 0


def _inside(interval: affine.Interval, low: Size, high: Size) -> bool:
    """Does a closed interval lie in [low, high)?"""
    first, last = interval
    if first is None or last is None:
        return False
    return sizes.le(low, first) and sizes.lt(last, high)


def _number(value: bool | float | Size, dtype: DType) -> Form:
    """A number that is an integer, or a size."""
    if dtype not in EXACT:
        return None
    if not isinstance(value, bool | int | float):
        return affine.constant(value) if dtype is DType.I64 else None
    if dtype is DType.BOOL:
        return affine.constant(int(bool(value)))
    whole = abs(value) < LARGEST and value == int(value)
    return affine.constant(int(value)) if whole else None


def _integer(size: Size) -> int | None:
    return size if isinstance(size, int) else None


def _arithmetic(op: str, a: Affine, b: Affine) -> Form:
    """The sum, difference or product, unless its numbers are so large that it may wrap."""
    if op == "mul" and a.terms and b.terms:
        return None
    found = affine.multiply(a, b) if op == "mul" else a + b if op == "add" else a - b
    numbers = (found.const, *found.terms.values())
    return None if any(isinstance(n, int) and abs(n) >= LARGEST for n in numbers) else found

"""Making tensor expressions: equal ones once, and arithmetic on constants done at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vtc.index import IndexMap, Piece, Size, sizes
from vtc.lowering.dvm.closed import COMPARISONS, ClosedForms
from vtc.lowering.dvm.hints import Hints
from vtc.lowering.dvm.nodes import (
    LARGE,
    PHYSICAL,
    Call,
    Conditional,
    Fold,
    Move,
    Node,
    Shape,
    Unsupported,
)
from vtc.program.dtypes import DType
from vtc.program.scalars import REDUCTIONS, SCALARS
from vtc.program.tile import ANCHORS


@dataclass
class Graph:
    """Makes nodes; equal ones once. `results` lists the nodes that calls and branches give.

    What broadcasts a size that is a symbol raises TooWide. lacks: operators and reductions that
    the machine at hand does not have, making one of which raises Unsupported, and forms that rules
    refuse there. closed: what is known of integers, which is not computed.
    """

    interned: dict[Any, Node] = field(default_factory=dict)
    results: dict[Call | Conditional, tuple[Node, ...]] = field(default_factory=dict)
    hints: Hints = field(default_factory=Hints)
    lacks: frozenset[str] = frozenset()
    closed: ClosedForms = field(default_factory=ClosedForms)

    def node(
        self,
        op: str,
        shape: Sequence[Size],
        dtype: DType,
        operands: tuple[Node, ...] = (),
        constant: Any = None,
    ) -> Node:
        if op in self.lacks or (op == "reduce" and constant in self.lacks):
            raise Unsupported(f"{op} on this device")
        key = (op, tuple(shape), dtype, tuple(map(id, operands)), constant_key(constant))
        found = self.interned.get(key)
        if found is None:
            cost, leaves = _work(op, operands)
            depth = 0 if op in PHYSICAL else 1 + max((o.depth for o in operands), default=0)
            found = Node(op, tuple(shape), dtype, operands, constant, cost, leaves, depth)
            self.interned[key] = found
        return found

    # Scalars.

    def const(self, value: Any, dtype: DType) -> Node:
        """A number (or Size) of no dimensions."""
        if isinstance(value, bool | int | float):
            value = _cast_number(value, dtype)
        return self.node("const", (), dtype, (), value)

    def cast(self, x: Node, dtype: DType) -> Node:
        """x as `dtype`, rounded or wrapped as PyTorch does."""
        if x.dtype is dtype:
            return x
        if x.op == "const" and isinstance(x.constant, bool | int | float):
            return self.const(_rounded(x.constant, x.dtype), dtype)
        return self.node("cast", x.shape, dtype, (x,), dtype)

    def scalar(self, name: str, *operands: Node) -> Node:
        """A scalar operator on operands of one compute type that broadcast together.

        Raises Unsupported where the operator has no such form.
        """
        row = SCALARS[name]
        kinds = {o.dtype.compute for o in (operands[1:] if name == "select" else operands)}
        if len(kinds) != 1 or not kinds.issubset(row.dtypes):
            raise Unsupported(f"{name} of {' and '.join(sorted(map(str, kinds)))}")
        if name in _FOLDED and all(_is_integer(o) for o in operands):
            return self.const(_FOLDED[name](*(o.constant for o in operands)), operands[0].dtype)
        shape = self.joined(*(o.shape for o in operands))
        dtype = DType.BOOL if row.result == "bool" else operands[-1].dtype
        known = self._known(name, operands, len(shape))
        if known is not None:
            return self.broadcast(self.cast(known, dtype), shape)
        return self.node(name, shape, dtype, operands)

    def _known(self, name: str, operands: Sequence[Node], rank: int) -> Node | None:
        """The operand, or constant, that the operator's result is whatever the sizes are."""
        if name == "select":
            chosen = self.closed.constant(operands[0])
            return None if chosen is None else operands[1 if chosen else 2]
        if name in COMPARISONS:
            holds = self.closed.compared(name, operands[0], operands[1], rank)
            return None if holds is None else self.const(holds, DType.BOOL)
        neutral = _NEUTRAL.get((name, operands[0].dtype))
        for kept, idle in (operands, operands[::-1]) if neutral is not None else ():
            if self.closed.constant(idle) == neutral:
                return kept
        return None

    def joined(self, *shapes: Shape) -> Shape:
        """The shape that shapes broadcast to."""
        ranked = [shape for shape in shapes if shape]
        if not ranked or ranked.count(ranked[0]) == len(ranked):
            return ranked[0] if ranked else ()
        found = broadcast(*shapes)
        for shape in shapes:
            self.hints.check_broadcast(shape, found)
        return found

    def iota(self, shape: Sequence[Size], dim: int) -> Node:
        return self.node("iota", shape, DType.I64, (), dim)

    # Folds.

    def reduce(self, name: str, x: Node, dims: Sequence[int]) -> Node:
        """x folded over dims, which stay with size 1. Raises Unsupported where its dtype has no
        such fold."""
        if x.dtype.compute not in REDUCTIONS[name].dtypes:
            raise Unsupported(f"{name} of {x.dtype}")
        moving = tuple(sorted(d for d in dims if x.shape[d] != 1))
        dtype = DType.I64 if name in ("argmax", "argmin") else x.dtype
        if not moving:
            one = self.broadcast(self.const(0, DType.I64), x.shape)
            return one if name in ("argmax", "argmin") else x
        shape = [1 if d in moving else s for d, s in enumerate(x.shape)]
        return self.node("reduce", shape, dtype, (x,), Fold(name, moving))

    def scan(self, name: str, x: Node, dim: int) -> Node:
        """x folded up to each element along dim."""
        each = self.closed.constant(x) if name == "sum" and x.dtype is DType.I64 else None
        if each is not None:
            count = self.scalar("add", self.iota(x.shape, dim), self.const(1, DType.I64))
            zero = self.broadcast(self.const(0, DType.I64), x.shape)
            return self.scalar("mul", count, self.const(each, DType.I64)) if each else zero
        return self.node("scan", x.shape, x.dtype, (x,), Fold(name, (dim,)))

    # Movement.

    def move(
        self,
        load: IndexMap,
        sources: Sequence[Node],
        lookups: Sequence[Node] = (),
        stores: Sequence[IndexMap | None] | None = None,
        view: bool = False,
    ) -> Node:
        if lookups:
            load, lookups = self.closed.followed(load, sources, lookups)
        own = tuple(stores) if stores is not None else (None,) * len(sources)
        self.hints.check_move(load, [s.shape for s in sources])
        moved = Move(load, len(sources), own, view)
        return self.node("move", load.shape, sources[0].dtype, (*sources, *lookups), moved)

    def copy(self, x: Node) -> Node:
        """The same values as a tensor of its own: a node like no other."""
        same = IndexMap.identity(x.shape)
        return replace(self.move(same, [x], stores=[same]))

    def reshape(self, x: Node, shape: Sequence[Size]) -> Node:
        if x.shape == tuple(shape):
            return x
        load, back = IndexMap.reshape(x.shape, shape), IndexMap.reshape(shape, x.shape)
        return self.move(load, [x], stores=[back], view=True)

    def permute(self, x: Node, order: Sequence[int]) -> Node:
        if list(order) == list(range(len(order))):
            return x
        load = IndexMap.permute(x.shape, order)
        back = IndexMap.permute(load.shape, [list(order).index(d) for d in range(len(order))])
        return self.move(load, [x], stores=[back], view=True)

    def squeeze(self, x: Node, dims: Sequence[int]) -> Node:
        """x without dims, whose sizes are 1."""
        if not dims:
            return x
        kept = [d for d in range(len(x.shape)) if d not in dims]
        at = iter(_axes([x.shape[d] for d in kept]))
        load = IndexMap.single(
            [x.shape[d] for d in kept], [0 if d in dims else next(at) for d in range(len(x.shape))]
        )
        own = _axes(x.shape)
        back = IndexMap.single(x.shape, [own[d] for d in kept])
        return self.move(load, [x], stores=[back], view=True)

    def unsqueeze(self, x: Node, dim: int) -> Node:
        """x with a dimension of size 1 at `dim`."""
        shape = (*x.shape[:dim], 1, *x.shape[dim:])
        at, own = _axes(shape), _axes(x.shape)
        load = IndexMap.single(shape, [*at[:dim], *at[dim + 1 :]])
        back = IndexMap.single(x.shape, [*own[:dim], 0, *own[dim:]])
        return self.move(load, [x], stores=[back], view=True)

    def slice(self, x: Node, dim: int, start: Size, length: Size, step: int = 1) -> Node:
        """`length` elements of dimension `dim` from `start` on, `step` apart."""
        shape = [length if d == dim else s for d, s in enumerate(x.shape)]
        index = list(_axes(shape))
        index[dim] = index[dim] * step + start
        return self.move(IndexMap.single(shape, index), [x], view=True)

    def concat(self, parts: Sequence[Node], dim: int) -> Node:
        """Parts of equal shapes but for dimension `dim`, one after the other along it."""
        start: Size = 0
        ends = [(start, start := sizes.add(start, part.shape[dim])) for part in parts]
        shape = [start if d == dim else s for d, s in enumerate(parts[0].shape)]
        pieces: list[Piece] = []
        stores: list[IndexMap] = []
        for number, (part, (first, last)) in enumerate(zip(parts, ends, strict=True)):
            lower: list[Size] = [0] * len(shape)
            upper = list(shape)
            lower[dim], upper[dim] = first, last
            index, home = list(_axes(shape)), list(_axes(part.shape))
            index[dim], home[dim] = index[dim] - first, home[dim] + first
            pieces.append(Piece(lower, upper, number, index))
            stores.append(IndexMap.single(part.shape, home))
        return self.move(IndexMap(shape, pieces), parts, stores=stores)

    def broadcast(self, x: Node, shape: Sequence[Size]) -> Node:
        """x expanded to shape."""
        if x.shape == tuple(shape):
            return x
        self.hints.check_broadcast(x.shape, shape)
        from_end = len(shape) - len(x.shape)
        index: list[Any] = [
            0 if s == 1 else axis for s, axis in zip(x.shape, _axes(shape)[from_end:], strict=True)
        ]
        return self.move(IndexMap.single(shape, index), [x])


def _axes(shape: Sequence[Size]) -> tuple[Any, ...]:
    return IndexMap.identity(shape).pieces[0].forms


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__, "sub": int.__sub__, "mul": int.__mul__,
}  # fmt: skip


# What leaves an integer or a bool as it is.
_NEUTRAL = {("add", DType.I64): 0, ("and", DType.BOOL): 1, ("or", DType.BOOL): 0}


def _is_integer(node: Node) -> bool:
    """A constant that is known now, and whose arithmetic does not wrap."""
    value = node.constant
    return node.op == "const" and type(value) is int and abs(value) < 1 << 15


def constant_key(constant: Any) -> Any:
    """A constant as a key: True, 1 and 1.0 differ, and so do 0.0 and -0.0."""
    if isinstance(constant, bool | int | float):
        return type(constant), repr(constant)
    if isinstance(constant, tuple) and constant and isinstance(constant[0], Call | Conditional):
        return id(constant[0]), constant[1]
    return constant


def _cast_number(value: float, dtype: DType) -> bool | int | float:
    if dtype is DType.BOOL:
        return bool(value)
    if not dtype.is_float:
        return int(value)
    # A kernel holds it in its compute type.
    return float(value) if dtype is dtype.compute else _rounded(float(value), dtype)


def _rounded(value: bool | float, dtype: DType) -> bool | int | float:
    """A number as a tensor of the dtype holds it."""
    if not dtype.is_float or dtype is DType.F64:
        return value
    return float(torch.tensor(value, dtype=dtype.torch_dtype))


def _work(op: str, operands: tuple[Node, ...]) -> tuple[int, int]:
    if op in PHYSICAL:
        return 0, 1
    if op in ("reduce", "scan") or op in ANCHORS:
        return LARGE, 1
    own = SCALARS[op].cost if op in SCALARS else 0 if op in ("const", "move") else 1
    distinct = {id(o): o for o in operands}.values()
    return (
        min(LARGE, own + sum(o.cost for o in distinct)),
        min(LARGE, sum(o.leaves for o in distinct)),
    )


def broadcast(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to. Sizes that differ as text are equal by Dynamo's guards;
    a number is preferred."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if result[d] == 1 or (isinstance(size, int) and size != 1):
                result[d] = size
    return tuple(result)

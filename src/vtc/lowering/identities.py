"""The reference run of a captured program on element identities.

Every element is a number that no other element has, so that where a value is kept can be compared
exactly, whatever the numbers in the tensors will be. Inputs and results of compute operators have
fresh numbers; movement operators are carried out by PyTorch on the numbers themselves.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from vtc.graph.movement import BoundMovement, Movement, is_movement_target
from vtc.graph.program import Program, is_tensor, value_of
from vtc.index.affine import Affine, Look
from vtc.index.map import IndexMap
from vtc.index.piece import Fill
from vtc.lowering.storage import extent_of

aten = torch.ops.aten

POISON = -1
"""The content of memory that nothing was stored into."""

TABLE_ROWS = 1024


class Identities:
    """The identities of every tensor of a program, as int32 on the CPU.

    values: node -> its identities, in its eager strides; a tuple for an operator with several
    results, and the node itself where the value is no tensor. indices: runtime index tensor -> the
    values that it is taken to have, valid in every use and distinct where they can be.

    An input in `tokens` is read as a whole, and all its elements have one number. One in `tables`
    is read by embeddings, and stands for its first rows.
    """

    def __init__(
        self, program: Program, tokens: Iterable[fx.Node] = (), tables: Iterable[fx.Node] = ()
    ) -> None:
        self.program = program
        self.tokens, self.tables = frozenset(tokens), frozenset(tables)
        self.values: dict[fx.Node, Any] = {}
        self.indices = self._choose_indices()
        self._count = 0
        self._starts: list[int] = []
        self._names: list[str] = []
        self._fills: dict[float, int] = {}
        for node in program.graph_module.graph.nodes:
            if node.op != "output":
                self.values[node] = self._value(node)

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.target is operator.getitem:
            return self.values[node.args[0]][node.args[1]]
        bound = self.program.movements.get(node)
        if bound is None and not is_movement_target(node):
            return self._fresh(node, node.name, value_of(node))
        args, kwargs = arguments(node, bound, self.values.__getitem__, self.indices)
        return self.move(node.target, args, kwargs, bound)

    def move(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bound: BoundMovement | None,
    ) -> Any:
        """Carry out a movement operator on identities (int32) and index values (int64).

        A fixed value that the operator writes becomes the identity of that value. Raises what the
        operator raises, for a view that the strides of its operand do not allow.
        """
        if bound is not None and _fills(bound.movement):
            values = _on_doubles(target, args, kwargs, lambda t: t.double())
            marks = _on_doubles(
                target, args, kwargs, lambda t: torch.full_like(t, torch.nan, dtype=torch.double)
            )
            filled = ~marks.isnan()
            if filled.any():
                found, which = marks[filled].unique(return_inverse=True)
                numbers = [float(self.fill(v)) for v in found.tolist()]
                values[filled] = torch.tensor(numbers, dtype=torch.double)[which]
            return values.int()
        try:
            return target(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            try:
                moved = _on_doubles(target, args, kwargs, lambda t: t.double())
            except (RuntimeError, TypeError):
                raise error from None
            return pytree.tree_map_only(Tensor, lambda t: t.int(), moved)

    def fill(self, value: float) -> int:
        """The identity of a fixed value."""
        return self._fills.setdefault(float(value), POISON - 1 - len(self._fills))

    def describe(self, identity: int) -> str:
        """The element of an identity, for a message."""
        if identity == POISON:
            return "nothing that was stored"
        if identity < POISON:
            values = {number: value for value, number in self._fills.items()}
            return f"the fill value {values[identity]}"
        k = bisect_right(self._starts, identity) - 1
        return f"element {identity - self._starts[k]} of {self._names[k]}"

    def _take(self, name: str, count: int) -> int:
        """`count` fresh numbers; the first of them."""
        self._starts.append(self._count)
        self._names.append(name)
        self._count += count
        return self._starts[-1]

    def _input(self, node: fx.Node) -> Any:
        """An input's numbers, in a storage like its own."""
        value = value_of(node)
        if not is_tensor(node) or value.layout is not torch.strided:
            return node
        shape, stride, offset = self._shape(node), value.stride(), value.storage_offset()
        if node in self.tokens:
            first = self._take(node.name, 1)
            return torch.tensor(first, dtype=torch.int32).expand(shape)
        extent = extent_of(shape, stride)
        first = self._take(node.name, extent)
        storage = torch.full((offset + extent,), POISON, dtype=torch.int32)
        storage[offset:] = torch.arange(first, first + extent, dtype=torch.int32)
        return storage.as_strided(shape, stride, offset)

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        shape = tuple(value_of(node).shape)
        if node not in self.tables:
            return shape
        uses = [u.args[1] for u in node.users if u.target is aten.embedding.default]
        reads = max(value_of(u).numel() for u in uses if isinstance(u, fx.Node))
        return (min(shape[0], max(TABLE_ROWS, reads)), *shape[1:])

    def _fresh(self, node: fx.Node, name: str, value: Any) -> Any:
        """A compute result's numbers, in the strides that it has in eager PyTorch."""
        if isinstance(value, list | tuple):
            return tuple(self._fresh(node, f"{name}[{k}]", v) for k, v in enumerate(value))
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return node
        shape, count = tuple(value.shape), value.numel()
        first = self._take(name, count)
        numbers = torch.arange(first, first + count, dtype=torch.int32).view(shape)
        if extent_of(shape, value.stride()) != count:
            return numbers
        return torch.empty_strided(shape, value.stride(), dtype=torch.int32).copy_(numbers)

    def _choose_indices(self) -> dict[fx.Node, Tensor]:
        bounds: dict[fx.Node, int] = {}
        for bound in self.program.movements.values():
            shapes = [self._shape(source) for source in bound.sources]
            limits = index_limits(bound.movement, shapes)
            for number, node in enumerate(bound.lookups):
                bounds[node] = min(bounds.get(node, 1 << 31), limits.get(number, 1))
        generator = torch.Generator().manual_seed(0)
        return {
            node: _distinct(tuple(value_of(node).shape), limit, generator)
            for node, limit in bounds.items()
        }


def arguments(
    node: fx.Node,
    bound: BoundMovement | None,
    read: Callable[[fx.Node], Any],
    indices: Mapping[fx.Node, Tensor],
    check_index: Callable[[Any, fx.Node], None] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Identities for the sources of a movement operator and values for its runtime indices.

    `node` is the operator or a copy of it with operands in the same order. `check_index` sees the
    identities of each index operand, and the index tensor of the program that it must be.
    """
    tables = dict(zip(bound.movement.lookups, bound.lookups, strict=True)) if bound else {}
    position = -1

    def argument(operand: fx.Node) -> Any:
        nonlocal position
        value = read(operand)
        position += isinstance(value, Tensor | tuple)
        if position not in tables:
            return value
        if check_index is not None:
            check_index(value, tables[position])
        return indices[tables[position]]

    return fx.map_arg(node.args, argument), fx.map_arg(node.kwargs, argument)


def moved(node: fx.Node, bound: BoundMovement | None) -> list[fx.Node]:
    """The operands whose elements or indices an operator uses: `copy` ignores what it replaces."""
    operands = [n for n in pytree.arg_tree_leaves(*node.args, **node.kwargs) if _is_node(n)]
    if bound is None:
        return operands
    return [operands[k] for k in (*bound.movement.operands, *bound.movement.lookups)]


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node)


def index_limits(movement: Movement, shapes: list[tuple[int, ...]]) -> dict[int, int]:
    """Runtime index tensor number -> the values below it that every use allows."""
    limits: dict[int, int] = {}

    def visit(form: Affine, size: int) -> None:
        for atom, coefficient in form.terms.items():
            if isinstance(atom, Look):
                limit = max(size // max(abs(int(coefficient)), 1), 1)
                limits[atom.tensor] = min(limits.get(atom.tensor, limit), limit)
            elif not isinstance(atom, int):
                visit(atom.arg, size)

    def visit_map(index_map: IndexMap, shapes: list[tuple[int, ...]]) -> None:
        for piece in index_map.pieces:
            if not isinstance(piece.source, Fill):
                for form, size in zip(piece.forms, shapes[piece.source], strict=True):
                    visit(form, size)

    if movement.load is not None:
        visit_map(movement.load, shapes)
    for store in movement.store:
        if store is not None:
            visit_map(store, [tuple(map(int, movement.shape))])
    return limits


def _distinct(shape: tuple[int, ...], limit: int, generator: torch.Generator) -> Tensor:
    """Random values below `limit`: all distinct, or at least so along every dimension."""
    order = torch.randperm(limit, generator=generator)
    count = int(torch.Size(shape).numel())
    if count <= limit:
        return order[:count].view(shape)
    total = torch.zeros(shape, dtype=torch.int64)
    for dim, size in enumerate(shape):
        total += torch.arange(size).view([-1 if d == dim else 1 for d in range(len(shape))])
    return order[total % limit]


def _fills(movement: Movement) -> bool:
    """May the operator write a fixed value? So may a scatter that is given no tensor to write."""
    if movement.load is None:
        return movement.sources == 1
    return any(isinstance(piece.source, Fill) for piece in movement.load.pieces)


def _on_doubles(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convert: Callable[[Tensor], Tensor],
) -> Any:
    def one(tensor: Tensor) -> Tensor:
        return convert(tensor) if tensor.dtype is torch.int32 else tensor

    args, kwargs = pytree.tree_map_only(Tensor, one, (args, kwargs))
    return target(*args, **kwargs)

"""Recognising caches that move on: an updated input whose new value is its own without the oldest
rows, and new rows behind.

    cache <- cat(cache[:, :, r:], new)            or the same as roll and index_put, slice_scatter

It is the index map of the new value that is looked at, whatever operators make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor

from vtc.graph import program as programs
from vtc.graph.program import Program, has_symbol, is_tensor, value_of
from vtc.graph.rules import coordinates
from vtc.graph.rules_scatter import slice_scatter
from vtc.index import IndexMap, NotRepresentable, Piece

aten = torch.ops.aten
_SAME = {
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.detach.default,
    aten.detach_.default,
    aten.alias.default,
    aten.clone.default,
    aten._to_copy.default,  # to the device
}
LITERAL = "_tensor_constant"
"""What the names of tensors that a model's code writes out begin with, as `make_fx` gives them."""


@dataclass(frozen=True)
class Shift:
    """`node`, the new value of updated input `cache`: cache[rows:] in dimension `dim` and then
    `new`, of `rows` rows, which may lack leading dimensions of one. `absorbed` are the operators
    that make it beside `node`, in order."""

    node: fx.Node
    cache: fx.Node
    new: fx.Node
    dim: int
    absorbed: tuple[fx.Node, ...]

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """Fake values of the cache and of the new rows, in as many dimensions."""
        cache, new = value_of(self.cache), value_of(self.new)
        with cache.fake_mode:
            return cache, new.view(*_ones(cache, new), *new.shape)

    def rows(self, before: fx.Node) -> fx.Node:
        """The new rows in as many dimensions as the cache has, by a view before a node."""
        value = self.values[1]
        if value.dim() == value_of(self.new).dim():
            return self.new
        with before.graph.inserting_before(before):
            made = before.graph.call_function(aten.view.default, (self.new, list(value.shape)))
        made.meta = {**self.new.meta, "val": value}
        return made


def _ones(whole: Tensor, part: Tensor) -> tuple[int, ...]:
    return (1,) * (whole.dim() - part.dim())


def find(program: Program) -> tuple[Shift, ...]:
    """Every updated input of known sizes that moves on, and that nothing else reads."""
    order = {n: k for k, n in enumerate(program.graph_module.graph.nodes)}
    returned = {o for k, o in enumerate(program.outputs) if k not in program.aliases}
    found = []
    for number, node in program.updates:
        cache = program.inputs[number]
        if not is_tensor(cache) or has_symbol(cache) or node.op != "call_function":
            continue
        walk = _Walk(program, cache)
        shifted = walk.shift(node)
        chain = {n for n in walk.chain if n is not node}
        inside = chain | {node}
        if shifted is None or node in returned:
            continue
        if any(user not in inside for n in (cache, *chain) for user in n.users):
            continue
        new, dim = shifted
        absorbed = tuple(sorted(chain, key=order.__getitem__))
        found.append(Shift(node, cache, new, dim, absorbed))
    return tuple(found)


class _Walk:
    """A walk from a new value back to `cache`; `chain` are the movement operators on the way."""

    def __init__(self, program: Program, cache: fx.Node) -> None:
        self.program, self.cache = program, cache
        self.leaves: list[fx.Node] = [cache]
        self.chain: dict[fx.Node, None] = {}

    def shift(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        """The new rows and the dimension, where `node` is the cache moved on."""
        try:
            found = self.map(node)
        except NotRepresentable:
            return None
        if found is None or len(self.leaves) != 2:
            return None
        _, new = self.leaves
        size, rows = tuple(value_of(self.cache).shape), tuple(value_of(new).shape)
        rows = (*(1,) * (len(size) - len(rows)), *rows)
        if len(rows) > len(size):
            return None
        pieces = set(found.simplify().pieces)
        for dim in range(len(size)):
            if rows == (*size[:dim], rows[dim], *size[dim + 1 :]) and rows[dim] < size[dim]:
                want = _moved_on(size, dim, rows[dim])
                if len(rows) > value_of(new).dim():
                    want = want.compose({1: IndexMap.reshape(value_of(new).shape, rows, 1)})
                if pieces == set(want.simplify().pieces):
                    return new, dim
        return None

    def map(self, node: fx.Node) -> IndexMap | None:
        """What `node` holds, over `leaves`."""
        shape = tuple(value_of(node).shape)
        if node is self.cache:
            return IndexMap.identity(shape)
        if not self._reads_cache(node):
            node = self._written(node)
            if node not in self.leaves:
                self.leaves.append(node)
            return IndexMap.identity(shape, self.leaves.index(node))
        self.chain[node] = None
        load, sources = self._load(node)
        if load is None or load.lookups():
            return None
        inner = {k: self.map(sources[k]) for k in load.sources()}
        if any(m is None for m in inner.values()):
            return None
        return load.compose({k: m for k, m in inner.items() if m is not None})

    def _reads_cache(self, node: fx.Node) -> bool:
        bound = self.program.movements.get(node)
        if node is self.cache:
            return True
        return bound is not None and any(map(self._reads_cache, bound.sources))

    def _written(self, node: fx.Node) -> fx.Node:
        """What an assignment to a part of the cache writes there: of the part it has the shape."""
        if node.target is not aten.copy.default or len(node.users) != 1:
            return node
        part, values = node.args[:2]
        own, given = value_of(node), value_of(values)
        if (own.shape, own.dtype) != (given.shape, given.dtype) or not self._reads_cache(part):
            return node
        self.chain[node] = None
        while part is not self.cache and len(part.users) == 1:
            self.chain[part] = None
            part = part.args[0]
        return values

    def _load(self, node: fx.Node) -> tuple[IndexMap | None, tuple[fx.Node, ...]]:
        bound = self.program.movements[node]
        if node.target is aten.index_put.default:
            return self._range_put(node), bound.sources
        return bound.movement.load, bound.sources

    def _range_put(self, node: fx.Node) -> IndexMap | None:
        """x[..., [a, a + 1, ...], ...] = values, at indices that the program states."""
        target, indices, values = node.args[:3]
        used = [(d, i) for d, i in enumerate(indices) if i is not None]
        if len(used) != 1:
            return None
        ((dim, index),) = used
        literal = self._literal(index)
        shape = tuple(value_of(target).shape)
        if literal is None or literal.dim() != 1 or not literal.numel():
            return None
        places = [int(i) % shape[dim] for i in literal]
        first, count = places[0], len(places)
        part = (*shape[:dim], count, *shape[dim + 1 :])
        given = tuple(value_of(values).shape)
        whole = (*(1,) * (len(part) - len(given)), *given)
        load = slice_scatter(shape, dim, first, count).load
        if places != list(range(first, first + count)) or whole != part or load is None:
            return None
        return load.compose({1: IndexMap.reshape(given, part, 1)})

    def _literal(self, node: fx.Node) -> Tensor | None:
        """The value of an integer tensor that is written out in the model's code."""
        while node.op == "call_function" and node.target in _SAME:
            if value_of(node).dtype not in (torch.int64, torch.int32):
                return None
            node = node.args[0]
        if node not in self.program.inputs or not str(node.target).startswith(LITERAL):
            return None
        number = self.program.inputs.index(node) - len(self.program.inputs)
        constants = self.program.constants
        updated = {i - len(self.program.inputs) for i, _ in self.program.updates}
        if -number > len(constants) or number in updated:
            return None
        value = constants[number]
        if isinstance(value, FakeTensor) or value.is_meta or value.dtype is not torch.int64:
            return None
        return value


def _moved_on(size: tuple[int, ...], dim: int, rows: int) -> IndexMap:
    """cat(source 0 from `rows` on, source 1) in dimension `dim`."""
    at = list(coordinates(len(size)))
    kept = size[dim] - rows
    before, lower = list(size), [0] * len(size)
    before[dim] = lower[dim] = kept
    old, new = list(at), list(at)
    old[dim], new[dim] = at[dim] + rows, at[dim] - kept
    first = Piece([0] * len(size), before, 0, old)
    return IndexMap(size, (first, Piece(lower, size, 1, new)))


def rewrite(program: Program, chosen: Mapping[Shift, Mapping[str, Any]], target: Any) -> Program:
    """`program` with each of `chosen` as a call of `target` with the given further arguments.

    The graph is changed in place, and nodes keep their names.
    """
    for shift, options in chosen.items():
        node = shift.node
        node.target, node.kwargs = target, dict(options)
        node.args = (shift.cache, shift.rows(node), shift.dim)
        with value_of(node).fake_mode:
            node.meta["val"] = target(*shift.values, shift.dim, **options)
        for absorbed in reversed(shift.absorbed):
            node.graph.erase_node(absorbed)
    return rebuilt(program, dict(program.updates))


def rebuilt(program: Program, updates: Mapping[int, fx.Node]) -> Program:
    """The program of a graph that has changed, with what its updated inputs become."""
    program.graph_module.graph.lint()
    program.graph_module.recompile()
    return programs.build(
        program.graph_module,
        tuple(updates.items()),
        program.constants,
        program.aliases,
        program.storages,
    )

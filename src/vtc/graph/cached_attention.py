"""Recognising attention on two caches that change first: that move on (a sliding window, as in
Gemma 2), or that get new rows at places that a tensor gives.

    keys <- cat(keys[:, :, r:], new)              or keys <- index_copy(keys, 2, places, new)
    values alike
    out = attention(query, keys, values)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from vtc.graph.program import Program, has_symbol, is_tensor, value_of
from vtc.graph.shift import Shift, rebuilt
from vtc.graph.shift import find as find_shifts
from vtc.index import IndexMap

aten = torch.ops.aten


@dataclass(frozen=True)
class Store:
    """`node`, the new value of updated input `cache`: rows `new` at `places` of dimension 2."""

    node: fx.Node
    cache: fx.Node
    new: fx.Node
    places: fx.Node
    absorbed: tuple[fx.Node, ...] = ()

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """Fake values of the cache and of the new rows."""
        return value_of(self.cache), value_of(self.new)

    def rows(self, before: fx.Node) -> fx.Node:
        """The new rows, for a call before a node."""
        return self.new


Change = Shift | Store


@dataclass(frozen=True)
class CachedAttention:
    """Attention `node` (a call of `vtc::attention`) on `key` and `value`, which only it reads, both
    by shifts, or by stores at the same places.

    `absorbed` are the movement operators between, in order.
    """

    node: fx.Node
    key: Change
    value: Change
    absorbed: tuple[fx.Node, ...]

    @property
    def places(self) -> tuple[fx.Node, ...]:
        return (self.key.places,) if isinstance(self.key, Store) else ()

    @property
    def mask(self) -> fx.Node | None:
        return self.node.args[3] if len(self.node.args) > 3 else None

    @property
    def values(self) -> tuple[Tensor | None, ...]:
        """Fake values of query, caches, new rows, places if there are, and mask."""
        (keys, new_keys), (values, new_values) = self.key.values, self.value.values
        mask = None if self.mask is None else value_of(self.mask)
        places = map(value_of, self.places)
        return value_of(self.node.args[0]), keys, values, new_keys, new_values, *places, mask

    @property
    def options(self) -> dict[str, Any]:
        return {k: self.node.kwargs[k] for k in ("scale", "softcap", "safe")}


def find_sliding(program: Program, attention: Any, repeats: Any) -> tuple[CachedAttention, ...]:
    """Every call of `attention` whose keys and values are caches that move on along dimension 2.

    repeats: the function that gives the groups of heads of an index map, or None.
    """
    shifts = [s for s in find_shifts(program) if s.dim == 2 and value_of(s.node).dim() == 4]
    return _found(program, attention, repeats, {s.node: s for s in shifts})


def find_storing(program: Program, attention: Any, repeats: Any) -> tuple[CachedAttention, ...]:
    """Every call of `attention` whose keys and values are caches that get new rows; repeats as of
    `find_sliding`."""
    found = _found(program, attention, repeats, {s.node: s for s in stores(program)})
    return tuple(f for f in found if f.key.places is f.value.places)  # type: ignore[union-attr]


def stores(program: Program) -> tuple[Store, ...]:
    """Every updated input of four known sizes that gets new rows of dimension 2, and whose old
    value nothing else reads."""
    returned = {o for k, o in enumerate(program.outputs) if k not in program.aliases}
    found = []
    for number, node in program.updates:
        cache = program.inputs[number]
        if node.target is not aten.index_copy.default or not is_tensor(cache) or node in returned:
            continue
        base, dim, places, new = node.args
        shape = value_of(cache).shape
        if base is cache and set(cache.users) == {node} and len(shape) == 4 and dim in (2, -2):
            if has_symbol(cache) or has_symbol(new) or value_of(places).dim() != 1:
                continue
            found.append(Store(node, cache, new, places))
    return tuple(found)


def _found(
    program: Program, attention: Any, repeats: Any, changes: Mapping[fx.Node, Change]
) -> tuple[CachedAttention, ...]:
    order = {n: k for k, n in enumerate(program.graph_module.graph.nodes)}
    found = []
    for node in program.nodes:
        if node.target is not attention or len(node.args) > 4 or node.kwargs.get("causal"):
            continue
        ends = [_cache_behind(n, program, changes, repeats) for n in node.args[1:3]]
        if ends[0] is None or ends[1] is None:
            continue
        (key, first), (value, second) = ends[0], ends[1]
        absorbed = tuple(sorted({*first, *second}, key=order.__getitem__))
        if key is not value:
            found.append(CachedAttention(node, key, value, absorbed))
    return tuple(found)


def _cache_behind(
    node: fx.Node, program: Program, changes: Mapping[fx.Node, Change], repeats: Any
) -> tuple[Change, list[fx.Node]] | None:
    """The cache of which `node` is the whole, with heads that may be repeated; and what is
    between."""
    shape = tuple(value_of(node).shape)
    total, between = IndexMap.identity(shape), []
    while node not in changes:
        bound = program.movements.get(node)
        if bound is None or bound.movement.load is None or len(bound.sources) != 1:
            return None
        if len(node.users) != 1:
            return None
        total = total.compose({0: bound.movement.load})
        between.append(node)
        (node,) = bound.sources
    cached = tuple(value_of(node).shape)
    if len(node.users) != 1:
        return None
    if between and total.simplify().pieces != IndexMap.identity(cached).pieces:
        heads = repeats(total)
        if heads is None or heads.dim != 1 or heads.swapped:
            return None
        cached = (cached[0], cached[1] * heads.repeats, *cached[2:])
    return (changes[node], between) if cached == shape else None


def rewrite(
    program: Program, chosen: Mapping[CachedAttention, Mapping[str, Any]], target: Any
) -> Program:
    """`program` with each of `chosen` as a call of `target` with the given further arguments, whose
    results are the attention's and the new keys and values. The graph is changed in place."""
    updates = dict(program.updates)
    for cached, options in chosen.items():
        node, graph = cached.node, program.graph_module.graph
        kwargs = {**cached.options, **options}
        key, value = cached.key, cached.value
        with value_of(node).fake_mode:
            made = target(*cached.values, **kwargs)
        new = key.rows(node), value.rows(node)
        operands = (node.args[0], key.cache, value.cache, *new, *cached.places, cached.mask)
        with graph.inserting_before(node):
            call = graph.call_function(target, operands, kwargs)
            parts = [graph.call_function(operator.getitem, (call, k)) for k in range(3)]
        call.meta = {**node.meta, "val": made}
        for part, result in zip(parts, made, strict=True):
            part.meta = {**node.meta, "val": result}
        node.replace_all_uses_with(parts[0])
        graph.erase_node(node)
        for absorbed in reversed(cached.absorbed):
            graph.erase_node(absorbed)
        for change, part in ((key, parts[1]), (value, parts[2])):
            (number,) = (i for i, final in updates.items() if final is change.node)
            updates[number] = part
            for old in (change.node, *reversed(change.absorbed)):
                graph.erase_node(old)
    return rebuilt(program, updates)

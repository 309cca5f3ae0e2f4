"""The virtual tensor opportunity graph (the VTC paper, section 5.1 and figure 8).

Nodes are tensors; an edge a -> b says "a may be virtual on b". Each movement operator gives its
output an edge to every source it reads (direction A, "load": consumers read through the map) and
every source an edge to the output (direction B, "store": the producer writes through the map). Two
edges of one tensor conflict when they would give an element two homes.

Inputs and constants have no out-edges, as they stay where they are, and neither have the program's
outputs, except an output whose value is what the program leaves in an updated input. An output that
eager PyTorch returns as a view has its edges listed apart, in `aliases`: they are no choices, but
they are followed where the engine keeps views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from vtc.index.map import IndexMap
from vtc.virtual import boxes
from vtc.virtual.plan import PlanGraph, PlanMovement

Direction = Literal["load", "store"]


@dataclass(frozen=True, eq=False)
class Edge:
    """`tensor` may be virtual on `base` because of the movement operator `operator`.

    map: tensor index -> base index (source 0); where it is partial, its domain is the part of
        `tensor` that lives in `base`. A lookup's number is a position in `Vtog.lookups`.
    source: which operand of the operator the edge is about.
    inplace: `tensor` is a newer version of the storage of `base` (a scatter and its data).
    indices: lookups that reading through the operator takes. The map may have fewer: one that is in
        a dimension of size 1 says nothing.
    """

    tensor: str
    base: str
    operator: str
    direction: Direction
    map: IndexMap
    source: int
    inplace: bool = False
    indices: frozenset[int] = frozenset()

    @cached_property
    def domain(self) -> tuple[boxes.Box, ...]:
        """The boxes of `tensor` that live in `base`."""
        return boxes.domain(self.map)

    @cached_property
    def total(self) -> bool:
        """All of `tensor` lives in `base`."""
        return self.map.covers()

    def __str__(self) -> str:
        notes = [self.operator, self.direction]
        notes += ["in place"] if self.inplace else []
        notes += [] if self.total else ["part"]
        return f"{self.tensor} -> {self.base} ({', '.join(notes)})"


@dataclass(frozen=True, eq=False)
class Vtog:
    """Opportunity graph. `conflicts` holds pairs of edge numbers; edges are numbered as in `edges`,
    and `aliases` continue the numbering. `lookups` are the runtime index tensors by number."""

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    conflicts: frozenset[frozenset[int]]
    aliases: tuple[Edge, ...] = ()
    lookups: tuple[str, ...] = ()

    @cached_property
    def numbered(self) -> tuple[Edge, ...]:
        """All edges by number, aliases included."""
        return self.edges + self.aliases

    @cached_property
    def out_edges(self) -> dict[str, tuple[int, ...]]:
        """Tensor -> numbers of its out-edges, aliases included."""
        return self._table("tensor")

    @cached_property
    def operator_edges(self) -> dict[str, tuple[int, ...]]:
        """Movement operator -> numbers of the edges it gives, aliases included."""
        return self._table("operator")

    @cached_property
    def rivals(self) -> tuple[frozenset[int], ...]:
        """For each edge the numbers of the edges that it conflicts with."""
        table: list[set[int]] = [set() for _ in self.numbered]
        for a, b in _conflicts(self.numbered):
            table[a].add(b)
            table[b].add(a)
        return tuple(map(frozenset, table))

    def _table(self, key: Literal["tensor", "operator"]) -> dict[str, tuple[int, ...]]:
        table: dict[str, list[int]] = {}
        for number, edge in enumerate(self.numbered):
            table.setdefault(getattr(edge, key), []).append(number)
        return {name: tuple(numbers) for name, numbers in table.items()}

    def __str__(self) -> str:
        lines = [f"nodes: {', '.join(self.nodes)}", "edges:"]
        for number, edge in enumerate(self.edges):
            lines.append(f"  {number}: {edge}")
            lines += [f"       {line}" for line in str(edge.map).splitlines()]
        if self.lookups:
            lines.append(f"lookups: {', '.join(f'{n} = {t}' for n, t in enumerate(self.lookups))}")
        lines += [f"alias: {edge}" for edge in self.aliases]
        lines.append("conflicts:")
        for a, b in sorted(sorted(pair) for pair in self.conflicts):
            first, second = self.edges[a], self.edges[b]
            lines.append(f"  {first.tensor}: {a} (to {first.base}) x {b} (to {second.base})")
        return "\n".join(lines)

    def to_dot(self, chosen: frozenset[int] = frozenset()) -> str:
        """The graph in Graphviz's language; chosen edges are drawn bold."""
        lines = ["digraph vtog {", "  rankdir=BT;", "  node [shape=box];"]
        lines += [f'  "{name}";' for name in self.nodes]
        for number, edge in enumerate(self.edges):
            style = "bold" if number in chosen else "dashed"
            label = f"{number}: {edge.operator}"
            lines.append(f'  "{edge.tensor}" -> "{edge.base}" [label="{label}", style={style}];')
        return "\n".join((*lines, "}"))


def build(plan: PlanGraph) -> Vtog:
    """The opportunity graph of a plan, with its conflict sets (the paper's figure 8)."""
    lookups: dict[str, int] = {}
    edges: list[Edge] = []
    aliases: list[Edge] = []
    nodes: dict[str, None] = {}
    for step in plan.movements.values():
        nodes.update(dict.fromkeys((*step.sources, step.name)))
        for edge in _edges(step, lookups):
            if edge.tensor == edge.base:
                continue
            if _may_be_virtual(plan, edge.tensor):
                edges.append(edge)
            elif _is_alias(plan, step, edge):
                aliases.append(edge)
    conflicts = frozenset(frozenset(pair) for pair in _conflicts(edges))
    return Vtog(tuple(nodes), tuple(edges), conflicts, tuple(aliases), tuple(lookups))


def _may_be_virtual(plan: PlanGraph, name: str) -> bool:
    tensor = plan.tensors[name]
    if tensor.kind != "internal":
        return False
    return not (tensor.output or tensor.returned) or name in plan.finals


def _is_alias(plan: PlanGraph, step: PlanMovement, edge: Edge) -> bool:
    """The edge says that an output is the view that eager PyTorch returns, or leads to one."""
    tensor = plan.tensors[edge.tensor]
    return edge.direction == "load" and (tensor.output or tensor.returned) and step.movement.view


def _edges(step: PlanMovement, lookups: dict[str, int]) -> Iterator[Edge]:
    """The edges of one operator: A edges, the in-place edge, B edges."""
    movement = step.movement
    numbers = {n: lookups.setdefault(name, len(lookups)) for n, name in enumerate(step.lookups)}
    if movement.load is not None:
        for k, source in enumerate(step.sources):
            part = _part(movement.load, k).renumber(lookups=numbers)
            if part.pieces:
                indices = frozenset(numbers.values())
                yield Edge(step.name, source, step.name, "load", part, k, indices=indices)
    if movement.inplace is not None:
        k = movement.inplace
        same = IndexMap.identity(movement.shape)
        yield Edge(step.name, step.sources[k], step.name, "load", same, k, inplace=True)
    for k, store in enumerate(movement.store):
        if store is not None and store.pieces:
            map = store.renumber(lookups=numbers)
            yield Edge(step.sources[k], step.name, step.name, "store", map, k)


def _part(load: IndexMap, source: int) -> IndexMap:
    """The pieces of `load` that read `source`, as a partial map whose source is 0."""
    pieces = [p for p in load.pieces if p.source == source and not p.empty]
    return IndexMap(load.shape, pieces).renumber(sources={source: 0})


def _conflicts(edges: tuple[Edge, ...] | list[Edge]) -> Iterator[tuple[int, int]]:
    by_tensor: dict[str, list[int]] = {}
    for number, edge in enumerate(edges):
        by_tensor.setdefault(edge.tensor, []).append(number)
    for numbers in by_tensor.values():
        for position, a in enumerate(numbers):
            for b in numbers[position + 1 :]:
                if boxes.any_meet(edges[a].domain, edges[b].domain):
                    yield a, b

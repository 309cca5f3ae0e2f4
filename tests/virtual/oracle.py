"""Is there an order of the steps in which a strategy computes the right values? By trying them all.

Every element has a name that says what value it must have; memory maps addresses to such names.
Addresses come from the edges one by one, through `materialize`; nothing of the planner's
composition, footprints or versions is used. Runtime indices have given values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import torch

from vtc.index.map import IndexMap
from vtc.index.piece import Fill
from vtc.virtual.plan import PlanGraph, PlanMovement, PlanRegion
from vtc.virtual.vtog import Vtog

Address = tuple[str, int]
Value = tuple[str, object]


class ImpossibleError(Exception):
    """The strategy cannot be carried out in any order."""


class Oracle:
    """One plan, strategy (as active edges a tensor) and set of index values."""

    def __init__(
        self,
        plan: PlanGraph,
        vtog: Vtog,
        active: Mapping[str, Sequence[int]],
        indices: Mapping[str, torch.Tensor],
    ) -> None:
        self.plan, self.vtog, self.active, self.indices = plan, vtog, active, indices
        self.values: dict[str, list[Value]] = {}
        for name in self._in_order():
            self.values[name] = self._values(name)
        self.homes: dict[str, list[Address | None]] = {}
        for name in plan.tensors:
            self._home(name, [])
        self.steps = [name for name in plan.step_names if self._work(name)]

    def sequence_is_right(self, order: Sequence[str]) -> bool:
        """The steps in this order compute what they must."""
        memory = self._initial()
        for name in order:
            if name in self.steps and not self._run(name, memory):
                return False
        return set(self.steps) <= set(order) and self._finished(memory)

    def some_order_is_right(self) -> bool:
        """Some order of the steps computes what it must."""
        seen: set[tuple[frozenset[str], frozenset[tuple[Address, Value]]]] = set()

        def search(done: frozenset[str], memory: dict[Address, Value]) -> bool:
            if len(done) == len(self.steps):
                return self._finished(memory)
            key = done, frozenset(memory.items())
            if key in seen:
                return False
            seen.add(key)
            for name in self.steps:
                if name not in done:
                    after = dict(memory)
                    if self._run(name, after) and search(done | {name}, after):
                        return True
            return False

        return search(frozenset(), self._initial())

    def _in_order(self) -> list[str]:
        inputs = [n for n, tensor in self.plan.tensors.items() if tensor.kind != "internal"]
        return inputs + [n for s in self.plan.steps for n in getattr(s, "writes", (s.name,))]

    def _elements(self, name: str) -> int:
        return torch.Size(self.plan.tensors[name].shape).numel()

    def _values(self, name: str) -> list[Value]:
        """What each element must hold. Values of earlier tensors are known."""
        step = self.plan.movements.get(name)
        if step is None:
            return [(name, i) for i in range(self._elements(name))]
        movement = step.movement
        if movement.load is not None:
            return [
                ("fill", source) if where is None else self.values[step.sources[source]][where]
                for source, where in self._pieces(movement.load, step)
            ]
        values = list(self.values[step.sources[movement.inplace]])
        for k, store in enumerate(movement.store):
            if store is not None:
                for i, (_, where) in enumerate(self._pieces(store, step)):
                    values[where] = self.values[step.sources[k]][i]
        return values

    def _pieces(self, map: IndexMap, step: PlanMovement) -> list[tuple[int, int | None]]:
        return self._table(map, [self.plan.tensors[n].shape for n in step.sources], step.lookups)

    def _table(
        self, map: IndexMap, shapes: Sequence[Sequence[int]], lookups: Sequence[str]
    ) -> list[tuple[int, int | None]]:
        """For each element in row-major order (source, flat index), fills as (value, None).

        Elements outside a partial map's domain are (-1, None).
        """
        total = torch.Size(map.shape).numel()
        table: list[tuple[int, int | None]] = [(-1, None)] * total
        position = {p: i for i, p in enumerate(product(*(range(n) for n in map.shape)))}
        values = [self.indices[name] for name in lookups]
        for piece in map.pieces:
            box = product(*(range(a, b) for a, b in zip(piece.lower, piece.upper, strict=True)))
            inside = [position[p] for p in box]
            if isinstance(piece.source, Fill):
                for i in inside:
                    table[i] = (piece.source.value, None)
                continue
            part = IndexMap(map.shape, (piece,)).renumber(sources={piece.source: 0})
            shape = shapes[piece.source]
            numbers = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
            read = part.materialize([numbers], values).flatten().tolist()
            for i in inside:
                table[i] = (piece.source, read[i])
        return table

    def _home(self, name: str, path: list[str]) -> list[Address | None]:
        if name in self.homes:
            return self.homes[name]
        if name in path:
            raise ImpossibleError("cycle")
        homes: list[Address | None] = [(name, i) for i in range(self._elements(name))]
        taken: set[int] = set()
        loads = False
        for number in self.active.get(name, ()):
            edge = self.vtog.numbered[number]
            base = self._home(edge.base, [*path, name])
            shape = self.plan.tensors[edge.base].shape
            for i, (source, where) in enumerate(self._table(edge.map, [shape], self.vtog.lookups)):
                if source == -1:
                    continue
                if i in taken:
                    raise ImpossibleError("two homes")
                taken.add(i)
                homes[i] = base[where]
            loads = loads or (edge.direction == "load" and not edge.inplace)
        if loads:
            step = self.plan.movements[name]
            for i, (_, where) in enumerate(self._pieces(step.movement.load, step)):
                if where is None and i not in taken:
                    homes[i] = None
        self.homes[name] = homes
        return homes

    def _initial(self) -> dict[Address, Value]:
        return {
            (name, i): (name, i)
            for name, tensor in self.plan.tensors.items()
            if tensor.kind != "internal"
            for i in range(self._elements(name))
        }

    def _tensor(self, name: str) -> list[tuple[Address | None, Value]]:
        return list(zip(self.homes[name], self.values[name], strict=True))

    def _work(self, name: str) -> tuple[list[tuple], list[tuple], list[tuple]]:
        """(reads, first writes, writes) of a step as (address, value); () where it has none."""
        if name.endswith(".copy_"):
            target = name.removesuffix(".copy_")
            final = self.plan.updated[target]
            writes = [((target, i), v) for i, v in enumerate(self.values[final])]
            if [a for a, _ in writes] == self.homes[final]:
                return ()
            return self._tensor(final), [], writes
        step = self.plan.steps[self.plan.numbers[name]]
        if isinstance(step, PlanRegion):
            reads = [pair for n in step.reads for pair in self._tensor(n)]
            return reads, [], [pair for n in step.writes for pair in self._tensor(n)]
        return self._movement_work(step)

    def _movement_work(self, step: PlanMovement) -> tuple:
        movement, output = step.movement, self.homes[step.name]
        reads: list[tuple] = []
        first: list[tuple] = []
        writes: list[tuple] = []
        if movement.load is not None:
            for i, (source, where) in enumerate(self._pieces(movement.load, step)):
                value = self.values[step.name][i]
                if where is None:
                    if output[i] is not None:
                        writes.append((output[i], value))
                    continue
                origin = self.homes[step.sources[source]][where]
                if origin != output[i]:
                    reads.append((origin, value))
                    writes.append((output[i], value))
            return (reads, first, writes) if writes else ()
        data = self._tensor(step.sources[movement.inplace])
        if [address for address, _ in data] != output:
            reads += data
            first += [(output[i], value) for i, (_, value) in enumerate(data)]
        for k, store in enumerate(movement.store):
            if store is None:
                continue
            updates = self._tensor(step.sources[k])
            homes = [output[where] for _, where in self._pieces(store, step)]
            if homes != [address for address, _ in updates]:
                reads += updates
                writes += [(homes[i], value) for i, (_, value) in enumerate(updates)]
        return (reads, first, writes) if first or writes else ()

    def _run(self, name: str, memory: dict[Address, Value]) -> bool:
        reads, first, writes = self._work(name)
        for address, value in reads:
            if address is not None and memory.get(address) != value:
                return False
        touched = {address: value for address, value in reads if address is not None}
        for group in (first, writes):
            new: dict[Address, Value] = {}
            for address, value in group:
                if address is None or new.get(address, value) != value:
                    return False
                if touched.get(address, value) != value:
                    return False
                if self.plan.tensors[address[0]].kind in ("input", "constant"):
                    return False
                new[address] = value
            memory.update(new)
        return True

    def _finished(self, memory: dict[Address, Value]) -> bool:
        for name in self.plan.outputs:
            if self.plan.tensors[name].kind == "internal":
                for address, value in self._tensor(name):
                    if address is None or memory.get(address) != value:
                        return False
        return all(
            memory[(name, i)] == value
            for name, final in self.plan.updated.items()
            for i, value in enumerate(self.values[final])
        )

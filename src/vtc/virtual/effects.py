"""What every step reads and writes where, under a strategy; and what movement operators still copy.

A movement operator whose sources all lie where its output does has no effects and disappears. The
rest of it, the residual copies, reads sources and writes the output's home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vtc.index.map import IndexMap
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import NotRepresentable
from vtc.virtual import boxes
from vtc.virtual.boxes import Box
from vtc.virtual.plan import PlanGraph, PlanMovement, PlanRegion, operands, results
from vtc.virtual.strategy import Resolution, Resolved, Resolver

Fault = tuple[str, str]


class Access(NamedTuple):
    """A read or write of boxes of a physical tensor, holding one version of its contents."""

    base: str
    version: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, eq=False)
class Copy:
    """A residual copy: the part of one source, or the fills, that a movement operator stores.

    source: operand number, None for fills. part: boxes of the output that are stored, or None
        where they depend on runtime indices; `moved` boxes count the elements then.
    before: it must come before the stores of the operator's other sources, which it overwrites.
    """

    source: int | None
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    part: tuple[Box, ...] | None
    moved: tuple[Box, ...]
    before: bool = False


@dataclass(frozen=True, eq=False)
class Effects:
    """What one step does under a strategy.

    placed: operands of a movement operator that lie in its output's home already.
    lookups: runtime index tensors that the step needs to find its elements.
    fault: the rule that the step alone breaks, and how.
    """

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    copies: tuple[Copy, ...] = ()
    placed: tuple[int, ...] = ()
    lookups: tuple[str, ...] = ()
    fault: Fault | None = None

    @property
    def live(self) -> bool:
        """The step runs."""
        return bool(self.reads or self.writes)


class EffectTable:
    """Effects of the steps of one plan, kept by the homes of the tensors that a step touches."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.plan: PlanGraph = resolver.plan
        self._touched = [(*operands(s), *results(s)) for s in self.plan.steps]
        self._memo: dict[tuple[int, ...], Effects] = {}
        self._reach: dict[int, tuple[Access, ...]] = {}

    def of(self, number: int, resolution: Resolution) -> Effects:
        """The effects of step `number`."""
        homes = resolution.tensors
        key = (number, *(id(homes[name]) for name in self._touched[number]))
        found = self._memo.get(key)
        if found is None:
            step = self.plan.steps[number]
            found = self._memo[key] = (
                self._region(step, homes)
                if isinstance(step, PlanRegion)
                else self._movement(step, resolution)
            )
        return found

    def accesses(self, resolved: Resolved, part: Iterable[Box] | None = None) -> tuple[Access, ...]:
        """What touching a tensor (or boxes of it) touches. Fills are nowhere."""
        if part is not None:
            clipped = [
                Piece(*box, piece.source, piece.forms)
                for piece in resolved.map.pieces
                for inside in part
                if (box := boxes.common(boxes.box_of(piece), inside)) is not None
            ]
            return self._accesses(resolved, clipped)
        found = self._reach.get(id(resolved))
        if found is None:
            found = self._reach[id(resolved)] = self._accesses(resolved, resolved.map.pieces)
        return found

    def _accesses(self, resolved: Resolved, pieces: Iterable[Piece]) -> tuple[Access, ...]:
        table: dict[tuple[str, str], list[Box]] = {}
        for piece in pieces:
            if not isinstance(piece.source, Fill):
                home = resolved.homes[piece.source]
                shape = self.plan.tensors[home.base].shape
                table.setdefault(home, []).append(boxes.reach(piece, shape))
        return tuple(Access(*home, tuple(found)) for home, found in table.items())

    def _region(self, step: PlanRegion, homes: Mapping[str, Resolved]) -> Effects:
        engine = self.resolver.engine
        reads: list[Access] = []
        writes: list[Access] = []
        lookups: dict[str, None] = {}
        fault: Fault | None = None
        for name in step.reads:
            resolved = homes[name]
            reads += self.accesses(resolved)
            lookups.update(dict.fromkeys(self._lookups(resolved)))
            if resolved.scattered:
                fault = fault or _collision(step.name, name)
            if not (resolved.physical or engine.loads(step.name, name, resolved)):
                reason = f"region {step.name} cannot read {name} on {_names(resolved)}"
                fault = fault or ("contract", reason)
        for name in step.writes:
            resolved = homes[name]
            writes += self.accesses(resolved)
            lookups.update(dict.fromkeys(self._lookups(resolved)))
            if not (resolved.physical or engine.stores(step.name, name, resolved)):
                reason = f"region {step.name} cannot write {name} on {_names(resolved)}"
                fault = fault or ("contract", reason)
        for name in lookups:
            reads += self.accesses(homes[name])
        return Effects(tuple(reads), tuple(writes), lookups=tuple(lookups), fault=fault)

    def _movement(self, step: PlanMovement, resolution: Resolution) -> Effects:
        homes = resolution.tensors
        home = homes[step.name]
        edges = [self.resolver.vtog.numbered[n] for n in resolution.active.get(step.name, ())]
        inside = [edge for edge in edges if edge.operator == step.name]
        fault: Fault | None = None
        if any(edge.inplace for edge in inside) and not self.resolver.one_to_one(home):
            fault = ("(i)", f"{step.name} would write elements of {_names(home)} that others share")
        placed = {edge.source for edge in inside}
        for k in range(len(step.sources)):
            if k not in placed and self._placed(step, k, resolution):
                placed.add(k)
        copies = [
            copy
            for k in range(len(step.sources))
            if k not in placed and (copy := self._copy(step, k, homes, placed)) is not None
        ]
        fills = self._fill_copy(step, home)
        copies += [fills] if fills is not None else []
        if not copies:
            return Effects(placed=tuple(sorted(placed)), fault=fault)
        indexed = any(copy.source != step.movement.inplace for copy in copies)
        lookups = dict.fromkeys((*(step.lookups if indexed else ()), *self._lookups(home)))
        for copy in copies:
            if copy.source is not None:
                resolved = homes[step.sources[copy.source]]
                lookups.update(dict.fromkeys(self._lookups(resolved)))
                if any((a.base, a.version) in resolved.scattered for a in copy.reads):
                    fault = fault or _collision(step.name, resolved.tensor)
            if home.fills and _touches_fill(home, copy):
                fault = fault or ("(ii)", f"{step.name} would store into fills")
        reads = [access for copy in copies for access in copy.reads]
        reads += [access for name in lookups for access in self.accesses(homes[name])]
        writes = [access for copy in copies for access in copy.writes]
        return Effects(
            tuple(reads), tuple(writes), tuple(copies), tuple(sorted(placed)), tuple(lookups), fault
        )

    def _placed(self, step: PlanMovement, k: int, resolution: Resolution) -> bool:
        """The elements of source `k` that reach the output lie there already."""
        source = step.sources[k]
        for number in resolution.active.get(source, ()):
            edge = self.resolver.vtog.numbered[number]
            if edge.operator == step.name and edge.source == k:
                return True
        mine, output = resolution.tensors[source], resolution.tensors[step.name]
        if not set(mine.bases) & set(output.bases):
            return False
        load, store = step.movement.load, step.movement.store[k]
        if load is not None and load.lookups() == frozenset():
            pieces = [p for p in load.pieces if p.source == k]
            inner = IndexMap(load.shape, pieces).renumber(sources={k: 0})
            return self._coincide(inner, mine, output)
        if load is None and store is not None and not store.lookups():
            return self._coincide(store, output, mine)
        return False

    def _coincide(self, map: IndexMap, through: Resolved, other: Resolved) -> bool:
        """`map` followed by the homes of `through` gives the homes of `other` on its domain."""
        try:
            composed = map.compose({0: through.map})
        except NotRepresentable:
            return False
        for piece in composed.pieces:
            if isinstance(piece.source, Fill):
                return False
            base = through.homes[piece.source].base
            for part in other.map.pieces:
                box = boxes.common(boxes.box_of(piece), boxes.box_of(part))
                if box is None:
                    continue
                if isinstance(part.source, Fill) or other.homes[part.source].base != base:
                    return False
                one, two = (Piece(*box, 0, p.forms).simplify() for p in (piece, part))
                if one.forms != two.forms:
                    return False
        return True

    def _copy(
        self, step: PlanMovement, k: int, homes: Mapping[str, Resolved], placed: set[int]
    ) -> Copy | None:
        home, source = homes[step.name], homes[step.sources[k]]
        load, store = step.movement.load, step.movement.store[k]
        everything = (boxes.whole(step.movement.shape),)
        shape = self.plan.tensors[source.tensor].shape
        if load is not None:
            pieces = [p for p in load.pieces if p.source == k and not p.empty]
            if not pieces:
                return None
            part = tuple(boxes.box_of(piece) for piece in pieces)
            reads = self.accesses(source, [boxes.reach(piece, shape) for piece in pieces])
            return Copy(k, reads, self.accesses(home, part), part, part)
        reads = self.accesses(source)
        if k == step.movement.inplace:
            before = bool(placed)
            return Copy(k, reads, self.accesses(home), everything, everything, before)
        moved = (boxes.whole(shape),)
        if store is None:
            return Copy(k, reads, self.accesses(home), None, moved)
        target = tuple(boxes.reach(piece, step.movement.shape) for piece in store.pieces)
        return Copy(k, reads, self.accesses(home, target), None, moved)

    def _fill_copy(self, step: PlanMovement, home: Resolved) -> Copy | None:
        """The fills of an operator whose output is not read through its own load map."""
        load = step.movement.load
        fills = [p for p in load.pieces if isinstance(p.source, Fill)] if load is not None else []
        virtual = [boxes.box_of(p) for p in home.map.pieces if isinstance(p.source, Fill)]
        stored: list[Box] = []
        for piece in fills:
            left = [boxes.box_of(piece)]
            for box in virtual:
                left = [part for one in left for part in boxes.subtract(one, box)]
            stored += left
        if not stored:
            return None
        part = tuple(stored)
        return Copy(None, (), self.accesses(home, part), part, part)

    def _lookups(self, resolved: Resolved) -> tuple[str, ...]:
        names = self.resolver.vtog.lookups
        found = resolved.map.lookups() | resolved.indices
        return tuple(names[number] for number in sorted(found))


def _touches_fill(home: Resolved, copy: Copy) -> bool:
    fills = [boxes.box_of(p) for p in home.map.pieces if isinstance(p.source, Fill)]
    return copy.part is None or boxes.any_meet(fills, copy.part)


def _names(resolved: Resolved) -> str:
    return ", ".join(resolved.bases) or "fills"


def _collision(step: str, tensor: str) -> Fault:
    return (
        "(i)",
        f"{step} reads {tensor}, which was stored through runtime indices that may repeat",
    )

"""A static cost model: what a strategy costs by arithmetic alone, without a device.

A region or a residual copy takes a launch plus the larger of its memory time and its arithmetic
time; a copy into a home of several pieces takes a launch for each. Memory time is bytes over
bandwidth, times what is wasted where a map's contiguous runs are shorter than a memory transaction.
Search takes any other object with the members of `Cost`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from vtc.index import affine
from vtc.index.affine import Div, Rem
from vtc.index.map import IndexMap
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import NotRepresentable, Size, product, sub
from vtc.index.strided import offset_of
from vtc.virtual import boxes
from vtc.virtual.boxes import Box
from vtc.virtual.effects import Copy, Effects
from vtc.virtual.facts import Facts
from vtc.virtual.legality import Checker, checker
from vtc.virtual.plan import Engine, PlanGraph, PlanMovement, PlanRegion, size_hint
from vtc.virtual.strategy import Resolved, Strategy
from vtc.virtual.vtog import Vtog

Objective = Literal["latency", "memory", "bytes"]


class Cost(Protocol):
    """What search asks. `profiles` counts the region costs that had to be found, `cache_hits` those
    that were known."""

    profiles: int
    cache_hits: int

    def cost(self, strategy: Strategy) -> float:
        """The cost of a strategy, smaller is better; infinite where it cannot be resolved."""
        ...


@dataclass(frozen=True)
class StaticModel:
    """A device: bandwidth in GB/s, launch in us, arithmetic in GFLOP/s, transaction in bytes."""

    bandwidth: float = 20.0
    launch_us: float = 5.0
    flops: float = 200.0
    transaction: int = 64


CPU = StaticModel()
"""Two cores of a server."""
GPU = StaticModel(bandwidth=4200.0, launch_us=2.0, flops=400_000.0, transaction=32)
"""One H200."""


class Traffic(NamedTuple):
    """Bytes that an access needs, and bytes that the memory moves for it."""

    needed: float
    moved: float


@dataclass(frozen=True)
class StepCost:
    """One step that runs: a region, the residual copies of a movement operator, a copy back."""

    name: str
    kind: Literal["region", "copy"]
    latency_us: float
    bytes: float


class StaticCost:
    """The costs of one plan's strategies by a StaticModel. Only steps that a strategy changes are
    computed again.

    objective: "latency" in microseconds, the sum over steps; "bytes" of memory traffic; "memory",
    the largest sum of live internal tensors in bytes (equal peaks are told apart by traffic, which
    adds less than a byte).
    """

    def __init__(
        self,
        plan: PlanGraph,
        vtog: Vtog,
        engine: Engine,
        model: StaticModel = CPU,
        objective: Objective = "latency",
    ) -> None:
        self.plan = plan
        self.model = model
        self.objective = objective
        self.profiles = 0
        self.cache_hits = 0
        self._checker: Checker = checker(plan, vtog, engine)
        self._steps: dict[int, StepCost] = {}
        self._traffic: dict[tuple[int, tuple[Box, ...] | None], Traffic] = {}
        self._totals: dict[Strategy, float] = {}

    @property
    def local(self) -> bool:
        """A choice changes the cost of the steps it touches only, so that costs add up."""
        return self.objective != "memory"

    def cost(self, strategy: Strategy) -> float:
        """See `Cost`."""
        found = self._totals.get(strategy)
        if found is None:
            found = self._totals[strategy] = self._cost(strategy)
        return found

    def steps(self, strategy: Strategy) -> tuple[StepCost, ...]:
        """The cost of every step that runs, in program order."""
        return tuple(self._all_steps(self._checker.facts(strategy)))

    def _all_steps(self, facts: Facts) -> list[StepCost]:
        known = self._steps
        found: list[StepCost] = []
        for number, effect in enumerate(facts.effects):
            step = known.get(id(effect))
            if step is None:
                if not effect.live:
                    continue
                step = self._step(number, effect, facts)
            else:
                self.cache_hits += 1
            found.append(step)
        return found + [self._copy_back(name, final, facts) for _, name, final in facts.backs]

    def peak(self, strategy: Strategy) -> int:
        """The largest number of bytes of internal tensors that are live at once."""
        facts = self._checker.facts(strategy)
        position = {number: k for k, number in enumerate(self._checker.sequence(strategy))}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, effect in enumerate(facts.effects):
            for access in (*effect.reads, *effect.writes):
                first[access.base] = min(first.get(access.base, len(position)), position[number])
                last[access.base] = max(last.get(access.base, 0), position[number])
        kept = [*self.plan.outputs, *(final for _, _, final in facts.backs)]
        for name in kept:
            for base in facts.resolution.tensors[name].bases:
                last[base] = len(position)
        change = [0] * (len(position) + 2)
        for base, start in first.items():
            if self.plan.tensors[base].kind == "internal":
                size = self._storage_bytes(base)
                change[start] += size
                change[last[base] + 1] -= size
        live = peak = 0
        for step in change:
            live += step
            peak = max(peak, live)
        return peak

    def _cost(self, strategy: Strategy) -> float:
        if self._checker.resolver.resolve(strategy).fault is not None:
            return math.inf
        steps = self._all_steps(self._checker.facts(strategy))
        traffic = sum(step.bytes for step in steps)
        if self.objective == "latency":
            return sum(step.latency_us for step in steps)
        if self.objective == "bytes":
            return traffic
        if not self._checker.legal(strategy):
            return math.inf
        return self.peak(strategy) + traffic / (traffic + 2**40)

    def _step(self, number: int, effect: Effects, facts: Facts) -> StepCost:
        self.profiles += 1
        step = self.plan.steps[number]
        if isinstance(step, PlanRegion):
            found = self._region(step, facts)
        else:
            found = self._copies(step, effect.copies, facts)
        self._steps[id(effect)] = found
        return found

    def _region(self, step: PlanRegion, facts: Facts) -> StepCost:
        names = dict.fromkeys((*step.reads, *step.writes))
        total = _sum(self._access(facts.resolution.tensors[name]) for name in names)
        return self._priced(step.name, "region", total, step.flops)

    def _copies(self, step: PlanMovement, copies: Iterable[Copy], facts: Facts) -> StepCost:
        homes = facts.resolution.tensors
        itemsize = self.plan.tensors[step.name].itemsize
        parts: list[Traffic] = []
        launches = 1
        for copy in copies:
            launches += max(len(_clipped(homes[step.name], copy.part)) - 1, 0)
            bytes_moved = float(itemsize * sum(_numel(box) for box in copy.moved))
            if copy.source is not None:
                source = self._access(homes[step.sources[copy.source]])
                share = min(1.0, bytes_moved / source.needed) if source.needed else 1.0
                parts.append(Traffic(source.needed * share, source.moved * share))
            target = self._access(homes[step.name], copy.part)
            worse = target.moved / target.needed if target.needed else 1.0
            parts.append(Traffic(bytes_moved, bytes_moved * worse))
        return self._priced(step.name, "copy", _sum(parts), 0, launches)

    def _copy_back(self, name: str, final: str, facts: Facts) -> StepCost:
        target = self._access(self._checker.resolver.physical(name))
        total = _sum((self._access(facts.resolution.tensors[final]), target))
        return self._priced(name, "copy", total, 0)

    def _priced(
        self,
        name: str,
        kind: Literal["region", "copy"],
        traffic: Traffic,
        flops: int,
        launches: int = 1,
    ) -> StepCost:
        memory = traffic.moved / (self.model.bandwidth * 1e3)
        arithmetic = flops / (self.model.flops * 1e3)
        latency = launches * self.model.launch_us + max(memory, arithmetic)
        return StepCost(name, kind, latency, traffic.needed)

    def _access(self, resolved: Resolved, part: tuple[Box, ...] | None = None) -> Traffic:
        key = (id(resolved), part)
        found = self._traffic.get(key)
        if found is None:
            found = self._traffic[key] = _sum(
                self._piece(resolved, piece) for piece in _clipped(resolved, part)
            )
        return found

    def _piece(self, resolved: Resolved, piece: Piece) -> Traffic:
        """Traffic of one piece: each element of the base once, in runs of what is contiguous."""
        if isinstance(piece.source, Fill):
            return Traffic(0.0, 0.0)
        base = self.plan.tensors[resolved.homes[piece.source].base]
        count = min(_numel(boxes.box_of(piece)), _numel(boxes.reach(piece, base.shape)))
        needed = float(count * base.itemsize)
        run = _run(resolved.map, piece, self._checker.resolver.storage(base.name)) * base.itemsize
        if run >= min(self.model.transaction, needed):
            return Traffic(needed, needed)
        return Traffic(needed, needed * self.model.transaction / run)

    def _storage_bytes(self, name: str) -> int:
        tensor = self.plan.tensors[name]
        strides = self._checker.resolver.storage(name)
        sizes = [size_hint(n) for n in tensor.shape]
        if 0 in sizes:
            return 0
        span = 1 + sum((n - 1) * size_hint(s) for n, s in zip(sizes, strides, strict=True))
        return span * tensor.itemsize


def _sum(parts: Iterable[Traffic]) -> Traffic:
    needed = moved = 0.0
    for part in parts:
        needed += part.needed
        moved += part.moved
    return Traffic(needed, moved)


def _numel(box: Box) -> int:
    return size_hint(product(sub(high, low) for low, high in zip(*box, strict=True)))


def _clipped(resolved: Resolved, part: tuple[Box, ...] | None) -> Sequence[Piece]:
    if part is None:
        return resolved.map.pieces
    return [
        Piece(*box, piece.source, piece.forms)
        for piece in resolved.map.pieces
        for inside in part
        if (box := boxes.common(boxes.box_of(piece), inside)) is not None
    ]


def _run(map: IndexMap, piece: Piece, strides: tuple[Size, ...]) -> int:
    """Length in elements of the contiguous runs of a piece, walked in the order of addresses.

    Kernels walk a strided operand in any order of its dimensions, so that a permuted map alone
    breaks no runs. What is not strided is walked in row-major order, or along the dimensions that
    are: an image in channels-last that is upsampled has the runs of its channels.
    """
    offset = offset_of(piece, strides)
    steps = {k: step for k, step in offset.terms.items() if isinstance(k, int)}
    divided = [atom for atom in offset.terms if isinstance(atom, Div | Rem)]
    run = 1
    if divided:
        assert not isinstance(piece.source, Fill)
        moved = {k for atom in divided for k in affine.coordinates(atom.arg)}
        steps = {k: step for k, step in steps.items() if k not in moved}
        with contextlib.suppress(NotRepresentable):
            run = IndexMap(map.shape, (piece,)).contiguity({piece.source: strides}).run
    return max(run, _strided_run(steps, piece.extent))


def _strided_run(steps: Mapping[int, Size], extents: Sequence[Size]) -> int:
    """The run along dimensions with these steps, from the shortest on."""
    run = 1
    for k, step in sorted(steps.items(), key=lambda pair: abs(size_hint(pair[1]))):
        if extents[k] == 1:
            continue
        if size_hint(step) != run:
            break
        run *= size_hint(extents[k])
    return run

"""What regions cost: measured once as they run, kept on disk, else modelled.

A strategy's latency is the sum over its steps. A region that a strategy changes is compiled as it
would run under that strategy, with its operands where they would be, and timed, and so is its
default form; a copy is timed as a copy. All else costs what the static model says, the same under
every strategy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from torch import fx

from vtc.graph.movement import is_movement_target, movement_of
from vtc.graph.program import is_tensor, value_of
from vtc.graph.regions import Region
from vtc.kernels.operators import Kind, kind
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.emit import StepGraph
from vtc.lowering.homes import Homes, Unschedulable
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.schedule import Operand, Step, View, signature
from vtc.options import Options
from vtc.virtual.cost import StaticCost, StepCost
from vtc.virtual.strategy import Strategy

Progress = Callable[[str], None]


class Pricing:
    """The static cost of strategies, infinite for one that cannot be scheduled or that makes
    virtual what is to be real. What search asks when nothing is measured."""

    def __init__(self, plan: Plan, static: StaticCost, options: Options) -> None:
        self.plan, self.static, self.options = plan, static, options
        self.profiles = self.cache_hits = 0
        self.local = static.local
        # What saves less than a part in two hundred of the whole is not worth a measurement.
        worth = max(options.min_gain_us, static.cost(NOTHING) / 200)
        self.min_gain = worth if static.objective == "latency" else 0.0
        edges = plan.vtog.numbered
        regions = [r for r in plan.grouping.regions if options.materializes(r.name)]
        real = {n.name for r in regions for n in r.writes} | options.materialize
        # A step stores into views of known size only.
        unknown = [e.direction == "store" or e.inplace for e in edges]
        self.banned = frozenset(
            k
            for k, e in enumerate(edges)
            if e.tensor in real or (plan.program.symbolic and unknown[k])
        )

    @property
    def leaves_small_gains(self) -> bool:
        """Are gains left out that would be worth having, were they certain?"""
        return self.min_gain > self.options.min_gain_us

    def cost(self, strategy: Strategy) -> float:
        if strategy & self.banned:
            return math.inf
        try:
            if strategy:
                self.plan.homes(strategy).require_schedulable()
            return self._price(strategy)
        except Unschedulable:
            return math.inf

    def _price(self, strategy: Strategy) -> float:
        return self.static.cost(strategy)


class ProfiledCost(Pricing):
    """Measured latency, in microseconds a call.

    The empty strategy costs what the static model says. Another one costs that, plus what each
    region and copy that it changes takes more or less than in its default form, both measured.
    """

    def __init__(
        self,
        plan: Plan,
        static: StaticCost,
        options: Options,
        cache: ProfileCache,
        progress: Progress,
    ) -> None:
        super().__init__(plan, static, options)
        self.cache, self.progress = cache, progress
        self.deadline = time.perf_counter() + options.profile_budget_s
        self.default = plan.homes(NOTHING)
        self.base = {step.name: step for step in static.steps(NOTHING)}
        self.regions = {r.name: r for r in plan.grouping.regions}
        self.around = {r.name: self._around(r) for r in plan.grouping.regions}
        self.steps: dict[tuple[object, ...], tuple[Step, str]] = {}
        self.known: dict[str, float | None] = {}
        self.best, self.best_cost = NOTHING, static.cost(NOTHING)

    def floor(self, strategy: Strategy) -> float:
        """What a strategy costs at least, legal or not: what it costs where it is not measured."""
        gain = self.static.cost(self.best) - self.static.cost(strategy)
        if gain < self.min_gain and strategy != self.best:
            # Not worth measuring: the model is generous to virtual tensors.
            return self.best_cost - min(gain, 0.0)
        return -math.inf

    def _price(self, strategy: Strategy) -> float:
        if strategy == NOTHING:
            return self.static.cost(NOTHING)
        floor = self.floor(strategy)
        if floor > -math.inf:
            return floor
        cost = self.static.cost(NOTHING) + self._difference(strategy)
        if cost < self.best_cost:
            self.best, self.best_cost = strategy, cost
        return cost

    def _difference(self, strategy: Strategy) -> float:
        homes = self.plan.homes(strategy)
        now = {step.name: step for step in self.static.steps(strategy)}
        total = 0.0
        for name in dict.fromkeys((*self.base, *now)):
            before, after = self.base.get(name), now.get(name)
            region = self.regions.get(name)
            if region is None:
                if before != after:
                    total += self._copy(name, after, homes) - self._copy(name, before, self.default)
            elif self.touches(region, strategy):
                total += self._region_difference(region, homes, before, after)
        return total

    def touches(self, region: Region, strategy: Strategy) -> bool:
        """Can these edges change what the region looks like?"""
        component = self.plan.checker.resolver.component
        changed = {component[self.plan.vtog.numbered[k].tensor] for k in strategy}
        return any(component.get(n.name) in changed for n in (*region.reads, *region.writes))

    def _region_difference(
        self, region: Region, homes: Homes, before: StepCost | None, after: StepCost | None
    ) -> float:
        default, default_key = self.looking(region, self.default)
        step, key = self.looking(region, homes)
        if default_key == key:
            return 0.0
        if region.name in self.plan.engine.own:
            # A kernel of ours reads and stores through a map as it does through a plain view.
            return (after.latency_us if after else 0.0) - (before.latency_us if before else 0.0)
        measured = self._measured(default, default_key), self._measured(step, key)
        if measured[0] is not None and measured[1] is not None:
            return measured[1] - measured[0]
        return (after.latency_us if after else 0.0) - (before.latency_us if before else 0.0)

    def _copy(self, name: str, modelled: StepCost | None, homes: Homes) -> float:
        """A movement operator that runs: measured whole, or the copies that are left of it."""
        if modelled is None:
            return 0.0
        node = self.plan.engine.nodes.get(name)
        if node is None or node not in self.plan.program.movements:
            return modelled.latency_us
        step = residual(node, homes) or alone(node, homes)
        measured = self._measured(step, signature(step))
        return modelled.latency_us if measured is None else measured

    def looking(self, region: Region, homes: Homes) -> tuple[Step, str]:
        """The region as a step with its signature, made once for each way it can look."""
        resolution = homes.resolution
        names = self.around[region.name]
        look = (
            region.name,
            *((id(resolution.tensors[n]), resolution.active.get(n, ())) for n in names),
        )
        if look not in self.steps:
            step = isolated(region, homes)
            self.steps[look] = step, signature(step)
        return self.steps[look]

    def form(self, name: str) -> Hashable:
        """What a region computes, whatever its name (see `vtc.virtual.alike`)."""
        try:
            return name in self.plan.engine.own, self.looking(self.regions[name], self.default)[1]
        except Unschedulable:
            return name

    def _around(self, region: Region) -> tuple[str, ...]:
        """The tensors whose homes decide what the region looks like: what it reads, through
        movement operators, and what it writes."""
        found = dict.fromkeys(region.writes)
        pending = list(region.reads)
        for node in pending:
            if node not in found and node.name in self.plan.graph.tensors:
                found[node] = None
                if node in self.plan.program.movements:
                    pending += node.all_input_nodes
            elif is_movement_target(node):
                pending += node.all_input_nodes
        return tuple(n.name for n in found)

    def _measured(self, step: Step, key: str) -> float | None:
        """Microseconds of a step; None when the time for measuring is spent."""
        if key not in self.known:
            found = self.cache.get(key)
            if found is not None:
                self.cache_hits += 1
            elif time.perf_counter() < self.deadline:
                self.progress(f"measuring {step.name}")
                found = measure(step, self.plan)
                self.profiles += 1
                self.cache.put(key, found)
            self.known[key] = found
        return self.known[key]


def alone(node: fx.Node, homes: Homes) -> Step:
    """A movement operator as a step of its own."""
    graph = StepGraph(
        homes, lambda n: Operand("result", n.name) if n is not node and is_tensor(n) else None
    )
    module, _ = graph.finish([node])
    return Step(node.name, "eager", module, tuple(graph.operands), (), (node.name,), ())


def residual(node: fx.Node, homes: Homes) -> Step | None:
    """The copies into its home that a strategy leaves of a movement operator, as a step; None where
    it is not stored piece by piece."""
    stores = [s for s in homes.stores if s.operator == node.name and s.node is not node]
    if not stores:
        return None
    graph = StepGraph(homes, lambda n: Operand("result", n.name) if is_tensor(n) else None)
    for store in stores:
        graph.store(store, lambda slot: place(slot, homes))
    module, numbers = graph.finish([])
    return Step(node.name, "inductor", module, tuple(graph.operands), numbers, (), ())


def isolated(region: Region, homes: Homes) -> Step:
    """The region alone, as a step: all else is an operand, found where the strategy has it."""
    graph = StepGraph(homes, lambda node: _outside(node, region, homes))
    graph.region(region)
    results = []
    for node in region.writes:
        if homes.edges(node, "store"):
            store = next(s for s in homes.stores if s.virtual and s.node is node)
            graph.store(store, lambda slot: place(slot, homes))
        else:
            results.append(node)
    module, stores = graph.finish(results)
    return Step(
        region.name,
        "inductor",
        module,
        tuple(graph.operands),
        stores,
        tuple(n.name for n in results),
        (region.name,),
    )


def place(slot: Any, homes: Homes) -> Operand:
    """A slot of a base as an operand of a step."""
    return Operand("buffer", slot.base, View(slot.shape, slot.stride, slot.offset))


def _outside(node: fx.Node, region: Region, homes: Homes) -> Operand | None:
    if node.op == "placeholder":
        return Operand("result", node.name)
    if homes.is_stored(node) and (slot := homes.one_view(node)) is not None:
        return place(slot, homes)
    inside = homes.grouping.region_of.get(node)
    if inside is region:
        return None
    if inside is not None or homes.in_arena(node):
        return Operand("result", node.name)
    bound = homes.program.movements.get(node)
    if bound is not None and not bound.movement.view and not homes.edges(node, "load"):
        return Operand("result", node.name)
    return None


def measure(step: Step, plan: Plan) -> float:
    """Compile a step as it runs and time it on random operands; microseconds."""
    nodes = [n for n in step.graph.graph.nodes if n.op == "call_function"]
    if step.implementation == "eager" or _is_kernel(nodes):
        call: Callable[..., Any] = step.graph.forward
    else:
        call, _ = implement(step, plan.program, freeze=False)
    values = [value_of(n) for n in step.graph.graph.nodes if n.op == "placeholder"]
    return timing.microseconds(call, list(timing.operands(values)))


def _is_kernel(nodes: Iterable[fx.Node]) -> bool:
    """Library kernels behind views, which run the same called by eager PyTorch or by Inductor."""
    origins = [n.meta["origin"] for n in nodes if n.meta.get("origin") is not None]
    movements = [n for n in origins if movement_of(n) is not None or is_movement_target(n)]
    views = all(bound.movement.view for n in movements if (bound := movement_of(n)) is not None)
    rest = [n for n in origins if n not in movements]
    return views and all(kind(n) in (Kind.ANCHOR, Kind.OPAQUE) for n in rest)

"""Scheduling: homes of a strategy -> an arena and steps in a legal order.

Regions go into stages. A region that finds an operand in a base runs a stage after those that
store it there, so that within a stage nothing reads what the stage stores: the generated part of a
stage is compiled as one subgraph, with the views that it stores into as inputs that do not alias.
Our own kernels, and library kernels that store into a view, are steps of their own, ahead of their
stage's subgraph.
Where nothing is stored into a base there is one stage, and the one step is the whole graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import fx

from vtc import errors
from vtc.graph.movement import is_movement_target
from vtc.graph.program import Program, is_tensor, value_of
from vtc.graph.regions import Grouping, Region
from vtc.index.map import IndexMap
from vtc.kernels import libraries
from vtc.kernels.inductor import Slot
from vtc.lowering.emit import StepGraph
from vtc.lowering.homes import Homes, Store, Unschedulable
from vtc.lowering.returned import forms, symbols
from vtc.lowering.schedule import Buffer, Operand, Schedule, Step, View
from vtc.lowering.storage import extent_of
from vtc.virtual.plan import COPY_BACK


def schedule(homes: Homes, orders: Iterable[tuple[str, str]] = ()) -> Schedule:
    """The Schedule of `homes`; `orders` are pairs of steps (before, after) beyond data flow.

    Raises Unschedulable when no order of stages exists: legality goes by the elements that a step
    reads, while a step waits for all of its operands.
    """
    return _Scheduler(homes, tuple(orders)).build()


class _Scheduler:
    def __init__(self, homes: Homes, orders: tuple[tuple[str, str], ...]) -> None:
        self.homes, self.orders = homes, orders
        self.program: Program = homes.program
        self.grouping: Grouping = homes.grouping
        self.inputs = {n: i for i, n in enumerate(self.program.inputs)}
        self.stage: dict[Region, int] = dict.fromkeys(self.grouping.regions, 0)
        self.floor: dict[str, int] = {}
        self.known: dict[fx.Node, int] = {}
        self.results: dict[int, dict[fx.Node, None]] = {}
        self.viewed: dict[fx.Node, frozenset[fx.Node]] = {}
        self.kept: dict[int, bool] = {}
        self.updates = dict(self.program.updates)
        self.copies = {
            f"{self.program.inputs[number].name}{COPY_BACK}": (number, node)
            for number, node in self.program.updates
        }

    # Stages.

    def assign(self) -> None:
        """Raise stages until every operand is ready; a legal strategy has a fixed point."""
        limit = len(self.grouping.regions) + len(self.orders) + 2
        for _ in range(limit):
            before = (dict(self.stage), dict(self.floor))
            self.known.clear()
            for region in self.grouping.regions:
                self.stage[region] = self._region_stage(region)
            self._apply_orders()
            if before == (self.stage, self.floor):
                return
        if self.homes.chosen:
            raise Unschedulable("the steps of the schedule wait for each other")
        raise errors.PlanCheckError("(iv)", "the steps of the schedule wait for each other")

    def _region_stage(self, region: Region) -> int:
        library = self.homes.is_library(region)
        ready = [self.ready(n, region, library) for n in region.reads if is_tensor(n)]
        return max([self.floor.get(region.name, 0), *ready])

    def ready(self, node: fx.Node, reader: Region | None = None, library: bool = False) -> int:
        """The first stage in which a step can read `node`.

        Generated steps of a stage come after its library steps, and are one subgraph.
        """
        if node in self.inputs:
            return 0
        if node in self.grouping.region_of:
            region = self.grouping.region_of[node]
            if region is reader:
                return self.stage[region]
            if self.homes.is_library(region):
                return self.stage[region]
            return self.stage[region] + (library or self.homes.is_stored(node))
        later = int(library)
        if node not in self.known:
            self.known[node] = self._movement_ready(node)
        return self.known[node] + (later if not self._only_inputs(node) else 0)

    def _movement_ready(self, node: fx.Node) -> int:
        floor = self.floor.get(node.name, 0)
        if not self.homes.in_arena(node):
            return max([floor, *(self.ready(n) for n in node.all_input_nodes)])
        stores = [s for s in self.homes.stores if s.operator == node.name]
        stages = [self._store_stage(s) + 1 for s in stores]
        bound = self.program.movements[node]
        if bound.movement.inplace is not None:
            stages.append(self.ready(bound.sources[bound.movement.inplace]))
        stages += [self.ready(source) for source in bound.sources if self.homes.is_stored(source)]
        return max([floor, *stages])

    def _only_inputs(self, node: fx.Node) -> bool:
        if node in self.inputs:
            return self.inputs[node] not in self.updates
        if node in self.grouping.region_of or self.homes.in_arena(node):
            return False
        return all(map(self._only_inputs, node.all_input_nodes))

    def _store_stage(self, store: Store) -> int:
        """The stage whose steps write `store`."""
        if store.node is None:
            return self.floor.get(store.operator or "", 0)
        if store.virtual:
            return self.stage[self.grouping.region_of[store.node]]
        runs = store.operator == store.node.name
        reads = store.node.all_input_nodes if runs else [store.node]
        return max([self.floor.get(store.operator or "", 0), *map(self.ready, reads)])

    def _apply_orders(self) -> None:
        for before, after in self.orders:
            stage = self._step_stage(before) + self._stores(after)
            if self.floor.get(after, 0) < stage and self._step_stage(after) < stage:
                self.floor[after] = stage

    def _stores(self, name: str) -> bool:
        """Does this step write memory that a step of the same stage may not read? A scatter that
        is written out, and a final copy back, are functional within their step."""
        node = self.homes.nodes.get(name)
        return node is not None and (node in self.grouping.region_of or self.homes.in_arena(node))

    def _step_stage(self, name: str) -> int:
        if name in self.copies:
            return self._update_stage(*self.copies[name])
        node = self.homes.nodes.get(name)
        if node in self.grouping.region_of:
            return self.stage[self.grouping.region_of[node]]
        if node is not None and node in self.program.movements:
            own = self.ready(node) - int(self.homes.in_arena(node))
            return max([own, *map(self.ready, self._scatters(node))])
        return self.floor.get(name, 0)

    def _scatters(self, node: fx.Node) -> list[fx.Node]:
        """The scatter through a runtime index that `node` is stored by: where that is written out,
        `node` is read."""
        if node.name not in self.homes.scattered:
            return []
        edges = [e for e in self.homes.active[node.name] if e.direction == "store"]
        return [self.homes.nodes[e.operator] for e in edges]

    # Steps.

    def build(self) -> Schedule:
        self.assign()
        outputs = [self._output(k, o) for k, o in enumerate(self.program.outputs)]
        last = max(
            [0, *self.stage.values(), *self.results, *map(self._store_stage, self.homes.stores)]
        )
        last = max([last, *self.update_stages.values()])
        steps: list[Step] = []
        for stage in range(last, -1, -1):
            generated = self._generated(stage, stage == last)
            # From the last one back: a step says which results of earlier ones it needs.
            library = [self._library(r) for r in reversed(self._regions(stage, True))]
            steps = [*reversed(library), *([generated] if generated else []), *steps]
        buffers = tuple(_buffer(node, self.homes) for node in self.homes.bases)
        made = Schedule(
            buffers,
            tuple(steps),
            tuple(outputs),
            symbols=symbols(self.program) if self.program.symbolic else {},
            forms=forms(self.program, outputs),
        )
        _require_runnable(made, self.updates)
        return made

    # What follows is asked for each stage, once all stages are assigned.

    @cached_property
    def update_stages(self) -> dict[int, int]:
        """The stage that copies each final value back."""
        return {i: self._update_stage(i, v) for i, v in self.updates.items()}

    @cached_property
    def by_stage(self) -> dict[tuple[int, bool], list[Region]]:
        """The regions by stage, those apart that are steps of their own."""
        found: dict[tuple[int, bool], list[Region]] = {}
        for region in self.grouping.regions:
            key = self.stage[region], self.homes.is_library(region)
            found.setdefault(key, []).append(region)
        return found

    @cached_property
    def stores_by_stage(self) -> dict[int, list[Store]]:
        found: dict[int, list[Store]] = {}
        for store in self.homes.stores:
            found.setdefault(self._store_stage(store), []).append(store)
        return found

    def _regions(self, stage: int, library: bool) -> list[Region]:
        return self.by_stage.get((stage, library), [])

    def _generated(self, stage: int, last: bool) -> Step | None:
        regions = self._regions(stage, False)
        stores = [s for s in self.stores_by_stage.get(stage, ()) if not self._by_library(s)]
        graph = StepGraph(self.homes, lambda n: self._outside(n, stage))
        for number in self._copies_of_updated(stage):
            graph.operand(Operand("input", number), self.program.inputs[number])
        for region in regions:
            graph.region(region)
        for store in stores:
            graph.store(store, self._place)
        for number, node in self.updates.items():
            if self.update_stages[number] == stage and not self._kept(number, node):
                graph.update(number, node)
        results = [n for n in self.results.get(stage, {}) if not self._makes(n)]
        if not (regions or stores or results or graph.pending):
            return None
        module, targets = graph.finish(results)
        return Step(
            f"stage{stage}",
            "inductor",
            module,
            tuple(graph.operands),
            targets,
            tuple(n.name for n in results),
            tuple(r.name for r in regions),
        )

    def _copies_of_updated(self, stage: int) -> list[int]:
        """The inputs that get old values of other updated ones, each ahead of those: TorchInductor
        updates arguments in their order, and reads what is only copied as late as that."""
        own = [n for n, v in self.updates.items() if self.update_stages[n] == stage]
        reads = {n: {self.inputs[s] for s in self._views(self.updates[n])} - {n} for n in own}
        left, found = [n for n in own if not reads[n].isdisjoint(own)], list[int]()
        while left:
            free = (n for n in left if not any(n in reads[m] for m in left if m != n))
            found.append(next(free, left[0]))
            left.remove(found[-1])
        return found

    def _by_library(self, store: Store) -> bool:
        node = store.node
        return (
            store.virtual
            and node is not None
            and self.homes.is_library(self.grouping.region_of[node])
        )

    def _makes(self, node: fx.Node) -> bool:
        """Is `node` a result of one of our own kernels?"""
        region = self.grouping.region_of.get(node)
        return region is not None and region.name in self.homes.engine.own

    def _kernel(self, region: Region) -> Step:
        """A step that one of our own kernels carries out."""
        stage = self.stage[region]
        graph = StepGraph(self.homes, lambda n: self._outside(n, stage, library=True))
        graph.region(region)
        for store in self.homes.stores:
            if store.virtual and store.node in region.nodes:
                graph.store(store, self._place)
        made = self.results.get(stage, {})
        results = [n for n in made if self.grouping.region_of.get(n) is region]
        module, targets = graph.finish(results)
        names = tuple(n.name for n in results)
        operands = tuple(graph.operands)
        return Step(region.name, "kernel", module, operands, targets, names, (region.name,))

    def _library(self, region: Region) -> Step:
        if region.name in self.homes.engine.own:
            return self._kernel(region)
        (node,) = region.nodes
        stage = self.stage[region]
        (slot,) = self.homes.slots(node)
        graph = StepGraph(self.homes, lambda n: self._outside(n, stage, library=True))
        reads = [graph.value(a) for a in node.args if isinstance(a, fx.Node)]
        target = graph.operand(self._place(slot), self.homes.nodes[slot.base])
        kernel = libraries.out_variant(node)
        assert kernel is not None, f"{node.name} has no kernel that stores into a view"
        call = graph.graph.call_function(kernel, (*reads, target))
        call.meta["origin"] = node
        graph.graph.output(())
        module = fx.GraphModule({}, graph.graph)
        operands = tuple(graph.operands)
        return Step(
            region.name,
            "library",
            module,
            operands,
            (operands.index(self._place(slot)),),
            (),
            (region.name,),
        )

    def _place(self, slot: Slot) -> Operand:
        base = self.homes.nodes[slot.base]
        view = View(slot.shape, slot.stride, slot.offset)
        if base in self.inputs:
            return Operand("input", self.inputs[base], view)
        return Operand("buffer", slot.base, view)

    def _outside(self, node: fx.Node, stage: int, library: bool = False) -> Operand | None:
        """Where a step of `stage` finds `node`; None to write it out."""
        if node in self.inputs:
            return Operand("input", self.inputs[node])
        if self.homes.is_stored(node) or self._in_input(node, stage):
            return self._held(node)
        if node in self.grouping.region_of or self._runs_before(node, stage, library):
            made = self.ready(node)
            self.results.setdefault(made, {})[node] = None
            return Operand("result", node.name)
        return None

    def _held(self, node: fx.Node) -> Operand:
        """A stored tensor as a view of its base."""
        slot = self.homes.one_view(node)
        if slot is None:
            own = _buffer(node, self.homes)
            same = own.stride == value_of(node).stride()
            return Operand("buffer", node.name, None if same else View(own.shape, own.stride, 0))
        operand = self._place(slot)
        base = value_of(self.homes.nodes[slot.base])
        stride = self.homes.engine.storage(slot.base)
        whole = View(tuple(base.shape), stride, 0)
        alike = operand.view == whole and value_of(node).stride() == stride
        return Operand(operand.kind, operand.source) if alike else operand

    def _in_input(self, node: fx.Node, stage: int) -> bool:
        """A scatter done in place of its input in an earlier stage: the input holds it now."""
        if node not in self.program.movements or self.homes.in_arena(node):
            return False
        bases = self.homes.resolved(node).bases if self.homes.inplace(node) else ()
        return any(
            v is node and bases == (self.program.inputs[i].name,) and self.update_stages[i] < stage
            for i, v in self.updates.items()
        )

    def _runs_before(self, node: fx.Node, stage: int, library: bool) -> bool:
        """A movement operator that copies: it runs once, in the stage where it is ready."""
        if node not in self.program.movements or is_movement_target(node):
            return False
        if self._only_inputs(node) and not library:
            return False
        copies = (
            not self.homes.edges(node, "load") and not self.program.movements[node].movement.view
        )
        return copies and self.ready(node) < stage

    # Updated inputs and outputs.

    def _kept(self, number: int, node: fx.Node) -> bool:
        """Stores have left the final value in the input already."""
        if number not in self.kept:
            self.kept[number] = self._is_kept(number, node)
        return self.kept[number]

    def _is_kept(self, number: int, node: fx.Node) -> bool:
        resolved, source = self.homes.resolved(node), self.program.inputs[number]
        own = IndexMap.identity(tuple(value_of(source).shape))
        if resolved.bases != (source.name,) or resolved.map.simplify().pieces != own.pieces:
            return False
        while not self.homes.in_arena(node):  # a view of what was stored
            bound = self.program.movements.get(node)
            if bound is None or not bound.movement.view:
                return False
            (node,) = bound.sources
        return True

    def _update_stage(self, number: int, node: fx.Node) -> int:
        """The stage that copies a final value back: not before the last reader of the old one."""
        if self._kept(number, node):
            return 0
        readers = [self.stage[r] for r in self.readers.get(self.program.inputs[number], ())]
        floor = self.floor.get(f"{self.program.inputs[number].name}{COPY_BACK}", 0)
        return max([floor, self.ready(node), *readers])

    @cached_property
    def readers(self) -> dict[fx.Node, list[Region]]:
        """Input -> the regions that read its old value, moved or not."""
        found: dict[fx.Node, list[Region]] = {}
        for region in self.grouping.regions:
            for source in frozenset().union(*map(self._views, region.reads)):
                found.setdefault(source, []).append(region)
        return found

    def _views(self, node: fx.Node) -> frozenset[fx.Node]:
        """The inputs whose old values a tensor is made of by movement alone."""
        if node in self.inputs:
            return frozenset((node,))
        if node not in self.program.movements or self.homes.inplace(node):
            return frozenset()
        if node not in self.viewed:
            self.viewed[node] = frozenset().union(*map(self._views, self._moved(node)))
        return self.viewed[node]

    def _moved(self, node: fx.Node) -> list[fx.Node]:
        """The tensors that a movement operator reads: its indices, and the sources that its map has
        elements of. What a copy replaces is not read."""
        bound = self.program.movements[node]
        load = bound.movement.load
        read = (
            {p.source for p in load.pieces} if load is not None else set(range(len(bound.sources)))
        )
        return [*bound.lookups, *(s for k, s in enumerate(bound.sources) if k in read)]

    def _output(self, number: int, out: Any) -> Any:
        if number in self.program.aliases:
            return self.program.aliases[number]
        if not isinstance(out, fx.Node):
            return out
        if out in self.inputs:
            return Operand("input", self.inputs[out])
        if self.homes.in_arena(out) and self.homes.resolved(out).physical:
            return Operand("buffer", out.name)
        self.results.setdefault(self.ready(out), {})[out] = None
        return Operand("result", out.name)


def _buffer(node: fx.Node, homes: Homes) -> Buffer:
    value = value_of(node)
    stride = homes.engine.storage(node.name)
    return Buffer(node.name, tuple(value.shape), stride, value.dtype, value.device)


def _require_runnable(made: Schedule, updated: Collection[int]) -> None:
    """Raises Unschedulable for steps that no order of memory accesses makes right.

    Planning knows which elements lie in their place already. A residual copy is written whole: it
    may store what is there, into an input that nothing updates, or beside what its step reads.
    """
    buffers = {b.name for b in made.buffers}
    for out in made.outputs:
        if isinstance(out, Operand) and out.kind == "buffer" and out.source not in buffers:
            raise Unschedulable(f"nothing is stored into {out}")
    for step in made.steps:
        for k in step.stores:
            target = step.operands[k]
            if target.kind == "input" and target.source not in updated:
                raise Unschedulable(f"{step.name} would store into {target}")
            for n, other in enumerate(step.operands):
                shared = (other.kind, other.source) == (target.kind, target.source)
                if n == k or not shared or not _meet(other.view, target.view):
                    continue
                does = "store into" if n in step.stores else "read"
                raise Unschedulable(f"{step.name} would {does} {other} and store into {target}")
        for operand in step.operands:
            if operand.kind == "buffer" and operand.source not in buffers:
                raise Unschedulable(f"{operand.source} has no storage that {step.name} can read")


def _meet(one: View | None, other: View | None) -> bool:
    """May two views of one storage share an element?"""
    if one is None or other is None:
        return True
    if 0 in one.shape or 0 in other.shape:
        return False
    ranges = [(v.offset, v.offset + extent_of(v.shape, v.stride)) for v in (one, other)]
    (first, end), (second, other_end) = ranges
    if end <= second or other_end <= first:
        return False
    touched = torch.zeros(max(end, other_end), dtype=torch.bool)
    touched.as_strided(one.shape, one.stride, one.offset).fill_(True)
    return bool(touched.as_strided(other.shape, other.stride, other.offset).any())

"""What a strategy means for each node of the captured graph: where it is stored, and who copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

from torch import fx

from vtc.graph.program import Program, is_tensor
from vtc.graph.regions import Grouping, Region
from vtc.index.map import Fill, IndexMap
from vtc.index.sizes import NotRepresentable
from vtc.kernels.inductor import InductorEngine, Slot, is_library
from vtc.virtual.strategy import Resolution, Resolved, Resolver
from vtc.virtual.vtog import Edge


class Unschedulable(Exception):  # noqa: N818 - a finding about a strategy, not an error
    """The strategy is legal, but a copy that it leaves writes through a map that is no view."""


@dataclass(frozen=True)
class Store:
    """A value that is written into views of bases: a producer's virtual store when `virtual`,
    else a residual copy. `node` is the tensor whose value is written, or None for a `fill`."""

    node: fx.Node | None
    slots: tuple[Slot, ...]
    virtual: bool
    fill: float | int | bool | None = None
    operator: str | None = None

    @property
    def bases(self) -> frozenset[str]:
        return frozenset(slot.base for slot in self.slots)


class Homes:
    """A resolved strategy over one grouped program.

    stores: everything that is written into a base through a view.
    stored: tensors that readers in other steps find in a base, with the views that hold them.
    dropped: copying movement operators that consumers read through.
    through: (anchor, argument number) -> the tensor that the kernel reads instead, by what map.
    """

    def __init__(
        self,
        program: Program,
        grouping: Grouping,
        engine: InductorEngine,
        resolver: Resolver,
        resolution: Resolution,
        transposed: frozenset[str] = frozenset(),
    ) -> None:
        self.transposed = transposed
        self.program, self.grouping, self.engine = program, grouping, engine
        self.resolver, self.resolution = resolver, resolution
        self.nodes = engine.nodes
        edges = resolver.vtog.numbered
        self.active: dict[str, list[Edge]] = {
            name: [edges[k] for k in numbers] for name, numbers in resolution.active.items()
        }
        # A store through a runtime index is a scatter in its producer's loop: the operator is
        # written out in the same step, and Inductor fuses the two.
        self.scattered = frozenset(
            name
            for name, r in resolution.tensors.items()
            if self.active.get(name) and r.map.lookups()
        )
        self.covered: dict[str, set[int]] = {}  # movement operator -> sources virtual on its output
        for name in self.active.keys() - self.scattered:
            for edge in self.active[name]:
                if edge.direction == "store":
                    self.covered.setdefault(edge.operator, set()).add(edge.source)
        self.chosen = frozenset(edges[k].tensor for k in resolution.strategy)

    def edges(self, node: fx.Node, direction: str) -> list[Edge]:
        found = self.active.get(node.name, [])
        if direction == "store" and node.name in self.scattered:
            return []
        return [e for e in found if e.direction == direction and not e.inplace]

    def resolved(self, node: fx.Node) -> Resolved:
        return self.resolution.tensors[node.name]

    def inplace(self, node: fx.Node) -> bool:
        """A scatter done in the storage of its data."""
        return any(e.inplace for e in self.active.get(node.name, []))

    def in_arena(self, node: fx.Node) -> bool:
        """A movement operator that does not run: what it moves is written where it belongs."""
        if node not in self.program.movements:
            return False
        if self.covered.get(node.name) or self.edges(node, "store"):
            return True
        return self.inplace(node) and any(map(self._updates, node.users, repeat(node)))

    def _updates(self, user: fx.Node, node: fx.Node) -> bool:
        """Is `user` a scatter in the arena that is done in the storage of `node`, or a view of it
        that such a scatter updates?"""
        bound = self.program.movements.get(user)
        if bound is None:
            return False
        if bound.movement.view and bound.sources == (node,):
            return any(map(self._updates, user.users, repeat(user)))
        if bound.movement.inplace is None or not self.inplace(user):
            return False
        return bound.sources[bound.movement.inplace] is node and self.in_arena(user)

    def is_stored(self, node: fx.Node) -> bool:
        """A tensor that readers in other steps find in a base."""
        return bool(self.edges(node, "store")) or self.in_arena(node)

    def slots(self, node: fx.Node) -> tuple[Slot, ...]:
        """The views that hold a stored tensor."""
        return self._views(self.resolved(node))

    def _views(self, resolved: Resolved) -> tuple[Slot, ...]:
        slots = self.engine.slots(resolved)
        if slots is None:
            raise Unschedulable(f"{resolved.tensor} is stored through a map that is no view")
        return slots

    def require_schedulable(self) -> None:
        """Raises Unschedulable unless every store is a view, and every stored tensor that a step
        reads is one view."""
        assert self.bases is not None
        pending = [node for region in self.grouping.regions for node in region.reads]
        seen = set(pending)
        for node in pending:
            if is_tensor(node) and self.is_stored(node):
                self.one_view(node)
            elif node in self.program.movements:
                behind = [n for n in self.program.movements[node].sources if n not in seen]
                seen.update(behind)
                pending += behind

    def one_view(self, node: fx.Node) -> Slot | None:
        """The view that holds a stored tensor; None where it is a base of its own."""
        if self.resolved(node).physical:
            return None
        slots = self.slots(node)
        if len(slots) != 1:
            raise Unschedulable(f"{node.name} is read from several places")
        return slots[0]

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        made: list[Store] = []
        for region in self.grouping.regions:
            made += [Store(n, self.slots(n), True) for n in region.writes if self.edges(n, "store")]
        for node in self.grouping.movements:
            if self.in_arena(node):
                made += self._residuals(node)
        return tuple(made)

    def _residuals(self, node: fx.Node) -> Iterable[Store]:
        """Copies of what no producer stores into the place of a movement operator's output."""
        bound = self.program.movements[node]
        covered = self.covered.get(node.name, set())
        home = self.resolved(node)
        if not covered and not self.inplace(node):
            yield Store(node, self.slots(node), False, operator=node.name)
            return
        if bound.movement.inplace is not None and not self.inplace(node):
            raise Unschedulable(f"what {node.name} keeps of its data is to be copied first")
        if bound.movement.load is not None:
            for piece in bound.movement.load.pieces:
                if isinstance(piece.source, Fill):
                    part = home.map.restrict(piece.lower, piece.upper)
                    slots = self._views(Resolved(home.tensor, part, home.homes))
                    yield Store(None, slots, False, piece.source.value, node.name)
        for k, source in enumerate(bound.sources):
            if k in covered or k == bound.movement.inplace:
                continue
            store = bound.movement.store[k]
            if store is None:
                raise Unschedulable(f"{source.name} has no one place in {node.name}")
            try:
                placed = Resolved(source.name, store.compose({0: home.map}), home.homes)
            except NotRepresentable as error:
                raise Unschedulable(f"{source.name} in {node.name}: {error}") from error
            yield Store(source, self._views(placed), False, operator=node.name)

    @cached_property
    def bases(self) -> tuple[fx.Node, ...]:
        """Arena tensors: the bases that are not inputs of the program."""
        names = {slot.base for store in self.stores for slot in store.slots}
        nodes = self.program.graph_module.graph.nodes
        found = tuple(n for n in nodes if n.name in names and n.op != "placeholder")
        for node in found:
            if not self.in_arena(node):
                raise Unschedulable(f"{node.name} is updated in place but is not in the arena")
        return found

    @cached_property
    def through(self) -> dict[tuple[fx.Node, int], tuple[fx.Node, IndexMap]]:
        virtual = {n for n in self.program.movements if self.edges(n, "load")}
        found = {}
        for region in self.grouping.regions:
            for node in region.nodes:
                if node not in self.grouping.region_of:
                    continue
                for position, operand in enumerate(node.args):
                    if not isinstance(operand, fx.Node) or not self._copies(operand, virtual):
                        continue
                    answer = self.engine.readable(node, position, operand, virtual)
                    if answer is not None:
                        found[node, position] = answer
        return found

    def _copies(self, node: fx.Node, virtual: set[fx.Node]) -> bool:
        """Does a chosen movement operator that copies in eager PyTorch lie behind `node`?"""
        while node in virtual:
            bound = self.program.movements[node]
            if node.name in self.chosen and not bound.movement.view:
                return True
            if len(bound.sources) != 1:
                return False
            node = bound.sources[0]
        return False

    def is_library(self, region: Region) -> bool:
        """A region that is a step of its own: one of our kernels, or a library's that stores
        straight into a view of a base."""
        if region.name in self.engine.own:
            return True
        return is_library(region) and self.is_stored(region.nodes[0])

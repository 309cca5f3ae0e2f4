"""What planning must know of the Inductor engine: how it treats each movement operator by itself,
and which maps its regions accept."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import fx

from vtc.graph.movement import is_registered
from vtc.graph.program import Program, returned_tensors, value_of
from vtc.graph.regions import Grouping, Region
from vtc.index.map import Fill, IndexMap
from vtc.index.sizes import NotRepresentable
from vtc.kernels import libraries
from vtc.kernels.operators import Kind, kind
from vtc.virtual.plan import Default, PlanMovement, PlanTensor, storage_stride
from vtc.virtual.strategy import Resolved

aten = torch.ops.aten

MOST_PIECES = 8
"""A kernel of ours walks the pieces of an operand one after another: a shuffled concat, whose
pieces are single channels, is better copied first."""


@dataclass(frozen=True)
class Slot:
    """A part of a tensor and the view of a base that holds it.

    The part is the box [lower, upper); the view has `shape`, `stride` and `offset` in elements of
    `base`.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    base: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class InductorEngine:
    """TorchInductor for generated regions, library kernels for anchors (an `Engine` of planning),
    and our own kernels for the regions named in `own`.

    Generated loops read through any static map and store into strided views, and so does the anchor
    of a region of ours. Another anchor reads and stores as `libraries` says. By itself Inductor
    folds a movement operator into the loops that read it, and copies before everything else.
    """

    def __init__(
        self, program: Program, grouping: Grouping, own: frozenset[str] = frozenset()
    ) -> None:
        self.program, self.grouping, self.own = program, grouping, own
        self.nodes = {n.name: n for n in program.graph_module.graph.nodes}
        self.regions = {r.name: r for r in grouping.regions}
        self.finals = {value: program.inputs[i] for i, value in program.updates}
        self.returned = returned_tensors(program)
        self._defaults: dict[str, Default] = {}
        self._storage: dict[str, tuple[int, ...]] = {}
        self._readers: dict[tuple[fx.Node, fx.Node], bool] = {}
        self._slots: dict[Resolved, tuple[Slot, ...] | None] = {}

    def default(self, movement: PlanMovement) -> Default:
        if movement.name not in self._defaults:
            self._defaults[movement.name] = self._default(self.nodes[movement.name], movement)
        return self._defaults[movement.name]

    def _default(self, node: fx.Node, movement: PlanMovement) -> Default:
        if movement.movement.view:
            return "view"
        if movement.movement.inplace is not None:
            return "inplace" if self._updates_input(node) else "copy"
        if node in self.finals or node in self.program.outputs:
            return "copy"
        if is_registered(node):
            return "copy"
        return "fold" if all(self._generated(node, u) for u in node.users) else "copy"

    def _updates_input(self, node: fx.Node) -> bool:
        """Does the chain of scatters through `node` start at the updated input it ends in?"""
        last = node
        while last not in self.finals:
            later = [u for u in last.users if u in self.program.movements and self._data(u) is last]
            if len(later) != 1:
                return False
            last = later[0]
        first: fx.Node | None = node
        while first in self.program.movements:
            first = self._data(first)
        return first is self.finals[last]

    def _data(self, node: fx.Node) -> fx.Node | None:
        bound = self.program.movements[node]
        position = bound.movement.inplace
        return None if position is None else bound.sources[position]

    def _generated(self, node: fx.Node, user: fx.Node) -> bool:
        """Is every reader behind `user` a loop that Inductor generates?"""
        if user.op == "output":
            return False
        if user in self.program.movements:
            if self.program.movements[user].movement.inplace is not None:
                return True  # the scatter's own loop reads the updates
            if is_registered(user):
                return False
            return all(self._generated(user, u) for u in user.users)
        if user in self.grouping.region_of:
            return kind(user) in (Kind.POINTWISE, Kind.REDUCTION)
        return all(self._generated(user, u) for u in user.users)

    def loads(self, region: str, tensor: str, map: Resolved) -> bool:
        """Every operator of the region that reads the tensor takes it as it is."""
        node = self.nodes[tensor]
        if region in self.own and (map.map.lookups() or len(map.map.pieces) > MOST_PIECES):
            return False
        readers = [user for user in node.users if user in self.regions[region].nodes]
        if len(map.homes) > 1 and any(self._is_library(user) for user in readers):
            return False
        vectors = any(libraries.reads_vectors(u.target, value_of(node).device) for u in readers)
        if vectors and not self._aligned(node, map):
            return False
        return all(self._reads(user, node) for user in readers)

    def _aligned(self, node: fx.Node, map: Resolved) -> bool:
        """Does a tensor lie as aligned as in eager PyTorch? What is allocated is aligned."""
        slots = None if map.physical else self.slots(map)
        return all(
            libraries.aligned_as(value_of(node), s.stride, self._start(s.base) + s.offset)
            for s in slots or ()
        )

    def _start(self, base: str) -> int:
        """Where a tensor begins in its memory."""
        node = self.nodes[base]
        return value_of(node).storage_offset() if node.op == "placeholder" else 0

    def _is_library(self, user: fx.Node) -> bool:
        """Is it an anchor whose kernel takes one strided tensor as an operand?"""
        if user in self.program.movements or kind(user) is not Kind.ANCHOR:
            return False
        return self.grouping.region_of[user].name not in self.own

    def _reads(self, user: fx.Node, node: fx.Node) -> bool:
        """Does an operator take an operand as it is? By what map does not matter."""
        if (user, node) not in self._readers:
            self._readers[user, node] = self._takes(user, node)
        return self._readers[user, node]

    def _takes(self, user: fx.Node, node: fx.Node) -> bool:
        if user in self.program.movements or kind(user) in (Kind.POINTWISE, Kind.REDUCTION):
            return True
        if kind(user) is Kind.OPAQUE:
            return False
        if self.grouping.region_of[user].name in self.own:
            through_map = user.args[1 if user.target is aten.addmm.default else 0]
            return through_map is node and list(user.args).count(node) == 1
        return all(
            self.readable(user, position, node) is not None
            for position, operand in enumerate(user.args)
            if operand is node
        )

    def readable(
        self, user: fx.Node, position: int, node: fx.Node, virtual: Container[fx.Node] | None = None
    ) -> tuple[fx.Node, IndexMap] | None:
        """The tensor behind `node` that anchor `user` can read in its place, by a map that the
        kernel accepts as argument `position`, with that map; None where it must be copied.

        Walks back through movement operators with one source, those in `virtual` if it is given;
        the farthest answer wins.
        """
        total = IndexMap.identity(tuple(value_of(node).shape))
        found = None
        while node in self.program.movements and (virtual is None or node in virtual):
            bound = self.program.movements[node]
            if bound.movement.load is None or len(bound.sources) != 1:
                break
            try:
                total = total.compose({0: bound.movement.load})
            except NotRepresentable:
                break
            node = bound.sources[0]
            if libraries.accepts_load(user, position, total, value_of(node)):
                found = node, total
        return found

    def slots(self, resolved: Resolved) -> tuple[Slot, ...] | None:
        """The views that hold a tensor, one a piece; None if a piece is no strided view of known
        size."""
        if resolved not in self._slots:
            self._slots[resolved] = self._find_slots(resolved)
        return self._slots[resolved]

    def _find_slots(self, resolved: Resolved) -> tuple[Slot, ...] | None:
        if self.program.symbolic:
            return None
        slots = []
        for piece in resolved.map.pieces:
            if isinstance(piece.source, Fill):
                return None
            base = resolved.homes[piece.source].base
            part = resolved.map.restrict(piece.lower, piece.upper)
            view = part.strided(self.storage(base), piece.source)
            if view is None:
                return None
            shape, stride = tuple(map(int, view.shape)), tuple(map(int, view.stride))
            lower, upper = tuple(map(int, piece.lower)), tuple(map(int, piece.upper))
            slots.append(Slot(lower, upper, base, shape, stride, int(view.offset)))
        return tuple(slots)

    def storage(self, base: str) -> tuple[int, ...]:
        """Strides of the storage that holds a tensor, whose sizes are known."""
        if base not in self._storage:
            node = self.nodes[base]
            value, returned = value_of(node), node in self.returned
            tensor = PlanTensor(
                base,
                tuple(value.shape),
                tuple(value.stride()),
                value.element_size(),
                "input" if node.op == "placeholder" else "internal",
                returned,
            )
            self._storage[base] = tuple(map(int, storage_stride(tensor)))
        return self._storage[base]

    def stores(self, region: str, tensor: str, map: Resolved) -> bool:
        node = self.nodes[tensor]
        if self.program.symbolic or node in self.returned:
            return False
        generated = kind(node) in (Kind.POINTWISE, Kind.REDUCTION) or region in self.own
        if map.map.lookups():
            return generated and len(map.map.pieces) == 1 and region not in self.own
        slots = self.slots(map)
        if slots is None:
            return False
        if generated:
            return True
        if len(slots) != 1 or not is_library(self.regions[region]):
            return False
        return libraries.accepts_store(node, slots[0].shape, slots[0].stride)


def is_library(region: Region) -> bool:
    """One anchor whose kernel can store into a given view, and nothing else."""
    return len(region.nodes) == 1 and libraries.out_variant(region.nodes[0]) is not None

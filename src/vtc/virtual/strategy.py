"""From chosen edges to homes: where every element of every tensor is kept (the points-to graph).

A strategy is a set of edge numbers. Following a tensor's chosen edges to tensors without out-edges,
and composing their maps, gives its `Resolved` form. Edges that the engine's default implies are
followed too: a view or a folded movement operator with no chosen edge acts as if its A edges were
chosen, and a scatter that the engine does in place as if its edge to its data were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vtc.index import affine
from vtc.index.map import IndexMap
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import NotRepresentable, Size
from vtc.virtual import boxes
from vtc.virtual.plan import Engine, PlanGraph, PlanMovement, storage_stride
from vtc.virtual.vtog import Vtog

Strategy = frozenset[int]


class Home(NamedTuple):
    """A physical tensor and the version of its contents: the tensor whose in-place edge made the
    version, or the base itself for what it holds at first."""

    base: str
    version: str


@dataclass(frozen=True, eq=False)
class Resolved:
    """Where the elements of `tensor` are kept.

    map: tensor index -> index in `homes[source].base`; it covers the tensor. A fill has no home.
    scattered: homes that the tensor's elements reach through several runtime indices. Where these
        repeat, elements share a place: they may be written through the map but not read back.
    indices: lookups that reading the tensor takes, also such as the map can do without.
    """

    tensor: str
    map: IndexMap
    homes: tuple[Home, ...]
    scattered: frozenset[Home] = frozenset()
    indices: frozenset[int] = frozenset()

    @cached_property
    def bases(self) -> tuple[str, ...]:
        """The physical tensors that hold elements, each once."""
        return tuple(dict.fromkeys(home.base for home in self.homes))

    @property
    def physical(self) -> bool:
        """The tensor is its own storage, all of it."""
        return self.homes == (Home(self.tensor, self.tensor),)

    @cached_property
    def fills(self) -> bool:
        """Some elements are fixed values that are stored nowhere."""
        return any(isinstance(piece.source, Fill) for piece in self.map.pieces)

    def __str__(self) -> str:
        if self.physical:
            return f"{self.tensor}: physical"
        lines = [f"{self.tensor} on {', '.join(self.bases) or 'a fill'}"]
        for piece in self.map.pieces:
            lower, upper = boxes.box_of(piece)
            box = ", ".join(f"{a}:{b}" for a, b in zip(lower, upper, strict=True))
            if isinstance(piece.source, Fill):
                lines.append(f"  [{box}] = {piece.source.value}")
                continue
            home = self.homes[piece.source]
            index = ", ".join(map(str, piece.index))
            version = "" if home.version == home.base else f" version {home.version}"
            lines.append(f"  [{box}] -> {home.base}[{index}]{version}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Resolution:
    """A strategy with its implied edges followed.

    active: tensor -> its chosen and implied out-edges. tensors: every tensor's homes.
    fault: rule and reason where the edges cannot be followed; `tensors` is then incomplete.
    names: the tensors in the order of the plan.
    """

    names: tuple[str, ...]
    strategy: Strategy
    active: Mapping[str, tuple[int, ...]]
    tensors: Mapping[str, Resolved]
    fault: tuple[str, str] | None = None

    def __str__(self) -> str:
        """The points-to graph: one entry a tensor that is not simply physical."""
        found = [self.tensors[name] for name in self.names if name in self.tensors]
        shown = [str(resolved) for resolved in found if not resolved.physical]
        held = {base for resolved in found for base in resolved.bases}
        physical = ", ".join(name for name in self.names if name in held)
        return "\n".join((*shown, f"physical: {physical}"))


class Resolver:
    """Resolves strategies of one plan, keeping what it composed.

    Tensors that are joined by edges form a component, numbered by `component`; a strategy changes
    only the components that its edges are in.
    """

    def __init__(self, plan: PlanGraph, vtog: Vtog, engine: Engine) -> None:
        self.plan = plan
        self.vtog = vtog
        self.engine = engine
        self.defaults = {name: engine.default(step) for name, step in plan.movements.items()}
        self.component = _components(plan, vtog)
        self.members: dict[int, list[str]] = {}
        for name, number in self.component.items():
            self.members.setdefault(number, []).append(name)
        self._names = tuple(plan.tensors)
        self._memo: dict[tuple[object, ...], Resolved] = {}
        self._physical = {
            name: Resolved(name, IndexMap.identity(tensor.shape), (Home(name, name),))
            for name, tensor in plan.tensors.items()
        }
        self._resolutions: dict[Strategy, Resolution] = {}
        self._anchor: Resolution | None = None
        self._injective: dict[int, bool] = {}
        self._storage: dict[str, tuple[Size, ...]] = {}
        self.demote(frozenset())

    def demote(self, operators: frozenset[str]) -> None:
        """Take away the implied edges of exactly these movement operators: they are copies."""
        self._implied = {
            name: () if name in operators else self._implied_edges(step)
            for name, step in self.plan.movements.items()
        }
        self._resolutions.clear()
        self._anchor = None
        self.empty = self.resolve(frozenset())

    def implied(self, operator: str) -> tuple[int, ...]:
        """The edges that `operator` has when nothing is chosen."""
        return self._implied[operator]

    def physical(self, name: str) -> Resolved:
        """The tensor as its own storage."""
        return self._physical[name]

    def storage(self, name: str) -> tuple[Size, ...]:
        """Strides of the tensor's own storage, in elements."""
        found = self._storage.get(name)
        if found is None:
            found = self._storage[name] = storage_stride(self.plan.tensors[name])
        return found

    def rebase(self, resolution: Resolution) -> None:
        """Find further strategies from this one, which has no fault."""
        self._anchor = resolution
        self._resolutions = {resolution.strategy: resolution}

    def resolve(self, strategy: Strategy) -> Resolution:
        """The homes of all tensors. A fault is (i) for two homes, (vi) for a cycle."""
        found = self._resolutions.get(strategy)
        if found is None:
            if len(self._resolutions) > 512:
                self._resolutions.clear()
            found = self._resolutions[strategy] = self._resolve(strategy)
        return found

    def _resolve(self, strategy: Strategy) -> Resolution:
        edges, component, anchor = self.vtog.numbered, self.component, self._anchor
        if anchor is None:
            active: dict[str, tuple[int, ...]] = {}
            homes: dict[str, Resolved] = {}
            near = set(self.members)
        else:
            active, homes = dict(anchor.active), dict(anchor.tensors)
            near = {component[edges[n].tensor] for n in strategy ^ anchor.strategy}
        chosen: dict[str, list[int]] = {}
        operators: set[str] = set()
        for number in sorted(strategy):
            if component[edges[number].tensor] not in near:
                continue
            clash = self.vtog.rivals[number] & strategy
            if clash:
                names = [str(edges[n]) for n in (number, min(clash))]
                reason = f"{edges[number].tensor} would have two homes: {' and '.join(names)}"
                return Resolution(self._names, strategy, active, homes, ("(i)", reason))
            chosen.setdefault(edges[number].tensor, []).append(number)
            operators.add(edges[number].operator)
        names = [name for number in sorted(near) for name in self.members[number]]
        for name in names:
            active[name] = self._active(name, chosen.get(name, []), strategy, operators)
            homes.pop(name, None)
        for name in names:
            try:
                cycle = self._follow(name, active, homes)
            except NotRepresentable as error:
                reason = f"the home of {name} cannot be written as boxes: {error}"
                return Resolution(self._names, strategy, active, homes, ("contract", reason))
            if cycle:
                reason = f"{' -> '.join(cycle)} leads back to itself"
                return Resolution(self._names, strategy, active, homes, ("(vi)", reason))
        return Resolution(self._names, strategy, active, homes)

    def _implied_edges(self, step: PlanMovement) -> tuple[int, ...]:
        default = self.defaults[step.name]
        edges = self.vtog.numbered
        mine = self.vtog.operator_edges.get(step.name, ())
        if default == "inplace":
            return tuple(number for number in mine if edges[number].inplace)
        if default not in ("view", "fold") or step.movement.load is None:
            return ()
        loads = tuple(n for n in mine if edges[n].direction == "load" and not edges[n].inplace)
        if default == "fold" and any(n >= len(self.vtog.edges) for n in loads):
            return ()
        read = {edges[number].source for number in loads}
        return loads if read == set(step.movement.load.sources()) else ()

    def _active(
        self, name: str, chosen: list[int], strategy: Strategy, operators: set[str]
    ) -> tuple[int, ...]:
        """Chosen out-edges, and implied ones where no chosen edge stands against them."""
        implied = self._implied.get(name, ())
        if not implied:
            return tuple(chosen)
        in_place = self.vtog.numbered[implied[0]].inplace
        if name in operators and not in_place:
            return tuple(chosen)
        if any(self.vtog.rivals[number] & strategy for number in implied):
            return tuple(chosen)
        return (*chosen, *(number for number in implied if number not in strategy))

    def _follow(
        self, start: str, active: Mapping[str, tuple[int, ...]], homes: dict[str, Resolved]
    ) -> tuple[str, ...]:
        """Fill `homes` for `start` and all that it leads to; returns a cycle if there is one."""
        path = [start]
        while path:
            name = path[-1]
            if name in homes:
                path.pop()
                continue
            bases = [self.vtog.numbered[number].base for number in active.get(name, ())]
            waiting = next((base for base in bases if base not in homes), None)
            if waiting is None:
                homes[name] = self._join(name, active.get(name, ()), homes)
                path.pop()
            elif waiting in path:
                return (*path[path.index(waiting) :], waiting)
            else:
                path.append(waiting)
        return ()

    def _join(self, name: str, numbers: tuple[int, ...], homes: Mapping[str, Resolved]) -> Resolved:
        if not numbers:
            return self._physical[name]
        edges = [self.vtog.numbered[number] for number in numbers]
        key = (name, numbers, *(id(homes[edge.base]) for edge in edges))
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._compose(name, numbers, homes)
        return found

    def _compose(
        self, name: str, numbers: tuple[int, ...], homes: Mapping[str, Resolved]
    ) -> Resolved:
        order: dict[Home, int] = {}
        pieces: list[Piece] = []
        taken: list[boxes.Box] = []
        scattered: set[Home] = set()
        indices: set[int] = set()
        loads = False
        for number in numbers:
            edge = self.vtog.numbered[number]
            inner = homes[edge.base]
            map = edge.map if inner.physical else edge.map.compose({0: inner.map})
            versions = [Home(h.base, name) if edge.inplace else h for h in inner.homes]
            renamed = [order.setdefault(home, len(order)) for home in versions]
            shared = edge.direction == "store" and _several(edge.map)
            scattered.update(
                home
                for home, old in zip(versions, inner.homes, strict=True)
                if shared or old in inner.scattered
            )
            indices |= edge.indices | inner.indices
            pieces += [_renamed(piece, renamed) for piece in map.pieces]
            taken += edge.domain
            loads = loads or (edge.direction == "load" and not edge.inplace)
        left = boxes.remainder(self.plan.tensors[name].shape, taken)
        if left and loads:
            fills = _fills(self.plan.movements[name].movement.load, left)
            pieces += fills
            left = [part for box in left for part in _without(box, fills)]
        if left:
            own = order.setdefault(Home(name, name), len(order))
            (same,) = self._physical[name].map.pieces
            pieces += [Piece(low, high, own, same.forms) for low, high in left]
        map = IndexMap(self.plan.tensors[name].shape, pieces)
        found = name, map.simplify(), tuple(order), frozenset(scattered), frozenset(indices)
        return _pruned(Resolved(*found))

    def one_to_one(self, resolved: Resolved) -> bool:
        """No two elements of the tensor share a place, so it can be written through its map."""
        found = self._injective.get(id(resolved))
        if found is None:
            found = not resolved.fills and self._separate(resolved)
            self._injective[id(resolved)] = found
        return found

    def _separate(self, resolved: Resolved) -> bool:
        reached: dict[str, list[boxes.Box]] = {}
        for piece in resolved.map.pieces:
            assert not isinstance(piece.source, Fill)
            base = resolved.homes[piece.source].base
            shape = self.plan.tensors[base].shape
            box = boxes.reach(piece, shape)
            if boxes.any_meet([box], reached.setdefault(base, [])):
                return False
            reached[base].append(box)
            source = piece.source
            single = IndexMap(resolved.map.shape, (piece,))
            if single.lookups() or single.inverse(source, shape) is None:
                return False
        return True


def _renamed(piece: Piece, numbers: list[int]) -> Piece:
    if isinstance(piece.source, Fill) or numbers[piece.source] == piece.source:
        return piece
    return Piece(piece.lower, piece.upper, numbers[piece.source], piece.forms)


def _pruned(resolved: Resolved) -> Resolved:
    """Homes that no piece reaches are dropped."""
    used = sorted(resolved.map.sources())
    if len(used) == len(resolved.homes):
        return resolved
    numbers = [used.index(n) if n in used else -1 for n in range(len(resolved.homes))]
    pieces = [_renamed(piece, numbers) for piece in resolved.map.pieces]
    homes = tuple(resolved.homes[n] for n in used)
    return Resolved(
        resolved.tensor,
        IndexMap(resolved.map.shape, pieces),
        homes,
        resolved.scattered.intersection(homes),
        resolved.indices,
    )


def _fills(load: IndexMap | None, left: list[boxes.Box]) -> list[Piece]:
    """The fill pieces of a load map that lie in `left`."""
    pieces = load.pieces if load is not None else ()
    return [
        piece
        for piece in pieces
        if isinstance(piece.source, Fill) and boxes.any_meet([boxes.box_of(piece)], left)
    ]


def _without(box: boxes.Box, pieces: list[Piece]) -> list[boxes.Box]:
    left = [box]
    for piece in pieces:
        left = [part for one in left for part in boxes.subtract(one, boxes.box_of(piece))]
    return left


def _several(map: IndexMap) -> bool:
    """True if the map looks up more than one runtime index, so that two may be equal."""
    return any(
        _varies(atom)
        for piece in map.pieces
        for form in piece.simplify().forms
        for atom in form.terms
    )


def _varies(atom: affine.Atom) -> bool:
    if isinstance(atom, int):
        return False
    if isinstance(atom, affine.Look):
        return any(affine.coordinates(argument) for argument in atom.args)
    return any(_varies(inner) for inner in atom.arg.terms)


def _components(plan: PlanGraph, vtog: Vtog) -> dict[str, int]:
    """Tensor -> number of its component: tensors joined by edges or by a shared lookup's maps.

    Inputs and constants never move, so they join nothing.
    """
    parent = {name: name for name in plan.tensors}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for edge in vtog.numbered:
        if plan.tensors[edge.base].kind == "internal":
            parent[root(edge.tensor)] = root(edge.base)
    for step in plan.movements.values():
        for name in step.lookups:
            if plan.tensors[name].kind == "internal":
                parent[root(step.name)] = root(name)
    numbers: dict[str, int] = {}
    return {name: numbers.setdefault(root(name), len(numbers)) for name in plan.tensors}

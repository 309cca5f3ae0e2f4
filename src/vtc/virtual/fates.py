"""What became of every movement operator under a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vtc.graph.rules import Movement, Shape
from vtc.index.piece import Fill
from vtc.index.sizes import NotRepresentable, product, sub
from vtc.virtual import boxes
from vtc.virtual.boxes import Box
from vtc.virtual.effects import Effects
from vtc.virtual.facts import Facts
from vtc.virtual.legality import checker
from vtc.virtual.plan import Engine, PlanGraph, PlanMovement, size_hint
from vtc.virtual.record import Direction, Fate, MapType
from vtc.virtual.strategy import Resolved, Resolver, Strategy
from vtc.virtual.vtog import Edge, Vtog


@dataclass(frozen=True)
class MovementFate:
    """One movement operator. `node` names the tensor it makes.

    fate: "view", an implied alias; "folded", read through its map by generated code; "virtual", by
        a chosen edge, or because everything lies in place already; "residual", still copied, in
        whole or in part.
    on: the physical tensors that it lives on; () for a copy.
    type: the class of the worst map that it brought about, against `on`.
    bytes_before: what PyTorch's kernel reads and writes in eager mode, 0 for a view.
    bytes_after: what the residual copies read and write.
    """

    node: str
    operator: str
    fate: Fate
    on: tuple[str, ...]
    direction: Direction | None
    type: MapType | None
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        where = f" on {', '.join(self.on)} ({self.direction}, {self.type})" if self.on else ""
        moved = f"{self.bytes_before} -> {self.bytes_after} B"
        return f"{self.node} = {self.operator}: {self.fate}{where}, {moved}"


def fates(
    plan: PlanGraph, vtog: Vtog, strategy: Strategy, engine: Engine, transaction: int = 32
) -> tuple[MovementFate, ...]:
    """The fate of every movement operator, in program order. `transaction` is in bytes."""
    own = checker(plan, vtog, engine)
    facts = own.facts(strategy)
    return tuple(
        _fate(plan, own.resolver, facts, step, facts.effects[number], transaction)
        for number, step in enumerate(plan.steps)
        if isinstance(step, PlanMovement)
    )


def _fate(
    plan: PlanGraph,
    resolver: Resolver,
    facts: Facts,
    step: PlanMovement,
    effect: Effects,
    transaction: int,
) -> MovementFate:
    resolution = facts.resolution
    numbers = [n for name in (step.name, *step.sources) for n in resolution.active.get(name, ())]
    mine = {n: resolver.vtog.numbered[n] for n in dict.fromkeys(numbers)}
    mine = {n: edge for n, edge in mine.items() if edge.operator == step.name}
    stored = [edge for edge in mine.values() if edge.direction == "store"]
    default = resolver.defaults[step.name]
    fate: Fate = "virtual"
    if effect.copies:
        fate = "residual"
    elif mine and not any(n in resolution.strategy for n in mine):
        fate = "view" if default == "view" else "folded" if default == "fold" else "virtual"
    home = resolution.tensors[step.name]
    on = home.bases if mine or not effect.copies else ()
    direction: Direction | None = ("store" if stored else "load") if on else None
    kind = _type(plan, resolver, facts, stored, home, transaction) if on else None
    return MovementFate(
        step.name,
        step.movement.operator,
        fate,
        on,
        direction,
        kind,
        eager_bytes(plan, step),
        _copied_bytes(plan, step, effect),
    )


def eager_bytes(plan: PlanGraph, step: PlanMovement) -> int:
    """Bytes that eager PyTorch reads and writes for a movement operator."""
    shapes = [plan.tensors[name].shape for name in step.sources]
    return moved_bytes(step.movement, shapes, plan.tensors[step.name].itemsize)


def moved_bytes(movement: Movement, sources: Sequence[Shape], itemsize: int) -> int:
    """Bytes that eager PyTorch reads and writes for a movement of sources of these shapes."""
    if movement.view:
        return 0
    written = size_hint(product(movement.shape))
    if movement.load is not None:
        pieces = [p for p in movement.load.pieces if not isinstance(p.source, Fill)]
        return itemsize * (written + _numel(boxes.box_of(piece) for piece in pieces))
    return itemsize * 2 * sum(size_hint(product(shape)) for shape in sources)


def _copied_bytes(plan: PlanGraph, step: PlanMovement, effect: Effects) -> int:
    itemsize = plan.tensors[step.name].itemsize
    return itemsize * sum(
        _numel(copy.moved) * (1 if copy.source is None else 2) for copy in effect.copies
    )


def _numel(found: Iterable[Box]) -> int:
    return sum(
        size_hint(product(sub(high, low) for low, high in zip(*box, strict=True))) for box in found
    )


def _type(
    plan: PlanGraph,
    resolver: Resolver,
    facts: Facts,
    stored: list[Edge],
    home: Resolved,
    transaction: int,
) -> MapType:
    maps = [facts.resolution.tensors[edge.tensor] for edge in stored] or [home]
    ranks: dict[MapType, int] = {"I": 0, "partial": 1, "II": 2}
    return max((map_type(plan, resolver, map, transaction) for map in maps), key=ranks.__getitem__)


def map_type(
    plan: PlanGraph, resolver: Resolver, resolved: Resolved, transaction: int = 32
) -> MapType:
    """The class of a resolved map against the storage of its bases; "II" where it has no answer."""
    strides = {k: resolver.storage(home.base) for k, home in enumerate(resolved.homes)}
    itemsize = plan.tensors[resolved.tensor].itemsize
    try:
        return resolved.map.classify(strides, itemsize, transaction)
    except NotRepresentable:
        return "II"

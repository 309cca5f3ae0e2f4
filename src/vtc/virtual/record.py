"""What compiling a captured graph found out, as plain data: the compiler fills it, `report` shows
it.

Times are microseconds (`_us`) or seconds (`_s`, `seconds`), sizes are bytes. None means that the
figure was not taken. "Before" is the captured graph with every movement operator as PyTorch runs it
eagerly (views are free, the rest are kernels), "after" is the schedule that vtc runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Fate = Literal["view", "folded", "virtual", "residual"]
Direction = Literal["load", "store"]
MapType = Literal["I", "partial", "II"]
NodeKind = Literal["input", "updated", "constant", "internal", "output"]


@dataclass(frozen=True)
class OperatorFate:
    """What became of one movement operator of the user's model.

    fate: "view", an alias as in eager PyTorch; "folded", the generated code of its consumers reads
        through its map; "virtual", a chosen edge gives it a home in another tensor; "residual", it
        is still copied, wholly or in the part that no chosen edge covers.
    on: the tensor it lives on (several separated by ", "), None for a residual that has none.
    direction: "load", consumers read through the map; "store", the producer writes through it.
    type: class of the map against `on`: constant offset, partially contiguous, other.
    saving_us: measured or modelled saving of the choice a call.
    stack: place in the user's model, as "file.py:12 in forward: x = torch.cat([a, b])".
    """

    operator: str
    node: str
    fate: Fate
    on: str | None = None
    direction: Direction | None = None
    type: MapType | None = None
    saving_us: float | None = None
    stack: str | None = None


@dataclass(frozen=True)
class MovementTotals:
    """Counts of a graph's movement operators, and of the kernels and bytes that still move data.

    bytes_before and bytes_after count what movement kernels read and write in one call.
    """

    operators: int
    virtual: int
    residual: int
    kernels_before: int
    kernels_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class PeakBytes:
    """Largest sum of live internal tensors during one call, before and after."""

    before: int | None
    after: int | None


@dataclass(frozen=True)
class VtogNode:
    """A tensor of the opportunity graph, as it is drawn. A symbolic size is text."""

    name: str
    kind: NodeKind
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class VtogEdge:
    """`tensor` may be virtual on `base` because of `operator`; it is if `chosen`."""

    tensor: str
    base: str
    operator: str
    direction: Direction
    chosen: bool = False
    type: MapType | None = None


@dataclass(frozen=True)
class VtogSummary:
    """The opportunity graph with its strategy. Nodes are in program order; a conflict is a pair of
    positions in `edges`."""

    nodes: tuple[VtogNode, ...] = ()
    edges: tuple[VtogEdge, ...] = ()
    conflicts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        names = {node.name for node in self.nodes}
        for edge in self.edges:
            if edge.tensor not in names or edge.base not in names:
                raise ValueError(f"edge {edge.tensor} -> {edge.base} has an end that is no node")
        for pair in self.conflicts:
            if not all(0 <= number < len(self.edges) for number in pair):
                raise ValueError(f"conflict {pair} names an edge that is not there")


@dataclass(frozen=True)
class SearchStats:
    """What the search cost, and by how much its result may be improved.

    profiles: regions measured now; cache_hits: region costs taken from the cache.
    gap: cost of the chosen strategy over the best one, minus 1; None where not enumerated.
    """

    profiles: int = 0
    cache_hits: int = 0
    seconds: float = 0.0
    gap: float | None = None


@dataclass(frozen=True)
class GraphReport:
    """One captured graph.

    name: "graph0", "graph1", ... in the order of capture.
    schedule: the arena and the steps as text; texts: every other intermediate form, by its title.
    notes: sentences on what did not go the usual way (a region fell back, stock was faster, ...).
    """

    name: str
    engine: str
    objective: str
    movement: MovementTotals
    peak_bytes: PeakBytes
    vtog: VtogSummary
    search: SearchStats
    operators: tuple[OperatorFate, ...] = ()
    schedule: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    capture_s: float | None = None
    compile_s: float | None = None

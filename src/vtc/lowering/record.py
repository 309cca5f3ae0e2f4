"""What a compilation found out, gathered for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import fx

from vtc.graph.movement import is_registered
from vtc.graph.program import value_of
from vtc.index.sizes import as_size
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.schedule import Schedule
from vtc.options import Objective
from vtc.virtual.cost import StaticCost
from vtc.virtual.fates import MovementFate, fates, map_type, moved_bytes
from vtc.virtual.record import (
    Fate,
    GraphReport,
    MovementTotals,
    NodeKind,
    OperatorFate,
    PeakBytes,
    SearchStats,
    VtogEdge,
    VtogNode,
    VtogSummary,
)
from vtc.virtual.search import SearchResult
from vtc.virtual.strategy import Home, Resolved, Strategy


@dataclass(frozen=True)
class Choice:
    """The strategy of a plan, and what choosing it took."""

    result: SearchResult
    static: StaticCost
    objective: Objective
    profiles: int = 0
    cache_hits: int = 0

    @property
    def strategy(self) -> Strategy:
        return self.result.strategy

    def without_virtual_tensors(self) -> Choice:
        """The empty strategy in the place of the one that was found."""
        empty = replace(self.result, strategy=NOTHING, cost=self.result.base_cost, trace=())
        return replace(self, result=empty)


@dataclass(frozen=True)
class Times:
    """Seconds."""

    capture_s: float
    compile_s: float


def record(
    number: int,
    plan: Plan,
    chosen: Choice,
    schedule: Schedule,
    times: Times,
    notes: Sequence[str],
) -> GraphReport:
    """The report of one captured graph."""
    result = chosen.result
    between = fates(plan.graph, plan.vtog, result.strategy, plan.engine)
    found = {fate.node: fate for fate in (*between, *_inside_regions(plan))}
    moved = [found[node.name] for node in plan.program.movements if node.name in found]
    savings = _savings(plan, chosen)
    operators = tuple(
        OperatorFate(
            f.operator,
            f.node,
            f.fate,
            ", ".join(f.on) or None,
            f.direction,
            f.type,
            savings.get(f.node),
            place(plan.engine.nodes[f.node]),
        )
        for f in moved
    )
    return GraphReport(
        f"graph{number}",
        "inductor",
        chosen.objective,
        _totals(moved),
        PeakBytes(chosen.static.peak(NOTHING), chosen.static.peak(result.strategy)),
        _summary(plan, result.strategy),
        SearchStats(chosen.profiles, chosen.cache_hits, result.seconds, result.gap),
        operators,
        str(schedule),
        {
            "Captured program": str(plan.program),
            "Regions": str(plan.grouping),
            "Opportunity graph": str(plan.vtog),
            "Search": result.text(plan.vtog),
            "Points-to graph": str(plan.checker.resolver.resolve(result.strategy)),
        },
        tuple(notes),
        times.capture_s,
        times.compile_s,
    )


def _inside_regions(plan: Plan) -> Iterator[MovementFate]:
    """The movement operators inside of regions: the loops around them read through their maps."""
    between = set(plan.grouping.movements)
    for region in plan.grouping.regions:
        for node in region.nodes:
            bound = plan.program.movements.get(node)
            if bound is None or node in between:
                continue
            shapes = [tuple(map(as_size, value_of(source).shape)) for source in bound.sources]
            movement, itemsize = bound.movement, value_of(node).element_size()
            moved = moved_bytes(movement, shapes, itemsize)
            fate: Fate = "view" if movement.view else "folded"
            # Inductor generates loops for operators that it knows only.
            copied = 0 if movement.view or not is_registered(node) else moved
            yield MovementFate(
                node.name,
                movement.operator,
                "residual" if copied else fate,
                (),
                None,
                None,
                moved,
                copied,
            )


def _totals(moved: Sequence[MovementFate]) -> MovementTotals:
    return MovementTotals(
        operators=len(moved),
        virtual=sum(f.fate == "virtual" for f in moved),
        residual=sum(f.fate == "residual" for f in moved),
        kernels_before=sum(f.bytes_before > 0 for f in moved),
        kernels_after=sum(f.bytes_after > 0 for f in moved),
        bytes_before=sum(f.bytes_before for f in moved),
        bytes_after=sum(f.bytes_after for f in moved),
    )


def _savings(plan: Plan, chosen: Choice) -> dict[str, float]:
    """Microseconds that the search credits each operator with; shared evenly within a choice."""
    if chosen.objective != "latency":
        return {}
    savings: dict[str, float] = {}
    for step in chosen.result.trace:
        operators = [plan.vtog.numbered[n].operator for n in step.edges]
        for operator in operators:
            savings[operator] = savings.get(operator, 0.0) + step.gain / len(operators)
    return savings


def _summary(plan: Plan, strategy: Strategy) -> VtogSummary:
    nodes = tuple(
        VtogNode(name, _kind(plan, name), tuple(_size(s) for s in plan.graph.tensors[name].shape))
        for name in plan.vtog.nodes
    )
    resolver = plan.checker.resolver
    edges = tuple(
        VtogEdge(
            e.tensor,
            e.base,
            e.operator,
            e.direction,
            k in strategy,
            map_type(plan.graph, resolver, Resolved(e.tensor, e.map, (Home(e.base, e.base),))),
        )
        for k, e in enumerate(plan.vtog.edges)
    )
    pairs = tuple(sorted((min(pair), max(pair)) for pair in plan.vtog.conflicts))
    return VtogSummary(nodes, edges, pairs)


def _kind(plan: Plan, name: str) -> NodeKind:
    tensor = plan.graph.tensors[name]
    return "output" if tensor.output and tensor.kind == "internal" else tensor.kind


def _size(size: object) -> int | str:
    return size if isinstance(size, int) else str(size)


def place(node: fx.Node) -> str | None:
    """Where in the user's model a node comes from: "file.py:12 in forward: code"."""
    stack = node.meta.get("stack_trace")
    if not stack:
        return None
    lines = [line.strip() for line in stack.strip().splitlines()]
    files = [k for k, line in enumerate(lines) if line.startswith("File ")]
    # A rule of ours that writes an ONNX node is no place in the user's model: its caller is.
    files = [k for k in files if "/vtc/graph/onnx/" not in lines[k]] or files
    if not files:
        return lines[-1]
    code = lines[files[-1] + 1 : files[-1] + 2]
    path, line, function = lines[files[-1]].removeprefix("File ").split(", ", 2)
    name = path.strip('"').rsplit("/", 1)[-1]
    text = f"{name}:{line.removeprefix('line ')} {function}"
    return f"{text}: {code[0]}" if code else text

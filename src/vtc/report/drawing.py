"""The opportunity graph and the points-to graph as inline SVG.

A model's graph falls into many small components, most of them alike (one for each layer): each
form is drawn once, with the number of times it occurs. A component that is too large to read is
drawn as the smaller components of its chosen edges. What is not drawn is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from vtc.report.layout import Point, layered
from vtc.report.units import plural
from vtc.virtual.record import VtogEdge, VtogNode, VtogSummary

LARGE_COMPONENT = 40  # nodes; above it only chosen edges are drawn
LARGEST_DRAWING = 90  # nodes; above it a component is counted, not drawn
MOST_DRAWINGS = 16  # for each graph

NODE_HEIGHT, COLUMN_GAP, ROW_GAP, MARGIN = 40.0, 26.0, 46.0, 8.0
LABEL_PLACE = (0.2, 0.42)  # of the way between two centres in x and y: on the curve of _edge
LABEL_ADVANCE, SHAPE_ADVANCE = 7.0, 6.2  # upper bounds of a monospace character's width, 11.5/10 px


@dataclass(frozen=True)
class Drawing:
    """One component: its SVG, its title, and how many components of the graph look like it."""

    svg: str
    title: str
    count: int


@dataclass(frozen=True)
class Gallery:
    """The drawings of a graph, largest saving of space first, and what they leave out."""

    drawings: tuple[Drawing, ...]
    note: str


def opportunities(vtog: VtogSummary) -> Gallery:
    """Every edge of the opportunity graph, the chosen ones emphasised."""
    return _gallery(vtog, vtog.edges)


def points_to(vtog: VtogSummary) -> Gallery:
    """The chosen edges alone: which tensor is virtual on which."""
    return _gallery(vtog, [edge for edge in vtog.edges if edge.chosen])


@dataclass(frozen=True)
class _Component:
    nodes: tuple[VtogNode, ...]
    edges: tuple[VtogEdge, ...]

    def form(self) -> tuple[object, ...]:
        """Equal for components that differ in names alone."""
        number = {node.name: k for k, node in enumerate(self.nodes)}
        return (
            tuple((node.kind, node.shape) for node in self.nodes),
            tuple(replace(e, tensor=str(number[e.tensor]), base=str(number[e.base]))
                  for e in self.edges),
        )  # fmt: skip


def _gallery(vtog: VtogSummary, edges: Iterable[VtogEdge]) -> Gallery:
    components, unchosen = _readable(_components(vtog.nodes, edges))
    alike: dict[tuple[object, ...], list[_Component]] = {}
    for component in components:
        alike.setdefault(component.form(), []).append(component)
    groups = sorted(alike.values(), key=_weight, reverse=True)
    small = [group for group in groups if len(group[0].nodes) <= LARGEST_DRAWING]
    shown = small[:MOST_DRAWINGS]
    drawings = tuple(Drawing(_svg(group[0]), _title(group[0]), len(group)) for group in shown)
    hidden = sum(map(len, groups)) - sum(map(len, shown))
    left_out = []
    if hidden:
        left_out.append(plural(hidden, "component"))
    if unchosen:
        left_out.append(f"{plural(unchosen, 'edge')} that were not chosen in large components")
    alone = len(vtog.nodes) - len({name for c in components for name in _names(c)})
    if alone:
        left_out.append(f"{plural(alone, 'tensor')} without an edge")
    return Gallery(drawings, f"Not drawn: {'; '.join(left_out)}." if left_out else "")


def _names(component: _Component) -> set[str]:
    return {node.name for node in component.nodes}


def _weight(group: Sequence[_Component]) -> tuple[int, int]:
    """Drawings with chosen edges come first, then large ones."""
    return sum(edge.chosen for edge in group[0].edges), len(group[0].edges)


def _title(component: _Component) -> str:
    operators = dict.fromkeys(edge.operator for edge in component.edges)
    return ", ".join(operators)


def _components(nodes: Sequence[VtogNode], edges: Iterable[VtogEdge]) -> list[_Component]:
    """Connected components with at least one edge, in program order."""
    edges = list(edges)
    root = {node.name: node.name for node in nodes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for edge in edges:
        root[find(edge.tensor)] = find(edge.base)
    members: dict[str, list[VtogNode]] = {}
    for node in nodes:
        members.setdefault(find(node.name), []).append(node)
    inside: dict[str, list[VtogEdge]] = {}
    for edge in edges:
        inside.setdefault(find(edge.tensor), []).append(edge)
    return [_Component(tuple(members[r]), tuple(inside[r])) for r in members if r in inside]


def _readable(components: Iterable[_Component]) -> tuple[list[_Component], int]:
    """Splits each large component by its chosen edges. Also the number of edges that this drops."""
    result, dropped = [], 0
    for component in components:
        if len(component.nodes) <= LARGE_COMPONENT:
            result.append(component)
            continue
        chosen = [edge for edge in component.edges if edge.chosen]
        dropped += len(component.edges) - len(chosen)
        result.extend(_components(component.nodes, chosen))
    return result, dropped


def _svg(component: _Component) -> str:
    number = {node.name: k for k, node in enumerate(component.nodes)}
    ends = [sorted((number[e.tensor], number[e.base])) for e in component.edges]
    links = sorted({(u, v) for u, v in ends})
    widths = [_node_width(node) for node in component.nodes]
    layout = layered(widths, links, node_height=NODE_HEIGHT, column_gap=COLUMN_GAP, row_gap=ROW_GAP)
    virtual = {edge.tensor for edge in component.edges if edge.chosen}
    path_of = dict(zip(links, layout.paths, strict=True))
    parallel = {link: sum(tuple(end) == link for end in ends) for link in links}
    degree = Counter(end for link in links for end in link)
    drawn: dict[tuple[int, int], int] = dict.fromkeys(links, 0)
    parts: list[str] = []
    labels: list[str] = []
    # Chosen edges are painted last, over the others.
    for edge, (u, v) in sorted(zip(component.edges, ends, strict=True), key=lambda p: p[0].chosen):
        shift = 9.0 * (drawn[u, v] - (parallel[u, v] - 1) / 2)
        drawn[u, v] += 1
        points = [(x + shift, y) for x, y in path_of[u, v]]
        if number[edge.tensor] < number[edge.base]:
            points = _between(points, downward=True)
        else:
            points = _between(points[::-1], downward=False)
        parts.append(_edge(edge, points))
        if drawn[u, v] == parallel[u, v]:
            fewer = degree[u] <= degree[v]
            labels.append(_edge_label(edge, path_of[u, v] if fewer else path_of[u, v][::-1]))
    for node, width, centre in zip(component.nodes, widths, layout.centres, strict=True):
        parts.append(_node(node, width, centre, node.name in virtual))
    width, height = layout.width + 2 * MARGIN + 60, layout.height + 2 * MARGIN
    return (
        f'<svg viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(_title(component))}">{"".join(parts)}{"".join(labels)}</svg>'
    )


def _shape_text(node: VtogNode) -> str:
    return "×".join(map(str, node.shape)) or "scalar"


def _node_width(node: VtogNode) -> float:
    label, shape = _clip(node.name), _clip(_shape_text(node))
    return max(len(label) * LABEL_ADVANCE, len(shape) * SHAPE_ADVANCE) + 20


def _clip(text: str, length: int = 26) -> str:
    """Keeps both ends: names of one module differ at the end."""
    return text if len(text) <= length else f"{text[: length - 12]}…{text[-11:]}"


def _node(node: VtogNode, width: float, centre: Point, virtual: bool) -> str:
    x, y = centre
    classes = f"node {node.kind}" + (" virtual" if virtual else "")
    tip = f"{node.name}: {node.kind} {_shape_text(node)}" + (", virtual" if virtual else "")
    return (
        f'<g class="{classes}"><title>{escape(tip)}</title>'
        f'<rect x="{x - width / 2:.1f}" y="{y - NODE_HEIGHT / 2:.1f}" width="{width:.1f}" '
        f'height="{NODE_HEIGHT:g}" rx="6"/>'
        f'<text class="name" x="{x:.1f}" y="{y - 3:.1f}">{escape(_clip(node.name))}</text>'
        f'<text class="shape" x="{x:.1f}" y="{y + 12:.1f}">'
        f"{escape(_clip(_shape_text(node)))}</text></g>"
    )


def _between(points: Sequence[Point], *, downward: bool) -> list[Point]:
    """The path from border to border of its end nodes, leaving room for the arrow's head."""
    sign = 1 if downward else -1
    (x0, y0), *middle, (x1, y1) = points
    return [(x0, y0 + sign * NODE_HEIGHT / 2), *middle, (x1, y1 - sign * (NODE_HEIGHT / 2 + 7))]


def _edge(edge: VtogEdge, points: Sequence[Point]) -> str:
    (x, y), *rest = points
    path = [f"M{x:.1f} {y:.1f}"]
    for nx, ny in rest:
        half = (y + ny) / 2
        path.append(f"C{x:.1f} {half:.1f} {nx:.1f} {half:.1f} {nx:.1f} {ny:.1f}")
        x, y = nx, ny
    tip = 1 if y > points[0][1] else -1
    head = f"M{x - 4:.1f} {y:.1f}L{x + 4:.1f} {y:.1f}L{x:.1f} {y + 7 * tip:.1f}Z"
    kind = f", type {edge.type}" if edge.type else ""
    text = (
        f"{edge.tensor} on {edge.base} by {edge.operator} ({edge.direction}{kind}), "
        f"{'chosen' if edge.chosen else 'not chosen'}"
    )
    return (
        f'<g class="edge {edge.direction}{" chosen" if edge.chosen else ""}">'
        f"<title>{escape(text)}</title>"
        f'<path class="line" d="{"".join(path)}"/><path class="head" d="{head}"/></g>'
    )


def _edge_label(edge: VtogEdge, points: Sequence[Point]) -> str:
    """The operator's name near the first point: one label for both directions of a link.

    Called with the end that has fewer links first, where the labels of a fan do not collide.
    """
    (x0, y0), (x1, y1) = points[0], points[1]
    x, y = x0 + LABEL_PLACE[0] * (x1 - x0), y0 + LABEL_PLACE[1] * (y1 - y0)
    return f'<text class="operator" x="{x + 9:.1f}" y="{y + 3:.1f}">{escape(edge.operator)}</text>'

"""Which components are drawn, how often, and what is said to be left out."""

from itertools import pairwise
from xml.etree import ElementTree

from vtc.report.drawing import LARGE_COMPONENT, LARGEST_DRAWING, MOST_DRAWINGS, opportunities
from vtc.report.drawing import points_to as chosen_only
from vtc.virtual.record import GraphReport, VtogEdge, VtogNode, VtogSummary


def chain(length: int, chosen: bool, first: int = 0) -> tuple[list[VtogNode], list[VtogEdge]]:
    nodes = [VtogNode(f"t{first + k}", "internal", (2, 3)) for k in range(length)]
    edges = [VtogEdge(b.name, a.name, "Slice", "load", chosen) for a, b in pairwise(nodes)]
    return nodes, edges


def test_alike_components_are_drawn_once_and_counted(graph: GraphReport) -> None:
    gallery = opportunities(graph.vtog)
    assert [drawing.count for drawing in gallery.drawings] == [4, 1]
    assert gallery.note == "Not drawn: 1 tensor without an edge."


def test_drawings_are_well_formed_and_hold_every_node_and_edge(graph: GraphReport) -> None:
    first, second = (ElementTree.fromstring(d.svg) for d in opportunities(graph.vtog).drawings)
    classes = [g.get("class", "").split() for g in first.iter("g")]
    assert sum("node" in c for c in classes) == 7
    assert sum("edge" in c for c in classes) == 9
    assert sum("chosen" in c for c in classes) == 6
    titles = [title.text for title in second.iter("title")]
    assert "silu on cat by Concat (store, type partial), chosen" in titles
    assert "split_1: output 4×64×s0×40" in titles


def test_points_to_graph_has_the_chosen_edges_alone(graph: GraphReport) -> None:
    svg = "".join(drawing.svg for drawing in chosen_only(graph.vtog).drawings)
    assert "not chosen" not in svg
    assert svg.count(", chosen<") == 6 + 3


def test_large_component_is_split_by_its_chosen_edges() -> None:
    nodes, edges = chain(LARGE_COMPONENT + 1, chosen=False)
    edges[3] = VtogEdge("t4", "t3", "Slice", "load", chosen=True)
    gallery = opportunities(VtogSummary(tuple(nodes), tuple(edges)))
    assert len(gallery.drawings) == 1
    assert gallery.note == (
        f"Not drawn: {LARGE_COMPONENT - 1} edges that were not chosen in large components; "
        f"{LARGE_COMPONENT - 1} tensors without an edge."
    )


def test_what_is_too_large_or_too_many_is_counted() -> None:
    nodes, edges = chain(LARGEST_DRAWING + 1, chosen=True)
    for extra in range(MOST_DRAWINGS + 1):
        more_nodes, more_edges = chain(2 + extra, chosen=True, first=1000 * (extra + 1))
        nodes += more_nodes
        edges += more_edges
    gallery = opportunities(VtogSummary(tuple(nodes), tuple(edges)))
    assert len(gallery.drawings) == MOST_DRAWINGS
    assert gallery.note == "Not drawn: 2 components."


def test_scalars_and_long_names_have_a_label() -> None:
    nodes = (VtogNode("a" * 60, "input", ()), VtogNode("b", "output", ("s0 + 1",)))
    (drawing,) = opportunities(
        VtogSummary(nodes, (VtogEdge("b", "a" * 60, "Expand", "load"),))
    ).drawings
    assert ">scalar<" in drawing.svg
    assert f">{'a' * 14}…{'a' * 11}<" in drawing.svg


def test_a_graph_without_edges_has_no_drawing() -> None:
    assert opportunities(VtogSummary()).drawings == ()

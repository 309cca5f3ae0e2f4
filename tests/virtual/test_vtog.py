"""The opportunity graph: which edges and conflicts each kind of operator gives."""

from __future__ import annotations

import pytest

from virtual.plans import Builder, c3k2, edge, worked_example
from vtc.graph.rules_concat import concat, expand
from vtc.graph.rules_pad import pad
from vtc.graph.rules_scatter import index_copy, slice_scatter
from vtc.graph.rules_slice import split
from vtc.graph.rules_view import reshape
from vtc.virtual.plan import PlanGraph, PlanMovement, PlanRegion
from vtc.virtual.vtog import Vtog, build


def named(vtog: Vtog) -> set[tuple[str, str, str]]:
    return {(e.tensor, e.base, e.direction) for e in vtog.edges}


@pytest.mark.parametrize("make", [worked_example, c3k2])
def test_graph_and_conflict_sets_are_the_papers(make, golden):
    golden(f"vtog_{make.__name__}", str(build(make())))


def test_edges_of_c_to_a_side_and_to_d_conflict():
    vtog = build(worked_example())
    pair = frozenset((edge(vtog, "c", "b"), edge(vtog, "c", "d")))
    assert pair in vtog.conflicts


def test_inputs_and_outputs_have_no_out_edges():
    g = Builder()
    x = g.input("x", 4, 4)
    y = g.region("y", [x], 4, 4)
    z = g.move("z", concat([(4, 4), (4, 4)], 0), [x, y])
    vtog = build(g.build(z))
    assert named(vtog) == {("y", "z", "store")}


def test_output_left_in_an_updated_input_may_live_there():
    g = Builder()
    cache, x, i = g.cache("cache", 8, 4), g.input("x", 1, 4), g.input("i", 1)
    new = g.move("new", index_copy((8, 4), (1, 4), 0), [cache, x], [i])
    vtog = build(g.build(new, cache=new))
    assert [(e.tensor, e.base, e.inplace) for e in vtog.edges] == [("new", "cache", True)]


def test_view_that_is_returned_is_an_alias_and_no_choice():
    g = Builder()
    a = g.region("a", [g.input("x", 4, 6)], 4, 6)
    b = g.move("b", split((4, 6), 1, 0, (2, 4)), [a])
    vtog = build(g.build(b))
    assert named(vtog) == {("a", "b", "store")}
    assert [(e.tensor, e.base) for e in vtog.aliases] == [("b", "a")]


def test_expand_loads_only():
    g = Builder()
    a = g.region("a", [g.input("x", 1, 6)], 1, 6)
    b = g.move("b", expand((1, 6), (4, 6)), [a])
    vtog = build(g.build(g.region("y", [b], 2)))
    assert named(vtog) == {("b", "a", "load")}


def test_static_scatter_loads_and_updates_in_place():
    g = Builder()
    x = g.input("x", 4, 6)
    a, u = g.region("a", [x], 4, 6), g.region("u", [x], 4, 2)
    s = g.move("s", slice_scatter((4, 6), 1, 2, 2), [a, u])
    vtog = build(g.build(g.region("y", [s], 2)))
    assert named(vtog) == {("s", "a", "load"), ("s", "u", "load"), ("u", "s", "store")}
    in_place = edge(vtog, "s", "a", inplace=True)
    assert {frozenset((in_place, n)) for n in range(len(vtog.edges)) if n != in_place} >= {
        frozenset((in_place, edge(vtog, "s", "u")))
    }


def test_one_tensor_twice_in_a_concat_has_two_edges_that_conflict():
    g = Builder()
    a = g.region("a", [g.input("x", 4, 6)], 4, 6)
    b = g.move("b", concat([(4, 6), (4, 6)], 0), [a, a])
    vtog = build(g.build(g.region("y", [b], 2)))
    stores = [n for n, e in enumerate(vtog.edges) if e.direction == "store"]
    assert frozenset(stores) in vtog.conflicts


def test_lookups_are_numbered_over_the_whole_graph():
    g = Builder()
    x, i, j = g.input("x", 1, 4), g.input("i", 1), g.input("j", 1)
    caches = [g.cache(name, 8, 4) for name in ("ck", "cv")]
    new = [
        g.move(f"new_{c}", index_copy((8, 4), (1, 4), 0), [c, g.region(f"u_{c}", [x], 1, 4)], [n])
        for c, n in zip(caches, (i, j), strict=True)
    ]
    y = g.region("y", new, 4)
    vtog = build(g.build(y, ck=new[0], cv=new[1]))
    assert vtog.lookups == ("i", "j")
    assert vtog.edges[edge(vtog, "u_cv", "new_cv")].map.lookups() == {1}


def test_pad_stores_its_interior():
    g = Builder()
    a = g.region("a", [g.input("x", 4, 4)], 4, 4)
    b = g.move("b", pad((4, 4), [(1, 1), (0, 0)]), [a])
    vtog = build(g.build(g.region("y", [b], 2)))
    assert vtog.edges[edge(vtog, "b", "a")].domain == (((1, 0), (5, 4)),)
    assert not vtog.edges[edge(vtog, "b", "a")].total


def test_drawing_marks_chosen_edges():
    vtog = build(worked_example())
    chosen = edge(vtog, "c", "d")
    drawn = [line for line in vtog.to_dot(frozenset((chosen,))).splitlines() if "->" in line]
    assert len(drawn) == len(vtog.edges)
    assert [line for line in drawn if "bold" in line] == [drawn[chosen]]


def test_plan_refuses_what_no_step_makes():
    g = Builder()
    g.input("x", 4, 4)
    g.tensor("y", (4, 4))
    with pytest.raises(ValueError, match="reads z, which no earlier step makes"):
        PlanGraph(g.tensors, (PlanRegion("r", ("z",), ("y",)),), {}, ("y",))
    with pytest.raises(ValueError, match="moves 1 tensors, 2 are named"):
        PlanMovement("y", reshape((4, 4), (16,)), ("x", "x"))

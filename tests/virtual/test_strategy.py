"""Homes of tensors: points-to graphs, composed maps, implied edges."""

from __future__ import annotations

import pytest

from virtual.plans import COPIES, VIEWS, Builder, Rules, c3k2, edges, worked_example
from vtc.graph.rules_concat import concat
from vtc.graph.rules_pad import pad
from vtc.graph.rules_scatter import scatter_nd
from vtc.graph.rules_slice import split
from vtc.graph.rules_view import reshape, transpose
from vtc.virtual.legality import checker, legal
from vtc.virtual.plan import PlanTensor, storage_stride
from vtc.virtual.vtog import build

WORKED = {
    "none": (),
    "on_b": (("a", "b"), ("c", "b"), ("d", "k_cache")),
    "on_cache": (("a", "b"), ("b", "c"), ("c", "d"), ("d", "k_cache")),
}


@pytest.mark.parametrize("name", WORKED)
def test_points_to_graphs_of_the_papers_strategies(name, golden):
    plan = worked_example()
    vtog = build(plan)
    strategy = edges(vtog, *WORKED[name])
    assert legal(plan, vtog, strategy, COPIES)
    golden(f"points_to_{name}", str(checker(plan, vtog, COPIES).resolver.resolve(strategy)))


def test_points_to_graph_of_c3k2_on_the_concat(golden):
    plan = c3k2()
    vtog = build(plan)
    chosen = edges(vtog, ("e", "a"), ("e", "b"), ("a", "Y"), ("b", "Y"), ("c", "Y"))
    assert legal(plan, vtog, chosen, COPIES)
    own = checker(plan, vtog, COPIES)
    assert not any(effect.copies for effect in own.facts(chosen).effects)
    golden("points_to_c3k2", str(own.resolver.resolve(chosen)))


def chain():
    """a is split; the part is reshaped and transposed, then read."""
    g = Builder()
    a = g.region("a", [g.input("x", 4, 8)], 4, 24)
    b = g.move("b", split((4, 24), 1, 1, (8, 8, 8)), [a])
    c = g.move("c", reshape((4, 8), (4, 2, 4)), [b])
    d = g.move("d", transpose((4, 2, 4), (1, 0, 2)), [c])
    return g.build(g.region("y", [d], 4, 8))


def test_views_are_followed_without_being_chosen():
    plan = chain()
    vtog = build(plan)
    tensors = checker(plan, vtog, VIEWS).resolver.resolve(frozenset()).tensors
    assert tensors["d"].bases == ("a",)
    view = tensors["d"].map.strided((24, 1))
    assert (view.shape, view.stride, view.offset) == ((2, 4, 4), (4, 24, 1), 8)


def test_a_chosen_edge_of_the_operator_takes_the_place_of_the_implied_one():
    plan = chain()
    vtog = build(plan)
    resolved = checker(plan, vtog, VIEWS).resolver.resolve(edges(vtog, ("a", "b"))).tensors
    assert resolved["b"].physical
    assert set(resolved["a"].bases) == {"a", "b"}
    assert resolved["d"].bases == ("b",)


def test_a_tensor_with_another_home_is_copied_by_the_view_that_made_it():
    plan = worked_example()
    vtog = build(plan)
    own = checker(plan, vtog, VIEWS)
    chosen = edges(vtog, ("c", "d"), ("d", "k_cache"))
    facts = own.facts(chosen)
    assert facts.resolution.tensors["c"].bases == ("k_cache",)
    assert facts.effects[plan.numbers["c"]].copies
    assert not facts.effects[plan.numbers["d"]].copies


def test_scatter_that_the_engine_does_in_place_stores_its_updates():
    plan = worked_example()
    vtog = build(plan)
    engine = Rules({"ScatterND": "inplace"}, otherwise="view")
    own = checker(plan, vtog, engine)
    facts = own.facts(frozenset())
    assert facts.resolution.tensors["d"].bases == ("k_cache",)
    (copy,) = facts.effects[plan.numbers["d"]].copies
    assert copy.source == 1
    assert not facts.backs
    assert not own.facts(edges(vtog, ("a", "b"), ("b", "c"), ("c", "d"))).effects[3].copies


def test_copy_back_is_left_where_nothing_is_in_place():
    plan = worked_example()
    vtog = build(plan)
    facts = checker(plan, vtog, COPIES).facts(frozenset())
    assert facts.backs == ((5, "k_cache", "d"),)


def test_concat_with_one_source_elsewhere_copies_that_part_only():
    plan = c3k2()
    vtog = build(plan)
    facts = checker(plan, vtog, VIEWS).facts(edges(vtog, ("c", "Y")))
    copies = facts.effects[plan.numbers["Y"]].copies
    assert [copy.source for copy in copies] == [0, 1]
    assert copies[1].part == (((0, 16, 0, 0), (1, 32, 8, 8)),)


def test_folded_padding_is_read_as_fills_and_stored_padding_is_written():
    g = Builder()
    a = g.region("a", [g.input("x", 4, 4)], 4, 4)
    b = g.move("b", pad((4, 4), [(1, 1), (0, 0)], value=3), [a])
    plan = g.build(g.region("y", [b], 4))
    vtog = build(plan)
    folded = checker(plan, vtog, Rules({"Pad": "fold"})).facts(frozenset())
    assert folded.resolution.tensors["b"].fills
    assert not folded.effects[1].live
    stored = checker(plan, vtog, COPIES).facts(edges(vtog, ("a", "b")))
    (copy,) = stored.effects[1].copies
    assert copy.source is None
    assert copy.part == (((0, 0), (1, 4)), ((5, 0), (6, 4)))


def test_an_operator_whose_elements_lie_in_place_already_disappears():
    """A layer of a stacked cache is selected, updated and put back: all in the stack."""
    g = Builder()
    cache = g.cache("cache", 2, 8, 4)
    x, i = g.input("x", 1, 4), g.input("i", 1, 1)
    u = g.region("u", [x], 1, 4)
    layer = g.move("layer", split((2, 8, 4), 0, 1, (1, 1)), [cache])
    flat = g.move("flat", reshape((1, 8, 4), (8, 4)), [layer])
    new = g.move("new", scatter_nd((8, 4), (1, 1)), [flat, u], [i])
    back = g.move("back", reshape((8, 4), (1, 8, 4)), [new])
    first = g.move("first", split((2, 8, 4), 0, 0, (1, 1)), [cache])
    final = g.move("final", concat([(1, 8, 4), (1, 8, 4)], 0), [first, back])
    plan = g.build(g.region("y", [final], 4), cache=final)
    vtog = build(plan)
    engine = Rules({"Split": "view", "Reshape": "view"})
    chosen = edges(vtog, ("new", "flat"), ("u", "new"))
    facts = checker(plan, vtog, engine).facts(chosen)
    assert facts.resolution.tensors["back"].bases == ("cache",)
    assert legal(plan, vtog, chosen, engine)


def test_storage_is_dense_in_the_order_of_the_eager_strides():
    view = PlanTensor("b", (4, 8), (24, 1), 4)
    assert storage_stride(view) == (8, 1)
    turned = PlanTensor("b", (2, 4, 4), (4, 24, 1), 4)
    assert storage_stride(turned) == (4, 8, 1)
    last = PlanTensor("b", (2, 3, 4, 5), (60, 1, 15, 3), 4)
    assert storage_stride(last) == (60, 1, 15, 3)
    assert storage_stride(PlanTensor("b", (4, 8), (24, 1), 4, "input")) == (24, 1)

"""Every rule of legality, by the smallest plan that breaks it."""

from __future__ import annotations

import pytest

from virtual.plans import (
    COPIES,
    VIEWS,
    Builder,
    Rules,
    c3k2,
    edge,
    edges,
    old_and_new_plan,
    worked_example,
)
from vtc.graph.rules_concat import concat, expand
from vtc.graph.rules_gather import gather
from vtc.graph.rules_pad import pad
from vtc.graph.rules_scatter import index_copy, slice_scatter
from vtc.graph.rules_slice import slice_, split
from vtc.graph.rules_view import reshape, transpose
from vtc.virtual.legality import Checker, checker, legal, orders
from vtc.virtual.plan import PlanGraph
from vtc.virtual.vtog import build

S, D = 8, 4


def rule(plan, strategy, engine=COPIES):
    return legal(plan, build_cached(plan), strategy, engine).rule


_VTOGS: dict[int, tuple[PlanGraph, object]] = {}


def build_cached(plan):
    return _VTOGS.setdefault(id(plan), (plan, build(plan)))[1]


def test_old_and_new_version_read_together_have_no_order():
    plan = old_and_new_plan()
    vtog = build_cached(plan)
    old, new, part = (
        edges(vtog, pair) for pair in (("old", "cache"), ("new", "cache"), ("part", "new"))
    )
    assert rule(plan, old) is None
    assert rule(plan, new | part) is None
    assert rule(plan, old | new | part) == "(iv)"
    assert ("old", "new") in orders(plan, vtog, new | part, COPIES)


def test_scatter_on_an_input_that_the_program_does_not_update():
    plan = old_and_new_plan(updates=False)
    verdict = legal(plan, build_cached(plan), edges(build_cached(plan), ("new", "cache")), COPIES)
    assert verdict.rule == "(v)"
    assert "new would write cache" in verdict.reason


def test_implied_views_of_old_contents_become_copies_where_the_scatter_is_in_place():
    plan = old_and_new_plan()
    own = Checker(plan, build(plan), Rules({"IndexCopy": "inplace"}, otherwise="view"))
    assert own.demoted == ("old",)
    assert own.legal(frozenset())
    assert Checker(plan, build(plan), VIEWS).demoted == ()


def test_two_homes_by_conflicting_edges():
    plan = worked_example()
    assert rule(plan, edges(build_cached(plan), ("c", "b"), ("c", "d"))) == "(i)"


def test_cycle_of_edges():
    plan = worked_example()
    assert rule(plan, edges(build_cached(plan), ("a", "b"), ("b", "a"))) == "(vi)"


def in_two_concats() -> PlanGraph:
    g = Builder()
    x = g.input("x", 2, D)
    a, b, c = (g.region(n, [x], 2, D) for n in "abc")
    m = g.move("m", concat([(2, D)] * 2, 0), [a, b])
    n = g.move("n", concat([(2, D)] * 2, 0), [a, c])
    return g.build(g.region("y", [m, n], D))


def test_one_tensor_in_two_concats_lives_in_one():
    plan = in_two_concats()
    vtog = build_cached(plan)
    assert rule(plan, edges(vtog, ("a", "m"), ("a", "n"))) == "(i)"
    chosen = edges(vtog, ("a", "m"), ("b", "m"), ("c", "n"))
    assert rule(plan, chosen) is None
    assert ("r_a", "n") in orders(plan, vtog, chosen, COPIES)
    reads = checker(plan, vtog, COPIES).facts(chosen).effects[plan.numbers["n"]].reads
    assert [access.base for access in reads] == ["m"]


def fork(first_row: int, second_row: int) -> PlanGraph:
    """Two scatters on one version of a tensor, both read."""
    g = Builder()
    x = g.input("x", 2, D)
    data = g.region("data", [x], S, D)
    u, w = g.region("u", [x], 2, D), g.region("w", [x], 2, D)
    one = g.move("one", slice_scatter((S, D), 0, first_row, 2), [data, u])
    two = g.move("two", slice_scatter((S, D), 0, second_row, 2), [data, w])
    return g.build(g.region("y", [one, two], D))


def test_fork_of_versions_cannot_be_in_place_twice():
    plan = fork(0, 2)
    vtog = build_cached(plan)
    one, two = (frozenset((edge(vtog, n, "data", inplace=True),)) for n in ("one", "two"))
    assert rule(plan, one) is None
    assert rule(plan, two) is None
    assert rule(plan, one | two) == "(iii)"
    # `two` copies the old contents, so it comes before `one` overwrites them.
    assert ("two", "one") in orders(plan, vtog, one, COPIES)


def test_chain_of_versions_is_stored_in_program_order():
    g = Builder()
    cache, x = g.cache("cache", S, D), g.input("x", 2, D)
    u, w = g.region("u", [x], 2, D), g.region("w", [x], 2, D)
    one = g.move("one", slice_scatter((S, D), 0, 0, 2), [cache, u])
    two = g.move("two", slice_scatter((S, D), 0, 1, 2), [one, w])
    plan = g.build(g.region("y", [two], D), cache=two)
    vtog = build_cached(plan)
    in_place = frozenset(
        (edge(vtog, "one", "cache", inplace=True), edge(vtog, "two", "one", inplace=True))
    )
    chosen = in_place | edges(vtog, ("u", "one"), ("w", "two"))
    assert rule(plan, chosen) is None
    assert ("r_u", "r_w") in orders(plan, vtog, chosen, COPIES)


def test_stores_of_two_versions_by_one_region_overlap():
    g = Builder()
    cache, x = g.cache("cache", S, D), g.input("x", 2, D)
    g.regions("r", [x], {"u": (2, D), "w": (2, D)})
    one = g.move("one", slice_scatter((S, D), 0, 0, 2), [cache, "u"])
    two = g.move("two", slice_scatter((S, D), 0, 1, 2), [one, "w"])
    plan = g.build(g.region("y", [two], D), cache=two)
    vtog = build_cached(plan)
    in_place = frozenset(
        (edge(vtog, "one", "cache", inplace=True), edge(vtog, "two", "one", inplace=True))
    )
    assert rule(plan, in_place | edges(vtog, ("u", "one"), ("w", "two"))) == "(iii)"
    assert rule(plan, in_place | edges(vtog, ("u", "one"))) is None


def test_region_may_not_store_where_it_reads_the_old_version():
    g = Builder()
    cache, i = g.cache("cache", S, D), g.input("i", 1)
    old = g.move("old", slice_((S, D), [0], [2], [0]), [cache])
    u = g.region("u", [old], 1, D)
    new = g.move("new", index_copy((S, D), (1, D), 0), [cache, u], [i])
    plan = g.build(g.region("y", [new], D), cache=new)
    vtog = build_cached(plan)
    chosen = edges(vtog, ("old", "cache"), ("new", "cache"), ("u", "new"))
    assert rule(plan, chosen) == "(iv)"
    assert rule(plan, chosen - edges(vtog, ("u", "new"))) is None
    assert rule(plan, chosen - edges(vtog, ("old", "cache"))) is None


def test_store_through_a_runtime_index_waits_for_the_index():
    g = Builder()
    cache, x = g.cache("cache", S, D), g.input("x", 2, D)
    u = g.region("u", [x], 1, D)
    early, late = g.region("early", [x], 1), g.region("late", [u], 1)
    for name, index in (("one", early), ("two", late)):
        g2 = Builder()
        g2.tensors, g2.steps = dict(g.tensors), list(g.steps)
        g2.move(name, index_copy((S, D), (1, D), 0), [cache, u], [index])
        plan = g2.build(g2.region("y", [name], D), cache=name)
        vtog = build_cached(plan)
        chosen = edges(vtog, (name, "cache"), ("u", name))
        assert rule(plan, chosen) == (None if name == "one" else "(iv)")
        if name == "one":
            assert ("r_early", "r_u") in orders(plan, vtog, chosen, COPIES)


def test_data_is_copied_before_updates_are_stored_into_the_copy():
    g = Builder()
    x, i = g.input("x", S, D), g.input("i", 1)
    u = g.region("u", [x], 1, D)
    new = g.move("new", index_copy((S, D), (1, D), 0), [x, u], [i])
    plan = g.build(g.region("y", [new], D))
    vtog = build_cached(plan)
    chosen = edges(vtog, ("u", "new"))
    assert rule(plan, chosen) is None
    assert ("new", "r_u") in orders(plan, vtog, chosen, COPIES)
    names = [plan.step_names[n] for n in checker(plan, vtog, COPIES).sequence(chosen)]
    assert names == ["new", "r_u", "r_y"]


def test_data_that_depends_on_the_updates_cannot_be_copied_first():
    g = Builder()
    x, i = g.input("x", S, D), g.input("i", 1)
    u = g.region("u", [x], 1, D)
    data = g.region("data", [u], S, D)
    new = g.move("new", index_copy((S, D), (1, D), 0), [data, u], [i])
    plan = g.build(g.region("y", [new], D))
    assert rule(plan, edges(build_cached(plan), ("u", "new"))) == "(iv)"


def several_rows(read_again: bool) -> PlanGraph:
    g = Builder()
    cache, x, i = g.cache("cache", S, D), g.input("x", 2, D), g.input("i", 2)
    u = g.region("u", [x], 2, D)
    new = g.move("new", index_copy((S, D), (2, D), 0), [cache, u], [i])
    return g.build(g.region("y", [new, u] if read_again else [new], D), cache=new)


def test_updates_at_indices_that_may_repeat_are_not_read_back():
    again, once = several_rows(True), several_rows(False)
    pairs = (("new", "cache"), ("u", "new"))
    assert rule(again, edges(build_cached(again), *pairs)) == "(i)"
    assert rule(once, edges(build_cached(once), *pairs)) is None


def test_other_parts_of_what_was_stored_at_such_indices_are_read():
    g = Builder()
    cache, x, i = g.cache("cache", S, D), g.input("x", 2, D), g.input("i", 2)
    a = g.region("a", [x], 2, 2 * D)
    q, k = (g.move(n, split((2, 2 * D), 1, p, (D, D)), [a]) for p, n in enumerate("qk"))
    new = g.move("new", index_copy((S, D), (2, D), 0), [cache, k], [i])
    plan = g.build(g.region("y", [q, new], D), cache=new)
    vtog = build_cached(plan)
    chosen = edges(vtog, ("a", "k"), ("k", "new"), ("new", "cache"))
    assert rule(plan, chosen, VIEWS) is None
    assert rule(plan, chosen, COPIES) is None


def test_scatter_in_place_on_expanded_data():
    g = Builder()
    x = g.input("x", 1, D)
    a, u = g.region("a", [x], 1, D), g.region("u", [x], 1, D)
    wide = g.move("wide", expand((1, D), (S, D)), [a])
    new = g.move("new", slice_scatter((S, D), 0, 2, 1), [wide, u])
    plan = g.build(g.region("y", [new], D))
    vtog = build_cached(plan)
    in_place = frozenset((edge(vtog, "new", "wide", inplace=True),))
    assert rule(plan, in_place) is None
    assert rule(plan, in_place | edges(vtog, ("wide", "a"))) == "(i)"


def test_scatter_in_place_on_fills():
    g = Builder()
    x = g.input("x", 2, D)
    a, u = g.region("a", [x], 2, D), g.region("u", [x], 1, D)
    wide = g.move("wide", pad((2, D), [(0, 2), (0, 0)]), [a])
    new = g.move("new", slice_scatter((4, D), 0, 3, 1), [wide, u])
    plan = g.build(g.region("y", [new], D))
    vtog = build_cached(plan)
    in_place = frozenset((edge(vtog, "new", "wide", inplace=True),))
    assert rule(plan, in_place) is None
    assert rule(plan, in_place | edges(vtog, ("wide", "a"))) == "(i)"


def test_pad_border_is_initialised_before_it_is_read():
    g = Builder()
    a = g.region("a", [g.input("x", 4, D)], 4, D)
    b = g.move("b", pad((4, D), [(1, 1), (0, 0)]), [a])
    plan = g.build(g.region("y", [b], D))
    vtog = build_cached(plan)
    chosen = edges(vtog, ("a", "b"))
    assert rule(plan, chosen) is None
    assert ("b", "r_y") in orders(plan, vtog, chosen, COPIES)


def test_concat_part_that_comes_from_an_input_is_copied_before_it_is_read():
    g = Builder()
    x = g.input("x", 2, D)
    a = g.region("a", [x], 2, D)
    m = g.move("m", concat([(2, D)] * 2, 0), [a, x])
    plan = g.build(g.region("y", [m], D))
    vtog = build_cached(plan)
    chosen = edges(vtog, ("a", "m"))
    assert rule(plan, chosen) is None
    assert {("m", "r_y"), ("r_a", "r_y")} <= set(orders(plan, vtog, chosen, COPIES))


def test_updated_input_keeps_the_version_that_the_program_leaves():
    """`extra` is in place but is not what the cache is left with."""
    g = Builder()
    cache, x, i = g.cache("cache", S, D), g.input("x", 1, D), g.input("i", 1)
    new = g.move("new", index_copy((S, D), (1, D), 0), [cache, x], [i])
    extra = g.move("extra", index_copy((S, D), (1, D), 0), [new, x], [i])
    plan = g.build(g.region("y", [extra], D), cache=new)
    vtog = build_cached(plan)
    new, extra = edges(vtog, ("new", "cache")), edges(vtog, ("extra", "new"))
    assert rule(plan, new) is None
    assert rule(plan, new | extra) == "(v)"
    # Not in the cache, `new` may be overwritten once it was copied back.
    assert rule(plan, extra) is None


def test_copy_back_waits_for_readers_of_the_old_contents():
    plan = old_and_new_plan()
    vtog = build_cached(plan)
    chosen = edges(vtog, ("old", "cache"))
    assert ("r_y", "cache.copy_") in orders(plan, vtog, chosen, COPIES)


def test_final_value_that_reads_the_input_it_goes_into():
    """cache <- cat(cache[1:], x): read through its map it would be overwritten while read."""
    g = Builder()
    cache, x = g.cache("cache", S, D), g.input("x", 1, D)
    rest = g.move("rest", slice_((S, D), [1], [S], [0]), [cache])
    new = g.move("new", concat([(S - 1, D), (1, D)], 0), [rest, x])
    plan = g.build(g.region("y", [new], D), cache=new)
    folding = Rules({"Concat": "fold", "Slice": "view"})
    own = Checker(plan, build(plan), folding)
    assert own.demoted == ("rest",)
    assert own.legal(frozenset())


def test_output_view_keeps_its_strides():
    g = Builder()
    x = g.input("x", 4, D)
    a, b = g.region("a", [x], 4, D), g.region("b", [x], 4, D)
    turned = g.move("turned", transpose((4, D)), [a])
    m = g.move("m", concat([(4, D)] * 2, 1), [a, b])
    plan = g.build(turned, g.region("y", [m], D))
    vtog = build(plan)
    assert checker(plan, vtog, VIEWS).resolver.empty.tensors["turned"].bases == ("a",)
    verdict = legal(plan, vtog, edges(vtog, ("a", "m")), VIEWS)
    assert verdict.rule == "(v)"
    assert "strides" in verdict.reason


def test_contracts_are_asked_for_maps_that_are_not_plain():
    asked: list[tuple[str, str]] = []

    def refuses(region, tensor, resolved):
        asked.append((region, tensor))
        return len(resolved.bases) == 1

    plan = c3k2()
    vtog = build(plan)
    engine = Rules(can_load=refuses, can_store=refuses)
    spread = edges(vtog, ("e", "a"), ("e", "b"))
    verdict = legal(plan, vtog, spread, engine)
    assert (verdict.rule, verdict.ok) == ("contract", False)
    assert "r_e" in verdict.reason
    on_concat = spread | edges(vtog, ("a", "Y"), ("b", "Y"), ("c", "Y"))
    assert legal(plan, vtog, on_concat, engine)
    assert set(asked) == {("r_e", "e"), ("r_c", "b"), ("r_c", "c")}


def test_views_that_the_engine_cannot_read_become_copies():
    g = Builder()
    a = g.region("a", [g.input("x", 4, D)], 4, D)
    b = g.move("b", transpose((4, D)), [a])
    plan = g.build(g.region("y", [b], D))
    own = Checker(plan, build(plan), Rules(otherwise="view", can_load=lambda *_: False))
    assert own.demoted == ("b",)


def test_gather_is_read_after_its_index_is_known():
    g = Builder()
    x = g.input("x", 4, D)
    table = g.region("table", [x], S, D)
    index = g.region("index", [x], 2)
    rows = g.move("rows", gather((S, D), (2,), 0), [table], [index])
    plan = g.build(g.region("y", [rows], D))
    vtog = build_cached(plan)
    chosen = edges(vtog, ("rows", "table"))
    assert rule(plan, chosen) is None
    assert {("r_table", "r_y"), ("r_index", "r_y")} == set(orders(plan, vtog, chosen, COPIES))


def test_a_later_question_does_not_depend_on_an_earlier_anchor():
    plan = in_two_concats()
    vtog = build(plan)
    own = Checker(plan, vtog, COPIES)
    trials = [
        frozenset(),
        edges(vtog, ("a", "m")),
        edges(vtog, ("a", "m"), ("b", "m")),
        edges(vtog, ("a", "n"), ("c", "n")),
        edges(vtog, ("m", "a"), ("m", "b")),
    ]
    for anchor in trials:
        own.rebase(anchor)
        for trial in trials:
            fresh = Checker(plan, vtog, COPIES)
            assert own.orders(trial) == fresh.orders(trial)
            assert str(own.facts(trial).resolution) == str(fresh.facts(trial).resolution)


def test_only_a_legal_strategy_becomes_the_anchor():
    plan = worked_example()
    vtog = build(plan)
    with pytest.raises(ValueError, match="two homes"):
        Checker(plan, vtog, COPIES).rebase(edges(vtog, ("c", "b"), ("c", "d")))


def test_reshape_of_a_part_is_stored_where_the_whole_lies():
    g = Builder()
    a = g.region("a", [g.input("x", 4, 6)], 4, 6)
    b = g.move("b", reshape((4, 6), (2, 12)), [a])
    c = g.move("c", split((2, 12), 0, 1, (1, 1)), [b])
    plan = g.build(g.region("y", [c], D))
    vtog = build_cached(plan)
    chosen = edges(vtog, ("a", "b"), ("b", "c"))
    assert rule(plan, chosen) is None
    assert set(checker(plan, vtog, COPIES).facts(chosen).resolution.tensors["a"].bases) == {
        "b",
        "c",
    }

"""Greedy and exhaustive search by the static cost model."""

from __future__ import annotations

import math
import random

import pytest

from virtual.generate import realistic_plan
from virtual.plans import COPIES, VIEWS, Builder, Rules, c3k2, edges, worked_example
from vtc.graph.rules_concat import concat
from vtc.graph.rules_slice import slice_
from vtc.graph.rules_view import transpose
from vtc.virtual.cost import CPU, GPU, StaticCost
from vtc.virtual.exhaustive import TooManyChoicesError, exhaustive, optimality_gap
from vtc.virtual.fates import fates
from vtc.virtual.legality import legal
from vtc.virtual.search import greedy
from vtc.virtual.vtog import build

VIEWING = Rules(
    {"Split": "view", "Slice": "view", "Reshape": "view"},
    can_load=lambda region, tensor, map: len(map.bases) == 1 and not map.fills,
    can_store=lambda region, tensor, map: len(map.bases) == 1,
)


def test_greedy_is_within_five_percent_of_exhaustive_on_generated_graphs():
    compared, worst, choices = 0, 0.0, 0
    for seed in range(48):
        rng = random.Random(seed)
        plan = realistic_plan(rng)
        vtog = build(plan)
        model, objective = rng.choice([CPU, GPU]), rng.choice(["latency", "latency", "bytes"])
        cost = StaticCost(plan, vtog, VIEWING, model, objective)
        found = greedy(plan, vtog, VIEWING, cost)
        try:
            best = exhaustive(plan, vtog, VIEWING, cost, max_choices=14)
        except TooManyChoicesError:
            continue
        assert best.cost <= found.cost + 1e-9
        gap = optimality_gap(found.cost, best.cost)
        assert gap <= 0.05, f"seed {seed}: {found.text(vtog)}\nbest: {best.text(vtog)}"
        compared, worst = compared + 1, max(worst, gap)
        choices += best.strategy != frozenset()
    assert compared >= 40
    assert choices >= 20
    assert worst <= 0.05


@pytest.mark.parametrize("objective", ["latency", "memory", "bytes"])
@pytest.mark.parametrize("make", [worked_example, c3k2])
@pytest.mark.parametrize("engine", [COPIES, VIEWS, VIEWING], ids=["copies", "views", "viewing"])
def test_greedy_finds_the_best_of_the_papers_examples(make, engine, objective):
    plan = make()
    vtog = build(plan)
    cost = StaticCost(plan, vtog, engine, objective=objective)
    found = greedy(plan, vtog, engine, cost)
    best = exhaustive(plan, vtog, engine, cost, max_choices=20)
    assert legal(plan, vtog, found.strategy, engine)
    assert found.cost == pytest.approx(best.cost)
    assert found.cost < found.base_cost


def test_everything_of_the_worked_example_goes_to_the_cache():
    plan = worked_example()
    vtog = build(plan)
    found = greedy(plan, vtog, VIEWS, StaticCost(plan, vtog, VIEWS))
    assert found.strategy == edges(vtog, ("a", "b"), ("b", "c"), ("c", "d"), ("d", "k_cache"))
    assert "saves" in found.text(vtog)
    assert all(fate.fate == "virtual" for fate in fates(plan, vtog, found.strategy, VIEWS))


def test_parts_of_c3k2_go_to_the_concat_where_regions_read_one_buffer():
    plan = c3k2()
    vtog = build(plan)
    cost = StaticCost(plan, vtog, VIEWING)
    found = greedy(plan, vtog, VIEWING, cost)
    wanted = edges(vtog, ("e", "a"), ("e", "b"), ("a", "Y"), ("b", "Y"), ("c", "Y"))
    assert found.strategy == wanted
    assert len(cost.steps(wanted)) == 3
    memory = StaticCost(plan, vtog, VIEWING, objective="memory")
    assert memory.peak(wanted) < memory.peak(frozenset())


def two_of(count: int) -> Builder:
    g = Builder()
    x = g.input("x", 4, 8)
    parts = [g.region(f"p{n}", [x], 4, 8) for n in range(count)]
    g.move("m", concat([(4, 8)] * count, 1), parts)
    g.region("y", ["m"], 4)
    return g


def test_a_concat_that_pays_only_as_a_whole_is_found():
    """A region may store into a slice, but the launch is saved only when nothing is copied."""
    plan = two_of(3).build("y")
    vtog = build(plan)
    engine = Rules(can_load=lambda *_: False)
    cost = StaticCost(plan, vtog, engine, CPU)
    found = greedy(plan, vtog, engine, cost)
    assert found.strategy == edges(vtog, ("p0", "m"), ("p1", "m"), ("p2", "m"))
    assert found.base_cost - found.cost > CPU.launch_us


def test_two_choices_that_pay_only_together_are_found():
    g = Builder()
    x = g.input("x", 4, 8)
    parts = [g.region(f"p{n}", [x], 4, 8) for n in range(3)]
    g.move("inner", concat([(4, 8)] * 2, 1), parts[:2])
    g.move("outer", concat([(4, 16), (4, 8)], 1), ["inner", parts[2]])
    plan = g.build(g.region("y", ["outer"], 4))
    vtog = build(plan)
    wanted = edges(vtog, ("p0", "inner"), ("p2", "outer"))

    class Together:
        profiles = cache_hits = 0

        def cost(self, strategy):
            return 90.0 if strategy == wanted else 100.0 + len(strategy)

    assert greedy(plan, vtog, COPIES, Together()).strategy == wanted


def test_a_copy_into_a_home_of_several_pieces_takes_a_launch_for_each():
    g = Builder()
    x = g.input("x", 4, 24)
    y = g.move("y", transpose((4, 24), (1, 0)), [x])
    g.move("first", slice_((24, 4), [0], [12], [0]), [y])
    g.move("second", slice_((24, 4), [12], [24], [0]), [y])
    plan = g.build(g.region("z", ["first", "second"], 4))
    vtog = build(plan)
    steps = StaticCost(plan, vtog, COPIES).steps
    (whole,) = (s for s in steps(frozenset()) if s.name == "y")
    (split,) = (s for s in steps(edges(vtog, ("y", "first"), ("y", "second"))) if s.name == "y")
    assert split.latency_us == pytest.approx(whole.latency_us + CPU.launch_us)


def test_exhaustive_says_which_component_is_too_large():
    plan = two_of(9).build("y")
    vtog = build(plan)
    with pytest.raises(TooManyChoicesError, match="18 free choices") as caught:
        exhaustive(plan, vtog, COPIES, StaticCost(plan, vtog, COPIES))
    assert caught.value.choices == 18


def test_components_are_solved_apart():
    g = Builder()
    state = g.input("x", 4, 8)
    for block in range(4):
        parts = [g.region(f"p{block}{n}", [state], 4, 8) for n in range(2)]
        m = g.move(f"m{block}", concat([(4, 8)] * 2, 1), parts)
        state = g.region(f"s{block}", [m], 4, 8)
    plan = g.build(state)
    vtog = build(plan)
    cost = StaticCost(plan, vtog, COPIES)
    best = exhaustive(plan, vtog, COPIES, cost, max_choices=4)
    assert best.evaluations < 4 * 2**4 + 1
    assert best.cost == pytest.approx(greedy(plan, vtog, COPIES, cost).cost)


class Counting:
    """A cost of any kind: the number of copies, from outside of the cost module."""

    profiles = cache_hits = 0

    def __init__(self, inner: StaticCost) -> None:
        self.inner = inner

    def cost(self, strategy):
        return float(sum(step.kind == "copy" for step in self.inner.steps(strategy)))


def test_any_object_with_a_cost_drives_the_search():
    plan = c3k2()
    vtog = build(plan)
    found = greedy(plan, vtog, VIEWS, Counting(StaticCost(plan, vtog, VIEWS)))
    assert (found.base_cost, found.cost) == (1.0, 0.0)


def test_progress_is_reported_and_the_budget_ends_the_search():
    plan = c3k2()
    vtog = build(plan)
    seen: list[tuple[int, float]] = []
    cost = StaticCost(plan, vtog, VIEWS)
    found = greedy(plan, vtog, VIEWS, cost, progress=lambda n, best: seen.append((n, best)))
    assert [n for n, _ in seen] == list(range(1, found.evaluations + 1))
    assert found.complete
    cut = greedy(plan, vtog, VIEWS, cost, budget_s=0.0)
    assert not cut.complete
    assert cut.strategy == frozenset()


def test_costs_of_steps_are_found_once():
    plan = c3k2()
    vtog = build(plan)
    cost = StaticCost(plan, vtog, VIEWS)
    cost.cost(frozenset())
    assert (cost.profiles, cost.cache_hits) == (4, 0)
    cost.cost(edges(vtog, ("c", "Y")))
    assert (cost.profiles, cost.cache_hits) == (6, 2)


def test_a_conflict_costs_infinity():
    plan = worked_example()
    vtog = build(plan)
    cost = StaticCost(plan, vtog, COPIES)
    assert cost.cost(edges(vtog, ("c", "b"), ("c", "d"))) == math.inf


def test_fates_of_a_half_virtual_concat():
    plan = c3k2()
    vtog = build(plan)
    a, _, joined = fates(plan, vtog, edges(vtog, ("c", "Y")), VIEWS)
    assert (a.fate, a.on, a.direction, a.type) == ("view", ("e",), "load", "I")
    assert (joined.fate, joined.on, joined.direction) == ("residual", ("Y",), "store")
    part = 16 * 8 * 8 * 4
    assert (joined.bytes_before, joined.bytes_after) == (2 * 3 * part, 2 * 2 * part)
    assert "residual" in str(joined)
    whole = fates(plan, vtog, frozenset(), COPIES)[-1]
    assert (whole.fate, whole.on, whole.direction, whole.type) == ("residual", (), None, None)


class Recorded:
    """Costs as they were measured: of the whole, and what each edge adds to that or takes away."""

    def __init__(self, whole: float, edges: dict[int, float]) -> None:
        self.whole, self.edges = whole, edges

    def cost(self, strategy) -> float:
        return self.whole + sum(self.edges[edge] for edge in strategy)


@pytest.mark.parametrize("make", [worked_example, c3k2])
def test_an_edge_that_was_measured_to_be_slower_is_skipped(make):
    """Whichever one it is, though it can be chosen, and the model that counts bytes chooses it."""
    plan, slow = make(), 40.0
    vtog = build(plan)
    count = len(vtog.numbered)
    modelled = greedy(plan, vtog, VIEWS, StaticCost(plan, vtog, VIEWS, GPU, "bytes")).strategy
    tempting = [e for e in modelled if legal(plan, vtog, frozenset({e}), VIEWS)]
    assert tempting
    for bad in tempting:
        measured = Recorded(100.0, {e: slow if e == bad else -3.0 for e in range(count)})
        found = greedy(plan, vtog, VIEWS, measured)
        assert bad not in found.strategy
        assert found.cost <= measured.whole
        assert measured.cost(frozenset({bad})) > measured.whole
    everything_slow = Recorded(100.0, dict.fromkeys(range(count), slow))
    assert greedy(plan, vtog, VIEWS, everything_slow).strategy == frozenset()

"""Layers that are alike: the search tries what is alike once, and finds what it found without."""

from __future__ import annotations

import random

import pytest

from virtual.generate import repeated_plan
from virtual.plans import COPIES, VIEWS, Builder, Rules, edges
from vtc.graph.rules_concat import concat
from vtc.graph.rules_scatter import index_copy
from vtc.virtual.alike import Alike
from vtc.virtual.cost import GPU, StaticCost
from vtc.virtual.legality import checker
from vtc.virtual.plan import PlanGraph
from vtc.virtual.search import greedy
from vtc.virtual.vtog import build

VIEWING = Rules(
    {"Split": "view", "Slice": "view", "Reshape": "view"},
    can_load=lambda region, tensor, map: len(map.bases) == 1 and not map.fills,
    can_store=lambda region, tensor, map: len(map.bases) == 1,
)


def layers(count: int, rows: int = 4, wider: int = -1) -> PlanGraph:
    """Each layer concatenates three results, two of them first; one layer may be `wider`."""
    g = Builder()
    state = g.region("x0", [g.input("x", rows, 8)], rows, 8)
    for n in range(count):
        width = 16 if n == wider else 8
        parts = [g.region(f"p{n}_{k}", [state], rows, width) for k in range(3)]
        g.move(f"in{n}", concat([(rows, width)] * 2, 1), parts[:2])
        g.move(f"out{n}", concat([(rows, 2 * width), (rows, width)], 1), [f"in{n}", parts[2]])
        state = g.region(f"x{n + 1}", [f"out{n}"], rows, 8)
    return g.build(g.region("y", [state], rows))


def pair(vtog, n: int) -> frozenset[int]:
    return edges(vtog, (f"p{n}_0", f"in{n}"), (f"p{n}_2", f"out{n}"))


def keys(plan: PlanGraph, chosen: int | None = None, form=lambda name: "region"):
    """The key of the same two edges in each layer, with those of one layer chosen."""
    vtog = build(plan)
    strategy = frozenset() if chosen is None else pair(vtog, chosen)
    alike = Alike(plan, vtog, checker(plan, vtog, COPIES), strategy, form)
    count = sum(name.startswith("out") for name in plan.tensors)
    return [alike.key(pair(vtog, n)) for n in range(count)]


def test_edges_of_equal_layers_have_one_key():
    first, *others = keys(layers(4))
    assert all(key == first for key in others)


def test_other_edges_of_a_layer_have_another_key():
    plan = layers(1)
    vtog = build(plan)
    alike = Alike(plan, vtog, checker(plan, vtog, COPIES), frozenset(), lambda name: "region")
    one = edges(vtog, ("p0_0", "in0"), ("p0_2", "out0"))
    other = edges(vtog, ("p0_1", "in0"), ("p0_2", "out0"))
    assert alike.key(one) != alike.key(other)


@pytest.mark.parametrize(
    "found",
    [
        keys(layers(3, wider=1)),
        keys(layers(3), chosen=1),
        keys(layers(3), form=lambda name: name == "r_p1_2"),
    ],
    ids=["sizes", "chosen edges", "regions"],
)
def test_a_layer_that_differs_has_another_key(found):
    first, middle, last = found
    assert first == last != middle


def test_who_else_reads_an_updated_input_counts():
    """New rows go into three caches; what one of them held is read by a later step as well."""
    g = Builder()
    x, index = g.input("x", 1, 8), g.input("index", 1)
    for n in range(3):
        g.region(f"a{n}", [x], 1, 8)
        g.cache(f"cache{n}", 4, 8)
        g.move(f"new{n}", index_copy((4, 8), (1, 8), 0), [f"cache{n}", f"a{n}"], [index])
        g.region(f"y{n}", [f"new{n}", "cache1"] if n == 2 else [f"new{n}"], 4)
    g.region("z", ["y0", "y1", "y2"], 4)
    plan = g.build("z", **{f"cache{n}": f"new{n}" for n in range(3)})
    vtog, engine = build(plan), Rules({"IndexCopy": "inplace"})
    alike = Alike(plan, vtog, checker(plan, vtog, engine), frozenset(), lambda name: "region")
    first, read, _ = (alike.key(edges(vtog, (f"new{n}", f"cache{n}"))) for n in range(3))
    assert first != read


class Priced:
    """The static cost, which counts what is priced; with forms of regions, or without."""

    def __init__(self, cost: StaticCost, forms: bool) -> None:
        self.static, self.local, self.min_gain = cost, cost.local, 0.0
        self.profiles = self.cache_hits = self.asked = 0
        if forms:
            flops = {s.name: getattr(s, "flops", 0) for s in cost.plan.steps}
            self.form = lambda name: flops[name]

    def cost(self, strategy):
        self.asked += 1
        return self.static.cost(strategy)


@pytest.mark.parametrize("engine", [COPIES, VIEWS, VIEWING], ids=["copies", "views", "viewing"])
def test_the_search_finds_the_same_and_prices_no_more(engine):
    for seed in range(24):
        plan = repeated_plan(random.Random(seed))
        vtog = build(plan)
        with_forms, without = (
            Priced(StaticCost(plan, vtog, engine, GPU), forms) for forms in (True, False)
        )
        found = greedy(plan, vtog, engine, with_forms)
        assert found.cost == greedy(plan, vtog, engine, without).cost
        assert with_forms.asked <= without.asked


def test_more_layers_of_a_kind_take_few_more_pairs():
    """Nothing pays here, so that all pairs are tried."""

    class Never(Priced):
        def cost(self, strategy):
            self.asked += 1
            return 100.0 + len(strategy)

    asked = {}
    for count in (3, 6):
        for forms in (True, False):
            plan = layers(count)
            vtog = build(plan)
            priced = Never(StaticCost(plan, vtog, COPIES, GPU), forms)
            greedy(plan, vtog, COPIES, priced)
            asked[count, forms] = priced.asked
    more = {forms: asked[6, forms] - asked[3, forms] for forms in (True, False)}
    assert more[True] < more[False] / 2


def test_what_cannot_pay_is_not_judged():
    """A cost that knows a floor of a strategy is not asked for more."""

    class Plain(Priced):
        def cost(self, strategy):
            self.asked += 1
            return 100.0 + len(strategy)

    class Floored(Plain):
        def floor(self, strategy):
            return 100.0

    asked = []
    for kind in (Plain, Floored):
        plan = layers(2)
        vtog = build(plan)
        priced = kind(StaticCost(plan, vtog, COPIES, GPU), forms=False)
        greedy(plan, vtog, COPIES, priced)
        asked.append(priced.asked)
    assert asked[1] < asked[0]

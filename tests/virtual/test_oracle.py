"""Legality against brute force: what is called legal computes the right values in some order."""

from __future__ import annotations

import random

import pytest
import torch

from virtual.generate import tiny_plan
from virtual.oracle import ImpossibleError, Oracle
from virtual.plans import COPIES, VIEWS, Rules, old_and_new_plan
from vtc.virtual.legality import Checker
from vtc.virtual.vtog import Vtog, build

EAGER = Rules(
    {"IndexCopy": "inplace", "SliceScatter": "inplace", "Concat": "fold", "Pad": "fold"},
    otherwise="view",
)


def trials(rng: random.Random, vtog: Vtog, count: int):
    """Random strategies without conflicts, the empty one first."""
    yield frozenset()
    for _ in range(count - 1):
        strategy: frozenset[int] = frozenset()
        for number in rng.sample(range(len(vtog.edges)), min(len(vtog.edges), rng.randint(1, 5))):
            if not vtog.rivals[number] & strategy:
                strategy |= {number}
        yield strategy


@pytest.mark.parametrize("engine", [COPIES, VIEWS, EAGER], ids=["copies", "views", "eager"])
def test_legal_strategies_compute_the_right_values(engine, record_property):
    legal = stricter = illegal = 0
    for seed in range(40):
        rng = random.Random(seed)
        plan = tiny_plan(rng)
        vtog = build(plan)
        own = Checker(plan, vtog, engine)
        indices = [
            rng.sample(range(rows), min(rows, plan.tensors["index"].shape[0])) for rows in (2, 2)
        ]
        for strategy in trials(rng, vtog, 5):
            verdict = own.legal(strategy)
            possible = True
            for values in indices:
                active = own.resolver.resolve(strategy).active
                try:
                    oracle = Oracle(plan, vtog, active, {"index": torch.tensor(values)})
                except ImpossibleError:
                    possible = False
                    break
                possible = possible and oracle.some_order_is_right()
                if verdict.ok:
                    order = [plan.step_names[n] for n in own.sequence(strategy)]
                    where = f"seed {seed}, {sorted(strategy)}, index {values}\n{plan}\n{vtog}"
                    assert oracle.sequence_is_right(order), where
            assert possible or not verdict.ok, f"seed {seed}, {sorted(strategy)}\n{plan}\n{vtog}"
            legal += verdict.ok
            stricter += possible and not verdict.ok
            illegal += not possible
    record_property("legal, stricter than needed, illegal", (legal, stricter, illegal))
    assert legal > 100
    assert illegal > 10
    assert stricter < 0.15 * (legal + stricter)


def test_the_oracle_itself_tells_right_from_wrong():
    plan = old_and_new_plan()
    vtog = build(plan)
    number = {(e.tensor, e.base): n for n, e in enumerate(vtog.edges)}
    index = {"i": torch.tensor([1])}

    def possible(*pairs):
        active: dict[str, list[int]] = {}
        for pair in pairs:
            active.setdefault(pair[0], []).append(number[pair])
        return Oracle(plan, vtog, active, index).some_order_is_right()

    old, new, part = ("old", "cache"), ("new", "cache"), ("part", "new")
    assert possible()
    assert possible(old)
    assert possible(new, part)
    assert not possible(old, new, part)
    with pytest.raises(ImpossibleError):
        possible(("part", "new"), ("new", "part"))

"""A plan that was found before is used again where it is legal, and found anew where it is not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import vtc
from vtc.graph.capture import capture
from vtc.lowering import checked as checked_schedules
from vtc.lowering import choose, remembered
from vtc.lowering.plan import Plan
from vtc.lowering.remembered import Memory, Remembered
from vtc.lowering.settings import Settings


def block(x, w1, w2, w3):
    return torch.cat([torch.relu(x @ w1), torch.relu(x @ w2)], 1) @ w3


@pytest.fixture
def plan() -> Plan:
    found = []

    def backend(graph_module, inputs):
        found.append(capture(graph_module, list(inputs)))
        return graph_module.forward

    torch._dynamo.reset()
    args = [torch.randn(*s) for s in ((64, 32), (32, 48), (32, 16), (64, 8))]
    torch.compile(block, backend=backend)(*args)
    return Plan.of(found[0])


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Objective "bytes", so that nothing is timed, with plans kept all the same."""
    path = tmp_path / "plans" / "plan.json"
    monkeypatch.setattr(choose.Memory, "of", staticmethod(lambda plan, settings: Memory(path)))
    return Settings("bytes", vtc.Options(cache_dir=tmp_path))


def path_of(settings: Settings) -> Path:
    return settings.options.cache_dir / "plans" / "plan.json"


def test_the_second_time_nothing_is_searched(plan: Plan, settings: Settings) -> None:
    first, schedule = choose.choose(plan, settings)
    assert first.strategy
    assert first.result.evaluations > 0
    second, again = choose.choose(plan, settings)
    assert second.strategy == first.strategy
    assert second.result.evaluations == 0
    assert (second.result.cost, second.cache_hits) == (first.result.cost, 1)
    assert str(again) == str(schedule)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:20],
        lambda text: json.dumps({**json.loads(text), "edges": [10**6]}),
        lambda text: json.dumps({**json.loads(text), "cost": None}),
        lambda text: "[]",
    ],
)
def test_a_damaged_plan_is_found_anew(plan: Plan, settings: Settings, damage) -> None:
    first, _ = choose.choose(plan, settings)
    path = path_of(settings)
    path.write_text(damage(path.read_text()))
    second, _ = choose.choose(plan, settings)
    assert second.strategy == first.strategy
    assert second.result.evaluations > 0
    third, _ = choose.choose(plan, settings)
    assert third.result.evaluations == 0


def test_an_illegal_plan_is_found_anew(plan: Plan, settings: Settings) -> None:
    first, _ = choose.choose(plan, settings)
    everything = tuple(range(len(plan.vtog.numbered)))
    assert not plan.checker.legal(frozenset(everything))
    Memory(path_of(settings)).keep(Remembered(everything, 0.0, 1.0))
    second, _ = choose.choose(plan, settings)
    assert second.strategy == first.strategy


def test_keys_tell_programs_and_options_apart(plan: Plan, settings: Settings) -> None:
    options = settings.options
    same = remembered._key(plan, settings)
    assert remembered._key(plan, dataclasses.replace(settings, options=options.replace())) == same
    others = [
        remembered._key(plan, dataclasses.replace(settings, options=options.replace(**change)))
        for change in ({"freeze": True}, {"min_gain_us": 9.0}, {"materialize": {"cat"}})
    ]
    moved = dataclasses.replace(plan, transposed=frozenset({"mm"}))
    assert len({same, *others, remembered._key(moved, settings)}) == 5


def test_a_schedule_is_checked_once(
    plan: Plan, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = []
    monkeypatch.setattr(checked_schedules, "check", lambda s, p: simulated.append(s))
    _, schedule = choose.choose(plan, settings)
    for _ in range(3):
        checked_schedules.checked(schedule, plan, settings)
    assert len(simulated) == 1
    empty = plan.schedule(frozenset())
    assert str(empty) != str(schedule)
    for _ in range(2):
        checked_schedules.checked(empty, plan, settings)
    assert len(simulated) == 2
    checked_schedules.checked(schedule, plan, settings)
    assert len(simulated) == 2
    path_of(settings).unlink()
    checked_schedules.checked(schedule, plan, settings)
    assert len(simulated) == 3


def test_a_wrong_schedule_is_not_remembered(plan: Plan, settings: Settings) -> None:
    _, schedule = choose.choose(plan, settings)
    wrong = dataclasses.replace(schedule, steps=schedule.steps[::-1])
    for _ in range(2):
        with pytest.raises(vtc.errors.PlanCheckError):
            checked_schedules.checked(wrong, plan, settings)

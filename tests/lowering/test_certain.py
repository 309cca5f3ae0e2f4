"""Small savings are taken unmeasured where kernels of ours alone change, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from captures import program_of
from lowering.test_own import First
from vtc.kernels.convolution_bare import reads_dense_image
from vtc.lowering import choose, own, profile
from vtc.lowering.cache import ProfileCache
from vtc.lowering.certain import Certain
from vtc.lowering.check import check
from vtc.lowering.described import described
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import ProfiledCost, isolated
from vtc.lowering.settings import Settings
from vtc.options import Options
from vtc.runtime.executable import Executable
from vtc.virtual import cost, search
from vtc.virtual.search import SearchResult


class Joined(nn.Module):
    """A concat of the input, where nothing can be stored, and a computed part, and its reader."""

    def __init__(self, reader: str) -> None:
        super().__init__()
        self.reader = reader
        self.first = nn.Conv2d(8, 16, 1)
        size = 3 if reader == "dense" else 1
        self.second = nn.Conv2d(24, 8, size, padding=size // 2)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([x, F.relu(self.first(x))], 1)
        if self.reader == "not ours":
            return torch.softmax(joined, 1)
        return F.relu(self.second(joined))


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> float:
        raise AssertionError("something is measured")

    monkeypatch.setattr(profile, "measure", refuse)


def planned(reader: str) -> tuple[Plan, list[Any], Tensor]:
    torch.manual_seed(0)
    model, x = Joined(reader).eval(), torch.randn(2, 8, 6, 5)
    model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    program, inputs = program_of(model, x)
    with torch.no_grad():
        exact = model.double()(x.double())
        model.float()
    return own.own_plan(program), inputs, exact


def extended(plan: Plan, folder: Path, worth: float = 50.0) -> SearchResult:
    """What is found from nothing when savings below `worth` microseconds are not measured."""
    static = cost.StaticCost(plan.graph, plan.vtog, plan.engine, cost.GPU, "latency")
    options, cache = Options(min_gain_us=1.0), ProfileCache(folder, torch.device("cpu"))
    pricing = ProfiledCost(plan, static, options, cache, print)
    pricing.min_gain = worth
    base = static.cost(NOTHING)
    found = SearchResult(NOTHING, base, base, 3, 0.5)
    certain = Certain(pricing, found)
    return search.greedy(plan.graph, plan.vtog, plan.engine, certain, start=found)


def test_a_concat_that_a_pointwise_convolution_reads_goes(tmp_path: Path) -> None:
    plan, inputs, exact = planned("pointwise")
    found = extended(plan, tmp_path)
    assert found.strategy
    assert found.cost < found.base_cost
    assert found.evaluations > 3, "what was evaluated before counts"
    schedule = plan.schedule(found.strategy)
    check(schedule, plan.program)
    assert all(s.implementation == "kernel" for s in schedule.steps), "a copy is left"
    tuner = First()
    steps = [implement(s, plan.program, freeze=False, tuner=tuner) for s in schedule.steps]
    (got,) = Executable(schedule, steps, len(inputs), plan.program.constants)(*inputs)
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5)


def test_what_a_library_may_do_best_goes_on_to_read_a_dense_image(tmp_path: Path) -> None:
    plan, *_ = planned("dense")
    homes = plan.homes(extended(plan, tmp_path).strategy)
    problems = [described(isolated(r, homes)).problem for r in plan.grouping.regions]
    (dense,) = (p for p in problems if p.window.size == (3, 3))
    assert reads_dense_image(dense)


def test_what_is_not_ours_is_not_changed(tmp_path: Path) -> None:
    plan, *_ = planned("not ours")
    (other,) = (r for r in plan.grouping.regions if r.name not in plan.engine.own)
    found = extended(plan, tmp_path)
    before, after = (
        profile.signature(isolated(other, plan.homes(s))) for s in (NOTHING, found.strategy)
    )
    assert before == after


def test_what_was_worth_a_measurement_is_left_to_it(tmp_path: Path) -> None:
    plan, *_ = planned("pointwise")
    assert not extended(plan, tmp_path, worth=1.5).strategy


def test_the_search_goes_on_with_what_is_certain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Coarse(ProfiledCost):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.min_gain = 50.0

    monkeypatch.setattr(choose, "ProfiledCost", Coarse)
    plan, *_ = planned("pointwise")
    options = Options(min_gain_us=1.0, cache_dir=tmp_path)
    choice, schedule = choose.choose(plan, Settings(options=options))
    assert choice.strategy
    assert choice.result.cost < choice.result.base_cost
    assert all(s.implementation == "kernel" for s in schedule.steps)

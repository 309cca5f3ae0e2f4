"""Statistics of paired timing, on a clock that does what it is told."""

from __future__ import annotations

import random
import threading
import time

import pytest
import torch

from vtc.bench.timing import (
    CudaClock,
    Effort,
    Timed,
    WallClock,
    clock_of,
    interleave,
    paired_ratio,
    spread,
)


class FakeClock:
    """Gives each system's own time, times how slow the machine is at that moment."""

    def __init__(self, cost):
        self.cost, self.calls, self.settled = cost, [], 0

    def settle(self):
        self.settled += 1

    def time(self, run):
        name = run()
        self.calls.append(name)
        return self.cost(name, len(self.calls))


def systems(log, *names):
    def run_of(name):
        def run():
            log.append(("run", name))
            return name

        return run

    return {n: Timed(run_of(n), lambda n=n: log.append(("reset", n))) for n in names}


def test_each_round_times_every_system_once():
    clock, log = FakeClock(lambda name, _: {"a": 1.0, "b": 2.0}[name]), []
    effort = Effort(seconds=0, min_rounds=7, max_rounds=7, warm_up=2)
    times = interleave(systems(log, "a", "b"), clock, effort)
    assert times == {"a": [1.0] * 7, "b": [2.0] * 7}
    for pair in zip(clock.calls[::2], clock.calls[1::2], strict=True):
        assert sorted(pair) == ["a", "b"]
    assert clock.settled == 14


def test_threads_that_an_earlier_call_left_spinning_come_to_rest_first():
    spinning = threading.Event()

    def spin():
        spinning.set()
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            pass
        spinning.clear()

    thread = threading.Thread(target=spin)
    thread.start()
    assert spinning.wait(1)
    WallClock().settle()
    assert not spinning.is_set()
    thread.join()


def test_the_order_within_rounds_varies():
    clock = FakeClock(lambda *_: 1.0)
    effort = Effort(seconds=0, min_rounds=30, max_rounds=30)
    interleave(systems([], "a", "b"), clock, effort)
    assert len({tuple(clock.calls[i : i + 2]) for i in range(0, 60, 2)}) == 2


def test_counters_are_reset_before_every_call():
    log = []
    clock = FakeClock(lambda *_: 1.0)
    interleave(systems(log, "a"), clock, Effort(seconds=0, min_rounds=3, max_rounds=3, warm_up=1))
    assert log == [("reset", "a"), ("run", "a")] * 7


def test_rounds_stop_when_the_seconds_are_spent_or_at_the_bound():
    clock = FakeClock(lambda *_: 1.0)
    few = interleave(systems([], "a"), clock, Effort(seconds=0, min_rounds=4, max_rounds=99))
    many = interleave(systems([], "a"), clock, Effort(seconds=60, min_rounds=1, max_rounds=25))
    assert (len(few["a"]), len(many["a"])) == (4, 25)


def test_spread_is_median_and_outer_tenths():
    found = spread([float(n) for n in range(11, 0, -1)])
    assert (found.median_ms, found.p10_ms, found.p90_ms) == (6.0, 2.0, 10.0)
    assert spread([3.0]).p90_ms == 3.0
    with pytest.raises(ValueError, match="no times"):
        spread([])


def test_a_paired_ratio_is_exact_however_much_the_machine_slows():
    draw = random.Random(1)
    slow = [draw.uniform(1, 50) for _ in range(40)]
    found = paired_ratio([2 * s for s in slow], slow)
    assert found.median == pytest.approx(2)
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    draw, covered = random.Random(2), 0
    for trial in range(100):
        a = [1.1 * draw.lognormvariate(0, 0.1) for _ in range(25)]
        b = [draw.lognormvariate(0, 0.1) for _ in range(25)]
        found = paired_ratio(a, b, samples=400, seed=trial)
        covered += found.low <= 1.1 <= found.high
    assert covered >= 88


def test_rounds_must_pair_up():
    with pytest.raises(ValueError, match="argument 2"):
        paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="no rounds"):
        paired_ratio([], [])


def test_progress_is_told():
    told = []
    effort = Effort(seconds=0, min_rounds=12, max_rounds=12)
    interleave(systems([], "a"), FakeClock(lambda *_: 1.0), effort, told.append)
    assert len(told) == 2
    assert "round 10" in told[1]


def test_a_cpu_is_timed_by_the_wall_and_cuda_by_events():
    assert isinstance(clock_of(torch.device("cpu")), WallClock)
    assert isinstance(clock_of(torch.device("cuda")), CudaClock)
    assert 0 <= WallClock().time(lambda: None) < 1000

"""Interleaved paired timing.

In each round every system runs once, in a random order, so that a slow moment of the machine falls
on all of them; ratios are taken within rounds. Before a system's turn the threads of the system
before it come to rest (some runtimes leave threads spinning for tens of milliseconds, each of which
takes a processor from whoever is next), and before its timed call each system runs once untimed:
that call, not the timed one, pays for cold caches and for threads that sleep.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

Progress = Callable[[str], None]


def silent(message: str) -> None:
    """A progress callback that shows nothing."""


class Clock(Protocol):
    def time(self, run: Callable[[], object]) -> float:
        """Milliseconds that one call of `run` takes."""

    def settle(self) -> None:
        """Wait until nothing that an earlier call left behind is running."""


class WallClock:
    """Wall time of the call, for a CPU."""

    patience_s = 0.2

    def settle(self) -> None:
        deadline = time.perf_counter() + self.patience_s
        while time.perf_counter() < deadline and _others_run():
            time.sleep(0.001)

    def time(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3


class CudaClock:
    """Time between two CUDA events around the call's kernels.

    The device is kept busy while the host enqueues, so that the time of launching is not measured:
    for a captured graph there is next to none, for others this is the time of their kernels.
    """

    # About 1 ms at 2 GHz: longer than it takes to enqueue any one of the models' calls.
    busy_cycles = 2_000_000

    def settle(self) -> None:
        torch.cuda.synchronize()

    def time(self, run: Callable[[], object]) -> float:
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(self.busy_cycles)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)


def _others_run() -> bool:
    """Does another thread of this process run, or wait for a processor? False where Linux's /proc
    does not tell."""
    own = str(threading.get_native_id())
    for stat in Path("/proc/self/task").glob("*/stat"):
        if stat.parent.name == own:
            continue
        with contextlib.suppress(OSError):  # it has ended
            if stat.read_text().rpartition(") ")[2].startswith("R"):
                return True
    return False


def clock_of(device: torch.device) -> Clock:
    """The clock that measures calls on `device`."""
    return CudaClock() if device.type == "cuda" else WallClock()


@dataclass(frozen=True)
class Timed:
    """One system to time: its call, and what restores its counters before a call (not timed)."""

    run: Callable[[], object]
    reset: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Spread:
    """Milliseconds a call: median, 10th and 90th percentile."""

    median_ms: float
    p10_ms: float
    p90_ms: float


@dataclass(frozen=True)
class Ratio:
    """A ratio of times in paired rounds, with its bootstrap 95% interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Effort:
    """How much to measure: rounds until `seconds` are spent, within the two bounds."""

    seconds: float = 20.0
    min_rounds: int = 15
    max_rounds: int = 300
    warm_up: int = 3


USUAL_EFFORT = Effort()


def interleave(
    systems: Mapping[str, Timed],
    clock: Clock,
    effort: Effort = USUAL_EFFORT,
    progress: Progress = silent,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Milliseconds of each round for each system; entries of equal position are one round."""
    order, shuffle = list(systems), random.Random(seed)
    for name in order:
        for _ in range(effort.warm_up):
            _once(systems[name])
    times: dict[str, list[float]] = {name: [] for name in order}
    start = time.perf_counter()
    for round_number in range(effort.max_rounds):
        spent = time.perf_counter() - start
        if round_number >= effort.min_rounds and spent > effort.seconds:
            break
        if round_number % 10 == 0:
            progress(f"timing {len(order)} systems: round {round_number}, {spent:.0f} s")
        shuffle.shuffle(order)
        for name in order:
            system = systems[name]
            clock.settle()
            _once(system)
            system.reset()
            times[name].append(clock.time(system.run))
    return times


def _once(system: Timed) -> None:
    system.reset()
    system.run()


def spread(times: Sequence[float]) -> Spread:
    """Median and outer tenths of measured times. Raises `ValueError` for no times."""
    ordered = sorted(times)
    if not ordered:
        raise ValueError("no times were measured")
    return Spread(statistics.median(ordered), _quantile(ordered, 0.1), _quantile(ordered, 0.9))


def paired_ratio(
    numerator: Sequence[float], denominator: Sequence[float], samples: int = 2000, seed: int = 0
) -> Ratio:
    """The median over rounds of numerator / denominator, and its 95% interval.

    The interval is the percentile bootstrap over rounds (Efron and Tibshirani 1993, chapter 13).
    """
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    if not ratios:
        raise ValueError("no rounds were measured")
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(samples))
    return Ratio(statistics.median(ratios), _quantile(medians, 0.025), _quantile(medians, 0.975))


def _quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, interpolated linearly."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])

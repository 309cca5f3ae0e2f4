"""Was the machine ours alone while something was timed?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

STRANGERS = 0.05  # of all processor time
TRIES = 2


def undisturbed(measure: Callable[[], T], note: Callable[[str], None]) -> T:
    """What `measure` gives, measured again while other processes took more than 5% of the
    processors; after the second time what there is. `note` is told of every such time."""
    for attempt in range(TRIES):
        before = _busy()
        result = measure()
        share = _strangers(before, _busy())
        if share < STRANGERS:
            break
        note(f"other processes took {share:.0%} of the processors (time {attempt + 1})")
    return result


def _busy() -> tuple[float, float, float]:
    """Seconds: now, used by all processes of the machine, and by this one."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return time.perf_counter(), 0.0, 0.0
    fields = [int(x) for x in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, soft = fields[:7]
    ticks = os.sysconf("SC_CLK_TCK")
    return (
        time.perf_counter(),
        (user + nice + system + irq + soft) / ticks,
        time.process_time(),
    )


def _strangers(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    wall, everyone, own = (b - a for a, b in zip(before, after, strict=True))
    return max(everyone - own, 0.0) / (wall * (os.cpu_count() or 1))

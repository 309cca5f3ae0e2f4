"""Checking a schedule once: the same schedule of the same program is not simulated again.

The simulation writes every element of every tensor. Its answer depends on the program, the schedule
and vtc's own sources alone, which is what plans are remembered by.
"""

from __future__ import annotations

import dataclasses
import hashlib

from vtc.lowering.check import check
from vtc.lowering.plan import Plan
from vtc.lowering.remembered import Memory
from vtc.lowering.schedule import Schedule, signature
from vtc.lowering.settings import Settings


def checked(schedule: Schedule, plan: Plan, settings: Settings) -> None:
    """Raise PlanCheckError unless `schedule` computes what the plan's program does: as `check`
    finds, or found before."""
    memory = Memory.of(plan, settings)
    known = memory.recall() if memory else None
    digest = _digest(schedule)
    if known and digest in known.checked:
        return
    check(schedule, plan.program)
    if memory and known:
        memory.keep(dataclasses.replace(known, checked=(*known.checked, digest)))


def _digest(schedule: Schedule) -> str:
    """Of all that a schedule says."""
    lines = [str(schedule), f"{schedule.names} {schedule.symbols} {schedule.forms}"]
    for step in schedule.steps:
        lines.append(f"{signature(step)} {step.implementation} {step.operands} {step.stores}")
        lines.append(f"{step.results} {step.regions}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

"""Regions that our own kernels compute: which they are, and the fastest kernel for each.

A region is ours where its step can be described (`described`); what it reads and stores through
index maps then costs no copy. Every way to run the description is timed on random operands, in
CUDA graphs, and the times are kept in the profile cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses import FakeTensor

from vtc.graph.layout import channels_last, is_channels_last
from vtc.graph.program import Program, value_of
from vtc.kernels.convolution import Launch
from vtc.kernels.convolution_candidates import likely
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.described import Undescribed, described
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import isolated, signature
from vtc.lowering.schedule import Step

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]


def own_plan(program: Program) -> Plan:
    """The plan of a program in channels-last whose regions are ours where they can be; the plan of
    the program as it is where none can."""
    plan = Plan.of(channels_last(program))
    own = own_regions(plan)
    return Plan.of(plan.program, own) if own else Plan.of(program)


def own_regions(plan: Plan) -> frozenset[str]:
    """The names of the regions that our kernels can compute, with nothing virtual."""
    homes = plan.homes(NOTHING)
    found = set()
    for region in plan.grouping.regions:
        try:
            described(isolated(region, homes))
        except Undescribed as reason:
            logger.debug("%s is not ours: %s", region.name, reason)
            continue
        if all(is_channels_last(value_of(node)) for node in region.writes):
            found.add(region.name)
    return frozenset(found)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A step's description with its launches by name and operands to measure them on."""

    results: tuple[torch.Tensor, ...]
    launches: dict[str, Launch]
    values: tuple[Any, ...]
    tensors: list[torch.Tensor]


@dataclass(frozen=True, eq=False)
class Tuner:
    """Finds the fastest launch of a step. Times are in microseconds, by step and launch name."""

    cache: ProfileCache
    progress: Progress
    prepared: dict[str, Prepared] = field(default_factory=dict)

    def prepare(self, steps: Iterable[Step]) -> None:
        """Compile the kernels of all steps at once, by several threads."""
        for step in steps:
            if step.implementation == "kernel" and (key := signature(step)) not in self.prepared:
                found = _prepared(step)
                if found is not None:
                    self.prepared[key] = found
        pairs = [
            (self.prepared[key], name)
            for key, own in self.prepared.items()
            for name in own.launches
            if self.cache.get(_key(key, name)) is None
        ]
        if not pairs:
            return
        self.progress(f"compiling {len(pairs)} kernels for {len(self.prepared)} regions")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ran = list(pool.map(lambda p: _runs(p[0].launches[p[1]], p[0].tensors), pairs))
        torch.cuda.synchronize()
        for (own, name), runs in zip(pairs, ran, strict=True):
            if not runs:
                del own.launches[name]

    def fastest(self, step: Step) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        """The step as a callable over its operands; None where no kernel of ours runs it."""
        key = signature(step)
        if key not in self.prepared:
            self.prepare([step])
        own = self.prepared.get(key)
        if own is None:
            return None
        missing = [name for name in own.launches if self.cache.get(_key(key, name)) is None]
        if missing:
            self.progress(f"measuring {len(missing)} kernels for {step.name}")
            sets = _operand_sets(own)
            for name in missing:
                launch = own.launches[name]
                self.cache.put(_key(key, name), timing.replayed(_on_operands(launch), sets))
        times = {name: self.cache.get(_key(key, name)) or timing.NEVER for name in own.launches}
        best = min(times, key=times.__getitem__, default=None)
        if best is None or times[best] >= timing.NEVER:
            return None
        logger.debug("%s: %s, %.2f us", step.name, best, times[best])
        return as_step(own.launches[best], own.results)


def _prepared(step: Step) -> Prepared | None:
    try:
        description = described(step)
    except Undescribed as reason:
        logger.debug("%s has no kernel: %s", step.name, reason)
        return None
    placeholders = [n for n in step.graph.graph.nodes if n.op == "placeholder"]
    values = (*map(value_of, placeholders), *description.results)
    tensors = list(timing.operands(values))
    launches = {launch.name: launch for launch in likely(description.convolution, tensors)}
    return Prepared(description.results, launches, values, tensors)


def _on_operands(launch: Launch) -> Callable[..., None]:
    def call(*operands: torch.Tensor) -> None:
        launch(operands)

    return call


def _runs(launch: Launch, tensors: Sequence[torch.Tensor]) -> bool:
    try:
        with torch.no_grad():
            launch(tensors)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # no room in shared memory, a plan that the library cannot run
        logger.debug("%s cannot run", launch.name, exc_info=True)
        return False
    return True


def _operand_sets(own: Prepared) -> list[list[torch.Tensor]]:
    """Operands to use in turn, so that no call finds them in a cache."""
    size = sum(t.untyped_storage().nbytes() for t in own.tensors)
    more = range(min(15, timing.ROTATED_BYTES["cuda"] // max(size, 1)))
    return [own.tensors, *(list(timing.operands(own.values)) for _ in more)]


def as_step(
    launch: Launch, results: Sequence[FakeTensor]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The launch as a step is called: over its operands, with new tensors for its results."""
    made = [(tuple(r.shape), tuple(r.stride()), r.dtype, r.device) for r in results]

    def call(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = [torch.empty_strided(s, t, dtype=d, device=v) for s, t, d, v in made]
        launch([*operands, *out])
        return tuple(out)

    return call


def _key(step: str, launch: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in launch)
    return f"own-{step}-{text}"

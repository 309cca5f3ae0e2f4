"""Regions that our own kernels compute: which they are, and the fastest kernel for each.

A region is ours where its step can be described (`described`): a convolution, a pooling, or matmuls
of a few rows. What it reads and stores through index maps then costs no copy. Every way to run the
description is timed on random operands, in CUDA graphs, and the times are kept in the profile
cache.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx
from torch._subclasses import FakeTensor

from vtc.graph.layout import channels_last, is_channels_last
from vtc.graph.program import Program, value_of
from vtc.kernels import matmul_candidates
from vtc.kernels.convolution import Convolution, Launch, deferred
from vtc.kernels.convolution_candidates import likely
from vtc.kernels.matmul import Matmul
from vtc.kernels.matmul_text import build
from vtc.kernels.operators import CONVOLUTIONS
from vtc.kernels.pooling import Pooling, pooling_candidates
from vtc.kernels.precompile import begin
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.describe_matmul import call_of
from vtc.lowering.described import described
from vtc.lowering.description import Undescribed
from vtc.lowering.implement import inductor
from vtc.lowering.kernel_regions import cut
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import isolated
from vtc.lowering.schedule import Step, signature

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]

FEW_ROWS = 64
"""Rows of a matmul up to which our kernels are tried: libraries are at their best with more."""

MOST_POOLINGS = 5

MATMUL_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def own_plan(program: Program) -> Plan:
    """The plan of a program whose regions are ours where they can be: in channels-last where it has
    convolutions of ours, and with projections that share their rows as one region. The plan of the
    program as it is where no region is ours."""
    plan = Plan.of(channels_last(program))
    known: _Known = {}
    whole = own_regions(plan, known)
    others = {n for r in plan.grouping.regions if r.name not in whole for n in r.nodes}
    chosen = frozenset(
        n for n in plan.program.nodes if _few_rows(n) or (n in others and n.target in CONVOLUTIONS)
    )
    while True:
        divided = cut(plan.program, plan.grouping, chosen)
        ours = Plan.of(plan.program, grouping=divided) if chosen else plan
        own = own_regions(ours, known)
        refused = {n for r in ours.grouping.regions if r.name not in own for n in r.nodes}
        if not chosen & refused:
            break
        chosen -= refused
    return Plan.of(plan.program, own, ours.grouping) if own else Plan.of(program)


def _few_rows(node: fx.Node) -> bool:
    """A matmul whose weight is most of what moves: what our kernels are for."""
    call = call_of(node)
    if call is None or value_of(node).dtype not in MATMUL_TYPES:
        return False
    sizes = [*value_of(call.rows).shape, *value_of(call.weight).shape]
    if not all(isinstance(n, int) for n in sizes):
        return False
    return 0 < value_of(call.rows).numel() <= FEW_ROWS * value_of(call.rows).shape[-1]


_Kind = Literal["few rows", "image"]


_Known = dict[Hashable, _Kind | None]
"""What kind of kernel computes a region, by its nodes and by the signature of its step: cutting
leaves most regions as they were, and most steps of a model are like others."""


def own_regions(plan: Plan, known: _Known | None = None) -> frozenset[str]:
    """The names of the regions that our kernels can compute, with nothing virtual; what is found is
    added to `known`."""
    known = {} if known is None else known
    homes = plan.homes(NOTHING)
    found = set()
    for region in plan.grouping.regions:
        key = region.nodes, region.reads, region.writes
        if key not in known:
            step = isolated(region, homes)
            alike = signature(step)
            if alike not in known:
                known[alike] = _kind_of(step)
            known[key] = known[alike]
        image = all(is_channels_last(value_of(node)) for node in region.writes)
        if known[key] == "few rows" or (known[key] == "image" and image):
            found.add(region.name)
    return frozenset(found)


def _kind_of(step: Step) -> _Kind | None:
    """The kind of kernel of ours that computes a step; None for no kernel."""
    try:
        problem = described(step).problem
    except Undescribed as reason:
        logger.debug("%s is not ours: %s", step.name, reason)
        return None
    if isinstance(problem, Matmul):
        return "few rows" if problem.m <= FEW_ROWS else None
    return "image"


@dataclass(frozen=True, eq=False)
class Prepared:
    """A step's description with its launches by name and operands to measure them on. rivalled: is
    what TorchInductor makes of the step measured as well?"""

    results: tuple[torch.Tensor, ...]
    launches: dict[str, Launch]
    values: tuple[Any, ...]
    tensors: list[torch.Tensor]
    rivalled: bool


@dataclass(frozen=True, eq=False)
class Tuner:
    """Finds the fastest launch of a step. Times are in microseconds, by step and launch name."""

    cache: ProfileCache
    progress: Progress
    prepared: dict[str, Prepared] = field(default_factory=dict)
    pending: list[tuple[Prepared, str]] = field(default_factory=list)
    waits: list[Callable[[], int]] = field(default_factory=list)

    def begin(self, steps: Iterable[Step]) -> None:
        """Begin to compile the kernels of all steps at once, by several processes."""
        pairs = []
        for step in steps:
            if step.implementation == "kernel" and (key := signature(step)) not in self.prepared:
                found = _prepared(step)
                if found is not None:
                    self.prepared[key] = found
                    names = [n for n in found.launches if self.cache.get(_key(key, n)) is None]
                    pairs += [(found, name) for name in names]
        if not pairs:
            return
        self.progress(f"compiling {len(pairs)} kernels for {len(self.prepared)} regions")
        with torch.no_grad():
            wait = begin(_generated(own.launches[name], own.tensors) for own, name in pairs)
        self.pending.extend(pairs)
        self.waits.append(wait)

    def prepare(self, steps: Iterable[Step]) -> None:
        """Compile the kernels of all steps, and leave out those that cannot run."""
        self.begin(steps)
        for wait in self.waits:
            wait()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ran = list(pool.map(lambda p: _runs(p[0].launches[p[1]], p[0].tensors), self.pending))
        if self.pending:
            torch.cuda.synchronize()
        for (own, name), runs in zip(self.pending, ran, strict=True):
            if not runs:
                del own.launches[name]
        self.pending.clear()
        self.waits.clear()

    def fastest(self, step: Step) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        """The step as a callable over its operands; None where no kernel of ours runs it."""
        found = self._fastest(step)
        if found is None:
            return None
        own, best, _ = found
        return as_step(own.launches[best], own.results)

    def microseconds(self, step: Step) -> float:
        """The time of the fastest kernel of ours for a step; NEVER where none runs it."""
        found = self._fastest(step)
        return timing.NEVER if found is None else found[2]

    def _fastest(self, step: Step) -> tuple[Prepared, str, float] | None:
        """The fastest launch of a step by its name, and its time."""
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
        if own.rivalled and self.generated(step) < times[best]:
            return None
        return own, best, times[best]

    def generated(self, step: Step) -> float:
        """Microseconds of the step as TorchInductor compiles it, with the libraries' matmuls."""
        name = _key(signature(step), "inductor")
        if self.cache.get(name) is None:
            fakes = [value_of(n) for n in step.graph.graph.nodes if n.op == "placeholder"]
            sets = timing.rotated(lambda: list(timing.operands(fakes)))
            self.cache.put(name, timing.replayed(inductor(step.graph, fakes), sets))
        return self.cache.get(name) or timing.NEVER


def _prepared(step: Step) -> Prepared | None:
    try:
        description = described(step)
    except Undescribed as reason:
        logger.debug("%s has no kernel: %s", step.name, reason)
        return None
    placeholders = [n for n in step.graph.graph.nodes if n.op == "placeholder"]
    values = (*map(value_of, placeholders), *description.results)
    tensors = list(timing.operands(values))
    problem = description.problem
    if isinstance(problem, Matmul):
        configs = matmul_candidates.likely(problem)
        found = [deferred(str(c), functools.partial(build, problem, c)) for c in configs]
    elif isinstance(problem, Pooling):
        found = pooling_candidates(problem)[:MOST_POOLINGS]
    else:
        found = likely(problem, tensors)
    launches = {launch.name: launch for launch in found}
    rivalled = not isinstance(problem, Convolution)
    return Prepared(description.results, launches, values, tensors, rivalled)


def _generated(launch: Launch, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """A call of the launch's generated kernels."""
    return functools.partial(launch.generated or launch.run, tensors)


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
    return timing.rotated(lambda: list(timing.operands(own.values)))


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

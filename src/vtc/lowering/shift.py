"""Which caches move on in place: where measurement finds that faster than what is done now, and
the kernels give the same.

Attention on a sliding window comes first: our kernel moves keys and values on while it reads them.
Of other caches that move on, each is timed by itself.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vtc.graph.program import Program
from vtc.graph.shift import Shift, Sliding, find, find_sliding, rewrite, rewrite_sliding
from vtc.kernels import attention, shift, sliding_attention
from vtc.kernels.attention import Shape, as_argument
from vtc.kernels.libraries import grouped_heads
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache

logger = logging.getLogger(__name__)

WORTH = 0.97
"""Ours is taken when it needs less than this part of the other way's time."""
DIFFERENT = 1e-2
"""Root-mean-square difference, relative, that half-precision results may have."""

Progress = Callable[[str], None]


def moved_on(
    program: Program, cache: ProfileCache, progress: Progress
) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::sliding_attention` and `vtc::shift` where they are faster, and a
    sentence about each."""
    fused: dict[Sliding, dict[str, Any]] = {}
    alone: dict[Shift, dict[str, Any]] = {}
    notes = []
    slidings = find_sliding(program, attention.OVERLOAD, grouped_heads)
    logger.debug("%d attentions on caches that move on", len(slidings))
    for sliding in slidings:
        found = _chosen(_Sliding(sliding), cache, progress)
        if found is not None:
            fused[sliding] = {"tiling": found[0]}
            notes.append(f"{sliding.node.name}: vtc::sliding_attention, {found[1]}")
    if fused:
        program = rewrite_sliding(program, fused, sliding_attention.OVERLOAD)
    for one in find(program):
        found = _chosen(_Shift(one), cache, progress)
        if found is not None:
            alone[one] = {"tiling": found[0]}
            notes.append(f"{one.node.name}: vtc::shift, {found[1]}")
    if alone:
        program = rewrite(program, alone, shift.OVERLOAD)
    return program, tuple(notes)


def moved_on_unmeasured(program: Program) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::shift` for every cache that moves on, and a sentence about each: for
    memory, whatever it takes."""
    found = [s for s in find(program) if shift.supports(*s.values, s.dim)]
    if not found:
        return program, ()
    program = rewrite(program, {s: {} for s in found}, shift.OVERLOAD)
    return program, tuple(f"{s.node.name}: vtc::shift, in place" for s in found)


class _Shift:
    """A cache that moves on, by itself."""

    def __init__(self, found: Shift) -> None:
        self.dim, self.operands = found.dim, list(found.values)
        self.written: tuple[int, ...] = (0,)
        self.what = f"a cache of {tuple(self.operands[0].shape)} that moves on"

    @property
    def supported(self) -> bool:
        cache, new = self.operands
        return shift.supports(cache, new, self.dim)

    def tilings(self, processors: int) -> Mapping[str, list[int]]:
        cache = self.operands[0]
        shape = cache.shape
        sizes = shape[: self.dim].numel(), shape[self.dim], shape[self.dim + 1 :].numel()
        found = shift.candidates(*sizes, processors)
        return {str(t): shift.as_argument(t) for t in found}

    def ours(self, tiling: list[int]) -> Callable[..., Any]:
        return lambda *operands: shift.IN_PLACE(*operands, self.dim, tiling)

    def other(self, *operands: Tensor) -> Tensor:
        cache, new = operands
        return cache.copy_(shift.shift(cache, new, self.dim))


class _Sliding:
    """Attention on two caches that move on."""

    def __init__(self, found: Sliding) -> None:
        self.options = found.options
        self.tiling = found.node.kwargs.get("tiling")
        given = [v for v in found.values if v is not None]
        self.operands: list[Tensor] = given
        self.written: tuple[int, ...] = (1, 2)
        self.what = f"attention on caches of {tuple(given[1].shape)} that move on"

    @property
    def supported(self) -> bool:
        return sliding_attention.supports(*self.operands[:5])

    def tilings(self, processors: int) -> Mapping[str, list[int]]:
        found = sliding_attention.candidates(Shape.of(*self.operands[:3]), processors)
        return {str(t): as_argument(t) for t in found}

    def ours(self, tiling: list[int]) -> Callable[..., Any]:
        return lambda *operands: sliding_attention.IN_PLACE(
            *operands, **self.options, tiling=tiling
        )

    def other(self, *operands: Tensor) -> Tensor:
        query, key, value, new_key, new_value, *mask = operands
        keys, values = shift.shift(key, new_key, 2), shift.shift(value, new_value, 2)
        out = attention.OVERLOAD(query, keys, values, *mask, **self.options, tiling=self.tiling)
        key.copy_(keys)
        value.copy_(values)
        return out


@dataclass(frozen=True)
class Times:
    tiling: list[int]
    name: str
    ours: float
    theirs: float


def _chosen(
    problem: _Shift | _Sliding, cache: ProfileCache, progress: Progress
) -> tuple[list[int], str] | None:
    """The best tiling of ours and a sentence about it, where that is worth it."""
    if not problem.supported:
        return None
    try:
        times = _measured(problem, cache, progress)
    except torch.cuda.OutOfMemoryError:
        return None  # no room to measure: it stays as it is
    logger.debug("%s: %s", problem.what, times)
    if times.ours >= WORTH * times.theirs:
        return None
    said = f"{times.name}: {times.ours:.1f} us in the place of {times.theirs:.1f} us"
    return times.tiling, said


def _measured(problem: _Shift | _Sliding, cache: ProfileCache, progress: Progress) -> Times:
    device = problem.operands[0].device
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    tilings = problem.tilings(processors)
    key = _key(problem)
    missing = [n for n in ("other", *tilings) if cache.get(f"{key}-{n}") is None]
    if missing:
        progress(f"measuring {problem.what}")
        sets = _operand_sets(problem.operands)
        for name in missing:
            call: Callable[..., Any] = problem.other
            if name in tilings:
                call = problem.ours(tilings[name])
                if not _agrees(problem, call, sets[0]):
                    cache.put(f"{key}-{name}", timing.NEVER)
                    continue
            cache.put(f"{key}-{name}", timing.replayed(call, sets))
    times = {name: cache.get(f"{key}-{name}") or timing.NEVER for name in tilings}
    best = min(times, key=times.__getitem__)
    return Times(tilings[best], best, times[best], cache.get(f"{key}-other") or 0.0)


def _key(problem: _Shift | _Sliding) -> str:
    layouts = [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in problem.operands]
    given = problem.dim if isinstance(problem, _Shift) else (problem.options, problem.tiling)
    text = f"{type(problem).__name__} {layouts} {given}"
    return "shift-" + hashlib.sha256(text.encode()).hexdigest()[:24]


def _operand_sets(fakes: Sequence[Tensor]) -> list[list[Tensor]]:
    """Operands to use in turn, so that no call finds them in a cache; masks show everything."""
    sets = [_operands(fakes)]
    size = sum(t.untyped_storage().nbytes() for t in sets[0])
    more = range(min(15, timing.ROTATED_BYTES["cuda"] // max(size, 1)))
    return [*sets, *(_operands(fakes) for _ in more)]


def _operands(fakes: Sequence[Tensor]) -> list[Tensor]:
    made = list(timing.operands(fakes))
    return [torch.ones_like(t) if t.dtype is torch.bool else t for t in made]


def _agrees(
    problem: _Shift | _Sliding, call: Callable[..., Any], operands: Sequence[Tensor]
) -> bool:
    """Does ours leave the same in the caches, element by element, and give about the same?"""
    own, theirs = ([t.clone() for t in operands] for _ in range(2))
    try:
        found, expected = call(*own), problem.other(*theirs)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # no room in shared memory, a compiler that refuses
        logger.debug("a kernel that moves a cache on cannot run", exc_info=True)
        return False
    if not all(torch.equal(own[k], theirs[k]) for k in problem.written):
        logger.debug("%s: a kernel leaves another cache", problem.what)
        return False
    if found is None:
        return True
    difference = (found.float() - expected.float()).square().mean().sqrt()
    return bool(difference <= DIFFERENT * expected.float().square().mean().sqrt())

"""Which caches move on in place: where measurement finds that faster than what is done now, and the
kernels give the same. Those that attention reads come before, in `cached_attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vtc.graph.program import Program
from vtc.graph.shift import Shift, find, rewrite
from vtc.kernels import shift
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.contest import Call, Contest, Progress, key_of, measured

WORTH = 0.97
"""Ours is taken when it needs less than this part of the other way's time."""


def moved_on(
    program: Program, cache: ProfileCache, progress: Progress
) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::shift` where it is faster, and a sentence about each."""
    chosen: dict[Shift, dict[str, Any]] = {}
    notes = []
    for found in find(program):
        if not shift.supports(*found.values, found.dim):
            continue
        try:
            times = measured(_Shift(found), cache, progress)
        except torch.cuda.OutOfMemoryError:
            continue  # no room to measure: it stays as it is
        if times.ours < WORTH * times.theirs:
            chosen[found] = {"tiling": times.tiling}
            notes.append(f"{found.node.name}: vtc::shift, {times.said}")
    if chosen:
        program = rewrite(program, chosen, shift.OVERLOAD)
    return program, tuple(notes)


def moved_on_unmeasured(program: Program) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::shift` for every cache that moves on, and a sentence about each: for
    memory, whatever it takes."""
    found = [s for s in find(program) if shift.supports(*s.values, s.dim)]
    if not found:
        return program, ()
    program = rewrite(program, {s: {} for s in found}, shift.OVERLOAD)
    return program, tuple(f"{s.node.name}: vtc::shift, in place" for s in found)


class _Shift(Contest):
    """A cache that moves on, by itself."""

    written = (0,)

    def __init__(self, found: Shift) -> None:
        self.dim, self.fakes = found.dim, found.values
        self.what = f"a cache of {tuple(self.fakes[0].shape)} that moves on"

    @property
    def key(self) -> str:
        return key_of("shift", self.fakes, self.dim)

    @property
    def tilings(self) -> Mapping[str, list[int]]:
        cache = self.fakes[0]
        shape = cache.shape
        sizes = shape[: self.dim].numel(), shape[self.dim], shape[self.dim + 1 :].numel()
        found = shift.candidates(*sizes, timing.processors(cache.device))
        return {str(t): shift.as_argument(t) for t in found}

    def operands(self) -> list[Tensor]:
        return list(timing.operands(self.fakes))

    def ours(self, tiling: list[int]) -> Call:
        return lambda *operands: shift.IN_PLACE(*operands, self.dim, tiling)

    def theirs(self) -> Call:
        return lambda cache, new: cache.copy_(shift.shift(cache, new, self.dim))

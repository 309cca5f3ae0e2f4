"""Which attentions change the caches that they read: where measurement finds our kernels that store
new rows, or move a window on, faster than attention behind it, and they give the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from vtc.graph import rotary
from vtc.graph.cached_attention import CachedAttention, find_sliding, find_storing, rewrite
from vtc.graph.program import Program
from vtc.kernels import attention, shift, sliding_attention, storing_attention
from vtc.kernels.attention_tiling import Shape, Tiling, as_argument
from vtc.kernels.libraries import grouped_heads
from vtc.kernels.storing_attention import rotated
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.contest import Call, Contest, Progress, Times, key_of, measured
from vtc.lowering.implement import inductor

_Found = TypeVar("_Found")


def attended_on_caches(
    program: Program, cache: ProfileCache, progress: Progress
) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::sliding_attention` and `vtc::storing_attention` in the place of
    `vtc::attention` where they are faster, and a sentence about each."""
    notes: list[str] = []
    for find, contest in ((find_sliding, _Sliding), (find_storing, _Storing)):
        problems = ((f, contest(f)) for f in find(program, attention.OVERLOAD, grouped_heads))
        chosen: dict[CachedAttention, dict[str, Any]] = {}
        for found, times in _faster(problems, cache, progress):
            chosen[found] = {"tiling": times.tiling}
            name = contest.kernels.OVERLOAD.name().partition(".")[0]
            notes.append(f"{found.node.name}: {name}, {times.said}")
        if chosen:
            program = rewrite(program, chosen, contest.kernels.OVERLOAD)
    program, turned = _rotated(program, cache, progress)
    return program, (*notes, *turned)


def _rotated(
    program: Program, cache: ProfileCache, progress: Progress
) -> tuple[Program, tuple[str, ...]]:
    """`program` with rotary embeddings as a part of the attention that stores the keys, where that
    is faster, and a sentence about each."""
    problems = ((f, Rotating(f)) for f in rotary.find(program, storing_attention.OVERLOAD))
    faster = list(_faster(problems, cache, progress))
    if not faster:
        return program, ()
    chosen = {found: {"tiling": times.tiling} for found, times in faster}
    notes = (
        f"{found.node.name}: rotates queries and keys, {times.said}" for found, times in faster
    )
    return rotary.rewrite(program, chosen, storing_attention.OVERLOAD), tuple(notes)


def _faster(
    problems: Iterable[tuple[_Found, _Cached]], cache: ProfileCache, progress: Progress
) -> Iterator[tuple[_Found, Times]]:
    """What measures faster by our kernels, with its times."""
    for found, problem in problems:
        if not problem.supported:
            continue
        try:
            times = measured(problem, cache, progress)
        except torch.cuda.OutOfMemoryError:
            continue  # no room to measure: it stays as it is
        if times.ours < problem.worth * times.theirs:
            yield found, times


class _Cached(Contest):
    """Attention that changes the caches it reads.

    kernels: the module of the operator. worth: it is taken when it needs less than this part of the
    other way's time.
    """

    written = (1, 2)
    kernels: Any
    worth: float

    def __init__(self, found: CachedAttention | rotary.RotatedAttention) -> None:
        self.options = found.options
        self.tiling = found.node.kwargs.get("tiling")
        self.fakes = [value for value in found.values if value is not None]
        self.what = f"attention on caches of {tuple(self.fakes[1].shape)}"

    @property
    def key(self) -> str:
        name = self.kernels.OVERLOAD.name().partition("::")[2].partition(".")[0]
        return key_of(name, self.fakes, self.options, self.tiling)

    @property
    def tilings(self) -> Mapping[str, list[int]]:
        processors = timing.processors(self.fakes[0].device)
        found: tuple[Tiling, ...] = self.kernels.candidates(Shape.of(*self.fakes[:3]), processors)
        return {str(t): as_argument(t) for t in found}

    @property
    @abstractmethod
    def supported(self) -> bool:
        """Do the kernels take the operands?"""

    def operands(self) -> list[Tensor]:
        """Masks show everything."""
        made = list(timing.operands(self.fakes))
        return [torch.ones_like(t) if t.dtype is torch.bool else t for t in made]

    def ours(self, tiling: list[int]) -> Call:
        return lambda *operands: self.kernels.IN_PLACE(*operands, **self.options, tiling=tiling)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: list[Tensor]) -> Tensor:
        """What is done now, once the caches are as they should be."""
        out: Tensor = attention.OVERLOAD(
            query, key, value, *mask, **self.options, tiling=self.tiling
        )
        return out


class _Sliding(_Cached):
    """On two caches that move on."""

    kernels, worth = sliding_attention, 0.97

    @property
    def supported(self) -> bool:
        return sliding_attention.supports(*self.fakes[:5])

    def theirs(self) -> Call:
        def call(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            new_key: Tensor,
            new_value: Tensor,
            *mask: Tensor,
        ) -> Tensor:
            keys, values = shift.shift(key, new_key, 2), shift.shift(value, new_value, 2)
            out = self.attended(query, keys, values, list(mask))
            key.copy_(keys)
            value.copy_(values)
            return out

        return call


class _Storing(_Cached):
    """On two caches that get new rows. The other way stores the keys as they are computed, and the
    values by a kernel of their own: ours is a kernel less, which alone shows in a whole model."""

    kernels, worth = storing_attention, 1.05

    @property
    def supported(self) -> bool:
        return storing_attention.supports(*self.fakes[:6])

    def operands(self) -> list[Tensor]:
        """Places differ, at the end of the caches."""
        made = super().operands()
        made[5] = at_the_end(made[1], made[5])
        return made

    def theirs(self) -> Call:
        def call(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            new_key: Tensor,
            new_value: Tensor,
            places: Tensor,
            *mask: Tensor,
        ) -> Tensor:
            value.index_copy_(2, places, new_value)
            return self.attended(query, key, value, list(mask))

        return call

    def meaning(self) -> Call:
        def call(query: Tensor, key: Tensor, *others: Tensor) -> Tensor:
            key.index_copy_(2, others[3], others[1])
            return self.theirs()(query, key, *others)

        return call


class Rotating(_Cached):
    """On two caches that get new rows, with a rotary embedding of queries and new keys. The other
    way computes that by kernels of its own."""

    kernels, worth, exact = storing_attention, 1.0, False

    def __init__(self, found: rotary.RotatedAttention) -> None:
        super().__init__(found)
        self.masked = found.values[6] is not None

    @property
    def key(self) -> str:
        return f"rotating-{super().key}"

    @property
    def supported(self) -> bool:
        return storing_attention.supports(*self.fakes[:6], *self.fakes[-2:])

    @property
    def tilings(self) -> Mapping[str, list[int]]:
        """The one that is fastest without, and those that join nothing."""
        return {
            name: tiling
            for name, tiling in super().tilings.items()
            if tiling == self.tiling or Tiling(*tiling).splits == 1
        }

    def operands(self) -> list[Tensor]:
        """Places differ, at the end of the caches."""
        made = super().operands()
        made[5] = at_the_end(made[1], made[5])
        return made

    def given(self, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """The operands of a call, with a mask or without."""
        *first, cos, sin = operands
        return [*first, cos, sin] if self.masked else [*first, None, cos, sin]

    def ours(self, tiling: list[int]) -> Call:
        return lambda *operands: self.kernels.IN_PLACE(
            *self.given(operands), **self.options, tiling=tiling
        )

    def theirs(self) -> Call:
        with FakeTensorMode():
            fakes = [
                torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
                for t in (self.fakes[0], self.fakes[3], *self.fakes[-2:])
            ]
        traced = make_fx(lambda q, k, c, s: (rotated(q, c, s), rotated(k, c, s)))(*fakes)
        turn = inductor(traced, fakes)

        def call(*operands: Tensor) -> Tensor:
            query, keys, values, new, *others = self.given(operands)[:-2]
            query, new = turn(query, new, *operands[-2:])
            out: Tensor = self.kernels.IN_PLACE(
                query, keys, values, new, *others, **self.options, tiling=self.tiling
            )
            return out

        return call

    def meaning(self) -> Call:
        def call(*operands: Tensor) -> Tensor:
            query, keys, values, new, *others = self.given(operands)[:-2]
            query, new = (rotated(t, *operands[-2:]) for t in (query, new))
            out: Tensor = self.kernels.IN_PLACE(
                query, keys, values, new, *others, **self.options, tiling=self.tiling
            )
            return out

        return call


def at_the_end(cache: Tensor, places: Tensor) -> Tensor:
    """Places that differ, for as many rows, at the end of a cache."""
    keys = cache.shape[2]
    return torch.arange(keys - len(places), keys, dtype=places.dtype, device=places.device)

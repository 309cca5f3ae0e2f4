"""Which attentions our kernels compute: where measurement finds them faster than what is done now.

An attention of the program is timed as a plan calls it: keys and values read where they are, with
heads that are not repeated. Each distinct shape is measured once and kept in the profile cache.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from vtc.graph.attention import Attention, find, rewrite
from vtc.graph.program import Program, value_of
from vtc.index.map import IndexMap
from vtc.kernels import attention as kernels
from vtc.kernels.attention_tiling import Shape, Tiling, as_argument, candidates
from vtc.kernels.libraries import grouped_heads
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.contest import Call, Contest, Progress, measured
from vtc.lowering.implement import inductor

WORTH = 0.97
"""Our kernels are taken when they need less than this part of the other way's time."""


@dataclass(frozen=True)
class Layout:
    """Shape, strides and dtype of an operand."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(value: Tensor) -> Layout:
        return Layout(tuple(value.shape), tuple(value.stride()), value.dtype)

    def random(self, device: torch.device) -> Tensor:
        """Normal values; a bool mask shows everything."""
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        if self.dtype is torch.bool:
            storage = torch.ones(extent, dtype=self.dtype, device=device)
        else:
            storage = torch.randn(extent, dtype=self.dtype, device=device)
        return storage.as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Problem:
    """An attention as a kernel is given it: query, key, value and mask, if there is one."""

    layouts: tuple[Layout, ...]
    scale: float
    softcap: float | None
    causal: bool
    written_out: bool

    @property
    def key(self) -> str:
        return "attention-" + hashlib.sha256(repr(self).encode()).hexdigest()[:24]

    @property
    def grouped(self) -> int:
        return self.layouts[0].shape[1] // self.layouts[1].shape[1]

    def __str__(self) -> str:
        query, key = self.layouts[0].shape, self.layouts[1].shape
        return f"{query[1]} heads on {key[1]}, {query[2]} x {key[2]} x {query[3]}, batch {query[0]}"


def attended(
    program: Program, cache: ProfileCache, progress: Progress
) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::attention` where that is faster, and a sentence about each."""
    chosen: dict[Attention, dict[str, Any]] = {}
    notes = {}
    for attention in find(program):
        operands = [value for value in attention.values[:3] if value is not None]
        if not kernels.supports(*operands):
            continue
        problem = _problem(attention, program)
        try:
            tiling, ours, theirs = _measured(problem, operands[0].device, cache, progress)
        except torch.cuda.OutOfMemoryError:
            continue  # no room to measure: it stays as it is
        if ours < WORTH * theirs:
            chosen[attention] = {"tiling": as_argument(tiling)}
            times = f"{ours:.1f} us in the place of {theirs:.1f} us"
            notes[attention] = f"{attention.node.name}: vtc::attention, {tiling}: {times}"
    if not chosen:
        return program, ()
    program = rewrite(program, chosen, kernels.OVERLOAD)
    return program, tuple(n for a, n in notes.items() if a.call.target is kernels.OVERLOAD)


def _problem(attention: Attention, program: Program) -> Problem:
    plain = [Layout.of(value) for value in attention.values if value is not None]
    read = [_read(n, program) for n in (attention.key, attention.value)]
    layouts = plain
    if not attention.turned and read[0].shape[1] == read[1].shape[1]:
        layouts = [plain[0], *read, *plain[3:]]
    written_out = bool(attention.absorbed)
    return Problem(
        tuple(layouts), attention.scale, attention.softcap, attention.causal, written_out
    )


def _read(node: fx.Node, program: Program) -> Layout:
    """The layout in which a kernel reads keys or values: before their heads are repeated."""
    own = Layout.of(value_of(node))
    total = IndexMap.identity(own.shape)
    while node in program.movements:
        bound = program.movements[node]
        if bound.movement.load is None or len(bound.sources) != 1:
            break
        total = total.compose({0: bound.movement.load})
        (node,) = bound.sources
        heads = grouped_heads(total)
        if heads is not None and heads.dim == 1 and not heads.swapped:
            batch, count, keys, dim = own.shape
            shape = (batch, count // heads.repeats, keys, dim)
            return Layout(shape, _cached(node, program).stride(), own.dtype)
    return own


def _cached(node: fx.Node, program: Program) -> Tensor:
    """The tensor whose storage `node` is in once its updates are done in place."""
    while node in program.movements:
        bound = program.movements[node]
        if bound.movement.inplace is None:
            break
        node = bound.sources[bound.movement.inplace]
    value: Tensor = value_of(node)
    return value


def _measured(
    problem: Problem, device: torch.device, cache: ProfileCache, progress: Progress
) -> tuple[Tiling, float, float]:
    """The best tiling, its microseconds, and those of what is done without our kernels."""
    times = measured(_Contest(problem, device), cache, progress)
    return Tiling(*times.tiling), times.ours, times.theirs


class _Contest(Contest):
    """`vtc::attention` against PyTorch's, or against what the written-out form is compiled to."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem, self.device = problem, device
        self.what = f"attention of {problem}"

    @property
    def key(self) -> str:
        return self.problem.key

    @property
    def tilings(self) -> Mapping[str, list[int]]:
        layouts = self.problem.layouts[:3]
        query, key, value = (torch.empty(a.shape, device="meta") for a in layouts)
        found = candidates(Shape.of(query, key, value), timing.processors(self.device))
        return {str(t): as_argument(t) for t in found}

    def operands(self) -> list[Tensor]:
        return [layout.random(self.device) for layout in self.problem.layouts]

    def ours(self, tiling: list[int]) -> Call:
        problem = self.problem
        return lambda *operands: kernels.OVERLOAD(
            *operands,
            causal=problem.causal,
            scale=problem.scale,
            softcap=problem.softcap,
            tiling=tiling,
        )

    def theirs(self) -> Call:
        return self._other

    @functools.cached_property
    def _other(self) -> Call:
        if self.problem.written_out:
            return _compiled(self.problem, self.device)
        return functools.partial(_called, self.problem)


def _called(
    problem: Problem, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=problem.causal,
        scale=problem.scale,
        enable_gqa=problem.grouped > 1,
    )


def _compiled(problem: Problem, device: torch.device) -> Call:
    """The written-out form as TorchInductor compiles it, on heads that are not repeated."""

    def call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, heads, rows, dim = query.shape
        kept = heads // problem.grouped
        merged = query.reshape(batch, kept, problem.grouped * rows, dim)
        logits = (merged @ key.transpose(2, 3)).reshape(batch, heads, rows, -1) * problem.scale
        if problem.softcap is not None:
            logits = torch.tanh(logits / problem.softcap) * problem.softcap
        if mask is not None:
            logits = logits + mask
        weights = torch.softmax(logits, -1, dtype=torch.float32).to(query.dtype)
        weights = weights.reshape(batch, kept, problem.grouped * rows, -1)
        return (weights @ value).reshape(batch, heads, rows, -1)

    with FakeTensorMode():
        fakes = [
            torch.empty_strided(a.shape, a.stride, dtype=a.dtype, device=device)
            for a in problem.layouts
        ]
    return inductor(make_fx(lambda *operands: (call(*operands),))(*fakes), fakes)

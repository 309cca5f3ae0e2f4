"""Which linear attentions our kernels compute: where measurement finds them faster, and equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from vtc.graph.linear_attention import LinearAttention, find, rewrite
from vtc.graph.program import Program, value_of
from vtc.kernels import linear_attention as kernels
from vtc.kernels.linear_attention import Tiling, as_argument
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.contest import Call, Contest, Progress, measured
from vtc.lowering.implement import inductor

WORTH = 0.97
"""Our kernels are taken when they need less than this part of the other way's time."""


def linearly_attended(
    program: Program, cache: ProfileCache, progress: Progress
) -> tuple[Program, tuple[str, ...]]:
    """`program` with `vtc::linear_attention` where that is faster, and a sentence about each."""
    chosen: dict[LinearAttention, dict[str, Any]] = {}
    notes: dict[Any, str] = {}
    for attention in find(program):
        operands = [value_of(o) for o in attention.operands]
        if not kernels.supports(*operands):
            continue
        try:
            tiling, ours, theirs = _measured(operands, attention.eps, cache, progress)
        except torch.cuda.OutOfMemoryError:
            continue  # no room to measure: it stays as it is
        if ours < WORTH * theirs:
            chosen[attention] = {"tiling": as_argument(tiling)}
            times = f"{ours:.1f} us in the place of {theirs:.1f} us"
            name = attention.node.name
            notes[attention.node] = f"{name}: vtc::linear_attention, {tiling}: {times}"
    if not chosen:
        return program, ()
    program = rewrite(program, chosen, kernels.OVERLOAD)
    return program, tuple(n for node, n in notes.items() if node.target is kernels.OVERLOAD)


def _measured(
    operands: list[Tensor], eps: float, cache: ProfileCache, progress: Progress
) -> tuple[Tiling, float, float]:
    """The best tiling, its microseconds, and those of what is done without our kernels."""
    times = measured(_Contest(operands, eps), cache, progress)
    return Tiling(*times.tiling), times.ours, times.theirs


class _Contest(Contest):
    """`vtc::linear_attention` against what TorchInductor makes of its written-out form."""

    def __init__(self, fakes: list[Tensor], eps: float) -> None:
        query, value = fakes[0], fakes[2]
        self.batch, self.heads, self.tokens, self.dim = map(int, query.shape)
        self.width, self.eps = int(value.shape[-1]), eps
        self.dtype, self.device = query.dtype, query.device
        self.what = f"linear attention of {self.batch} x {self.heads} x {self.tokens} x {self.dim}"

    @property
    def key(self) -> str:
        sizes = f"{self.batch} {self.heads} {self.tokens} {self.dim} {self.width}"
        text = f"{sizes} {self.dtype} {self.eps}"
        return "linear-attention-" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def tilings(self) -> Mapping[str, list[int]]:
        processors = timing.processors(self.device)
        found = kernels.candidates(self.batch * self.heads, self.tokens, processors)
        return {str(t): as_argument(t) for t in found}

    def operands(self) -> list[Tensor]:
        """Query, key and value as a projection leaves them: by token, head and part."""
        shape = (self.batch, self.tokens, self.heads, 2 * self.dim + self.width)
        base = torch.randn(shape, dtype=self.dtype, device=self.device).transpose(1, 2)
        return list(base.split([self.dim, self.dim, self.width], -1))

    def ours(self, tiling: list[int]) -> Call:
        return lambda *operands: kernels.OVERLOAD(*operands, eps=self.eps, tiling=tiling)

    def theirs(self) -> Call:
        call = _compiled(self.operands(), self.eps)
        return lambda *operands: call(*operands)[0]

    def meaning(self) -> Call:
        return lambda query, key, value: kernels.written_out(query, key, value, self.eps)


def _compiled(operands: list[Tensor], eps: float) -> Callable[..., Any]:
    """The written-out form as TorchInductor compiles it."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(o) for o in operands]
        graph = make_fx(lambda q, k, v: (kernels.written_out(q, k, v, eps),))(*fakes)
    return inductor(graph, fakes)

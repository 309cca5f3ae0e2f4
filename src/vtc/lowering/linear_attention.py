"""Which linear attentions our kernels compute: where measurement finds them faster, and equal."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
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
from vtc.lowering.implement import inductor

logger = logging.getLogger(__name__)

WORTH = 0.97
"""Our kernels are taken when they need less than this part of the other way's time."""
DIFFERENT = 1e-2
"""Root-mean-square difference, relative, that half-precision results may have."""

Progress = Callable[[str], None]


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
    query, value = operands[0], operands[2]
    batch, heads, tokens, dim = map(int, query.shape)
    width = int(value.shape[-1])
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    shape = f"{batch} {heads} {tokens} {dim} {width} {query.dtype} {eps}"
    key = "linear-attention-" + hashlib.sha256(shape.encode()).hexdigest()[:24]
    tilings = kernels.candidates(batch * heads, tokens, processors)
    forms = {f"{key}-{'-'.join(map(str, as_argument(t)))}": t for t in tilings}
    other = f"{key}-other"
    missing = [name for name in (other, *forms) if cache.get(name) is None]
    if missing:
        progress(f"measuring linear attention of {batch} x {heads} x {tokens} x {dim}")
        size = query.element_size() * batch * heads * tokens * (2 * dim + width)
        count = max(1, min(16, timing.ROTATED_BYTES["cuda"] // size))
        sets = [_operands(query, dim, width) for _ in range(count)]
        for name in missing:
            if name == other:
                cache.put(name, timing.replayed(_compiled(sets[0], eps), sets))
            else:
                call = _ours(eps, forms[name])
                right = _agrees(call, sets[0], eps)
                cache.put(name, timing.replayed(call, sets) if right else timing.NEVER)
    times = {tiling: cache.get(name) or timing.NEVER for name, tiling in forms.items()}
    best = min(times, key=times.__getitem__)
    return best, times[best], cache.get(other) or 0.0


def _operands(like: Tensor, dim: int, width: int) -> list[Tensor]:
    """Query, key and value as a projection leaves them: by token, head and part."""
    batch, heads, tokens, _ = map(int, like.shape)
    shape = (batch, tokens, heads, 2 * dim + width)
    base = torch.randn(shape, dtype=like.dtype, device=like.device).transpose(1, 2)
    return list(base.split([dim, dim, width], -1))


def _ours(eps: float, tiling: Tiling) -> Callable[..., Tensor]:
    def call(*operands: Tensor) -> Tensor:
        return kernels.OVERLOAD(*operands, eps=eps, tiling=as_argument(tiling))

    return call


def _agrees(call: Callable[..., Tensor], operands: list[Tensor], eps: float) -> bool:
    """Does our kernel give what PyTorch gives?"""
    try:
        found = call(*operands).float()
    except Exception:  # no room in shared memory, a compiler that refuses
        logger.debug("a linear attention kernel cannot run", exc_info=True)
        return False
    query, key, value = operands
    expected = kernels.written_out(query, key, value, eps).float()
    difference = (found - expected).square().mean().sqrt()
    return bool(difference <= DIFFERENT * expected.square().mean().sqrt())


def _compiled(operands: list[Tensor], eps: float) -> Callable[..., Any]:
    """The written-out form as TorchInductor compiles it."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(o) for o in operands]
        graph = make_fx(lambda q, k, v: (kernels.written_out(q, k, v, eps),))(*fakes)
    return inductor(graph, fakes)

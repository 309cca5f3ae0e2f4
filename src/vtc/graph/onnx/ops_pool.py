"""Pooling. What torch's pools do not do (dilated or one-sided average windows) goes by views of
windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx.host import Value, optional_ints
from vtc.graph.onnx.registry import rule
from vtc.graph.onnx.windows import Pairs, explicit_pads, overhang, symmetric, windows

MAX_POOL = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVG_POOL = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _flat(pairs: Pairs) -> list[int]:
    return [n for pair in reversed(pairs) for n in pair]


def _overhanging(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Pairs,
    ceil: bool,
) -> Pairs:
    """What the last windows read beyond the padding: (0, overhang) in each dimension."""
    return [
        (0, overhang(x.shape[2 + d], (k - 1) * t + 1, s, pair, ceil))
        for d, (k, s, t, pair) in enumerate(zip(kernel, strides, dilations, pairs, strict=True))
    ]


@rule("MaxPool")
def max_pool(
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: int,
) -> Any:
    rank, kernel = len(kernel_shape), list(kernel_shape)
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = explicit_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    padding = symmetric(pairs)
    fits = padding is not None and all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
    if outputs == 1 and fits and x.is_floating_point():
        run = MAX_POOL[rank - 1]
        return run(x, kernel, strides, padding, dilations, bool(ceil_mode))
    more = _overhanging(x, kernel, strides, dilations, pairs, bool(ceil_mode))
    sides = [(a + b, c + d) for (a, c), (b, d) in zip(pairs, more, strict=True)]
    low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = F.pad(x, _flat(sides), value=low)
    seen = windows(padded, kernel, strides, dilations)
    y = torch.amax(seen, list(range(-rank, 0)))
    if outputs == 1:
        return y
    best = torch.argmax(seen.flatten(-rank), -1)
    return y, _positions(x, best, kernel, strides, dilations, pairs, storage_order)


def _positions(
    x: Tensor,
    best: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Pairs,
    storage_order: int,
) -> Tensor:
    """Offsets in the whole of `x` of element `best` of each window."""
    rank = len(kernel)
    sizes = list(x.shape[2:])
    order = list(range(rank))
    # Column-major exchanges the steps of the last two dimensions.
    if storage_order and rank > 1:
        order[-2:] = order[:-3:-1]
    steps = {}
    step = 1
    for d in reversed(order):
        steps[d], step = step, step * sizes[d]
    total = torch.zeros_like(best)
    rest = best
    for d in reversed(range(rank)):
        inside, rest = rest % kernel[d], rest // kernel[d]
        shape = [1] * best.dim()
        shape[2 + d] = best.shape[2 + d]
        start = torch.arange(best.shape[2 + d], device=x.device).reshape(shape) * strides[d]
        total = total + (start + inside * dilations[d] - pairs[d][0]) * steps[d]
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device)
    return total + (planes * math.prod(sizes)).reshape(x.shape[0], x.shape[1], *[1] * rank)


@rule("MaxUnpool", host=(2,))
def max_unpool(
    x: Value,
    indices: Value,
    output_shape: Value = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    rank = len(kernel_shape)
    strides, pads = list(strides or [1] * rank), list(pads or [0] * (2 * rank))
    own = [
        (x.shape[2 + d] - 1) * strides[d] - pads[d] - pads[d + rank] + kernel_shape[d]
        for d in range(rank)
    ]
    shape = [*x.shape[:2], *own]
    flat = torch.zeros(math.prod(shape), dtype=x.dtype, device=x.device)
    out = torch.scatter(flat, 0, indices.reshape(-1), x.reshape(-1)).reshape(shape)
    target = optional_ints(output_shape)
    if target is None:
        return out
    # The indices count in the unpadded output; the wanted one is larger at the end.
    return F.pad(out, _flat([(0, t - s) for s, t in zip(shape, target, strict=True)]))


@rule("AveragePool")
def average_pool(
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    rank, kernel = len(kernel_shape), list(kernel_shape)
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = explicit_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    padding = symmetric(pairs)
    fits = padding is not None and all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
    if fits and not ceil_mode and all(t == 1 for t in dilations):
        run = AVG_POOL[rank - 1]
        return run(x, kernel, strides, padding, False, bool(count_include_pad))
    more = _overhanging(x, kernel, strides, dilations, pairs, bool(ceil_mode))
    spatial = list(range(-rank, 0))
    ones = torch.ones_like(x[:1, :1])
    if count_include_pad:
        ones, counted = F.pad(ones, _flat(pairs), value=1.0), more
    else:
        counted = [(a + b, c + d) for (a, c), (b, d) in zip(pairs, more, strict=True)]
    sides = [(a + b, c + d) for (a, c), (b, d) in zip(pairs, more, strict=True)]
    total = torch.sum(windows(F.pad(x, _flat(sides)), kernel, strides, dilations), spatial)
    count = torch.sum(windows(F.pad(ones, _flat(counted)), kernel, strides, dilations), spatial)
    return total / count


@rule("LpPool")
def lp_pool(
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    rank, kernel = len(kernel_shape), list(kernel_shape)
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = explicit_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    more = _overhanging(x, kernel, strides, dilations, pairs, bool(ceil_mode))
    sides = [(a + b, c + d) for (a, c), (b, d) in zip(pairs, more, strict=True)]
    seen = windows(F.pad(x, _flat(sides)), kernel, strides, dilations)
    return torch.pow(torch.sum(torch.pow(torch.abs(seen), p), list(range(-rank, 0))), 1 / p)

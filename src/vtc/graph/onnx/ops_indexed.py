"""Movement through index tensors: gathers and scatters, by ATen operators of the movement table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx import host
from vtc.graph.onnx.host import Host, Value, ints, tensor, tensors
from vtc.graph.onnx.registry import ALL, rule

aten = torch.ops.aten


@rule("Gather", host=(ALL,))
def gather(x: Value, indices: Value, *, axis: int = 0) -> Any:
    if host.all_host(x, indices) and len(x.shape) == 1:
        return Host(tuple(x.values[i] for i in indices.values), indices.shape, x.dtype)
    x, index = (tensor(x, indices) if isinstance(x, Host) else x), indices
    d = axis % x.dim()
    if not isinstance(index, Host):
        return aten.index.Tensor(x, [None] * d + [index])
    if index.shape == ():
        return torch.select(x, d, index.values[0])
    first = index.values[0] if index.values else 0
    run = list(range(first, first + len(index.values)))
    if list(index.values) == run and len(index.shape) == 1 and first >= 0:
        return aten.slice.Tensor(x, d, first, first + len(run))
    return aten.index.Tensor(x, [None] * d + [tensor(index, x)])


def counted_from_start(indices: Tensor, length: int) -> Tensor:
    """Indices without negative ones, which `gather` and `scatter` refuse."""
    wide = indices.to(torch.int64)
    return torch.where(wide < 0, wide + length, wide)


@rule("GatherElements")
def gather_elements(x: Value, indices: Value, *, axis: int = 0) -> Any:
    x, index = tensors(x, indices)
    return torch.gather(x, axis, counted_from_start(index, x.shape[axis]))


@rule("GatherND")
def gather_nd(x: Value, indices: Value, *, batch_dims: int = 0) -> Any:
    x, index = tensors(x, indices)
    outer = index.dim() - 1
    columns = [torch.select(index, -1, k) for k in range(index.shape[-1])]
    batch = [
        torch.arange(x.shape[b], device=x.device).reshape(
            [-1 if b == e else 1 for e in range(outer)]
        )
        for b in range(batch_dims)
    ]
    return aten.index.Tensor(x, [*batch, *columns])


# Scatters. Without a reduction an index that comes twice leaves either value, as ONNX allows.
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@rule("ScatterElements", "Scatter")
def scatter_elements(
    x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Any:
    x, index, updates = tensors(x, indices, updates)
    index = counted_from_start(index, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, REDUCTIONS[reduction])


@rule("ScatterND")
def scatter_nd(x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Any:
    x, index, updates = tensors(x, indices, updates)
    columns = [torch.select(index, -1, k) for k in range(index.shape[-1])]
    if reduction in ("none", "add"):
        return torch.index_put(x, tuple(columns), updates, accumulate=reduction == "add")
    length = len(columns)
    blocks = x.reshape(-1, math.prod(x.shape[length:]))
    steps = host.strides(x.shape[:length])
    wrapped = [counted_from_start(c, s) for c, s in zip(columns, x.shape, strict=False)]
    flat = sum(c * step for c, step in zip(wrapped, steps, strict=True))
    rows = torch.as_tensor(flat).reshape(-1, 1).expand(-1, blocks.shape[1])
    values = updates.reshape(-1, blocks.shape[1])
    return torch.scatter_reduce(blocks, 0, rows, values, REDUCTIONS[reduction]).reshape(x.shape)


@rule("TensorScatter")
def tensor_scatter(
    past_cache: Value,
    update: Value,
    write_indices: Value = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Any:
    """A cache with `update` written from `write_indices[batch]` on, along `axis`."""
    cache, update = tensors(past_cache, update)
    d, length = axis % cache.dim(), update.shape[axis]
    if write_indices is None:
        return torch.slice_scatter(cache, update, d, 0, length)
    steps = torch.arange(length, device=cache.device)
    at = tensor(write_indices, cache).to(torch.int64).unsqueeze(1) + steps
    if mode == "circular":
        at = at % cache.shape[d]
    shape = [1] * cache.dim()
    shape[0], shape[d] = at.shape
    return torch.scatter(cache, d, at.reshape(shape).expand(update.shape), update)


@rule("ReverseSequence")
def reverse_sequence(
    x: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0
) -> Any:
    """The first `sequence_lens[b]` steps of each batch element backwards, the rest as they are."""
    x, lengths = tensors(x, sequence_lens)
    steps = torch.arange(x.shape[time_axis], device=x.device)
    lengths = lengths.unsqueeze(1)
    at = torch.where(steps < lengths, lengths - 1 - steps, steps)  # (batch, time)
    if batch_axis > time_axis:
        at = at.t()
    shape = [1] * x.dim()
    shape[batch_axis], shape[time_axis] = x.shape[batch_axis], x.shape[time_axis]
    return torch.gather(x, time_axis, at.reshape(shape).expand(x.shape))


@rule("Upsample", since=7)
def upsample_attribute(x: Value, *, scales: Sequence[float], mode: str = "nearest") -> Any:
    return F.interpolate(x, scale_factor=list(scales[2:]), mode=mode)


@rule("Upsample", since=9, host=(1,))
def upsample(x: Value, scales: Value, *, mode: str = "nearest") -> Any:
    return upsample_attribute(x, scales=host.numbers(scales), mode=mode)


# Selection by value, whose sizes depend on it.


@rule("NonZero")
def non_zero(x: Value) -> Any:
    return torch.nonzero(tensor(x)).t()


@rule("Compress")
def compress(x: Value, condition: Value, *, axis: int | None = None) -> Any:
    x, condition = tensors(x, condition)
    if axis is None:
        x, axis = x.reshape(-1), 0
    kept = torch.nonzero(condition[: x.shape[axis]]).reshape(-1)
    return torch.index_select(x, axis, kept)


@rule("Unique")
def unique(x: Value, *, axis: int | None = None, sorted: int = 1) -> Any:
    """The distinct slices along `axis`, where each is met first, inverse and counts."""
    values, inverse, counts = torch.unique(
        x, sorted=True, return_inverse=True, return_counts=True, dim=axis
    )
    inverse = inverse.reshape(-1)
    met = torch.arange(inverse.numel(), device=x.device)
    first = torch.full_like(counts, inverse.numel())
    first = first.scatter_reduce(0, inverse, met, "amin")
    if not sorted:
        order = torch.argsort(first)
        values = torch.index_select(values, 0 if axis is None else axis, order)
        first, counts = first[order], counts[order]
        inverse = torch.argsort(order)[inverse]
    return values, first, inverse, counts


@rule("OneHot", host=(1,))
def one_hot(indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Any:
    indices, values = tensors(indices, values)
    count = int(host.number(depth))
    wrapped = torch.where(indices < 0, indices + count, indices).unsqueeze(axis)
    shape = [1] * wrapped.dim()
    shape[axis] = count
    hot = wrapped == torch.arange(count, device=indices.device).reshape(shape)
    return torch.where(hot, values[1], values[0])


@rule("TopK", host=(1,))
def top_k(x: Value, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    # A stable sort: of equal elements ONNX wants the one of the lower index first.
    wide = x.to(torch.int64) if x.dtype in (torch.uint16, torch.uint32) else x
    if x.dtype == torch.uint64:  # as int64 in the same order
        wide = x.view(torch.int64) ^ torch.iinfo(torch.int64).min
    order = torch.argsort(wide, dim=axis, descending=bool(largest), stable=True)
    order = aten.slice.Tensor(order, axis, 0, ints(k)[0])
    return torch.gather(x, axis, order), order

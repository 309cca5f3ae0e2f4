"""ONNX's movement operators, by the ATen operators that the movement table knows.

On Host values they move Python numbers: shape arithmetic of the model.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx import host
from vtc.graph.onnx.host import Host, Value, ints, optional_ints, tensor, tensors
from vtc.graph.onnx.registry import ALL, rule

aten = torch.ops.aten


@rule("Identity", host=(ALL,))
def identity(x: Value) -> Any:
    return x


# Shapes.


@rule("Reshape", host=(ALL, 1))
def reshape(x: Value, shape: Value, *, allowzero: int = 0) -> Any:
    wanted = ints(shape)
    old = x.shape
    target = [
        old[d] if isinstance(s, int) and s == 0 and not allowzero else s
        for d, s in enumerate(wanted)
    ]
    if not isinstance(x, Host):
        return x.reshape(target)
    known = math.prod(s for s in target if s != -1)
    target = [len(x.values) // max(known, 1) if s == -1 else s for s in target]
    return Host(x.values, tuple(target), x.dtype)


@rule("Flatten")
def flatten(x: Value, *, axis: int = 1) -> Any:
    d = axis + x.dim() if axis < 0 else axis
    outer, inner = math.prod(x.shape[:d]), math.prod(x.shape[d:])
    return x.reshape(outer, inner)


@rule("Squeeze", since=1, host=(ALL,))
def squeeze_attribute(x: Value, *, axes: tuple[int, ...] | None = None) -> Any:
    return squeeze(x, None if axes is None else host.vector(axes))


@rule("Squeeze", since=13, host=(ALL, 1))
def squeeze(x: Value, axes: Value = None) -> Any:
    rank = len(x.shape)
    chosen = optional_ints(axes)
    if chosen is None:
        chosen = [d for d, s in enumerate(x.shape) if s == 1]
    dims = tuple(a % rank for a in chosen)
    if not isinstance(x, Host):
        return torch.squeeze(x, dims)
    kept = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    return Host(x.values, kept, x.dtype)


@rule("Unsqueeze", since=1, host=(ALL,))
def unsqueeze_attribute(x: Value, *, axes: tuple[int, ...]) -> Any:
    return unsqueeze(x, host.vector(axes))


@rule("Unsqueeze", since=13, host=(ALL, 1))
def unsqueeze(x: Value, axes: Value) -> Any:
    chosen = ints(axes)
    rank = len(x.shape) + len(chosen)
    places = sorted(a % rank for a in chosen)
    if isinstance(x, Host):
        shape = list(x.shape)
        for d in places:
            shape.insert(d, 1)
        return Host(x.values, tuple(shape), x.dtype)
    for d in places:
        x = x.unsqueeze(d)
    return x


@rule("Transpose", host=(ALL,))
def transpose(x: Value, *, perm: tuple[int, ...] | None = None) -> Any:
    order = tuple(reversed(range(len(x.shape)))) if perm is None else perm
    if not isinstance(x, Host):
        return x.permute(order)
    shape = tuple(x.shape[d] for d in order)
    steps = host.strides(x.shape)
    own = [steps[d] for d in order]
    values = tuple(x.values[host.offset(at, own)] for at in host.positions(shape))
    return Host(values, shape, x.dtype)


@rule("Expand", host=(ALL, 1))
def expand(x: Value, shape: Value) -> Any:
    target = host.broadcast_shapes(x.shape, ints(shape))
    if isinstance(x, Host):
        if math.prod(target) <= host.LARGEST:
            return Host(tuple(host.expand(x, target)), target, x.dtype)
        x = tensor(x)
    return x.expand(target)


@rule("Tile", host=(ALL, 1))
def tile(x: Value, repeats: Value) -> Any:
    return tensor(x).repeat(ints(repeats))


# Parts.


@rule("Concat", host=(ALL,))
def concat(*inputs: Value, axis: int) -> Any:
    if host.all_host(*inputs) and len(inputs[0].shape) == 1:
        values = [v for x in inputs for v in x.values]
        if len(values) <= host.LARGEST:
            return host.vector(values, inputs[0].dtype)
    return torch.cat(tensors(*inputs), axis)


@rule("Split", since=1)
def split_attribute(
    x: Value, *, axis: int = 0, split: tuple[int, ...] | None = None, outputs: int
) -> Any:
    return _split(x, axis, split, outputs, outputs)


@rule("Split", since=13, host=(ALL, 1))
def split(
    x: Value,
    split: Value = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    outputs: int,
) -> Any:
    return _split(x, axis, optional_ints(split), num_outputs or outputs, outputs)


def _split(x: Value, axis: int, sizes: Any, count: int, outputs: int) -> Any:
    length = x.shape[axis]
    if sizes is None:
        full = -(-length // count)
        sizes = [full] * (count - 1) + [length - full * (count - 1)]
    if not isinstance(x, Host):
        parts = torch.split(x, list(sizes), axis)
        return parts[0] if outputs == 1 else parts
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    cut = tuple(slice_(x, [e - s], [e], [axis]) for s, e in zip(sizes, ends, strict=True))
    return cut[0] if outputs == 1 else cut


@rule("Slice", since=1)
def slice_attribute(
    x: Value,
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None = None,
) -> Any:
    return slice_(x, starts, ends, axes)


@rule("Slice", since=10, host=(ALL, 1, 2, 3, 4))
def slice_input(
    x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None
) -> Any:
    return slice_(x, ints(starts), ints(ends), optional_ints(axes), optional_ints(steps))


def slice_(x: Value, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if isinstance(x, Host) and len(x.shape) != 1:
        x = tensor(x)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if isinstance(x, Host):
            x = host.vector(x.values[_range(start, end, step)], x.dtype)
        elif step > 0:
            x = aten.slice.Tensor(x, axis, start, end, step)
        else:
            x = _backwards(x, axis, start, end, step)
    return x


def _range(start: int, end: int, step: int) -> slice:
    """ONNX's range as Python's: an end that is before the first element has no number there."""
    before = step < 0 and end <= -(2**31)
    return slice(start, None if before else end, step)


def _backwards(x: Tensor, axis: int, start: int, end: int, step: int) -> Any:
    """A slice of a negative step: torch has none, so one of the flipped tensor."""
    length = x.shape[axis]
    first = start + length if start < 0 else start
    last = end + length if end < 0 else end
    first, last = max(min(first, length - 1), -1), max(min(last, length - 1), -1)
    begin, stop = length - 1 - first, length - 1 - last
    return aten.slice.Tensor(x.flip(axis), axis, begin, max(stop, begin), -step)


# Padding.


@rule("Pad", since=1)
def pad_attribute(
    x: Value, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Any:
    return _pad(x, list(pads), mode, value, None)


@rule("Pad", since=11, host=(1, 2, 3))
def pad(
    x: Value,
    pads: Value,
    constant_value: Value = None,
    axes: Value = None,
    *,
    mode: str = "constant",
) -> Any:
    fill = constant_value
    if not isinstance(fill, Tensor):
        fill = host.number(fill, 0)
    return _pad(x, ints(pads), mode, fill, optional_ints(axes))


def _pad(x: Tensor, pads: list[int], mode: str, value: Any, axes: list[int] | None) -> Any:
    rank = x.dim()
    chosen = list(range(rank)) if axes is None else [a % rank for a in axes]
    half = len(chosen)
    pairs = [(0, 0)] * rank
    for k, d in enumerate(chosen):
        pairs[d] = (pads[k], pads[k + half])
    if mode == "constant":
        amounts = [n for pair in reversed(pairs) for n in pair]
        if not isinstance(value, Tensor):
            return F.pad(x, amounts, value=value)
        inside = F.pad(torch.ones_like(x, dtype=torch.bool), amounts)
        return torch.where(inside, F.pad(x, amounts), value)
    for d, (low, high) in enumerate(pairs):
        x = _bordered(x, d, low, high, mode)
    return x


TORCH_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _bordered(x: Tensor, d: int, low: int, high: int, mode: str) -> Any:
    """Padding of one dimension in a mode that repeats elements; negative amounts crop."""
    if low < 0 or high < 0:
        x = aten.slice.Tensor(x, d, max(-low, 0), x.shape[d] - max(-high, 0))
        low, high = max(low, 0), max(high, 0)
    if low == high == 0:
        return x
    length = x.shape[d]
    room = length - 1 if mode == "reflect" else length
    if x.is_floating_point() and (mode == "edge" or max(low, high) <= room):
        moved = x.movedim(d, -1)
        rows = moved.reshape(1, -1, length)
        padded = F.pad(rows, (low, high), mode=TORCH_MODES[mode])
        return padded.reshape(*moved.shape[:-1], length + low + high).movedim(-1, d)
    source = _repeated(torch.arange(-low, length + high, device=x.device), length, mode)
    return torch.index_select(x, d, source)


def _repeated(at: Tensor, length: int, mode: str) -> Any:
    """The element that stands at a position before, in or after a dimension."""
    if mode == "edge":
        return torch.clamp(at, 0, length - 1)
    if mode == "wrap" or length == 1:
        return at % length
    period = 2 * (length - 1)
    return torch.minimum(at % period, period - at % period)


@rule("CenterCropPad", host=(1,))
def center_crop_pad(x: Value, shape: Value, *, axes: tuple[int, ...] | None = None) -> Any:
    chosen = range(x.dim()) if axes is None else axes
    for axis, size in zip(chosen, ints(shape), strict=True):
        d, length = axis % x.dim(), x.shape[axis]
        if size < length:
            start = (length - size) // 2
            x = aten.slice.Tensor(x, d, start, start + size)
        elif size > length:
            low = (size - length) // 2
            amounts = [0, 0] * (x.dim() - 1 - d) + [low, size - length - low]
            x = F.pad(x, amounts)
    return x


# Blocks.


@rule("DepthToSpace")
def depth_to_space(x: Value, *, blocksize: int, mode: str = "DCR") -> Any:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    r = blocksize
    split = x.reshape(n, r, r, c // (r * r), h, w)
    return split.permute(0, 3, 4, 1, 5, 2).reshape(n, c // (r * r), h * r, w * r)


@rule("SpaceToDepth")
def space_to_depth(x: Value, *, blocksize: int, mode: str = "DCR") -> Any:
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    r = blocksize
    split = x.reshape(n, c, h // r, r, w // r, r)
    return split.permute(0, 3, 5, 1, 2, 4).reshape(n, c * r * r, h // r, w // r)

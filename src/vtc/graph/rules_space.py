"""Movement of images: blocks of pixels to channels and back, patches, nearest upsampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtc.graph.rules import (
    Entry,
    Index,
    Movement,
    Operand,
    coordinates,
    whole,
)
from vtc.index import IndexMap, Size, sizes

aten = torch.ops.aten


# DepthToSpace and SpaceToDepth are each other's inverse, so both directions hold for both. A map
# between the two shapes is written once a direction and serves as one's load and the other's store.
def depth_to_space(shape: Sequence[Size], blocksize: int, mode: str = "DCR") -> Movement:
    """ONNX DepthToSpace on (..., C, H, W); mode "CRD" is `pixel_shuffle`."""
    *lead, channels, height, width = shape
    r = blocksize
    target = (*lead, _quotient(channels, r * r), height * r, width * r)
    back = _from_depth(shape, target, r, mode)
    return Movement("DepthToSpace", target, 1, _from_space(target, r, mode), (back,))


def space_to_depth(shape: Sequence[Size], blocksize: int, mode: str = "DCR") -> Movement:
    """ONNX SpaceToDepth on (..., C, H, W); mode "CRD" is `pixel_unshuffle`."""
    *lead, channels, height, width = shape
    r = blocksize
    target = (*lead, channels * r * r, _quotient(height, r), _quotient(width, r))
    back = _from_space(shape, r, mode)
    return Movement("SpaceToDepth", target, 1, _from_depth(target, shape, r, mode), (back,))


def _from_space(space: Sequence[Size], r: int, mode: str) -> IndexMap:
    """Space index -> depth index."""
    *lead, c, h, w = coordinates(len(space))
    block = (h % r) * r + w % r
    depth = block * space[-3] + c if mode == "DCR" else c * (r * r) + block
    return whole(space, [*lead, depth, h // r, w // r])


def _from_depth(depth: Sequence[Size], space: Sequence[Size], r: int, mode: str) -> IndexMap:
    """Depth index -> space index."""
    *lead, c, h, w = coordinates(len(depth))
    channels = space[-3]
    block, channel = (c, c)
    if mode == "DCR" and channels != 0:
        block, channel = c // channels, c % channels
    elif mode == "CRD":
        block, channel = c % (r * r), c // (r * r)
    return whole(depth, [*lead, channel, h * r + block // r, w * r + block % r])


def _quotient(size: Size, by: int) -> Size:
    return sizes.floor_div(size, by)


def _pixel_shuffle(result: Operand, x: Operand, factor: int) -> Movement:
    return depth_to_space(x.shape, factor, "CRD")


def _pixel_unshuffle(result: Operand, x: Operand, factor: int) -> Movement | None:
    # Without elements PyTorch keeps the input's shape instead of the one it documents.
    return None if 0 in x.shape else space_to_depth(x.shape, factor, "CRD")


# ChannelShuffle transposes the two factors of the channel dimension: a bijection.
def channel_shuffle(shape: Sequence[Size], groups: int, view: bool = False) -> Movement:
    """Channels of (N, C, ...) seen as (groups, C / groups) and transposed."""
    each = _quotient(shape[1], groups)
    load, back = (_transposed(shape, rows) for rows in (groups, each))
    return Movement("ChannelShuffle", tuple(shape), 1, load, (back,), view=view)


def _transposed(shape: Sequence[Size], rows: Size) -> IndexMap:
    """Channel i = q * rows + k is read at k * (C / rows) + q."""
    n, c, *rest = coordinates(len(shape))
    if 0 in shape:
        return IndexMap.identity(shape)
    columns = sizes.exact_div(shape[1], rows)
    return whole(shape, [n, (c % rows) * columns + c // rows, *rest])


def _channel_shuffle(result: Operand, x: Operand, groups: Size) -> Movement | None:
    if not isinstance(groups, int) or sizes.exact_div(x.shape[1], groups) is None:
        return None
    return channel_shuffle(x.shape, groups)


# Im2col copies pixels into every patch that holds them: loads only, unless patches do not overlap,
# which im2col in PyTorch is rarely used for. Where a padded patch leaves the image is no box.
def im2col(
    shape: Sequence[Size],
    kernel: Sequence[int],
    dilation: Sequence[int],
    stride: Sequence[int],
) -> Movement:
    """Images (N, C, H, W) or (C, H, W) without padding to (N, C * kh * kw, patches)."""
    *lead, channels, height, width = shape
    out = [
        (s - d * (k - 1) - 1) // t + 1
        for s, k, d, t in zip((height, width), kernel, dilation, stride, strict=True)
    ]
    kh, kw = kernel
    target = (*lead, channels * (kh * kw), out[0] * out[1])
    *batch, row, patch = coordinates(len(target))
    down = (patch // out[1]) * stride[0] + ((row // kw) % kh) * dilation[0]
    right = (patch % out[1]) * stride[1] + (row % kw) * dilation[1]
    load = whole(target, [*batch, row // (kh * kw), down, right])
    return Movement("Im2col", target, 1, load, (None,))


def _im2col(
    result: Operand,
    x: Operand,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Movement | None:
    kernel, gaps, pad, step = (_pair(v) for v in (kernel_size, dilation, padding, stride))
    symbolic = not all(isinstance(s, int) for s in x.shape[-2:])
    return None if any(pad) or symbolic else im2col(x.shape, kernel, gaps, step)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[-1])


# Upsample: a pixel has several homes, so there are loads only (B for equal sizes).
def upsample_nearest(shape: Sequence[Size], target: Sequence[Size]) -> Movement:
    """Nearest neighbour: spatial index i reads `i * size // target`. Shapes are (N, C, ...)."""
    index: list[Index] = list(coordinates(len(shape)))
    for d in range(2, len(shape)):
        index[d] = _nearest(index[d], shape[d], target[d])
    return Movement("Upsample", tuple(target), 1, whole(target, index), (None,))


def _nearest(at: Index, size: Size, out: Size) -> Index:
    factor = sizes.exact_div(out, size) if size != 0 else None
    if factor is not None:
        return at // factor
    return (at * size) // out


def exact_ratio(size: Size, out: Size, scale: float | None) -> bool:
    """Whether PyTorch's floating-point source index is `i * size // out` for every i.

    PyTorch computes floor(i * (1 / scale)), or floor(i * (size / out)) without a scale, in single
    or double precision, clamped to the source (ATen/native/UpSample.h, nearest_idx). Symbolic
    sizes: true where the factor is a power of two, which scales without rounding.
    """
    if isinstance(size, int) and isinstance(out, int):
        places = torch.arange(out)
        wanted = places * size // out
        return all(
            torch.equal(wanted, _eager_index(places, size, out, scale, dtype))
            for dtype in (torch.float32, torch.float64)
        )
    factor = sizes.exact_div(out, size)
    power = isinstance(factor, int) and factor & (factor - 1) == 0
    return power and (scale is None or scale == factor)


def _eager_index(
    places: torch.Tensor, size: int, out: int, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    if out == size:
        return places
    if out == 2 * size:
        return places // 2
    step = torch.tensor(1 / scale if scale else size / out, dtype=dtype)
    if not scale:
        step = torch.tensor(size, dtype=dtype) / torch.tensor(out, dtype=dtype)
    return (places.to(dtype) * step).floor().long().clamp(max=size - 1)


def _upsampled(result: Operand, x: Operand, scales: Sequence[float | None]) -> Movement | None:
    pairs = zip(x.shape[2:], result.shape[2:], scales, strict=True)
    if 0 in x.shape or not all(exact_ratio(s, t, f) for s, t, f in pairs):
        return None
    return upsample_nearest(x.shape, result.shape)


def _upsample(
    result: Operand, x: Operand, output_size: Sequence[Size], *scales: float | None
) -> Movement | None:
    return _upsampled(result, x, scales)


def _upsample_vec(
    result: Operand,
    x: Operand,
    output_size: Sequence[Size] | None,
    scale_factors: Sequence[float] | None,
) -> Movement | None:
    return _upsampled(result, x, scale_factors or [None] * (x.rank - 2))


ENTRIES = (
    Entry(
        "DepthToSpace",
        ("DepthToSpace",),
        "AB",
        "blocks of channels to pixels",
        depth_to_space,
        {aten.pixel_shuffle.default: _pixel_shuffle},
    ),
    Entry(
        "SpaceToDepth",
        ("SpaceToDepth",),
        "AB",
        "blocks of pixels to channels",
        space_to_depth,
        {aten.pixel_unshuffle.default: _pixel_unshuffle},
    ),
    Entry(
        "ChannelShuffle",
        (),
        "AB",
        "the channels of several groups interleaved",
        channel_shuffle,
        {
            aten.channel_shuffle.default: _channel_shuffle,
            aten.native_channel_shuffle.default: _channel_shuffle,
        },
    ),
    Entry(
        "Im2col",
        (),
        "A",
        "patches of images as columns, without padding",
        im2col,
        {aten.im2col.default: _im2col},
    ),
    Entry(
        "Upsample",
        (),
        "A",
        "nearest neighbours, where floating point keeps the ratio of sizes",
        upsample_nearest,
        {
            aten.upsample_nearest1d.default: _upsample,
            aten.upsample_nearest2d.default: _upsample,
            aten.upsample_nearest3d.default: _upsample,
            aten.upsample_nearest1d.vec: _upsample_vec,
            aten.upsample_nearest2d.vec: _upsample_vec,
            aten.upsample_nearest3d.vec: _upsample_vec,
        },
    ),
)

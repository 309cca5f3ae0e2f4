"""Sampling of images and boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx.host import Value, ints, number
from vtc.graph.onnx.registry import rule

SAMPLING = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest"}
SAMPLING |= {"cubic": "bicubic", "bicubic": "bicubic"}


@rule("GridSample")
def grid_sample(
    x: Value,
    grid: Value,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Any:
    return F.grid_sample(
        x, grid.to(x.dtype), SAMPLING[mode], padding_mode, align_corners=bool(align_corners)
    )


@rule("AffineGrid", host=(1,))
def affine_grid(theta: Value, size: Value, *, align_corners: int = 0) -> Any:
    return F.affine_grid(theta, ints(size), align_corners=bool(align_corners))


@rule("Col2Im", host=(1, 2))
def col2im(
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Columns added up where they overlap, in any number of spatial dimensions."""
    sizes, block = ints(image_shape), ints(block_shape)
    rank = len(sizes)
    dilations, strides = list(dilations or [1] * rank), list(strides or [1] * rank)
    pads = list(pads or [0] * (2 * rank))
    padded = [s + pads[d] + pads[d + rank] for d, s in enumerate(sizes)]
    counts = [
        (p - (k - 1) * t - 1) // s + 1
        for p, k, t, s in zip(padded, block, dilations, strides, strict=True)
    ]
    # (windows, block) positions along each dimension, joined to flat positions in the image.
    flat = torch.zeros((), dtype=torch.int64, device=x.device)
    for d in range(rank):
        window = torch.arange(counts[d], device=x.device) * strides[d]
        inside = torch.arange(block[d], device=x.device) * dilations[d]
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = block[d], counts[d]
        flat = flat * padded[d] + (inside.unsqueeze(1) + window).reshape(shape)
    n, channels = x.shape[0], x.shape[1] // math.prod(block)
    columns = x.reshape(n, channels, -1)
    image = torch.zeros(n, channels, math.prod(padded), dtype=x.dtype, device=x.device)
    image = image.index_add(2, flat.reshape(-1), columns).reshape(n, channels, *padded)
    crop = [-a for d in reversed(range(rank)) for a in (pads[d], pads[d + rank])]
    return F.pad(image, crop)


@rule("RoiAlign")
def roi_align_first(
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    size = output_height, output_width
    return _roi_align(x, rois, batch_indices, mode, size, sampling_ratio, spatial_scale, 0.0)


@rule("RoiAlign", since=16)
def roi_align(
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    size = output_height, output_width
    return _roi_align(x, rois, batch_indices, mode, size, sampling_ratio, spatial_scale, shift)


def _roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    mode: str,
    size: tuple[int, int],
    ratio: int,
    scale: float,
    shift: float,
) -> Any:
    """Average or largest bilinear sample of each bin of each box.

    Without a sampling ratio the number of samples is ceil(box / bins), which is read from the
    boxes.
    """
    height, width = x.shape[2:]
    results = []
    for k in range(rois.shape[0]):
        box = rois[k] * scale - shift
        extent = [box[3] - box[1], box[2] - box[0]]
        if shift == 0.0:
            extent = [torch.clamp(e, min=1.0) for e in extent]
        counts = [
            ratio or max(math.ceil(float(e) / s), 1) for e, s in zip(extent, size, strict=True)
        ]
        at = []
        for start, length, bins, count in zip((box[1], box[0]), extent, size, counts, strict=True):
            steps = torch.arange(bins * count, device=x.device, dtype=x.dtype) + 0.5
            at.append(start + steps * (length / (bins * count)))
        sampled = _sampled(x[batch_indices[k].to(torch.int64)], at[0], at[1], height, width, mode)
        bins = sampled.reshape(x.shape[1], size[0], counts[0], size[1], counts[1])
        results.append(torch.amax(bins, (2, 4)) if mode == "max" else torch.mean(bins, (2, 4)))
    return torch.stack(results)


def _sampled(plane: Tensor, y: Tensor, x: Tensor, height: int, width: int, mode: str) -> Tensor:
    """(channels, rows, columns): bilinear samples on the grid of `y` and `x`, zero outside. With
    mode "max" the largest of the four weighted neighbours instead of their sum."""
    inside = ((y >= -1) & (y <= height)).unsqueeze(1) & ((x >= -1) & (x <= width))

    def neighbours(at: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
        at = torch.clamp(at, 0, limit - 1)
        low = torch.floor(at).to(torch.int64)
        return low, torch.clamp(low + 1, max=limit - 1), at - low

    y0, y1, fy = neighbours(y, height)
    x0, x1, fx = neighbours(x, width)
    fy = fy.unsqueeze(1)
    parts = [
        plane[:, y0][:, :, x0] * ((1 - fy) * (1 - fx)),
        plane[:, y0][:, :, x1] * ((1 - fy) * fx),
        plane[:, y1][:, :, x0] * (fy * (1 - fx)),
        plane[:, y1][:, :, x1] * (fy * fx),
    ]
    stacked = torch.stack(parts)
    value = torch.amax(stacked, 0) if mode == "max" else torch.sum(stacked, 0)
    return torch.where(inside, value, torch.zeros_like(value))


@rule("DeformConv")
def deform_conv(
    x: Value,
    w: Value,
    offset: Value,
    b: Value = None,
    mask: Value = None,
    *,
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> Any:
    """Two-dimensional convolution that samples each tap at an offset of its own."""
    n, channels, height, width = x.shape
    out_channels, per_group, kh, kw = w.shape
    oh, ow = offset.shape[2:]
    taps = kh * kw
    shifts = offset.reshape(n, offset_group, kh, kw, 2, oh, ow)
    rows = torch.arange(oh, device=x.device, dtype=x.dtype) * strides[0] - pads[0]
    columns = torch.arange(ow, device=x.device, dtype=x.dtype) * strides[1] - pads[1]
    down = torch.arange(kh, device=x.device, dtype=x.dtype) * dilations[0]
    right = torch.arange(kw, device=x.device, dtype=x.dtype) * dilations[1]
    y = shifts[..., 0, :, :] + rows.reshape(oh, 1) + down.reshape(kh, 1, 1, 1)
    z = shifts[..., 1, :, :] + columns.reshape(1, ow) + right.reshape(kw, 1, 1)
    # Pixel centres on [-1, 1] as grid_sample takes them with align_corners=False.
    grid = torch.stack([(2 * z + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    share = channels // offset_group
    images = x.reshape(n * offset_group, share, height, width)
    sampled = F.grid_sample(
        images, grid.reshape(n * offset_group, taps, oh * ow, 2), align_corners=False
    )
    sampled = sampled.reshape(n, offset_group, share, taps, oh * ow)
    if mask is not None:
        sampled = sampled * mask.reshape(n, offset_group, 1, taps, oh * ow)
    columns_ = sampled.reshape(n, group, per_group * taps, oh * ow)
    weight = w.reshape(group, out_channels // group, per_group * taps)
    out = torch.matmul(weight, columns_).reshape(n, out_channels, oh, ow)
    return out if b is None else out + b.reshape(-1, 1, 1)


@rule("NonMaxSuppression", host=(2, 3, 4))
def non_max_suppression(
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value = None,
    iou_threshold: Value = None,
    score_threshold: Value = None,
    *,
    center_point_box: int = 0,
) -> Any:
    """(selected, 3): batch, class and box numbers. The number of boxes depends on the values."""
    limit = int(number(max_output_boxes_per_class, 0))
    overlap = number(iou_threshold, 0.0)
    least = number(score_threshold)
    if center_point_box:
        center, half = boxes[..., :2], boxes[..., 2:] / 2
        low, high = center - half, center + half
    else:
        low = torch.minimum(boxes[..., :2], boxes[..., 2:])
        high = torch.maximum(boxes[..., :2], boxes[..., 2:])
    area = torch.prod(high - low, -1)
    kept: list[list[int]] = []
    for n in range(scores.shape[0]):
        ranked = torch.argsort(scores[n], dim=-1, descending=True, stable=True).tolist()
        for c, order in enumerate(ranked):
            chosen: list[int] = []
            for i in order:
                if len(chosen) >= limit or (least is not None and scores[n, c, i] <= least):
                    break
                others = low.new_tensor(chosen, dtype=torch.int64)
                shared = torch.prod(
                    torch.clamp(
                        torch.minimum(high[n, others], high[n, i])
                        - torch.maximum(low[n, others], low[n, i]),
                        min=0,
                    ),
                    -1,
                )
                union = area[n, others] + area[n, i] - shared
                if not bool(torch.any((shared > overlap * union) & (union > 0))):
                    chosen.append(i)
            kept += [[n, c, i] for i in chosen]
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device).reshape(-1, 3)

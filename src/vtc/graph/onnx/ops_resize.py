"""Resize: the same interpolation in every resized dimension, one after the other.

Nearest neighbours are a gather with a static index, and a power-of-two upsample is torch's own
operator, which the movement table knows. Other modes are a small matrix for each dimension, except
where `interpolate` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx import host
from vtc.graph.onnx.host import Value, optional_ints
from vtc.graph.onnx.registry import rule

aten = torch.ops.aten


@rule("Resize", host=(1,))
def resize_scales(x: Value, scales: Value, *, mode: str = "nearest") -> Any:
    factors = host.numbers(scales)
    sizes = [math.floor(s * f) for s, f in zip(x.shape, factors, strict=True)]
    return _resized(x, range(x.dim()), sizes, factors, None, mode, "asymmetric", "floor")


@rule("Resize", since=11, host=(1, 2, 3))
def resize(
    x: Value,
    roi: Value = None,
    scales: Value = None,
    sizes: Value = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:
    chosen = list(range(x.dim())) if axes is None else [a % x.dim() for a in axes]
    own = [x.shape[d] for d in chosen]
    wanted = optional_ints(sizes)
    if wanted:
        factors = [w / s for w, s in zip(wanted, own, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            pick = min if keep_aspect_ratio_policy == "not_larger" else max
            factors = [pick(factors)] * len(own)
            wanted = [math.floor(s * f + 0.5) for s, f in zip(own, factors, strict=True)]
    else:
        factors = host.numbers(scales)
        wanted = [math.floor(s * f) for s, f in zip(own, factors, strict=True)]
    edges = host.numbers(roi) if roi is not None else None
    return _resized(
        x,
        chosen,
        wanted,
        factors,
        edges,
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        (antialias, exclude_outside, cubic_coeff_a, extrapolation_value),
    )


def _resized(
    x: Tensor,
    dims: Sequence[int],
    sizes: Sequence[int],
    factors: Sequence[float],
    roi: Sequence[float] | None,
    mode: str,
    transform: str,
    nearest_mode: str,
    details: tuple[int, int, float, float] = (0, 0, -0.75, 0.0),
) -> Any:
    antialias, exclude, a, extrapolated = details
    cropped = transform == "tf_crop_and_resize"
    todo = [
        (k, d) for k, d in enumerate(dims) if cropped or sizes[k] != x.shape[d] or factors[k] != 1.0
    ]
    native = _native(x, todo, sizes, factors, mode, transform, nearest_mode, details)
    if native is not None:
        return native
    inside = None
    for k, d in todo:
        span = (roi[k], roi[k + len(dims)]) if roi and cropped else (0.0, 1.0)
        steps = torch.arange(sizes[k], dtype=torch.float64, device=x.device)
        at = _coordinates(steps, x.shape[d], factors[k], transform, span)
        if cropped:
            shape = [1] * x.dim()
            shape[d] = sizes[k]
            seen = ((at >= 0) & (at <= x.shape[d] - 1)).reshape(shape)
            inside = seen if inside is None else inside & seen
        if mode == "nearest":
            index = _nearest(at, nearest_mode).clamp(0, x.shape[d] - 1)
            x = aten.index.Tensor(x, [None] * d + [index])
        else:
            scale = min(factors[k], 1.0) if antialias else 1.0
            matrix = _weights(at, x.shape[d], mode, scale, bool(exclude), a)
            x = torch.matmul(x.movedim(d, -1), matrix.t().to(x)).movedim(-1, d)
    return x if inside is None else torch.where(inside, x, extrapolated)


def _native(
    x: Tensor,
    todo: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    factors: Sequence[float],
    mode: str,
    transform: str,
    nearest_mode: str,
    details: tuple[int, int, float, float],
) -> Any:
    """By `interpolate`, where it computes what ONNX asks for; else None."""
    spatial = list(range(2, x.dim()))
    whole = x.is_floating_point() and {d for _, d in todo} <= set(spatial) and x.dim() in (3, 4, 5)
    if not whole or not todo or details[0] or details[1]:
        return None
    size = list(x.shape[2:])
    for k, d in todo:
        if sizes[k] / x.shape[d] != factors[k]:
            return None
        size[d - 2] = sizes[k]
    if mode == "nearest":
        exact = transform == "asymmetric" and nearest_mode == "floor"
        doubled = all(sizes[k] % x.shape[d] == 0 for k, d in todo)
        # With a whole factor all the usual ways of rounding repeat each element.
        halves = transform == "half_pixel" and nearest_mode.startswith("round")
        return F.interpolate(x, size) if doubled and (exact or halves) else None
    kind = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()]
    if mode == "cubic":
        kind = "bicubic" if x.dim() == 4 and abs(details[2] + 0.75) < 1e-6 else ""
    corners = transform == "align_corners" and all(sizes[k] > 1 for k, _ in todo)
    if kind and (corners or transform == "half_pixel"):
        return F.interpolate(x, size, mode=kind, align_corners=corners)
    return None


def _coordinates(
    y: Tensor, length: int, factor: float, transform: str, roi: tuple[float, float]
) -> Tensor:
    """The source coordinate of each output position `y`, float64."""
    scaled = factor * length
    if transform == "align_corners":
        return y * ((length - 1) / (scaled - 1)) if scaled != 1 else y * 0
    if transform == "asymmetric":
        return y / factor
    if transform == "tf_crop_and_resize":
        start, end = roi
        if scaled == 1:
            return y * 0 + (start + end) * (length - 1) / 2
        return start * (length - 1) + y * ((end - start) * (length - 1) / (scaled - 1))
    if transform == "pytorch_half_pixel" and scaled == 1:
        return y * 0 - 0.5
    center = (y + 0.5) / factor - 0.5
    if transform == "half_pixel_symmetric":
        return center + length / 2 * (1 - y.shape[0] / scaled)
    return center


def _nearest(at: Tensor, mode: str) -> Tensor:
    if mode == "floor":
        return torch.floor(at).to(torch.int64)
    if mode == "ceil":
        return torch.ceil(at).to(torch.int64)
    if mode == "round_prefer_floor":
        return torch.ceil(at - 0.5).to(torch.int64)
    return torch.floor(at + 0.5).to(torch.int64)


def _weights(at: Tensor, length: int, mode: str, scale: float, exclude: bool, a: float) -> Tensor:
    """The (outputs, length) matrix of interpolation weights.

    The kernel is stretched by 1 / scale when antialiasing; what it has outside of the source goes
    to the border, or is left out with `exclude`, and then the rest sums to 1.
    """
    reach = math.ceil((2 if mode == "cubic" else 1) / scale)
    # A coordinate that is a whole number belongs to the interval before it.
    start = torch.ceil(at).to(torch.int64) - 1
    taps = start.unsqueeze(1) + torch.arange(1 - reach, reach + 1, device=at.device)
    distance = torch.abs(taps - at.unsqueeze(1)) * scale
    if mode == "cubic":
        d2, d3 = distance**2, distance**3
        near = (a + 2) * d3 - (a + 3) * d2 + 1
        far = a * d3 - 5 * a * d2 + 8 * a * distance - 4 * a
        weights = torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))
    else:
        weights = torch.clamp(1 - distance, min=0)
    if exclude:
        weights = torch.where((taps >= 0) & (taps < length), weights, 0.0)
    if exclude or scale != 1.0:
        weights = weights / weights.sum(1, keepdim=True)
    matrix = torch.zeros(at.shape[0], length, dtype=torch.float64, device=at.device)
    return matrix.scatter_add(1, taps.clamp(0, length - 1), weights)

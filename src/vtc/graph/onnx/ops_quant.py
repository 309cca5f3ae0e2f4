"""Quantized tensors: scales and zero points for a tensor, an axis, or blocks of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vtc.graph.onnx.host import Value
from vtc.graph.onnx.ops_elementwise import FLOAT8, cast
from vtc.graph.onnx.ops_nn import conv
from vtc.graph.onnx.registry import rule


def _along(parameter: Tensor, x: Tensor, axis: int, block_size: int) -> Any:
    """A scale or zero point in a shape that broadcasts to `x`."""
    if parameter.dim() == 0 or parameter.numel() == 1:
        return parameter.reshape(())
    d = axis % x.dim()
    if parameter.dim() > 1 or block_size:
        repeated = parameter.repeat_interleave(block_size, d)
        return torch.narrow(repeated, d, 0, x.shape[d])
    shape = [1] * x.dim()
    shape[d] = -1
    return parameter.reshape(shape)


@rule("QuantizeLinear")
def quantize_linear(
    x: Value,
    y_scale: Value,
    y_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: torch.dtype | None = None,
    precision: torch.dtype | None = None,
    saturate: int = 1,
    bits: int,
) -> Any:
    dtype = y_zero_point.dtype if y_zero_point is not None else output_dtype or torch.uint8
    scale = _along(y_scale, x, axis, block_size)
    if precision is not None:
        x, scale = x.to(precision), scale.to(precision)
    elif not x.is_floating_point():
        x = x.to(scale.dtype)
    scaled = x / scale
    if dtype in FLOAT8:
        return cast(scaled, to=dtype, saturate=saturate)
    rounded = torch.round(scaled.to(torch.float32))
    if y_zero_point is not None:
        rounded = rounded + _along(y_zero_point.to(torch.float32), x, axis, block_size)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if bits:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if low else (0, 2**bits - 1)
    return torch.clamp(rounded, low, high).to(torch.int32).to(dtype)


@rule("DequantizeLinear")
def dequantize_linear(
    x: Value,
    x_scale: Value,
    x_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: torch.dtype | None = None,
) -> Any:
    dtype = output_dtype or x_scale.dtype
    scale = _along(x_scale, x, axis, block_size)
    # Integer differences of the widest quantized type, int32, may not fit into its floats.
    wide = x.to(torch.float32) if x.is_floating_point() else x.to(torch.int64)
    if x_zero_point is not None:
        zero = _along(x_zero_point.to(wide.dtype), x, axis, block_size)
        wide = wide - zero
    return (wide.to(torch.float32) * scale.to(torch.float32)).to(dtype)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Value) -> Any:
    low = torch.clamp(torch.amin(x), max=0)
    high = torch.clamp(torch.amax(x), min=0)
    scale = (high - low) / 255
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(-low / safe), 0, 255)
    quantized = torch.clamp(torch.round(x / safe) + zero, 0, 255)
    return quantized.to(torch.uint8), scale, zero.to(torch.uint8)


def _centered(x: Tensor, zero: Value, axis: int) -> Any:
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    zero = zero.to(torch.int32)
    if zero.dim() == 1 and zero.numel() > 1:
        shape = [1] * x.dim()
        shape[axis] = -1
        zero = zero.reshape(shape)
    return wide - (zero.reshape(()) if zero.numel() == 1 else zero)


@rule("MatMulInteger")
def matmul_integer(
    a: Value, b: Value, a_zero_point: Value = None, b_zero_point: Value = None
) -> Any:
    return torch.matmul(_centered(a, a_zero_point, -2), _centered(b, b_zero_point, -1))


@rule("QLinearMatMul")
def qlinear_matmul(
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Any:
    left = _centered(a, a_zero_point, -2).to(torch.float64)
    right = _centered(b, b_zero_point, -1).to(torch.float64)
    scales = a_scale.to(torch.float64) * b_scale.to(torch.float64) / y_scale.to(torch.float64)
    return _requantized(torch.matmul(left, right) * scales, y_zero_point)


def _requantized(scaled: Tensor, zero: Tensor) -> Any:
    limits = torch.iinfo(zero.dtype)
    shifted = torch.round(scaled) + zero.to(scaled.dtype)
    return torch.clamp(shifted, limits.min, limits.max).to(zero.dtype)


@rule("ConvInteger")
def conv_integer(
    x: Value,
    w: Value,
    x_zero_point: Value = None,
    w_zero_point: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    # float64 holds every sum of products of bytes exactly.
    out = conv(
        _centered(x, x_zero_point, 1).to(torch.float64),
        _centered(w, w_zero_point, 0).to(torch.float64),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        pads=pads,
        strides=strides,
    )
    return out.to(torch.int32)


@rule("QLinearConv")
def qlinear_conv(
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    out = conv(
        _centered(x, x_zero_point, 1).to(torch.float64),
        _centered(w, w_zero_point, 0).to(torch.float64),
        None if b is None else b.to(torch.float64),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        pads=pads,
        strides=strides,
    )
    scales = x_scale.to(torch.float64) * w_scale.to(torch.float64) / y_scale.to(torch.float64)
    if scales.dim() == 1 and scales.numel() > 1:
        scales = scales.reshape(1, -1, *[1] * (out.dim() - 2))
    return _requantized(out * scales, y_zero_point)

"""Operators that make tensors: shapes, constants, ranges, random numbers, windows of signals."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vtc.graph.onnx import host
from vtc.graph.onnx.host import Host, Value, ints, number, tensor
from vtc.graph.onnx.registry import ALL, rule


@rule("Shape", host=(ALL,))
def shape(x: Value, *, start: int = 0, end: int | None = None) -> Any:
    return host.vector(tuple(x.shape)[start:end])


@rule("Size", host=(ALL,))
def size(x: Value) -> Any:
    return host.scalar(math.prod(x.shape))


@rule("Constant")
def constant(
    *,
    value: Value = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
) -> Any:
    if value_int is not None:
        return host.scalar(value_int)
    if value_ints is not None:
        return host.vector(value_ints)
    if value_float is not None:
        return host.scalar(value_float, torch.float32)
    if value_floats is not None:
        return host.vector(value_floats, torch.float32)
    return value


@rule("ConstantOfShape", host=(0,))
def constant_of_shape(shape: Value, *, value: Value = None, anchor: Tensor | None = None) -> Any:
    target = ints(shape)
    fill = value if value is not None else host.vector((0.0,), torch.float32)
    element, dtype = number(fill), fill.dtype
    if len(target) <= 1 and math.prod(target) <= host.LARGEST and not dtype.is_floating_point:
        return Host((element,) * math.prod(target), tuple(target), dtype)
    device = None if anchor is None else anchor.device
    return torch.full(target, element, dtype=dtype, device=device)


@rule("Range", host=(ALL,))
def range_(
    start: Value,
    limit: Value,
    delta: Value,
    *,
    stash_type: int = 1,
    anchor: Tensor | None = None,
) -> Any:
    dtype = start.dtype
    first, last, step = number(start), number(limit), number(delta)
    known = host.all_host(start, limit, delta) and not dtype.is_floating_point
    if known and all(isinstance(v, int) for v in (first, last, step)):
        made = range(first, last, step)
        if len(made) <= 8:
            return host.vector(made, dtype)
    device = None if anchor is None else anchor.device
    if dtype.is_floating_point:
        count = max(math.ceil((last - first) / step), 0)
        steps = torch.arange(count, device=device)
        return (first + steps * step).to(dtype)
    return torch.arange(first, last, step, dtype=dtype, device=device)


@rule("EyeLike")
def eye_like(x: Value, *, dtype: torch.dtype | None = None, k: int = 0) -> Any:
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device)
    return (columns - rows == k).to(dtype or x.dtype)


@rule("Trilu", host=(1,))
def trilu(x: Value, k: Value = None, *, upper: int = 1) -> Any:
    return (torch.triu if upper else torch.tril)(tensor(x), number(k, 0))


# Random numbers, from torch's generator. A seed of the model makes them its own sequence in ONNX;
# two calls of the model would then agree, which torch's functional generators have no operator for.


def _device(anchor: Tensor | None) -> Any:
    return None if anchor is None else anchor.device


@rule("RandomNormal")
def random_normal(
    *,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    anchor: Tensor | None = None,
) -> Any:
    return torch.randn(shape, dtype=dtype, device=_device(anchor)) * scale + mean


@rule("RandomUniform")
def random_uniform(
    *,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    anchor: Tensor | None = None,
) -> Any:
    return torch.rand(shape, dtype=dtype, device=_device(anchor)) * (high - low) + low


@rule("RandomNormalLike")
def random_normal_like(
    x: Value,
    *,
    dtype: torch.dtype | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Any:
    return torch.randn_like(x, dtype=dtype or x.dtype) * scale + mean


@rule("RandomUniformLike")
def random_uniform_like(
    x: Value,
    *,
    dtype: torch.dtype | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Any:
    return torch.rand_like(x, dtype=dtype or x.dtype) * (high - low) + low


@rule("Bernoulli")
def bernoulli(x: Value, *, dtype: torch.dtype | None = None, seed: float | None = None) -> Any:
    return (torch.rand_like(x) < x).to(dtype or x.dtype)


@rule("Multinomial")
def multinomial(
    x: Value,
    *,
    dtype: torch.dtype = torch.int32,
    sample_size: int = 1,
    seed: float | None = None,
) -> Any:
    return torch.multinomial(torch.softmax(x, -1), sample_size, replacement=True).to(dtype)


# Signals.


def _window(
    size: Value,
    dtype: torch.dtype,
    periodic: int,
    weights: tuple[float, ...],
    anchor: Tensor | None,
) -> Any:
    """A sum of cosines: weights[0] + weights[1] cos(x) + weights[2] cos(2 x)."""
    count = number(size)
    steps = torch.arange(count, dtype=torch.float64, device=_device(anchor))
    angle = steps * (2 * math.pi / (count if periodic else count - 1))
    total = sum(w * torch.cos(k * angle) for k, w in enumerate(weights))
    return torch.as_tensor(total).to(dtype)


@rule("HannWindow", host=(0,))
def hann_window(
    size: Value,
    *,
    output_datatype: torch.dtype = torch.float32,
    periodic: int = 1,
    anchor: Tensor | None,
) -> Any:
    return _window(size, output_datatype, periodic, (0.5, -0.5), anchor)


@rule("HammingWindow", host=(0,))
def hamming_window(
    size: Value,
    *,
    output_datatype: torch.dtype = torch.float32,
    periodic: int = 1,
    anchor: Tensor | None,
) -> Any:
    return _window(size, output_datatype, periodic, (25 / 46, -21 / 46), anchor)


@rule("BlackmanWindow", host=(0,))
def blackman_window(
    size: Value,
    *,
    output_datatype: torch.dtype = torch.float32,
    periodic: int = 1,
    anchor: Tensor | None,
) -> Any:
    return _window(size, output_datatype, periodic, (0.42, -0.5, 0.08), anchor)


@rule("DFT")
def dft_attribute(
    x: Value, dft_length: Value = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Any:
    return _dft(x, dft_length, axis, inverse, onesided)


@rule("DFT", since=20, host=(1, 2))
def dft(
    x: Value,
    dft_length: Value = None,
    axis: Value = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Any:
    return _dft(x, dft_length, number(axis, -2), inverse, onesided)


def _dft(x: Tensor, dft_length: Value, axis: int, inverse: int, onesided: int) -> Any:
    d = axis % x.dim()
    count = number(dft_length)
    complex_in = x.shape[-1] == 2
    values = torch.view_as_complex(x.contiguous()) if complex_in else x.squeeze(-1)
    if onesided and inverse:
        return torch.fft.irfft(values, n=count, dim=d).unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(values, n=count, dim=d))
    run = torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(run(values, n=count, dim=d))


@rule("STFT", host=(1, 3))
def stft(
    signal: Value,
    frame_step: Value,
    window: Value = None,
    frame_length: Value = None,
    *,
    onesided: int = 1,
) -> Any:
    length = number(frame_length)
    if length is None:
        length = window.shape[0]
    values = signal.squeeze(-1) if signal.shape[-1] == 1 else torch.view_as_complex(signal)
    frames = values.unfold(1, length, number(frame_step))
    if window is not None:
        frames = frames * window
    run = torch.fft.rfft if onesided and not frames.is_complex() else torch.fft.fft
    return torch.view_as_real(run(frames, dim=-1))


@rule("MelWeightMatrix", host=(ALL, 0, 1, 2, 3, 4))
def mel_weight_matrix(
    num_mel_bins: Value,
    dft_length: Value,
    sample_rate: Value,
    lower_edge_hertz: Value,
    upper_edge_hertz: Value,
    *,
    output_datatype: torch.dtype = torch.float32,
    anchor: Tensor | None,
) -> Any:
    """Triangles over spectrogram bins, equally wide on the mel scale 2595 log10(1 + f / 700)."""
    bins, length, rate = number(num_mel_bins), number(dft_length), number(sample_rate)
    low, high = (
        2595 * math.log10(1 + number(f) / 700) for f in (lower_edge_hertz, upper_edge_hertz)
    )
    step = (high - low) / (bins + 2)
    edges = [
        math.floor((length + 1) * 700 * (10 ** ((low + k * step) / 2595) - 1) / rate)
        for k in range(bins + 2)
    ]
    matrix = torch.zeros(length // 2 + 1, bins, dtype=torch.float64)
    for m in range(bins):
        start, center, end = edges[m : m + 3]
        for j in range(start, center + 1):
            matrix[j, m] = 1.0 if center == start else (j - start) / (center - start)
        for j in range(center, end):
            matrix[j, m] = (end - j) / (end - center)
    return matrix.to(device=_device(anchor), dtype=output_datatype)

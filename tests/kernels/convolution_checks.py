"""Convolutions and what they must give, for the tests of their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from vtc.kernels.convolution import Convolution, Window
from vtc.kernels.convolution_build import of_tensors

ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    None: lambda x: x,
}


@dataclass(frozen=True)
class Layer:
    """A convolution with batch norm, activation and residual on slices of wider NHWC buffers."""

    batch: int
    size: tuple[int, int]
    inputs: int
    outputs: int
    window: Window
    groups: int = 1
    activation: str | None = None
    scaled: bool = False
    residual: bool = False
    extra: int = 0
    """Channels of other tensors before and after each image in its buffer."""
    nchw: bool = False
    """Are images NCHW, as a graph input may be?"""
    packed: bool = False
    """Is the weight channels-last?"""

    def __str__(self) -> str:
        w = self.window
        words = [f"{self.inputs}-{self.outputs}k{w.size[0]}{w.size[1]}s{w.stride[0]}"]
        words += [f"p{w.padding[0]}d{w.dilation[0]}g{self.groups}", self.activation or ""]
        words += ["slices" * (self.extra > 0), "nchw" * self.nchw, "packed" * self.packed]
        return "-".join(x for x in words if x)


def image(layer: Layer, channels: int, size: tuple[int, int], kind: dict[str, Any]) -> Any:
    """A random (n, channels, h, w) image, and the buffer that it is a slice of."""
    wide = channels + 2 * layer.extra
    if layer.nchw:
        buffer = torch.randn(layer.batch, wide, *size, **kind)
    else:
        buffer = torch.randn(layer.batch, *size, wide, **kind).permute(0, 3, 1, 2)
    return buffer[:, layer.extra : layer.extra + channels], buffer


@dataclass(frozen=True)
class Case:
    """A described layer with its tensors, and what the output must be, in float64."""

    convolution: Convolution
    tensors: list[torch.Tensor]
    out: torch.Tensor
    buffer: torch.Tensor
    expected: torch.Tensor
    extra: int

    def check(self, rtol: float = 1e-5, atol: float = 1e-5) -> None:
        """Is the output right, and were its neighbours in the buffer left alone?"""
        scale = max(float(self.expected.abs().max()), 1.0)
        found = self.out.double() / scale
        torch.testing.assert_close(found, self.expected / scale, rtol=rtol, atol=atol)
        e = self.extra
        if e:
            assert self.buffer[:, :e].isnan().all()
            assert self.buffer[:, -e:].isnan().all()

    def reset(self) -> None:
        self.buffer.fill_(float("nan"))


def case(layer: Layer, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Case:
    """The layer on random tensors."""
    torch.manual_seed(seed)
    kind: dict[str, Any] = {"device": device, "dtype": dtype}
    window = layer.window
    x, _ = image(layer, layer.inputs, layer.size, kind)
    taps = window.size[0] * window.size[1] * layer.inputs // layer.groups
    weight = torch.randn(layer.outputs, layer.inputs // layer.groups, *window.size, **kind)
    weight *= taps**-0.5
    if layer.packed:
        weight = weight.to(memory_format=torch.channels_last)
    out, buffer = image(layer, layer.outputs, window.outputs(*layer.size), kind)
    buffer.fill_(float("nan"))
    bias = torch.randn(layer.outputs, **kind)
    scale = torch.randn(layer.outputs, **kind) if layer.scaled else None
    added = torch.randn_like(out) if layer.residual else None
    convolution, tensors = of_tensors(
        x, weight, out, window, groups=layer.groups, scale=scale, bias=bias,
        activation=layer.activation, residual=added,
    )  # fmt: skip
    expected = F.conv2d(
        x.double(), weight.double(), None, window.stride, window.padding, window.dilation,
        layer.groups,
    )  # fmt: skip
    if scale is not None:
        expected = expected * scale.double()[:, None, None]
    expected = ACTIVATIONS[layer.activation](expected + bias.double()[:, None, None])
    if added is not None:
        expected = expected + added.double()
    return Case(convolution, tensors, out, buffer, expected, layer.extra)

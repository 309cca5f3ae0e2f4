"""Convolutions described from tensors: what a layer with bias, batch norm, activation and residual
is when its operands are views."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vtc.index import expr
from vtc.index.access import Layout
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, Shape, Window, nhwc
from vtc.kernels.epilogue import Body, Tensor
from vtc.program.dtypes import DType


def _relu(body: Body, x: int) -> int:
    return body.scalar("maximum", x, body.const(0.0))


def _silu(body: Body, x: int) -> int:
    return body.scalar("mul", x, body.scalar("sigmoid", x))


def _hardswish(body: Body, x: int) -> int:
    above = body.scalar("maximum", body.scalar("add", x, body.const(3.0)), body.const(0.0))
    gate = body.scalar("minimum", above, body.const(6.0))
    return body.scalar("div", body.scalar("mul", x, gate), body.const(6.0))


def _gelu(body: Body, x: int) -> int:
    error = body.scalar("erf", body.scalar("mul", x, body.const(2**-0.5)))
    half = body.scalar("mul", x, body.const(0.5))
    return body.scalar("mul", half, body.scalar("add", error, body.const(1.0)))


ACTIVATIONS: dict[str, Callable[[Body, int], int]] = {
    "relu": _relu,
    "silu": _silu,
    "hardswish": _hardswish,
    "gelu": _gelu,
    "sigmoid": lambda body, x: body.scalar("sigmoid", x),
}


def image_tensor(value: torch.Tensor) -> Tensor:
    """An NCHW tensor of any strides as the argument of a call that begins at its first element."""
    return Tensor(_dtype(value), nhwc(value))


def plain_tensor(value: torch.Tensor) -> Tensor:
    """A tensor (a weight, a vector over channels) in its own order of dimensions."""
    return Tensor(_dtype(value), Layout(tuple(value.shape), tuple(value.stride())))


def channel_map(output: Shape, number: int) -> IndexMap:
    """A vector over channels as a virtual tensor over (n, oh, ow, oc)."""
    return IndexMap.single(output, (expr.axes(4)[3],), number)


def of_tensors(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    window: Window,
    *,
    groups: int = 1,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    tf32: bool = False,
) -> tuple[Convolution, list[torch.Tensor]]:
    """activation(conv(x, weight) * scale + bias) + residual -> out, and the tensors of a call.

    x, out and residual: NCHW shapes with any strides; weight: (oc, ic / groups, kh, kw) likewise;
    scale and bias: (oc,). `activation` is a name in ACTIVATIONS.
    """
    n, c, h, w = x.shape
    image, output = (n, h, w, c), (n, *window.outputs(h, w), weight.shape[0])
    values, tensors = [x, weight, out], [image_tensor(x), plain_tensor(weight), image_tensor(out)]
    body = Body()
    value = body.product()
    for vector, op in ((scale, "mul"), (bias, "add")):
        if vector is not None:
            loaded = body.load(channel_map(output, len(values)))
            values.append(vector)
            tensors.append(plain_tensor(vector))
            value = body.scalar(op, value, loaded)
    if activation is not None:
        value = ACTIVATIONS[activation](body, value)
    if residual is not None:
        value = body.scalar("add", value, body.load(IndexMap.identity(output, len(values))))
        values.append(residual)
        tensors.append(image_tensor(residual))
    body.store(value, IndexMap.identity(output, 2))
    convolution = Convolution(
        image=image,
        source=IndexMap.identity(image, 0),
        weight=1,
        channels=weight.shape[0],
        window=window,
        groups=groups,
        body=body.build(),
        tensors=tuple(tensors),
        tf32=tf32,
    )
    return convolution, values


def _dtype(tensor: torch.Tensor) -> DType:
    found = DType.of(tensor.dtype)
    if found is None:
        raise ValueError(f"no kernel of {tensor.dtype}")
    return found

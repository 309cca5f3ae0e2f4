"""Rules of convolutions: channels last, windows as taps of an anchor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtc.index import Size, sizes
from vtc.lowering.dvm.nodes import ConvolutionSpec, Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, rule, static

aten = torch.ops.aten


def _each(value: Any, rank: int) -> tuple[Size, ...]:
    given = list(value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(g, Node) for g in given):
        raise Unsupported("a convolution whose windows are not known before the call")
    return tuple(given * rank if len(given) == 1 else given)


def convolution(
    own: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Node:
    """x [n, ci, ...] or without n, weight [co, ci / groups, ...]; what `padding` says of the far
    side is in the shape of the result."""
    rank = len(weight.shape) - 2
    shape = own.shape
    if x.dtype is not weight.dtype or not x.dtype.is_float or rank < 1:
        raise Unsupported(f"a convolution of {x.dtype} and {weight.dtype}")
    if len(x.shape) == rank + 1:
        x, shape = own.graph.unsqueeze(x, 0), (1, *shape)
    spec = ConvolutionSpec(
        _each(stride, rank), _each(padding, rank), _each(dilation, rank), int(static(groups))
    )
    if any(s == 0 for s in (*x.shape, *weight.shape)):
        raise Unsupported("a convolution of nothing")
    if sizes.exact_div(weight.shape[0], spec.groups) is None:
        raise Unsupported("groups of a number of channels that is not known")
    last = own.graph.permute(x, [0, *range(2, rank + 2), 1])
    whole = (shape[0], *shape[2:], weight.shape[0])
    found = own.graph.node("convolution", whole, x.dtype, (last, weight), spec)
    turned = own.graph.permute(found, [0, rank + 1, *range(1, rank + 1)])
    if bias is not None:
        channel = own.graph.reshape(bias, [bias.shape[0], *(1 for _ in range(rank))])
        turned = own.arith("add", turned, channel)
    return turned if len(own.shape) == rank + 2 else own.graph.squeeze(turned, [0])


def _same(weight: Node, dilation: Sequence[Size]) -> tuple[Size, ...]:
    """The padding in front that keeps sizes; what is missing is behind."""
    taps = weight.shape[2:]
    return tuple(
        sizes.floor_div(sizes.mul(d, sizes.sub(t, 1)), 2)
        for t, d in zip(taps, dilation, strict=True)
    )


@rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def _conv(
    own: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Node:
    return convolution(own, x, weight, bias, stride, padding, dilation, groups)


@rule(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)
def _conv_padding(
    own: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: Any = 1,
) -> Node:
    rank = len(weight.shape) - 2
    given: Any = 0
    if padding == "same":
        given = _same(weight, _each(dilation, rank))
    return convolution(own, x, weight, bias, stride, given, dilation, groups)


@rule(aten.convolution.default)
def _convolution(
    own: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> Node:
    if transposed:
        raise Unsupported("a transposed convolution")
    return convolution(own, x, weight, bias, stride, padding, dilation, groups)

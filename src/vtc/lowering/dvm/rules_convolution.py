"""Rules of convolutions: channels last, windows as taps of an anchor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtc.index import Fill, Size, affine, sizes
from vtc.lowering.dvm.nodes import ConvolutionSpec, Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, rule, static

aten = torch.ops.aten


def _each(value: Any, rank: int) -> tuple[Size, ...]:
    given = list(value) if isinstance(value, list | tuple) else [value]
    if any(isinstance(g, Node) for g in given):
        raise Unsupported("a convolution whose windows are not known before the call")
    return tuple(given * rank if len(given) == 1 else given)


@rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def convolution(
    own: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Node:
    """x [n, ci, ...] or without n, weight [co, ci / groups, ...]; what `padding` says of the far
    side is in the shape of the result."""
    rank = len(weight.shape) - 2
    x, before = _unpadded(_batched(own, x, weight), weight.shape[2:])
    front = tuple(sizes.add(p, b) for p, b in zip(_each(padding, rank), before, strict=True))
    spec = ConvolutionSpec(_each(stride, rank), front, _each(dilation, rank), int(static(groups)))
    if sizes.exact_div(weight.shape[0], spec.groups) is None:
        raise Unsupported("groups of a number of channels that is not known")
    last = _channels_last(own, x, weight, own.shape[-rank:], spec)
    if bias is not None:
        last = own.arith("add", last, bias)
    return _channels_first(own, last, rank)


def _batched(own: Lowering, x: Node, weight: Node) -> Node:
    """x as [n, ci, ...]."""
    if x.dtype is not weight.dtype or not x.dtype.is_float or len(weight.shape) < 3:
        raise Unsupported(f"a convolution of {x.dtype} and {weight.dtype}")
    return x if len(x.shape) == len(weight.shape) else own.graph.unsqueeze(x, 0)


def _channels_first(own: Lowering, last: Node, rank: int) -> Node:
    turned = own.graph.permute(last, [0, rank + 1, *range(1, rank + 1)])
    return turned if len(own.shape) == rank + 2 else own.graph.squeeze(turned, [0])


def _channels_last(
    own: Lowering, x: Node, weight: Node, extents: Sequence[Size], spec: ConvolutionSpec
) -> Node:
    """The convolution of x, [n, ci, ...], as [n, *extents, co]."""
    if any(s == 0 for s in (*x.shape, *weight.shape)):
        raise Unsupported("a convolution of nothing")
    last = own.graph.permute(x, [0, *range(2, len(x.shape)), 1])
    whole = (x.shape[0], *extents, weight.shape[0])
    return own.graph.node("convolution", whole, x.dtype, (last, weight), spec)


@rule(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def transposed(
    own: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Node:
    """x [n, ci, ...] or without n, weight [ci, co, ...] whose taps do not overlap: each element
    becomes a block, whose places are channels of a convolution of one tap."""
    graph, rank, taps = own.graph, len(weight.shape) - 2, tuple(weight.shape[2:])
    plain = (_each(padding, rank), _each(output_padding, rank), _each(dilation, rank))
    if plain != ((0,) * rank, (0,) * rank, (1,) * rank) or static(groups) != 1:
        raise Unsupported("a transposed convolution with padding, dilation or groups")
    if _each(stride, rank) != taps:
        raise Unsupported("a transposed convolution whose blocks overlap or leave gaps")
    x = _batched(own, x, weight)
    extents, channels, ones = tuple(x.shape[2:]), weight.shape[1], (1,) * rank
    places = graph.permute(weight, [1, *range(2, rank + 2), 0])
    flat = graph.reshape(places, [sizes.product((channels, *taps)), weight.shape[0], *ones])
    last = _channels_last(own, x, flat, extents, ConvolutionSpec(ones, (0,) * rank, ones, 1))
    if bias is not None:
        of_places = graph.broadcast(graph.reshape(bias, [channels, *ones]), (channels, *taps))
        last = own.arith("add", last, graph.reshape(of_places, [flat.shape[0]]))
    blocks = graph.reshape(last, [x.shape[0], *extents, channels, *taps])
    turned = [0, *(d for k in range(rank) for d in (1 + k, rank + 2 + k)), rank + 1]
    whole = [x.shape[0], *(sizes.mul(e, t) for e, t in zip(extents, taps, strict=True)), channels]
    return _channels_first(own, graph.reshape(graph.permute(blocks, turned), whole), rank)


def _unpadded(x: Node, taps: Sequence[Size]) -> tuple[Node, Sequence[Size]]:
    """What x, [n, c, ...], pads with zeros, and by how much in front of its windows' dimensions; x
    itself and nothing where it does not, or where a window of one tap would not look."""
    nothing = (x, [0] * len(taps))
    pieces = x.constant.load.pieces if x.op == "move" and len(x.operands) == 1 else ()
    inside = [p for p in pieces if not isinstance(p.source, Fill)]
    if len(inside) != 1 or any(p.source.value for p in pieces if isinstance(p.source, Fill)):
        return nothing
    (source,), (piece,) = x.operands, inside
    shifted = [
        affine.add(affine.coordinate(d), affine.constant(sizes.sub(0, low)))
        for d, low in enumerate(piece.lower)
    ]
    box = tuple(sizes.sub(high, low) for low, high in zip(piece.lower, piece.upper, strict=True))
    looked_at = [False, False, *(t != 1 for t in taps)]
    padded = [a != b for a, b in zip(x.shape, source.shape, strict=False)]
    if list(piece.forms) != shifted or box != source.shape:
        return nothing
    if any(p and not look for p, look in zip(padded, looked_at, strict=True)):
        return nothing
    return source, piece.lower[2:]


def _same(weight: Node, dilation: Sequence[Size]) -> tuple[Size, ...]:
    """The padding in front that keeps sizes; what is missing is behind."""
    taps = weight.shape[2:]
    return tuple(
        sizes.floor_div(sizes.mul(d, sizes.sub(t, 1)), 2)
        for t, d in zip(taps, dilation, strict=True)
    )


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
    is_transposed: bool,
    output_padding: Any,
    groups: Any,
) -> Node:
    if is_transposed:
        return transposed(own, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolution(own, x, weight, bias, stride, padding, dilation, groups)

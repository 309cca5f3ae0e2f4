"""Rules of normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtc.index import IndexMap, Size, axes, sizes
from vtc.lowering.dvm.nodes import Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, dtype_of, rule
from vtc.lowering.dvm.rules_fold import mean_of, widened
from vtc.program.dtypes import DType

aten = torch.ops.aten


def _last_dims(x: Node, shape: Sequence[Size]) -> list[int]:
    return list(range(len(x.shape) - len(shape), len(x.shape)))


def _normalised(own: Lowering, x: Node, dims: Sequence[int], eps: Any) -> tuple[Node, Node, Node]:
    """(x less its mean over its deviation, the mean, one over the deviation), wide."""
    mean = mean_of(own, x, dims)
    left = own.op("sub", x, mean)
    variance = mean_of(own, own.op("mul", left, left), dims)
    scale = own.op("rsqrt", own.op("add", variance, own.operand(eps, variance.dtype)))
    return own.op("mul", left, scale), mean, scale


def _affine(own: Lowering, x: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        x = own.op("mul", x, own.operand(weight, x.dtype))
    return x if bias is None else own.op("add", x, own.operand(bias, x.dtype))


@rule(aten.layer_norm.default)
def _layer_norm(
    own: Lowering,
    x: Node,
    shape: Sequence[Size],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: Any = 1e-5,
    *_: Any,
) -> Node:
    found, _mean, _scale = _normalised(own, widened(own, x), _last_dims(x, shape), eps)
    return own.tagged(_affine(own, found, weight, bias))


@rule(aten.native_layer_norm.default)
def _native_layer_norm(
    own: Lowering,
    x: Node,
    shape: Sequence[Size],
    weight: Node | None,
    bias: Node | None,
    eps: Any,
) -> tuple[Node, Node, Node]:
    found, mean, scale = _normalised(own, widened(own, x), _last_dims(x, shape), eps)
    kept = dtype_of(own.value[1].dtype)
    return (
        own.tagged(_affine(own, found, weight, bias)),
        own.graph.cast(mean, kept),
        own.graph.cast(scale, kept),
    )


@rule(aten.rms_norm.default)
def _rms_norm(
    own: Lowering, x: Node, shape: Sequence[Size], weight: Node | None = None, eps: Any = None
) -> Node:
    wide = widened(own, x)
    dims = _last_dims(x, shape)
    if eps is None:
        eps = torch.finfo(wide.dtype.torch_dtype).eps
    power = mean_of(own, own.op("mul", wide, wide), dims)
    scale = own.op("rsqrt", own.op("add", power, own.operand(eps, power.dtype)))
    return own.tagged(_affine(own, own.op("mul", wide, scale), weight, None))


@rule(aten.group_norm.default)
def _group_norm(
    own: Lowering,
    x: Node,
    groups: Size,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: Any = 1e-5,
    *_: Any,
) -> Node:
    batch, channels, *rest = x.shape
    exact = sizes.exact_div(channels, groups)
    each = sizes.floor_div(channels, groups) if exact is None else exact
    parted = _parted(own, widened(own, x), (batch, groups, each, *rest))
    found, _mean, _scale = _normalised(own, parted, list(range(2, len(parted.shape))), eps)
    unit = [1] * len(rest)
    placed = [
        None
        if p is None
        else own.graph.reshape(_parted(own, p, (groups, each)), (groups, each, *unit))
        for p in (weight, bias)
    ]
    found = own.tagged(_affine(own, found, *placed))
    at = axes(len(x.shape))
    load = IndexMap.single(x.shape, [at[0], at[1] // each, at[1] % each, *at[2:]])
    return own.graph.move(load, [found], stores=[_channels(found.shape, 1)])


@rule(aten.instance_norm.default)
def _instance_norm(
    own: Lowering,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node | None,
    variance: Node | None,
    use_input_stats: bool,
    momentum: Any,
    eps: Any,
    *_: Any,
) -> Node:
    if not use_input_stats or mean is not None:
        raise Unsupported("instance_norm with kept statistics")
    dims = list(range(2, len(x.shape)))
    found, _mean, _scale = _normalised(own, widened(own, x), dims, eps)
    unit = [1] * len(dims)
    placed = [
        None if p is None else own.graph.reshape(p, (x.shape[1], *unit)) for p in (weight, bias)
    ]
    return own.tagged(_affine(own, found, *placed))


def _parted(own: Lowering, x: Node, shape: Sequence[Size]) -> Node:
    """x with its channels as two dimensions, groups and channels of a group."""
    return own.graph.move(_channels(shape, 1 if len(x.shape) > 1 else 0), [x])


def _channels(shape: Sequence[Size], dim: int) -> IndexMap:
    """[..., groups, each, ...] -> [..., channels, ...]; the groups are dimension `dim`."""
    at = axes(len(shape))
    joined = at[dim] * shape[dim + 1] + at[dim + 1]
    return IndexMap.single(shape, [*at[:dim], joined, *at[dim + 2 :]])


@rule(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm(
    own: Lowering,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    momentum: Any,
    eps: Any,
) -> tuple[Node, ...]:
    found = _batch_norm(own, x, weight, bias, mean, variance, False, momentum, eps)
    nothing = own.graph.broadcast(own.graph.const(0, DType.F32), (0,))
    return found, nothing, nothing


@rule(aten.batch_norm.default)
def _batch_norm(
    own: Lowering,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node | None,
    variance: Node | None,
    training: bool,
    momentum: Any,
    eps: Any,
    *_: Any,
) -> Node:
    if training or mean is None or variance is None:
        raise Unsupported("batch_norm on the statistics of the batch")
    wide = widened(own, x)
    channel = [x.shape[1], *[1] * (len(x.shape) - 2)]

    def placed(p: Node) -> Node:
        return own.graph.cast(own.graph.reshape(p, channel), wide.dtype)

    # One factor and one shift a channel, as PyTorch computes it too.
    spread = own.op("add", placed(variance), own.operand(eps, wide.dtype))
    factor = own.op("rsqrt", spread)
    if weight is not None:
        factor = own.op("mul", placed(weight), factor)
    shift = own.op("mul", placed(mean), factor)
    shift = own.op("neg", shift) if bias is None else own.op("sub", placed(bias), shift)
    return own.tagged(own.op("add", own.op("mul", wide, factor), shift))

"""What kind of work an ATen operator is, as far as fusion asks."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from enum import Enum

import torch
from torch import fx

from vtc.graph.program import value_of
from vtc.kernels import (
    attention,
    linear_attention,
    shift,
    sliding_attention,
    storing_attention,
)

aten = torch.ops.aten


class Kind(Enum):
    ANCHOR = "anchor"  # matmul, convolution, attention: a library kernel or template
    POINTWISE = "pointwise"
    REDUCTION = "reduction"  # norms and softmax included: Inductor generates them
    OPAQUE = "opaque"  # a kernel of its own that nothing fuses with


MATMULS = frozenset({
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
    aten.matmul.default, aten.linear.default, aten.mv.default, aten.addmv.default,
    aten.einsum.default,
})  # fmt: skip
CONVOLUTIONS = frozenset({
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
})  # fmt: skip
ATTENTIONS = frozenset({aten.scaled_dot_product_attention.default, attention.OVERLOAD})
CACHED_ATTENTIONS = frozenset({sliding_attention.OVERLOAD, storing_attention.OVERLOAD})
"""Attention that gives its caches as well, with new rows in them."""
ANCHORS = (
    MATMULS
    | CONVOLUTIONS
    | ATTENTIONS
    | CACHED_ATTENTIONS
    | {linear_attention.OVERLOAD, shift.OVERLOAD}
)

# Inductor turns these into generated loops; the names are those that capture keeps.
REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "std", "var_mean",
    "softmax", "_softmax", "log_softmax", "_log_softmax", "layer_norm", "native_layer_norm",
    "rms_norm", "_fused_rms_norm", "group_norm", "native_group_norm", "instance_norm", "logsumexp",
    "linalg_vector_norm", "argmax", "argmin", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d",
    "_adaptive_avg_pool2d", "normalize", "square_sums",
})  # fmt: skip

# Pointwise work without the tag: composites that decompose into it, and batch norm at inference.
POINTWISE = frozenset({
    "batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "_to_copy", "to",
    "where", "gelu", "silu", "relu6", "hardswish", "hardsigmoid", "mish", "elu", "leaky_relu",
    "clamp", "arange", "full", "zeros", "ones", "full_like", "zeros_like", "ones_like",
    "scalar_tensor",
    "tril", "triu", "glu", "one_hot", "softplus", "dropout", "masked_fill", "upsample_bilinear2d",
    "cos", "sin", "pow", "__and__", "__or__", "is_same_size", "new_ones", "new_zeros", "empty",
    "rsub", "true_divide", "square", "type_as", "float_power", "normalized",
})  # fmt: skip


def kind(node: fx.Node) -> Kind:
    """The kind of a compute operator (not of a movement operator)."""
    target = node.target
    if target is operator.getitem:
        return kind(node.all_input_nodes[0])
    if target in ANCHORS:
        return Kind.ANCHOR
    if not isinstance(target, torch._ops.OpOverload):
        return Kind.OPAQUE
    name = target._schema.name.split("::")[1]
    if torch.Tag.pointwise in target.tags or name in POINTWISE:
        return Kind.POINTWISE
    return Kind.REDUCTION if name in REDUCTIONS else Kind.OPAQUE


def can_join(producer: fx.Node, consumer: fx.Node) -> bool:
    """May Inductor generate `consumer` in one region with `producer`?

    Anchors and opaque operators start a region; pointwise work and reductions join what they read.
    """
    generated = (Kind.POINTWISE, Kind.REDUCTION)
    return kind(consumer) in generated and kind(producer) is not Kind.OPAQUE


def is_random(node: fx.Node) -> bool:
    """Operators that draw random numbers: their order in the program is part of their meaning."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    if target is aten.scaled_dot_product_attention.default:
        return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0))
    if target is aten.dropout.default:
        return bool(node.args[2])
    return True


def flops(node: fx.Node) -> int:
    """Floating-point operations of an anchor (a multiply-add is two), else 0."""
    if node.target is aten.einsum.default:
        return 2 * math.prod(_einsum_sizes(*node.args[:2]).values())
    if node.target in MATMULS:
        left = node.args[1] if node.target in (aten.addmm.default, aten.baddbmm.default) else None
        left = value_of(left if left is not None else _first_tensor(node))
        return 2 * value_of(node).numel() * left.shape[-1]
    if node.target in CONVOLUTIONS:
        weight = value_of(node.args[1])
        return 2 * value_of(node).numel() * weight.numel() // max(weight.shape[0], 1)
    if node.target in ATTENTIONS | CACHED_ATTENTIONS:
        query, key = value_of(node.args[0]), value_of(node.args[1])
        return 4 * query.numel() * key.shape[-2]
    return 0


def _einsum_sizes(equation: str, operands: Sequence[fx.Node]) -> dict[str | int, int]:
    """The size of each index of an einsum; those that dots stand for are counted from the end."""
    found: dict[str | int, int] = {}
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    for term, operand in zip(terms, operands, strict=True):
        shape = value_of(operand).shape
        before, _, behind = term.partition("...")
        names = [*before, *range(len(before) + len(behind) - len(shape), 0), *behind]
        for name, size in zip(names, shape, strict=True):
            known = found.setdefault(name, size)
            found[name] = size if isinstance(known, int) and known == 1 else known
    return found


def _first_tensor(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]

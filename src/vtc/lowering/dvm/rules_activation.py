"""Rules of activation functions, in the operations of their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from vtc.lowering.dvm.nodes import Node
from vtc.lowering.dvm.rules import Lowering, rule

aten = torch.ops.aten


def _float(own: Lowering, x: Node) -> Node:
    return own.operand(x, own.dtype)


def _of_one(write: Callable[[Lowering, Node], Node]) -> Callable[..., Node]:
    """A rule whose operand is in the result's compute type."""

    def lower(own: Lowering, x: Node) -> Node:
        return own.tagged(write(own, _float(own, x)))

    return lower


@rule(aten.relu.default)
def _relu(own: Lowering, x: Node) -> Node:
    return own.arith("maximum", x, 0)


rule(aten.relu6.default)(lambda own, x: own.arith("minimum", own.arith("maximum", x, 0), 6))


@rule(aten.silu.default)
@_of_one
def _silu(own: Lowering, x: Node) -> Node:
    return own.op("mul", x, own.op("sigmoid", x))


@rule(aten.gelu.default)
def _gelu(own: Lowering, x: Node, *, approximate: str = "none") -> Node:
    x = _float(own, x)
    one = own.number(1, x)
    if approximate == "none":
        curve = own.op("erf", own.op("mul", x, own.number(math.sqrt(0.5), x)))
    else:
        cube = own.op("mul", own.op("mul", x, x), x)
        inner = own.op("add", x, own.op("mul", own.number(0.044715, x), cube))
        curve = own.op("tanh", own.op("mul", own.number(math.sqrt(2 / math.pi), x), inner))
    half = own.op("mul", own.number(0.5, x), own.op("add", one, curve))
    return own.tagged(own.op("mul", x, half))


def _sixth_ramp(own: Lowering, x: Node) -> Node:
    """clamp(x + 3, 0, 6)."""
    raised = own.op("add", x, own.number(3, x))
    return own.op("minimum", own.op("maximum", raised, own.number(0, x)), own.number(6, x))


@rule(aten.hardsigmoid.default)
@_of_one
def _hardsigmoid(own: Lowering, x: Node) -> Node:
    return own.op("div", _sixth_ramp(own, x), own.number(6, x))


@rule(aten.hardswish.default)
@_of_one
def _hardswish(own: Lowering, x: Node) -> Node:
    return own.op("div", own.op("mul", x, _sixth_ramp(own, x)), own.number(6, x))


@rule(aten.hardtanh.default)
def _hardtanh(own: Lowering, x: Node, low: Any = -1, high: Any = 1) -> Node:
    return own.arith("minimum", own.arith("maximum", x, low), high)


@rule(aten.leaky_relu.default)
def _leaky_relu(own: Lowering, x: Node, slope: Any = 0.01) -> Node:
    x = _float(own, x)
    down = own.op("mul", x, own.operand(slope, own.dtype))
    return own.tagged(own.op("select", own.op("gt", x, own.number(0, x)), x, down))


@rule(aten.prelu.default, aten._prelu_kernel.default)
def _prelu(own: Lowering, x: Node, weight: Node) -> Node:
    if len(weight.shape) == 1 != len(x.shape):
        unit = [1 if d != 1 else weight.shape[0] for d in range(len(x.shape))]
        weight = own.graph.reshape(weight, unit)
    x = _float(own, x)
    down = own.op("mul", own.operand(weight, own.dtype), x)
    return own.tagged(own.op("select", own.op("gt", x, own.number(0, x)), x, down))


@rule(aten.elu.default)
def _elu(own: Lowering, x: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    x = _float(own, x)
    a, s, i = (own.operand(v, own.dtype) for v in (alpha, scale, input_scale))
    down = own.op("mul", own.op("expm1", own.op("mul", x, i)), own.op("mul", a, s))
    up = own.op("mul", x, s)
    return own.tagged(own.op("select", own.op("gt", x, own.number(0, x)), up, down))


@rule(aten.selu.default)
def _selu(own: Lowering, x: Node) -> Node:
    return _elu(own, x, 1.6732632423543772, 1.0507009873554805)


@rule(aten.celu.default)
def _celu(own: Lowering, x: Node, alpha: float = 1.0) -> Node:
    return _elu(own, x, alpha, 1, 1 / alpha)


@rule(aten.softplus.default)
def _softplus(own: Lowering, x: Node, beta: Any = 1, threshold: Any = 20) -> Node:
    x = _float(own, x)
    b = own.operand(beta, own.dtype)
    scaled = own.op("mul", x, b)
    soft = own.op("div", own.op("log1p", own.op("exp", scaled)), b)
    linear = own.op("gt", scaled, own.operand(threshold, own.dtype))
    return own.tagged(own.op("select", linear, x, soft))


@rule(aten.mish.default)
@_of_one
def _mish(own: Lowering, x: Node) -> Node:
    soft = own.op("log1p", own.op("exp", x))
    soft = own.op("select", own.op("gt", x, own.number(20, x)), x, soft)
    return own.op("mul", x, own.op("tanh", soft))


@rule(aten.log_sigmoid.default)
@_of_one
def _log_sigmoid(own: Lowering, x: Node) -> Node:
    """min(x, 0) - log1p(exp(-|x|))."""
    low = own.op("minimum", x, own.number(0, x))
    tail = own.op("log1p", own.op("exp", own.op("neg", own.op("abs", x))))
    return own.op("sub", low, tail)


@rule(aten.softshrink.default)
def _softshrink(own: Lowering, x: Node, lambd: Any = 0.5) -> Node:
    x = _float(own, x)
    width = own.operand(lambd, own.dtype)
    zero = own.op("mul", x, own.number(0, x))
    up = own.op("select", own.op("gt", x, width), own.op("sub", x, width), zero)
    low = own.op("lt", x, own.op("neg", width))
    return own.tagged(own.op("select", low, own.op("add", x, width), up))


@rule(aten.hardshrink.default)
def _hardshrink(own: Lowering, x: Node, lambd: Any = 0.5) -> Node:
    x = _float(own, x)
    outside = own.op("gt", own.op("abs", x), own.operand(lambd, own.dtype))
    kept = own.op("or", outside, own.op("isnan", x))
    return own.tagged(own.op("select", kept, x, own.number(0, x)))


@rule(aten.threshold.default)
def _threshold(own: Lowering, x: Node, limit: Any, value: Any) -> Node:
    x = _float(own, x)
    low = own.op("le", x, own.operand(limit, own.dtype))
    return own.tagged(own.op("select", low, own.operand(value, own.dtype), x))


@rule(aten.glu.default)
def _glu(own: Lowering, x: Node, dim: int = -1) -> Node:
    first, second = (_part(own, x, dim % len(x.shape), k) for k in range(2))
    gate = own.op("sigmoid", own.operand(second, own.dtype))
    return own.tagged(own.op("mul", own.operand(first, own.dtype), gate))


def _part(own: Lowering, x: Node, dim: int, number: int) -> Node:
    """Half of x along a dimension, as long as the result."""
    length = own.shape[dim]
    return own.graph.slice(x, dim, length * number, length)

"""Operators that act on each element: arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx import host
from vtc.graph.onnx.host import Host, Value, tensor, tensors
from vtc.graph.onnx.registry import ALL, add, publish, rule

OnTensors = Callable[..., Any]

# torch computes with few operators on these; all but the last fit into int64.
WIDE = {torch.uint16: torch.int64, torch.uint32: torch.int64, torch.uint64: torch.int64}


# Unary.


def _unary(name: str, on_tensor: OnTensors, on_number: Callable[..., Any] | None = None) -> None:
    def run(x: Value) -> Any:
        if on_number is not None and isinstance(x, Host):
            return host.elementwise(on_number, x, dtype=x.dtype)
        return widened(on_tensor, tensor(x))

    publish(globals(), name.lower(), run)
    add(name, run, host=(ALL,) if on_number else ())


def _round(x: Tensor) -> Any:
    return torch.round(x) if x.is_floating_point() else x


Numbers = Callable[..., Any] | None

_UNARY: tuple[tuple[str, OnTensors, Numbers], ...] = (
    ("Abs", torch.abs, abs),
    ("Acos", torch.acos, None),
    ("Acosh", torch.acosh, None),
    ("Asin", torch.asin, None),
    ("Asinh", torch.asinh, None),
    ("Atan", torch.atan, None),
    ("Atanh", torch.atanh, None),
    ("BitwiseNot", torch.bitwise_not, None),
    ("Ceil", torch.ceil, math.ceil),
    ("Cos", torch.cos, None),
    ("Cosh", torch.cosh, None),
    ("Erf", torch.erf, None),
    ("Exp", torch.exp, None),
    ("Floor", torch.floor, math.floor),
    ("HardSwish", F.hardswish, None),
    ("IsNaN", torch.isnan, None),
    ("Log", torch.log, None),
    ("Mish", F.mish, None),
    ("Neg", torch.neg, operator.neg),
    ("Not", torch.logical_not, operator.not_),
    ("Reciprocal", torch.reciprocal, None),
    ("Relu", torch.relu, None),
    ("Round", _round, None),
    ("Sigmoid", torch.sigmoid, None),
    ("Sign", torch.sign, None),
    ("Sin", torch.sin, None),
    ("Sinh", torch.sinh, None),
    ("Softplus", F.softplus, None),
    ("Softsign", F.softsign, None),
    ("Sqrt", torch.sqrt, math.sqrt),
    ("Tan", torch.tan, None),
    ("Tanh", torch.tanh, None),
)
for _name, _fn, _number in _UNARY:
    _unary(_name, _fn, _number)


# Binary.


def widened(fn: OnTensors, *operands: Any) -> Any:
    """`fn` on unsigned integers of 16 to 64 bits, by way of int64.

    Values from 2**63 on wrap around, so that sums, products and bit operations are right, and order
    and quotients are those of the wrapped values.
    """
    dtype = next((o.dtype for o in operands if isinstance(o, Tensor)), None)
    if dtype not in WIDE:
        return fn(*operands)
    wide = [o.to(WIDE[dtype]) if isinstance(o, Tensor) else o for o in operands]
    out = fn(*wide)
    return out if out.dtype == torch.bool else out.to(dtype)


def _binary(
    name: str,
    on_tensors: OnTensors,
    on_numbers: Callable[..., Any] | None = None,
    *,
    compares: bool = False,
    scalars: bool = True,
) -> None:
    """scalars: the second operand may be a Python number."""

    def run(a: Value, b: Value) -> Any:
        if on_numbers is not None and host.computable(a, b):
            dtype = torch.bool if compares else a.dtype
            return host.elementwise(on_numbers, a, b, dtype=dtype)
        if scalars and isinstance(a, Tensor):
            return widened(on_tensors, a, host.operand(b, a))
        return widened(on_tensors, *tensors(a, b))

    publish(globals(), f"{name.lower()}_", run)
    add(name, run, host=(ALL,))


def _quotient(a: Any, b: Any) -> Any:
    if a.is_floating_point():
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


def _number_quotient(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return host.truncated(a, b)


_BINARY: tuple[tuple[str, OnTensors, Numbers, bool, bool], ...] = (
    ("Add", torch.add, operator.add, False, True),
    ("Sub", torch.sub, operator.sub, False, True),
    ("Mul", torch.mul, operator.mul, False, True),
    ("Div", _quotient, _number_quotient, False, True),
    ("Equal", torch.eq, operator.eq, True, True),
    ("Greater", torch.gt, operator.gt, True, True),
    ("GreaterOrEqual", torch.ge, operator.ge, True, True),
    ("Less", torch.lt, operator.lt, True, True),
    ("LessOrEqual", torch.le, operator.le, True, True),
    ("And", torch.logical_and, lambda a, b: bool(a and b), True, False),
    ("Or", torch.logical_or, lambda a, b: bool(a or b), True, False),
    ("Xor", torch.logical_xor, None, True, False),
    ("BitwiseAnd", torch.bitwise_and, None, False, False),
    ("BitwiseOr", torch.bitwise_or, None, False, False),
    ("BitwiseXor", torch.bitwise_xor, None, False, False),
)
for _name, _fn, _number, _compares, _scalars in _BINARY:
    _binary(_name, _fn, _number, compares=_compares, scalars=_scalars)


@rule("Pow", host=(ALL,))
def pow_(x: Value, y: Value) -> Any:
    if host.computable(x, y) and all(abs(v) <= 64 for v in y.values):
        return host.elementwise(operator.pow, x, y, dtype=x.dtype)
    if isinstance(x, Tensor):
        exponent = host.operand(y, x)
        if isinstance(exponent, Tensor) and not x.is_floating_point():
            exponent = exponent.to(torch.promote_types(x.dtype, exponent.dtype))
        return torch.pow(x, exponent).to(x.dtype)
    base, exponent = tensors(x, y)
    return torch.pow(base, exponent).to(base.dtype)


@rule("Mod", host=(ALL,))
def mod(a: Value, b: Value, *, fmod: int = 0) -> Any:
    if host.computable(a, b):
        fn = math.fmod if fmod and a.dtype.is_floating_point else operator.mod
        if not fmod or a.dtype.is_floating_point:
            return host.elementwise(fn, a, b, dtype=a.dtype)
    a, b = tensors(a, b)
    return widened(torch.fmod if fmod else torch.remainder, a, b)


@rule("BitShift")
def bit_shift(x: Value, y: Value, *, direction: str) -> Any:
    x, y = tensors(x, y)
    if direction == "LEFT":
        return widened(torch.bitwise_left_shift, x, y)
    if x.dtype == torch.uint64:
        # An arithmetic shift of the wrapped value, less the copies of its sign.
        wide, by = x.to(torch.int64), y.to(torch.int64)
        shifted = torch.bitwise_right_shift(wide, by)
        kept = torch.bitwise_not(torch.bitwise_left_shift(torch.full_like(by, -1), 64 - by))
        return torch.where(by == 0, wide, torch.bitwise_and(shifted, kept)).to(x.dtype)
    return widened(torch.bitwise_right_shift, x, y)


# Of any number of inputs.


def _variadic(name: str, pair: OnTensors, on_numbers: Callable[..., Any] | None) -> None:
    def run(*inputs: Value) -> Any:
        if on_numbers is not None and host.computable(*inputs):
            return host.elementwise(on_numbers, *inputs, dtype=inputs[0].dtype)
        return functools.reduce(lambda a, b: widened(pair, a, b), tensors(*inputs))

    publish(globals(), f"{name.lower()}_", run)
    add(name, run, host=(ALL,) if on_numbers else ())


_VARIADIC: tuple[tuple[str, OnTensors, Numbers], ...] = (
    ("Max", torch.maximum, lambda *values: max(values)),
    ("Min", torch.minimum, lambda *values: min(values)),
    ("Sum", torch.add, None),
)
for _name, _fn, _number in _VARIADIC:
    _variadic(_name, _fn, _number)


@rule("Mean")
def mean(*inputs: Value) -> Any:
    return functools.reduce(torch.add, tensors(*inputs)) / len(inputs)


@rule("Where", host=(ALL,))
def where(condition: Value, x: Value, y: Value) -> Any:
    if host.computable(condition, x, y):
        return host.elementwise(lambda c, a, b: a if c else b, condition, x, y, dtype=x.dtype)
    return torch.where(*tensors(condition, x, y))


@rule("Clip", since=11, host=(1, 2))
def clip(x: Value, min: Value = None, max: Value = None) -> Any:
    if x.numel() == 0:
        return x
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        low, high = host.tensor(min, x), host.tensor(max, x)
    else:
        low, high = host.number(min), host.number(max)
    return x.clone() if low is None and high is None else torch.clamp(x, low, high)


# Activations.


@rule("CastLike")
def cast_like(
    x: Value, target_type: Value, *, saturate: int = 1, round_mode: str = "up", bits: int
) -> Any:
    return cast(x, to=target_type.dtype, saturate=saturate, round_mode=round_mode, bits=bits)


@rule("Cast", host=(ALL,))
def cast(
    x: Value, *, to: torch.dtype, saturate: int = 1, round_mode: str = "up", bits: int = 0
) -> Any:
    if isinstance(x, Host):
        if not bits and ((not to.is_complex and to.itemsize > 1) or to == torch.bool):
            return host.cast(x, to)
        x = tensor(x)
    if bits:
        # What does not fit wraps around, as it does for the types of whole bytes.
        least = -(2 ** (bits - 1)) if to == torch.int8 else 0
        return torch.remainder(x.to(torch.int32) - least, 2**bits).add(least).to(to)
    if to in FLOAT8 and x.dtype != to:
        return _to_float8(x, to, saturate)
    if to == torch.float8_e8m0fnu and x.dtype != to:
        return _to_power(x, saturate, round_mode)
    return x.to(to)


FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


def _to_float8(x: Tensor, to: torch.dtype, saturate: int) -> Tensor:
    wide = x.to(torch.float32)
    if not saturate:
        if to == torch.float8_e4m3fn:  # torch saturates; beyond halfway to 480 there is only NaN
            wide = torch.where(torch.abs(wide) > 464, math.nan, wide)
        return wide.to(to)
    largest = torch.finfo(to).max
    return wide.clamp(-largest, largest).to(to)


def _to_power(x: Tensor, saturate: int, round_mode: str) -> Tensor:
    """The exponent of a float as FLOAT8E8M0: 2**(bits - 127), 255 is NaN; the sign is dropped."""
    bits = x.to(torch.float32).contiguous().view(torch.int32) & 0x7FFFFFFF
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    if round_mode == "up":
        more = fraction > 0
    elif round_mode == "nearest":
        half = 0x400000
        more = (fraction > half) | ((fraction == half) & (exponent > 0))
    else:
        more = torch.zeros_like(fraction, dtype=torch.bool)
    top = 254 if saturate else 255
    rounded = torch.clamp(exponent + more, max=top)
    result = torch.where(exponent == 255, torch.where(fraction > 0, 255, top), rounded)
    return result.to(torch.uint8).view(torch.float8_e8m0fnu)


@rule("BitCast")
def bit_cast(x: Value, *, to: torch.dtype) -> Any:
    return tensor(x).contiguous().view(to)


@rule("IsInf")
def is_inf(x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if detect_negative else torch.zeros_like(x, dtype=torch.bool)


@rule("Elu")
def elu(x: Value, *, alpha: float = 1.0) -> Any:
    return F.elu(x, alpha)


@rule("Celu")
def celu(x: Value, *, alpha: float = 1.0) -> Any:
    return F.celu(x, alpha)


@rule("Selu")
def selu(x: Value, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.0507) -> Any:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0)))


@rule("LeakyRelu")
def leaky_relu(x: Value, *, alpha: float = 0.01) -> Any:
    return F.leaky_relu(x, alpha)


@rule("ThresholdedRelu")
def thresholded_relu(x: Value, *, alpha: float = 1.0) -> Any:
    return torch.where(x > alpha, x, torch.zeros_like(x))


@rule("PRelu")
def prelu(x: Value, slope: Value) -> Any:
    return torch.where(x < 0, slope * x, x)


@rule("HardSigmoid")
def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return torch.clamp(alpha * x + beta, 0, 1)


@rule("Gelu")
def gelu(x: Value, *, approximate: str = "none") -> Any:
    return F.gelu(x, approximate=approximate)


@rule("Swish")
def swish(x: Value, *, alpha: float = 1.0) -> Any:
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@rule("SwiGLU")
def swiglu(a: Value, b: Value, *, alpha: float = 1.0) -> Any:
    return swish(a, alpha=alpha) * b


@rule("Shrink")
def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    inner = torch.where(x > lambd, x - bias, torch.zeros_like(x))
    return torch.where(x < -lambd, x + bias, inner)

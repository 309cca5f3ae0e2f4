"""Rules of pointwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from vtc.index import sizes
from vtc.lowering.dvm.nodes import Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, dtype_of, is_size, rule, static
from vtc.program.dtypes import DType

aten = torch.ops.aten

# Unary operators that are one scalar operator, in the result's dtype.
_FLOAT = {
    "exp": aten.exp, "exp2": aten.exp2, "expm1": aten.expm1, "log": aten.log, "log2": aten.log2,
    "log10": aten.log10, "log1p": aten.log1p, "sqrt": aten.sqrt, "rsqrt": aten.rsqrt,
    "sin": aten.sin, "cos": aten.cos, "tan": aten.tan, "asin": aten.asin, "acos": aten.acos,
    "atan": aten.atan, "sinh": aten.sinh, "cosh": aten.cosh, "tanh": aten.tanh,
    "asinh": aten.asinh, "acosh": aten.acosh, "atanh": aten.atanh, "erf": aten.erf,
    "erfc": aten.erfc, "sigmoid": aten.sigmoid, "reciprocal": aten.reciprocal,
}  # fmt: skip
_ANY = {"neg": aten.neg, "abs": aten.abs, "sign": aten.sign}
_ROUNDING = {"floor": aten.floor, "ceil": aten.ceil, "trunc": aten.trunc, "round": aten.round}


def _unary(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node) -> Node:
        if own.dtype is DType.BOOL:
            raise Unsupported(f"{name} of bool")
        return own.arith(name, x)

    return lower


def _rounding(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node) -> Node:
        return own.arith(name, x) if x.dtype.is_float else x

    return lower


for _name, _op in (_FLOAT | _ANY).items():
    rule(_op.default)(_unary(_name))
for _name, _op in _ROUNDING.items():
    rule(_op.default)(_rounding(_name))
rule(aten.fix.default)(_rounding("trunc"))
rule(aten.special_expit.default)(_unary("sigmoid"))
rule(aten.absolute.default)(_unary("abs"))
rule(aten.sgn.default)(_unary("sign"))


@rule(aten.positive.default)
def _positive(own: Lowering, x: Node) -> Node:
    return x


@rule(aten.square.default)
def _square(own: Lowering, x: Node) -> Node:
    return own.arith("mul", x, x)


@rule(aten.frac.default)
def _frac(own: Lowering, x: Node) -> Node:
    x = own.operand(x, own.dtype)
    return own.tagged(own.op("sub", x, own.op("trunc", x)))


@rule(aten.deg2rad.default)
def _deg2rad(own: Lowering, x: Node) -> Node:
    return own.arith("mul", x, math.pi / 180)


@rule(aten.rad2deg.default)
def _rad2deg(own: Lowering, x: Node) -> Node:
    return own.arith("mul", x, 180 / math.pi)


# Arithmetic with two operands.


def _scaled(own: Lowering, b: Any, alpha: Any) -> Any:
    return b if isinstance(alpha, int | float) and alpha == 1 else own.arith("mul", b, alpha)


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(own: Lowering, a: Any, b: Any, alpha: Any = 1) -> Node:
    return own.arith("add", a, _scaled(own, b, alpha))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(own: Lowering, a: Any, b: Any, alpha: Any = 1) -> Node:
    return own.arith("sub", a, _scaled(own, b, alpha))


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(own: Lowering, a: Any, b: Any, alpha: Any = 1) -> Node:
    return own.arith("sub", b, _scaled(own, a, alpha))


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(own: Lowering, a: Any, b: Any) -> Node:
    return own.arith("mul", a, b)


@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def _div(own: Lowering, a: Any, b: Any) -> Node:
    return own.arith("div", a, b)


def check_divisor(own: Lowering, b: Any) -> None:
    """Raises Unsupported for a divisor of integers that may be 0, where eager PyTorch raises."""
    if own.dtype.is_integer and (isinstance(b, Node) or b == 0):
        raise Unsupported("integers divided by what may be zero")


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(own: Lowering, a: Any, b: Any, *, rounding_mode: str | None) -> Node:
    if rounding_mode is None:
        return own.arith("div", a, b)
    check_divisor(own, b)
    if rounding_mode == "floor":
        return own.arith("floordiv", a, b)
    if own.dtype.is_float:
        return own.tagged(own.op("trunc", own.operand(own.arith("div", a, b), own.dtype)))
    # Towards zero: the dividend without what is left over, which divides exactly.
    left, right = own.operand(a, own.dtype.compute), own.operand(b, own.dtype.compute)
    whole = own.op("sub", left, own.op("fmod", left, right))
    return own.graph.cast(own.op("floordiv", whole, right), own.dtype)


@rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(own: Lowering, a: Any, b: Any) -> Node:
    check_divisor(own, b)
    return own.arith("floordiv", a, b)


@rule(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(own: Lowering, a: Any, b: Any) -> Node:
    check_divisor(own, b)
    return own.arith("fmod", a, b)


@rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(own: Lowering, a: Any, b: Any) -> Node:
    """The remainder with the sign of b: that of C, moved by b where the signs differ."""
    check_divisor(own, b)
    wide = own.dtype.compute
    left, right = own.operand(a, wide), own.operand(b, wide)
    rest = own.op("fmod", left, right)
    zero = own.number(0, rest)
    differs = own.op("ne", own.op("lt", rest, zero), own.op("lt", right, zero))
    moved = own.op("and", differs, own.op("ne", rest, zero))
    found = own.op("select", moved, own.op("add", rest, right), rest)
    return own.graph.cast(found, own.dtype) if own.dtype.is_integer else own.tagged(found)


@rule(aten.maximum.default, aten.max.other)
def _maximum(own: Lowering, a: Any, b: Any) -> Node:
    return own.arith("maximum", a, b)


@rule(aten.minimum.default, aten.min.other)
def _minimum(own: Lowering, a: Any, b: Any) -> Node:
    return own.arith("minimum", a, b)


def _without_nan(name: str, whole: Callable[..., Node]) -> Callable[..., Node]:
    def lower(own: Lowering, a: Any, b: Any) -> Node:
        if not own.dtype.is_float:
            return whole(own, a, b)
        left, right = own.operand(a, own.dtype), own.operand(b, own.dtype)
        found = own.op(name, left, right)
        found = own.op("select", own.op("isnan", left), right, found)
        return own.tagged(own.op("select", own.op("isnan", right), left, found))

    return lower


rule(aten.fmax.default)(_without_nan("maximum", _maximum))
rule(aten.fmin.default)(_without_nan("minimum", _minimum))
rule(aten.atan2.default)(lambda own, a, b: own.arith("atan2", a, b))


@rule(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(own: Lowering, a: Any, b: Any) -> Node:
    if own.dtype.is_integer:
        if isinstance(b, int) and b == 2:
            return own.arith("mul", a, a)
        return own.graph.cast(_integer_power(own, a, b), own.dtype)
    x = own.operand(a, own.dtype)
    if isinstance(b, int | float) and not isinstance(b, bool):
        found = _fixed_power(own, x, float(b))
        if found is not None:
            return own.tagged(found)
    return own.arith("pow", a, b)


def _integer_power(own: Lowering, a: Any, b: Any) -> Node:
    """a**b; to a negative power 1 is 1, -1 is 1 or -1, and the rest 0."""
    wide = own.dtype.compute
    base, power = own.operand(a, wide), own.operand(b, wide)
    found = own.op("ipow", base, power)
    if isinstance(b, int) and b >= 0:
        return found
    zero, one, below = (own.number(n, base) for n in (0, 1, -1))
    odd = own.op("eq", own.op("and", power, one), one)
    turned = own.op("select", odd, below, one)
    unit = own.op("select", own.op("eq", base, below), turned, zero)
    inverse = own.op("select", own.op("eq", base, one), one, unit)
    return own.op("select", own.op("lt", power, zero), inverse, found)


@rule(aten.ldexp.Tensor)
def _ldexp(own: Lowering, a: Node, b: Node) -> Node:
    """a * 2**b."""
    x, power = own.operand(a, own.dtype), own.operand(b, own.dtype)
    return own.tagged(own.op("mul", x, own.op("pow", own.number(2, x), power)))


def _fixed_power(own: Lowering, x: Node, power: float) -> Node | None:
    """Small powers by multiplication, as PyTorch's kernels do."""
    if power == 0.5:
        return own.op("sqrt", x)
    if power == -0.5:
        return own.op("rsqrt", x)
    if power == 1:
        return x
    if power == 2:
        return own.op("mul", x, x)
    if power == 3:
        return own.op("mul", own.op("mul", x, x), x)
    if power == -1:
        return own.op("reciprocal", x)
    if power == -2:
        return own.op("reciprocal", own.op("mul", x, x))
    return None


@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(own: Lowering, a: Node, b: Node, weight: Any) -> Node:
    """a + w (b - a), from the nearer end as PyTorch does it."""
    dtype = own.dtype
    start, end, w = (own.operand(x, dtype) for x in (a, b, weight))
    span = own.op("sub", end, start)
    low = own.op("add", start, own.op("mul", w, span))
    one = own.number(1, w)
    high = own.op("sub", end, own.op("mul", span, own.op("sub", one, w)))
    near = own.op("lt", own.op("abs", w), own.number(0.5, w))
    return own.tagged(own.op("select", near, low, high))


@rule(aten.addcmul.default)
def _addcmul(own: Lowering, x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    return own.arith("add", x, own.arith("mul", _scaled(own, a, value), b))


@rule(aten.addcdiv.default)
def _addcdiv(own: Lowering, x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    return own.arith("add", x, own.arith("div", _scaled(own, a, value), b))


# Comparison and logic.


def _comparison(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, a: Any, b: Any) -> Node:
        dtype = own.common(a, b)
        return own.op(name, _compared(own, a, dtype), _compared(own, b, dtype))

    return lower


def _compared(own: Lowering, x: Any, dtype: DType) -> Node:
    """An operand of a comparison: rounded to the common dtype, even to half precision."""
    made = own.operand(x, dtype)
    return own.graph.cast(made, dtype) if dtype.is_float else made


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _packet = getattr(aten, _name)
    rule(_packet.Tensor, _packet.Scalar)(_comparison(_name))


def _bitwise(name: str) -> Callable[..., Node]:
    return lambda own, a, b: own.arith(name, a, b)


for _name, _packet in (
    ("and", aten.bitwise_and), ("or", aten.bitwise_or), ("xor", aten.bitwise_xor),
):  # fmt: skip
    rule(_packet.Tensor, _packet.Scalar)(_bitwise(_name))
for _name, _packet in (("and", aten.__and__), ("or", aten.__or__), ("xor", aten.__xor__)):
    rule(_packet.Tensor, _packet.Scalar)(_bitwise(_name))


@rule(aten.bitwise_not.default)
def _bitwise_not(own: Lowering, x: Node) -> Node:
    return own.arith("not", x)


def _logical(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, a: Any, b: Any) -> Node:
        return own.op(name, truth(own, a), truth(own, b))

    return lower


for _name in ("and", "or", "xor"):
    rule(getattr(aten, f"logical_{_name}").default)(_logical(_name))


@rule(aten.logical_not.default)
def _logical_not(own: Lowering, x: Node) -> Node:
    return own.op("not", truth(own, x))


def truth(own: Lowering, x: Node) -> Node:
    """x != 0."""
    if x.dtype is DType.BOOL:
        return x
    wide = own.graph.cast(x, x.dtype.compute)
    return own.op("ne", wide, own.number(0, wide))


def _float_test(name: str, integers: bool) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node) -> Node:
        if not x.dtype.is_float:
            return own.graph.broadcast(own.graph.const(integers, DType.BOOL), x.shape)
        if name == "isfinite":
            odd = own.op("or", own.op("isnan", x), own.op("isinf", x))
            return own.op("not", odd)
        return own.op(name, x)

    return lower


rule(aten.isnan.default)(_float_test("isnan", False))
rule(aten.isinf.default)(_float_test("isinf", False))
rule(aten.isfinite.default)(_float_test("isfinite", True))


# Selection.


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(own: Lowering, condition: Node, a: Any, b: Any) -> Node:
    dtype = own.dtype
    left, right = own.operand(a, dtype), own.operand(b, dtype)
    return own.tagged(own.op("select", truth(own, condition), left, right))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(own: Lowering, x: Node, mask: Node, value: Any) -> Node:
    dtype = own.dtype
    return own.tagged(
        own.op("select", truth(own, mask), own.operand(value, dtype), own.operand(x, dtype))
    )


@rule(aten.clamp.default, aten.clamp.Tensor, aten.clip.default)
def _clamp(own: Lowering, x: Node, low: Any = None, high: Any = None) -> Node:
    found: Any = x
    if low is not None:
        found = own.arith("maximum", found, low)
    return found if high is None else own.arith("minimum", found, high)


rule(aten.clamp_min.default, aten.clamp_min.Tensor)(
    lambda own, x, low: own.arith("maximum", x, low)
)
rule(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda own, x, hi: own.arith("minimum", x, hi))


@rule(aten.heaviside.default)
def _heaviside(own: Lowering, x: Node, at_zero: Node) -> Node:
    dtype = own.dtype
    left = own.operand(x, dtype)
    zero, one = own.number(0, left), own.number(1, left)
    step = own.op("select", own.op("lt", left, zero), zero, one)
    return own.tagged(own.op("select", own.op("eq", left, zero), own.operand(at_zero, dtype), step))


@rule(aten.nan_to_num.default)
def _nan_to_num(
    own: Lowering, x: Node, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Node:
    if not x.dtype.is_float:
        return x
    limits = torch.finfo(x.dtype.torch_dtype)
    found = own.operand(x, own.dtype)
    zero = own.number(0, found)
    infinite = own.op("isinf", found)
    positive = own.number(limits.max if posinf is None else static(posinf), found)
    negative = own.number(limits.min if neginf is None else static(neginf), found)
    ends = own.op("select", own.op("gt", found, zero), positive, negative)
    capped = own.op("select", infinite, ends, found)
    plain = own.number(0 if nan is None else static(nan), found)
    return own.tagged(own.op("select", own.op("isnan", found), plain, capped))


# Casts.


@rule(aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout)
def _to_copy(own: Lowering, x: Node, *_: Any, **options: Any) -> Node:
    device = options.get("device")
    if device is not None and torch.device(device).type != "cpu":
        raise Unsupported("a copy to another device")
    return own.graph.cast(x, own.dtype)


@rule(torch.ops.prims.convert_element_type.default)
def _convert(own: Lowering, x: Node, dtype: torch.dtype) -> Node:
    return own.graph.cast(x, dtype_of(dtype))


@rule(aten.type_as.default)
def _type_as(own: Lowering, x: Node, other: Node) -> Node:
    return own.graph.cast(x, other.dtype)


# Scalars of Python: what Dynamo computes on changing numbers.


def as_float(own: Lowering, x: Any) -> Node:
    """A changing number, an int or a Size as an f64 node of no dimensions."""
    if is_size(x) and not isinstance(x, int):
        return own.graph.const(sizes.as_size(x), DType.F64)
    return own.operand(x, DType.F64)

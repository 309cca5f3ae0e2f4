"""The one table of scalar operators.

Each row gives the meaning of an operator once: what it computes on torch tensors of a compute
type (the reference), how Triton writes it, and what it costs. Interpreters, the instruction set
and the epilogues of Triton kernels all take their operators from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from vtc.program.dtypes import DType

FLOATS = (DType.F32, DType.F64)
INTEGERS = (DType.I32, DType.I64)
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, DType.BOOL)


@dataclass(frozen=True)
class Scalar:
    """A scalar operator.

    dtypes: compute types of the operands, all the same (`select` takes a bool first). result:
    "same" as the operands, or "bool". evaluate: the reference, on tensors. triton: format text of
    the operands {0}, {1}, {2}; None where Triton has no short form. cost: about how many cycles a
    SIMD vector takes.
    """

    name: str
    arity: int
    dtypes: tuple[DType, ...]
    evaluate: Callable[..., torch.Tensor]
    triton: str | None
    meaning: str
    result: Literal["same", "bool"] = "same"
    cost: int = 1


SCALARS: dict[str, Scalar] = {}


def _scalar(*row: object, **more: object) -> None:
    made = Scalar(*row, **more)  # type: ignore[arg-type]
    SCALARS[made.name] = made


def _c_mod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The remainder of C, with the sign of a; a % 0 is 0 for integers."""
    if a.is_floating_point():
        return torch.fmod(a, b)
    zero = b == 0
    return torch.where(zero, torch.zeros_like(a), torch.fmod(a, torch.where(zero, 1, b)))


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a // b rounded to minus infinity; a // 0 is 0 for integers."""
    if a.is_floating_point():
        return torch.floor_divide(a, b)
    zero = b == 0
    quotient = torch.div(a, torch.where(zero, 1, b), rounding_mode="floor")
    return torch.where(zero, torch.zeros_like(a), quotient)


def _int_power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.pow(a, b.clamp(min=0))


def _sqrt(a: torch.Tensor) -> torch.Tensor:
    """Of f32 rounded once, as IEEE has it: PyTorch's vector code is one unit off at times."""
    return torch.sqrt(a.double()).to(a.dtype)


# Arithmetic.
_scalar("add", 2, NUMBERS, torch.add, "({0} + {1})", "a + b")
_scalar("sub", 2, NUMBERS, torch.sub, "({0} - {1})", "a - b")
_scalar("mul", 2, NUMBERS, torch.mul, "({0} * {1})", "a * b")
_scalar("div", 2, FLOATS, torch.div, "({0} / {1})", "a / b", cost=5)
_scalar("floordiv", 2, NUMBERS, _floor_div, None, "a // b, to minus infinity; i // 0 = 0", cost=8)
_scalar("fmod", 2, NUMBERS, _c_mod, None, "remainder with the sign of a; i % 0 = 0", cost=12)
_scalar("pow", 2, FLOATS, torch.pow, "libdevice.pow({0}, {1})", "a to the power of b", cost=25)
_scalar("ipow", 2, INTEGERS, _int_power, None, "a to the power of max(b, 0)", cost=25)
_scalar(
    "minimum",
    2,
    NUMBERS,
    torch.minimum,
    "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "the smaller; NaN if either is",
)
_scalar(
    "maximum",
    2,
    NUMBERS,
    torch.maximum,
    "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "the larger; NaN if either is",
)
_scalar(
    "fma",
    3,
    FLOATS,
    lambda a, b, c: torch.addcmul(c, a, b),
    "tl.fma({0}, {1}, {2})",
    "a * b + c, rounded once or twice",
)
_scalar("atan2", 2, FLOATS, torch.atan2, "libdevice.atan2({0}, {1})", "angle of (b, a)", cost=30)

# Comparison and logic.
for _name, _sign, _function in (
    ("eq", "==", torch.eq), ("ne", "!=", torch.ne), ("lt", "<", torch.lt),
    ("le", "<=", torch.le), ("gt", ">", torch.gt), ("ge", ">=", torch.ge),
):  # fmt: skip
    _scalar(_name, 2, ALL, _function, f"({{0}} {_sign} {{1}})", f"a {_sign} b", result="bool")
_scalar("and", 2, (*INTEGERS, DType.BOOL), torch.bitwise_and, "({0} & {1})", "a & b, bitwise")
_scalar("or", 2, (*INTEGERS, DType.BOOL), torch.bitwise_or, "({0} | {1})", "a | b, bitwise")
_scalar("xor", 2, (*INTEGERS, DType.BOOL), torch.bitwise_xor, "({0} ^ {1})", "a ^ b, bitwise")
_scalar("not", 1, (*INTEGERS, DType.BOOL), torch.bitwise_not, "(~{0})", "~a, bitwise")
_scalar("shl", 2, INTEGERS, torch.bitwise_left_shift, "({0} << {1})", "a << b, 0 <= b < width")
_scalar("shr", 2, INTEGERS, torch.bitwise_right_shift, "({0} >> {1})", "a >> b, 0 <= b < width")
_scalar("isnan", 1, FLOATS, torch.isnan, "({0} != {0})", "a is NaN", result="bool")
_scalar(
    "isinf", 1, FLOATS, torch.isinf, "(tl.abs({0}) == float('inf'))", "a is infinite", result="bool"
)
_scalar("select", 3, ALL, torch.where, "tl.where({0}, {1}, {2})", "b if a else c")

# Sign and rounding.
_scalar("neg", 1, NUMBERS, torch.neg, "(-{0})", "-a")
_scalar("abs", 1, NUMBERS, torch.abs, "tl.abs({0})", "|a|")
_scalar("sign", 1, NUMBERS, torch.sign, None, "-1, 0 or 1 (0 for NaN)", cost=3)
_scalar("floor", 1, FLOATS, torch.floor, "tl.floor({0})", "largest integer <= a")
_scalar("ceil", 1, FLOATS, torch.ceil, "tl.ceil({0})", "smallest integer >= a")
_scalar(
    "round", 1, FLOATS, torch.round, "libdevice.nearbyint({0})", "nearest integer, ties to even"
)
_scalar("trunc", 1, FLOATS, torch.trunc, "libdevice.trunc({0})", "integer part")

# Transcendental functions.
for _name, _function, _text, _cost in (
    ("exp", torch.exp, "tl.exp({0})", 10), ("exp2", torch.exp2, "tl.exp2({0})", 8),
    ("expm1", torch.expm1, "libdevice.expm1({0})", 14), ("log", torch.log, "tl.log({0})", 12),
    ("log2", torch.log2, "tl.log2({0})", 12), ("log10", torch.log10, "libdevice.log10({0})", 14),
    ("log1p", torch.log1p, "libdevice.log1p({0})", 14), ("sqrt", _sqrt, "tl.sqrt_rn({0})", 6),
    ("rsqrt", torch.rsqrt, "tl.rsqrt({0})", 7), ("sin", torch.sin, "tl.sin({0})", 15),
    ("cos", torch.cos, "tl.cos({0})", 15), ("tan", torch.tan, "libdevice.tan({0})", 25),
    ("asin", torch.asin, "libdevice.asin({0})", 25),
    ("acos", torch.acos, "libdevice.acos({0})", 25),
    ("atan", torch.atan, "libdevice.atan({0})", 25),
    ("sinh", torch.sinh, "libdevice.sinh({0})", 25),
    ("cosh", torch.cosh, "libdevice.cosh({0})", 25),
    ("tanh", torch.tanh, "libdevice.tanh({0})", 14),
    ("asinh", torch.asinh, "libdevice.asinh({0})", 30),
    ("acosh", torch.acosh, "libdevice.acosh({0})", 30),
    ("atanh", torch.atanh, "libdevice.atanh({0})", 30), ("erf", torch.erf, "tl.erf({0})", 16),
    ("erfc", torch.erfc, "libdevice.erfc({0})", 20),
    ("sigmoid", torch.sigmoid, "tl.sigmoid({0})", 14),
    ("reciprocal", torch.reciprocal, "(1.0 / {0})", 5),
):  # fmt: skip
    _scalar(_name, 1, FLOATS, _function, _text, f"{_name}(a)", cost=_cost)


@dataclass(frozen=True)
class Reduction:
    """How values are folded: `identity` gives the value of nothing for a compute type."""

    name: str
    dtypes: tuple[DType, ...]
    identity: Callable[[DType], float | int | bool]
    meaning: str


def _lowest(dtype: DType) -> float | int:
    return float("-inf") if dtype.is_float else int(torch.iinfo(dtype.torch_dtype).min)


def _highest(dtype: DType) -> float | int:
    return float("inf") if dtype.is_float else int(torch.iinfo(dtype.torch_dtype).max)


REDUCTIONS: dict[str, Reduction] = {
    row.name: row
    for row in (
        Reduction("sum", NUMBERS, lambda dtype: 0, "sum"),
        Reduction("prod", NUMBERS, lambda dtype: 1, "product"),
        Reduction("max", NUMBERS, _lowest, "largest; NaN if any is"),
        Reduction("min", NUMBERS, _highest, "smallest; NaN if any is"),
        Reduction("any", (DType.BOOL,), lambda dtype: False, "or of all"),
        Reduction("all", (DType.BOOL,), lambda dtype: True, "and of all"),
        Reduction("argmax", NUMBERS, lambda dtype: 0, "first place of the largest; NaN wins"),
        Reduction("argmin", NUMBERS, lambda dtype: 0, "first place of the smallest; NaN wins"),
    )
}

"""Every operator of the table, through the evaluator, against numpy, math and integers."""

import itertools
import math

import numpy as np
import pytest
import torch

from program.building import Kernel, buffer, module, outcome
from vtc.program.dtypes import DType
from vtc.program.scalars import SCALARS

FLOAT_VALUES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -0.7, 0.999, 7.3, -11.9, 50.0, -87.3, 88.1,
    1e-40, -1e-45, 1e-30, 3.0e38, -3.0e38, 1e20, math.inf, -math.inf, math.nan,
]  # fmt: skip


def integer_values(dtype):
    info = torch.iinfo(dtype.torch_dtype)
    return [0, 1, -1, 2, -2, 3, -7, 13, 31, -31, 1000003, info.min, info.min + 1, info.max]


def values(dtype):
    if dtype is DType.BOOL:
        return [False, True]
    return FLOAT_VALUES if dtype.is_float else integer_values(dtype)


def wrapped(number, dtype):
    if dtype is DType.BOOL:
        return bool(number & 1)
    bits = 8 * dtype.itemsize
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def c_remainder(a, b):
    return 0 if b == 0 else int(math.copysign(1, a)) * (abs(a) % abs(b))


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: 0 if b == 0 else a // b,
    "fmod": c_remainder,
    "ipow": lambda a, b: pow(a, max(b, 0), 2**64),
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "select": lambda a, b, c: b if a else c,
}
COMPARED = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _floor_div(a, b):
    """a // b as PyTorch has it: by zero it is a / b."""
    if b == 0:
        return a / b
    return np.floor_divide(a, b)


FLOAT = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "fmod": np.fmod,
    "floordiv": _floor_div, "pow": np.power, "minimum": np.minimum, "maximum": np.maximum,
    "fma": lambda a, b, c: np.float64(a) * np.float64(b) + np.float64(c), "atan2": np.arctan2,
    "isnan": np.isnan, "isinf": np.isinf, "select": lambda a, b, c: b if a else c,
    "neg": np.negative, "abs": np.abs, "sign": lambda a: 0.0 if a != a else np.sign(a),
    "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": math.erf, "erfc": math.erfc,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "reciprocal": lambda a: 1 / a,
}  # fmt: skip
# f64 values of numpy and PyTorch may differ by this many units in the last place.
F64_ULPS = 16


def run(name, dtype, columns):
    """The operator on columns of operands; the first of `select` is a bool."""
    count = len(columns[0])
    dtypes = [DType.BOOL if name == "select" and n == 0 else dtype for n in range(len(columns))]
    k = Kernel("scalar", (count,))
    args = [k.load(n, 1, dtype=own) for n, own in enumerate(dtypes)]
    value = k.op(name, *args)
    k.store(len(columns), value, 1)
    buffers = [buffer(f"x{n}", own, count) for n, own in enumerate(dtypes)]
    buffers.append(buffer("y", k.body[value].dtype, count))
    tensors = [
        torch.tensor(c, dtype=own.torch_dtype) for c, own in zip(columns, dtypes, strict=True)
    ]
    (result,) = outcome(module(k, buffers=buffers), tensors)
    return tensors, result


def combinations(name, dtype):
    choices = [values(dtype)] * SCALARS[name].arity
    if name == "select":
        choices[0] = [False, True]
    if name in ("shl", "shr"):
        choices[1] = range(8 * dtype.itemsize)
    rows = list(itertools.product(*choices))
    if name in ("fmod", "floordiv") and dtype.is_float:
        # PyTorch's vector code loses itself where the quotient has more bits than the type.
        rows = [(a, b) for a, b in rows if not (b and abs(a) < math.inf and abs(a / b) > 1e5)]
    if name == "pow":
        rows = [row for row in rows if row != (-math.inf, 0.5)]  # NaN in PyTorch, inf in C
    return [list(column) for column in zip(*rows, strict=True)]


EXACT = [(n, d) for n, row in SCALARS.items() for d in row.dtypes if not d.is_float]
INEXACT = [(n, d) for n, row in SCALARS.items() for d in row.dtypes if d.is_float]


@pytest.mark.parametrize(("name", "dtype"), EXACT, ids=str)
def test_operators_on_integers_and_bools(name, dtype):
    columns = combinations(name, dtype)
    _, result = run(name, dtype, columns)
    function = INTEGER.get(name) or COMPARED.get(name)
    if name == "shl":
        function = lambda a, b: a << b  # noqa: E731
    if name == "shr":
        function = lambda a, b: a >> b  # noqa: E731
    kind = DType.BOOL if SCALARS[name].result == "bool" else dtype
    wanted = [wrapped(int(function(*row)), kind) for row in zip(*columns, strict=True)]
    assert result.tolist() == wanted


@pytest.mark.parametrize(("name", "dtype"), INEXACT, ids=str)
def test_operators_on_floats(name, dtype):
    tensors, result = run(name, dtype, combinations(name, dtype))
    function = FLOAT.get(name) or COMPARED[name]
    wide = [t.to(torch.float64).tolist() if t.is_floating_point() else t.tolist() for t in tensors]
    with np.errstate(all="ignore"):
        wanted = [function(*(np.float64(v) if isinstance(v, float) else v for v in row))
                  for row in zip(*wide, strict=True)]  # fmt: skip
    if result.dtype is torch.bool:
        assert result.tolist() == wanted
        return
    exact = torch.tensor(np.array(wanted, dtype=np.float64)).to(dtype.torch_dtype)
    tolerance = F64_ULPS * torch.finfo(dtype.torch_dtype).eps
    tiny = torch.finfo(dtype.torch_dtype).tiny * 4
    if name == "fma":  # a * b + c may cancel: the error is relative to the larger part
        largest = tensors[0].abs().double() * tensors[1].abs().double() + tensors[2].abs().double()
        lost = (result.double() - exact.double()).abs() <= tolerance * largest
        result = torch.where(lost, exact, result)
    torch.testing.assert_close(result, exact, rtol=tolerance, atol=tiny, equal_nan=True)


def test_every_operator_has_an_independent_meaning():
    named = set(FLOAT) | set(INTEGER) | set(COMPARED) | {"shl", "shr"}
    assert named == set(SCALARS)


@pytest.mark.parametrize(
    "source", [DType.F32, DType.F64, DType.I32, DType.I64, DType.BOOL], ids=str
)
@pytest.mark.parametrize("target", list(DType), ids=str)
def test_casts_are_those_of_pytorch(source, target):
    given = torch.tensor(values(source), dtype=source.torch_dtype)
    if source.is_float and target.is_integer:
        # What does not fit is x86's, and not asked of PyTorch.
        given = torch.tensor([0.0, -0.9, 1.5, 2.5, 100.7, 0.999], dtype=given.dtype)
    count = given.numel()
    k = Kernel("cast", (count,))
    value = k.cast(k.load(0, 1, dtype=source), target)
    k.store(1, value, 1)
    buffers = [buffer("x", source, count), buffer("y", target, count)]
    (result,) = outcome(module(k, buffers=buffers), [given])
    torch.testing.assert_close(result, given.to(target.torch_dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("source", [DType.F32, DType.F64], ids=str)
def test_floats_that_no_integer_holds(source):
    given = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30], dtype=source.torch_dtype)
    for target, lowest in ((DType.I32, -(2**31)), (DType.I64, -(2**63)), (DType.U8, 0)):
        k = Kernel("cast", (5,))
        k.store(1, k.cast(k.load(0, 1, dtype=source), target), 1)
        made = module(k, buffers=[buffer("x", source, 5), buffer("y", target, 5)])
        assert outcome(made, [given])[0].tolist() == [lowest] * 5


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_loads_and_stores_keep_every_value(dtype):
    given = torch.tensor(values(dtype.compute), dtype=dtype.compute.torch_dtype)
    given = given.to(dtype.torch_dtype)
    count = given.numel()
    k = Kernel("copy", (count,))
    k.store(1, k.load(0, 1, dtype=dtype), 1)
    made = module(k, buffers=[buffer("x", dtype, count), buffer("y", dtype, count)])
    (result,) = outcome(made, [given])
    torch.testing.assert_close(result, given, rtol=0, atol=0, equal_nan=True)

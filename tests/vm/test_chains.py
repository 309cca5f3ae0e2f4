"""Scalar operators that run several at a time: nothing that is read later may be lost."""

import math
import random

import pytest
import sympy
import torch

from program.building import Kernel, buffer, module, outcome
from vm.running import native
from vtc.program.dtypes import DType
from vtc.program.tile import Access, Bound

R, C = sympy.symbols("r c", integer=True, positive=True)
EXACT = ("add", "sub", "mul", "div", "minimum", "maximum", "neg", "abs", "sqrt", "reciprocal")
CLOSE = ("exp", "tanh", "erf", "sigmoid", "rsqrt")
UNARY = {"neg", "abs", "sqrt", "reciprocal", *CLOSE}
SHAPES = [(1, 1), (5, 1), (1, 7), (3, 5), (2, 16), (4, 300), (9, 1031), (600, 33)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def tangled(draw, names, late):
    """A kernel of random operators, most of which take the value before them; some values are
    stored, in the middle or at the end. Loads come first, or late, between the operators."""
    kernel = Kernel("tangled", (R, C))
    loads = [
        lambda: kernel.load(0, C, 1),
        lambda: kernel.load(1, C, 1, dtype=DType.BF16),
        lambda: kernel.load(2, 1, 0),
        lambda: kernel.load(3, 0, 1),
        lambda: kernel.const(0.75),
    ]
    values = [load() for load in loads]
    if late:
        kernel.body.clear()
        values = [loads[0]()]
    last, stored = values[0], []
    for _ in range(draw.randint(2, 14)):
        if late and len(values) < 8:
            values.append(draw.choice(loads)())
        name = draw.choice(names)
        if name in UNARY:
            last = kernel.op(name, last)
        elif name == "select":
            last = kernel.op(name, kernel.op("gt", last, draw.choice(values)), last, values[0])
        else:
            pair = [last, draw.choice([*values, last])]
            draw.shuffle(pair)
            last = kernel.op(name, *pair)
        values.append(last)
        if len(stored) < 2 and draw.random() < 0.2:
            stored.append(last)
            kernel.store(3 + len(stored), last, C, 1)
    stored += [draw.choice(values[-3:]) for _ in range(2 - len(stored))]
    for n, value in enumerate([*stored, last], 4):
        if not any(i.op == "store" and i.access.buffer == n for i in kernel.body):
            kernel.store(n, value, C, 1)
    types = [DType.F32, DType.BF16, DType.F32, DType.F32]
    extents = [R * C, R * C, R, C]
    buffers = [buffer(f"x{n}", t, e) for n, (t, e) in enumerate(zip(types, extents, strict=True))]
    buffers += [buffer(f"y{n}", DType.F32, R * C) for n in range(3)]
    return module(kernel, buffers=buffers, symbols=("r", "c"))


def inputs_of(r, c):
    return [
        torch.randn(r * c),
        torch.randn(r * c).to(torch.bfloat16),
        torch.randn(r),
        torch.randn(c),
    ]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", range(30))
def test_chains_of_arithmetic_are_exact(number, late):
    draw = random.Random(number)
    made = tangled(draw, (*EXACT, "select"), late)
    for r, c in draw.sample(SHAPES, 3):
        inputs = inputs_of(r, c)
        expected = outcome(made, inputs, {"r": r, "c": c})
        for f, e in zip(native(made, inputs, r, c), expected, strict=True):
            assert torch.equal(f.nan_to_num(7.0), e.nan_to_num(7.0))


@pytest.mark.parametrize("number", range(20))
def test_chains_with_functions_agree_with_the_evaluator(number):
    draw = random.Random(100 + number)
    made = tangled(draw, (*CLOSE, "add", "mul", "maximum"), late=number % 2 == 0)
    for r, c in draw.sample(SHAPES, 2):
        inputs = inputs_of(r, c)
        expected = outcome(made, inputs, {"r": r, "c": c})
        for f, e in zip(native(made, inputs, r, c), expected, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_keep_nan_from_either_side_and_the_right_zero(name):
    special = torch.tensor([0.0, -0.0, float("nan"), 1.0, -1.0, float("inf"), -float("inf")])
    a, b = special.repeat(7), special.repeat_interleave(7)
    kernel = Kernel(name, (R,))
    value = kernel.op(name, kernel.load(0, 1), kernel.load(1, 1))
    kernel.store(2, kernel.op("add", value, kernel.const(0.0)), 1)
    kernel.store(3, value, 1)
    buffers = [buffer(n, DType.F32, R) for n in ("x0", "x1", "y0", "y1")]
    made = module(kernel, buffers=buffers, symbols=("r",))
    for found in native(made, [a, b], len(a)):
        expected = getattr(torch, name)(a, b)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("place", [0, 17, 66, 199])
def test_a_folded_nan_is_found_wherever_it_is(name, place):
    x = torch.randn(3, 200)
    x[1, place] = float("nan")
    kernel = Kernel(name, (R, C), reduced=(1,))
    kernel.store(1, kernel.reduce(name, kernel.load(0, C, 1)), 1, 0)
    buffers = [buffer("x", DType.F32, R * C), buffer("y", DType.F32, R)]
    made = module(kernel, buffers=buffers, symbols=("r", "c"))
    (found,) = native(made, [x.reshape(-1)], 3, 200)
    expected = getattr(torch, f"a{name}")(x, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["add", "minimum", "maximum"])
@pytest.mark.parametrize("columns", [7, 8, 24, 47, 130])
@pytest.mark.parametrize("value", [None, -math.inf, 0.5])
def test_windows_are_folded_as_their_loads_are_one_by_one(name, columns, value):
    """Windows of seven rows, which are two apart and masked off at both ends; NaN and zeros too."""
    kernel = Kernel("pooled", (R, C))
    other = () if value is None else (kernel.const(value),)
    total = -1
    for tap in range(7):
        # Row 2 i + tap - 3 of 2 R - 1 rows: a tap reads outside at one of the ends.
        mask = (Bound(0, max(0, (4 - tap) // 2), R - max(0, (tap - 2) // 2)),)
        kernel.emit(
            "load", *other, dtype=DType.F32, access=Access(0, (tap - 3) * C, (2 * C, 1), (), mask)
        )
        read = len(kernel.body) - 1
        total = read if tap == 0 else kernel.op(name, total, read)
    kernel.store(1, total, C, 1)
    buffers = [buffer("x", DType.F32, (2 * R - 1) * C), buffer("y", DType.F32, R * C)]
    made = module(kernel, buffers=buffers, symbols=("r", "c"))
    special = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf])
    for rows in (3, 4, 37):
        x = torch.randn((2 * rows - 1) * columns)
        at = torch.rand_like(x) < 0.1
        x[at] = special[torch.randint(5, (int(at.sum()),))]
        (expected,) = outcome(made, [x], {"r": rows, "c": columns})
        (found,) = native(made, [x], rows, columns)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit()[~found.isnan()], expected.signbit()[~found.isnan()])


def test_a_window_whose_values_are_read_later_keeps_them():
    kernel = Kernel("kept", (R, C))
    loads = [kernel.load(0, 2 * C, 1, offset=tap * C) for tap in range(3)]
    partial = kernel.op("maximum", loads[0], loads[1])
    total = kernel.op("maximum", partial, loads[2])
    kernel.store(1, kernel.op("sub", total, loads[1]), C, 1)
    kernel.store(2, partial, C, 1)
    buffers = [buffer("x", DType.F32, (2 * R + 1) * C)]
    buffers += [buffer(name, DType.F32, R * C) for name in ("y0", "y1")]
    made = module(kernel, buffers=buffers, symbols=("r", "c"))
    x = torch.randn(23 * 24)
    expected = outcome(made, [x], {"r": 11, "c": 24})
    for f, e in zip(native(made, [x], 11, 24), expected, strict=True):
        assert torch.equal(f, e)


def test_a_value_may_be_read_after_it_was_computed_where_it_is_stored():
    """y0 = x0 + x1, which both what follows and the store of y0 need."""
    kernel = Kernel("sum", (R, C), reduced=(1,))
    total = kernel.op("add", kernel.load(0, C, 1), kernel.load(1, C, 1))
    norm = kernel.reduce("sum", kernel.op("mul", total, total))
    kernel.store(3, kernel.op("mul", total, norm), C, 1)
    kernel.store(2, total, C, 1)
    buffers = [buffer(n, DType.F32, R * C) for n in ("x0", "x1", "y0", "y1")]
    made = module(kernel, buffers=buffers, symbols=("r", "c"))
    for r, c in ((4, 300), (1, 7), (3, 40_000)):
        a, b = torch.randn(r, c), torch.randn(r, c)
        found = native(made, [a.reshape(-1), b.reshape(-1)], r, c)
        torch.testing.assert_close(found[0].view(r, c), a + b, rtol=0, atol=0)
        expected = (a + b) * ((a + b) ** 2).sum(1, keepdim=True)
        torch.testing.assert_close(found[1].view(r, c), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("by", [6.0, 3.0, -7.0, 0.1, 1e-20, 3e38, 1e-44, 0.0, float("inf")])
def test_a_quotient_by_one_number_is_rounded_as_a_division(by):
    """For all exponents, subnormal numbers and what is none among them."""
    bits = torch.randint(-(2**31), 2**31, (40_000,), dtype=torch.int64).to(torch.int32)
    near = torch.randn(40_000) * 10
    x = torch.cat([bits.view(torch.float32), near, torch.tensor([0.0, -0.0, 1e-45, -1e-39])])
    kernel = Kernel("quotients", (R,))
    value = kernel.op("add", kernel.load(0, 1), kernel.const(-0.0))
    kernel.store(1, kernel.op("div", value, kernel.const(by)), 1)
    made = module(
        kernel, buffers=[buffer("x", DType.F32, R), buffer("y", DType.F32, R)], symbols=("r",)
    )
    for size in (len(x), 7):
        (found,) = native(made, [x[-size:]], size)
        expected = x[-size:] / torch.tensor(by)
        assert torch.equal(found.isnan(), expected.isnan())
        same = found.view(torch.int32) == expected.view(torch.int32)
        assert bool((same | expected.isnan()).all())


@pytest.mark.parametrize("bound", [0.0, 2.5, -1.0, float("nan"), float("inf")])
def test_a_bound_of_one_number_keeps_nan(bound):
    x = torch.tensor([0.5, float("nan"), -3.0, float("inf"), -float("inf"), 7.0] * 30)
    kernel = Kernel("bounds", (R,))
    low = kernel.op("maximum", kernel.load(0, 1), kernel.const(bound))
    kernel.store(1, low, 1)
    kernel.store(2, kernel.op("minimum", low, kernel.const(bound)), 1)
    buffers = [buffer(n, DType.F32, R) for n in ("x", "y0", "y1")]
    made = module(kernel, buffers=buffers, symbols=("r",))
    first, second = native(made, [x], len(x))
    one = torch.tensor(bound)
    torch.testing.assert_close(first, torch.maximum(x, one), rtol=0, atol=0, equal_nan=True)
    want = torch.minimum(torch.maximum(x, one), one)
    torch.testing.assert_close(second, want, rtol=0, atol=0, equal_nan=True)

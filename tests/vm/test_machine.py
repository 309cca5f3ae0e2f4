"""The native machine against eager PyTorch: values, movement, reductions, threads, errors."""

import threading
from dataclasses import replace

import pytest
import sympy
import torch

from program.building import Kernel, buffer, module
from vm.running import encoded, native
from vtc.errors import EngineUnavailableError
from vtc.program.dtypes import DType
from vtc.program.module import Branch
from vtc.program.scalars import SCALARS
from vtc.program.tile import Bound, Term
from vtc.vm import machine
from vtc.vm.machine import Machine

R, C = sympy.symbols("r c", integer=True, positive=True)
SHAPES = [(1, 1), (3, 5), (64, 64), (7, 1000), (300, 17), (2, 9001), (1, 200_003), (0, 4)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def rows(*extents, dtype=DType.F32):
    """Buffers x0, x1, ... and as the last one y."""
    names = [*(f"x{n}" for n in range(len(extents) - 1)), "y"]
    return [buffer(n, dtype, e) for n, e in zip(names, extents, strict=True)]


def unary(name, dtype=DType.F32):
    kernel = Kernel(name, (R,))
    result = kernel.op(name, kernel.load(0, 1, dtype=dtype))
    kernel.store(1, result, 1)
    out = DType.BOOL if SCALARS[name].result == "bool" else dtype
    return module(kernel, buffers=[buffer("x", dtype, R), buffer("y", out, R)], symbols=("r",))


# Functions with vector forms of their own: range of arguments over which 2 ulp are promised.
VECTORS = {
    "exp": (-104, 88.7), "exp2": (-150, 127.9), "expm1": (-20, 88.7), "log": (1e-45, 3e38),
    "log2": (1e-45, 3e38), "log10": (1e-45, 3e38), "log1p": (-0.999999, 1e10), "tanh": (-12, 12),
    "erf": (-4.5, 4.5), "sigmoid": (-100, 20), "sin": (-20000, 20000), "cos": (-20000, 20000),
    "rsqrt": (1e-38, 3e38), "reciprocal": (-1e38, 1e38), "sqrt": (0, 3e38),
}  # fmt: skip


def ulps(found, true):
    """The distance of f32 results from f64 ones, in units of the last place of the true value."""
    exponent = torch.frexp(true.abs().clamp(min=2.0**-126)).exponent - 1
    return ((found.double() - true).abs() / torch.ldexp(torch.ones_like(true), exponent - 23)).max()


@pytest.mark.parametrize("name", VECTORS)
def test_functions_are_within_two_ulp(name):
    low, high = VECTORS[name]
    even = torch.linspace(low, high, 100_001)
    small = torch.logspace(-30, 0, 20_000) * min(high, 1)
    x = torch.cat([even, small, -small if low < 0 else small, torch.randn(20_000)])
    x = x[(x >= low) & (x <= high)].contiguous()
    (found,) = native(unary(name), [x], len(x))
    true = SCALARS[name].evaluate(x.double())
    assert ulps(found, true) <= 2.0


@pytest.mark.parametrize("name", sorted(n for n, s in SCALARS.items() if s.arity == 1))
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_special_values_are_pytorchs(name, dtype):
    if dtype not in SCALARS[name].dtypes:
        pytest.skip("integers only")
    inf = float("inf")
    special = [0.0, -0.0, inf, -inf, float("nan"), 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, 0.5, 2.5]
    x = torch.tensor(special, dtype=dtype.torch_dtype).repeat(3)
    (found,) = native(unary(name, dtype), [x], len(x))
    expected = SCALARS[name].evaluate(x)
    # Huge arguments of sin and friends differ in how they are reduced, not in their class.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "fmod", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.F32, DType.F64])
def test_arithmetic_wraps_and_rounds_as_pytorch_does(name, dtype):
    if dtype.is_float:
        a = torch.randn(3001, dtype=dtype.torch_dtype) * 50
        b = torch.randn(3001, dtype=dtype.torch_dtype) * 3
    else:
        limits = torch.iinfo(dtype.torch_dtype)
        a = torch.randint(limits.min, limits.max, (3001,), dtype=dtype.torch_dtype)
        b = torch.randint(-5, 6, (3001,), dtype=dtype.torch_dtype)
        a[:2] = limits.min
        b[:2] = torch.tensor([-1, 0])
    kernel = Kernel(name, (R,))
    left, right = kernel.load(0, 1, dtype=dtype), kernel.load(1, 1, dtype=dtype)
    kernel.store(2, kernel.op(name, left, right), 1)
    made = module(kernel, buffers=rows(R, R, R, dtype=dtype), symbols=("r",))
    (found,) = native(made, [a, b], len(a))
    assert torch.equal(found, SCALARS[name].evaluate(a, b))


@pytest.mark.parametrize("shape", SHAPES)
def test_operands_of_every_kind_broadcast(shape):
    r, c = shape
    x, row, column = torch.randn(r, c), torch.randn(r), torch.randn(c)
    kernel = Kernel("kinds", (R, C))
    full = kernel.load(0, C, 1)
    value = kernel.op("mul", kernel.load(1, 1, 0), full)
    value = kernel.op("add", value, kernel.load(2, 0, 1))
    value = kernel.op("fma", full, kernel.const(2.0), value)
    value = kernel.op("select", kernel.op("gt", value, kernel.const(0.0)), value, full)
    kernel.store(3, value, C, 1)
    made = module(kernel, buffers=rows(R * C, R, C, R * C), symbols=("r", "c"))
    (found,) = native(made, [x, row, column], r, c)
    expected = x * row[:, None] + column + 2 * x
    expected = torch.where(expected > 0, expected, x)
    torch.testing.assert_close(found.view(r, c), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("source", list(DType))
@pytest.mark.parametrize("target", list(DType))
def test_casts_round_and_wrap_as_pytorch_does(source, target):
    if source.is_float:
        x = (torch.randn(333) * 60).to(source.torch_dtype)
        if target is DType.U8:
            x = x.abs()
    elif source is DType.BOOL:
        x = torch.rand(333) > 0.5
    else:
        x = torch.randint(-120 if source is not DType.U8 else 0, 120, (333,)).to(source.torch_dtype)
    kernel = Kernel("cast", (R,))
    kernel.store(1, kernel.cast(kernel.load(0, 1, dtype=source), target), 1)
    buffers = [buffer("x", source, R), buffer("y", target, R)]
    (found,) = native(module(kernel, buffers=buffers, symbols=("r",)), [x], len(x))
    assert torch.equal(found, x.to(target.torch_dtype))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_halves_round_to_even_also_denormals_and_overflow(dtype):
    bits = torch.randint(-(2**31), 2**31, (20_000,), dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)
    kernel = Kernel("halves", (R,))
    kernel.store(1, kernel.cast(kernel.load(0, 1), dtype), 1)
    made = module(
        kernel, buffers=[buffer("x", DType.F32, R), buffer("y", dtype, R)], symbols=("r",)
    )
    (found,) = native(made, [x], len(x))
    expected = x.to(dtype.torch_dtype)
    assert torch.equal(found.isnan(), expected.isnan())
    keep = ~expected.isnan()
    assert torch.equal(found[keep], expected[keep])


@pytest.mark.parametrize("shape", SHAPES)
def test_transposed_and_negative_strides(shape):
    r, c = shape
    x = torch.randn(c, r)
    kernel = Kernel("turn", (R, C))
    value = kernel.op("add", kernel.load(0, 1, R), kernel.load(0, -1, -R, offset=R * C - 1))
    kernel.store(1, value, C, 1)
    made = module(kernel, buffers=rows(R * C, R * C), symbols=("r", "c"))
    (found,) = native(made, [x], r, c)
    assert torch.equal(found.view(r, c), x.t() + x.flip(0, 1).t())


@pytest.mark.parametrize("shape", SHAPES)
def test_transposed_stores_of_several_types(shape):
    r, c = shape
    for dtype in (DType.F32, DType.I32, DType.BF16, DType.I64):
        x = torch.randint(-99, 99, (r, c)).to(dtype.torch_dtype)
        kernel = Kernel("turn", (R, C))
        value = kernel.load(0, C, 1, dtype=dtype)
        kernel.store(1, value, 1, R)
        kernel.store(2, kernel.op("add", value, value), C, 1)
        made = module(kernel, buffers=rows(R * C, R * C, R * C, dtype=dtype), symbols=("r", "c"))
        made = replace(made, buffers=(*made.buffers[:1], replace(made.buffers[1], kind="output"),
                                      made.buffers[2]))  # fmt: skip
        turned, doubled = native(made, [x], r, c)
        assert torch.equal(turned.view(c, r), x.t())
        assert torch.equal(doubled.view(r, c), x + x)


PAIRED = ["add", "sub", "mul", "minimum", "maximum"]


@pytest.mark.parametrize("first", PAIRED)
@pytest.mark.parametrize("second", PAIRED)
@pytest.mark.parametrize("swapped", [False, True])
def test_operators_that_run_in_pairs_round_as_they_do_alone(first, second, swapped):
    x, row, column = torch.randn(70, 37), torch.randn(70), torch.randn(37)
    kernel = Kernel("pair", (R, C))
    value = kernel.load(0, C, 1)
    operands = [kernel.load(1, 1, 0), kernel.load(2, 0, 1), value, kernel.const(0.3)]
    expected = x
    for own, other in zip(operands, (row[:, None], column, x, torch.tensor(0.3)), strict=True):
        value = kernel.op(first, value, own)
        value = kernel.op(second, *((own, value) if swapped else (value, own)))
        expected = SCALARS[first].evaluate(expected, other)
        pair = (other, expected) if swapped else (expected, other)
        expected = SCALARS[second].evaluate(*torch.broadcast_tensors(*pair))
    kernel.store(3, kernel.op("abs", value), C, 1)
    made = module(kernel, buffers=rows(R * C, R, C, R * C), symbols=("r", "c"))
    (found,) = native(made, [x, row, column], 70, 37)
    assert torch.equal(found.view(70, 37), expected.abs())


def test_pieces_are_masked_loads_that_chain():
    a, b = torch.randn(5, 13), torch.randn(5, 24)
    kernel = Kernel("concat", (5, 37))
    left = kernel.load(0, 13, 1, mask=(Bound(1, 0, 13),))
    both = kernel.load(1, 24, 1, offset=-13, other=left, mask=(Bound(1, 13, 37),))
    kernel.store(2, both, 37, 1)
    (found,) = native(module(kernel, buffers=rows(65, 120, 185)), [a, b])
    assert torch.equal(found.view(5, 37), torch.cat([a, b], 1))


def test_masked_stores_leave_the_rest():
    kernel = Kernel("part", (6, 40))
    value = kernel.load(0, 40, 1)
    kernel.store(1, value, 40, 1, mask=(Bound(0, 1, 5), Bound(1, 3, 33)))
    x = torch.randn(6, 40)
    (found,) = native(module(kernel, buffers=rows(240, 240)), [x])
    expected = torch.ones(6, 40)
    expected[1:5, 3:33] = x[1:5, 3:33]
    assert torch.equal(found.view(6, 40), expected)


def lookup(dtype=DType.I64):
    kernel = Kernel("embedding", (R, C))
    index = kernel.load(1, 1, 0, dtype=dtype)
    kernel.store(2, kernel.load(0, 0, 1, terms=(Term(index, C, 100),)), C, 1)
    buffers = [buffer("x0", DType.F32, 100 * C), buffer("x1", dtype, R)]
    return module(kernel, buffers=[*buffers, buffer("y", DType.F32, R * C)], symbols=("r", "c"))


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
def test_lookups_count_from_the_end_where_negative(dtype):
    table, index = torch.randn(100, 33), torch.randint(-100, 100, (57,)).to(dtype.torch_dtype)
    (found,) = native(lookup(dtype), [table, index], 57, 33)
    assert torch.equal(found.view(57, 33), table[index.long()])


@pytest.mark.parametrize("bad", [100, -101, 2**40])
def test_an_index_out_of_range_is_an_index_error(bad):
    index = torch.tensor([3, bad, 5])
    with pytest.raises(IndexError, match=r"kernel embedding: .* x0"):
        native(lookup(), [torch.randn(100, 8), index], 3, 8)


def test_scattered_stores():
    place, x = torch.randperm(50), torch.randn(50)
    kernel = Kernel("scatter", (50,))
    kernel.store(2, kernel.load(1, 1), 0, terms=(Term(kernel.load(0, 1, dtype=DType.I64), 1, 50),))
    buffers = [buffer("x0", DType.I64, 50), buffer("x1", DType.F32, 50), buffer("y", DType.F32, 50)]
    (found,) = native(module(kernel, buffers=buffers), [place, x])
    assert torch.equal(found[place], x)


def reduction(name, shape, dims, dtype):
    kernel = Kernel(name, shape, dims)
    kept = [d for d in range(len(shape)) if d not in dims]
    inner = [torch.Size(shape[n] for n in kept if n > d).numel() for d in kept]
    full = [torch.Size(shape[d + 1 :]).numel() for d in range(len(shape))]
    out = [0] * len(shape)
    for d, stride in zip(kept, inner, strict=True):
        out[d] = stride
    kernel.store(1, kernel.reduce(name, kernel.load(0, *full, dtype=dtype)), *out)
    count = torch.Size(shape).numel()
    result = DType.I64 if name.startswith("arg") else dtype
    extent = torch.Size(shape[d] for d in kept).numel()
    return module(kernel, buffers=[buffer("x", dtype, count), buffer("y", result, extent)])


REDUCED = [
    ((40, 50), (1,)), ((40, 50), (0,)), ((40, 50), (0, 1)), ((3, 5, 7), (0, 2)),
    ((100_000, 3), (0,)), ((5, 30_011), (1,)), ((2, 70_001), (0, 1)), ((4, 0), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dims"), REDUCED)
@pytest.mark.parametrize("name", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64])
def test_reductions_over_any_dimensions(shape, dims, name, dtype):
    x = (torch.randn(shape) * 10).to(dtype.torch_dtype)
    (found,) = native(reduction(name, shape, dims, dtype), [x])
    if x.numel() == 0:
        expected = {"sum": 0, "max": -float("inf"), "min": float("inf")}[name]
        if dtype is DType.I64 and name != "sum":
            limits = torch.iinfo(torch.int64)
            expected = limits.min if name == "max" else limits.max
        assert bool((found == expected).all())
        return
    true = x.double() if dtype.is_float else x
    expected = true.sum(dims) if name == "sum" else getattr(true, f"a{name}")(dims)
    scale = x.double().abs().sum(dims).flatten() * 2.0**-24
    assert bool(((found.double() - expected.double().flatten()).abs() <= scale).all())


@pytest.mark.parametrize(("shape", "dims"), REDUCED[:-1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_are_the_first_and_nan_wins(shape, dims, name):
    x = torch.randint(0, 50, shape).float()
    x.view(-1)[::1117] = float("nan")
    (found,) = native(reduction(name, shape, dims, DType.F32), [x])
    kept = [d for d in range(len(shape)) if d not in dims]
    flat = x.permute(*kept, *dims).reshape([*(shape[d] for d in kept), -1])
    assert torch.equal(found, getattr(flat, name)(-1).flatten())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(7, 9), (400, 333), (3, 30_000), (30_000, 3)])
def test_scans_go_on_across_tiles(shape, dim):
    x = torch.randn(shape)
    kernel = Kernel("cumsum", shape, (dim,))
    kernel.store(1, kernel.scan("sum", kernel.load(0, shape[1], 1)), shape[1], 1)
    (found,) = native(module(kernel, buffers=rows(x.numel(), x.numel())), [x])
    expected = x.double().cumsum(dim)
    bound = x.double().abs().cumsum(dim) * 2.0**-24
    assert bool(((found.view(shape).double() - expected).abs() <= bound).all())


def layer_norm():
    kernel = Kernel("norm", (R, C), (1,))
    x = kernel.load(0, C, 1)
    count = kernel.cast(kernel.const(C, DType.I64), DType.F32)
    centred = kernel.op("sub", x, kernel.op("div", kernel.reduce("sum", x), count))
    square = kernel.reduce("sum", kernel.op("mul", centred, centred))
    scale = kernel.op("add", kernel.op("div", square, count), kernel.const(1e-5))
    value = kernel.op("mul", centred, kernel.op("rsqrt", scale))
    kernel.store(2, kernel.op("mul", value, kernel.load(1, 0, 1)), C, 1)
    return module(kernel, buffers=rows(R * C, C, R * C), symbols=("r", "c"))


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_of_short_long_and_shared_rows(shape):
    x, weight = torch.randn(shape) * 3 + 1, torch.randn(shape[1])
    (found,) = native(layer_norm(), [x, weight], *shape)
    expected = torch.nn.functional.layer_norm(x.double(), shape[1:], weight.double(), None, 1e-5)
    torch.testing.assert_close(found.view(shape).double(), expected, rtol=1e-5, atol=2e-5)


def test_results_do_not_depend_on_the_number_of_threads():
    x = torch.randn(3, 100_001)
    made = reduction("sum", (3, 100_001), (0, 1), DType.F32)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append(native(made, [x])[0])
    torch.set_num_threads(before)
    assert all(torch.equal(results[0], r) for r in results)


def test_branches_read_what_was_stored():
    predicate = Kernel("p", ())
    predicate.store(2, predicate.op("gt", predicate.load(0), predicate.param(0)))
    arms = []
    for value in (1.5, -2.5):
        arm = Kernel("arm", (9,))
        arm.store(1, arm.const(value), 1)
        arms.append(arm.done())
    buffers = [buffer("x", DType.F32, 1), buffer("y", DType.F32, 9), buffer("t", DType.BOOL, 1)]
    branch = Branch(2, (arms[0],), (arms[1],))
    made = module(predicate, branch, buffers=buffers, params=1)
    for x, expected in ((3.0, 1.5), (1.0, -2.5)):
        (found,) = native(made, [torch.tensor([x])], params=[2.0])
        assert bool((found == expected).all())


def test_threads_that_lag_take_the_branch_that_was_taken():
    """The predicates of four branches in a row share memory, and the threads are more than the
    processors: one that comes late finds the predicate of a later branch."""
    points, steps, buffers = 40_000, [], rows(40_000, 40_000)
    for n in range(4):
        predicate = Kernel(f"p{n}", ())
        predicate.store(2 + n, predicate.op("gt", predicate.load(0), predicate.const(0.5 * n)))
        buffers.append(buffer(f"t{n}", DType.BOOL, 1))
        arms = []
        for scale in (2.0, -3.0):
            arm = Kernel("arm", (points,))
            value = arm.load(0 if n == 0 else 1, 1)
            arm.store(1, arm.op("add", arm.op("mul", value, arm.const(scale)), arm.const(1.0)), 1)
            arms.append(arm.done())
        steps += [predicate, Branch(2 + n, (arms[0],), (arms[1],))]
    made = module(*steps, buffers=buffers)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        for turn in range(60):
            x = torch.randn(points)
            x[0] = turn % 5 / 2 - 0.25
            expected = x
            for n in range(4):
                expected = expected * (2.0 if x[0] > 0.5 * n else -3.0) + 1.0
            (found,) = native(made, [x])
            assert torch.equal(found, expected), turn
    finally:
        torch.set_num_threads(before)


def test_an_updated_input_is_read_before_it_is_written():
    kernel = Kernel("update", (R, C), (1,))
    x = kernel.load(0, C, 1)
    total = kernel.reduce("sum", x)
    kernel.store(0, kernel.op("sub", x, total), C, 1)
    kernel.store(1, kernel.op("add", x, total), C, 1)
    made = module(kernel, buffers=rows(R * C, R * C), symbols=("r", "c"))
    for shape in ((5, 40), (3, 50_000)):
        x = torch.randint(-4, 5, shape).float()
        before = x.clone()
        (found,) = native(made, [x], *shape)
        total = before.sum(1, keepdim=True)
        assert torch.equal(x, before - total)
        assert torch.equal(found.view(shape), before + total)


def test_one_program_runs_in_several_threads_at_once():
    program = encoded(layer_norm(), 200, 300)
    weight = torch.randn(300)
    inputs = [torch.randn(200, 300) for _ in range(4)]
    outputs = [torch.empty(200, 300) for _ in range(4)]

    def work(n):
        for _ in range(20):
            program.run([inputs[n].data_ptr(), weight.data_ptr(), outputs[n].data_ptr()])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, found in zip(inputs, outputs, strict=True):
        expected = torch.nn.functional.layer_norm(x, (300,), weight)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_run_checks_what_it_is_given():
    program = encoded(unary("exp"), 4)
    with pytest.raises(ValueError, match="one pointer a buffer"):
        program.run([1])
    with pytest.raises(ValueError, match="no pointer"):
        program.run([0, 0])
    with pytest.raises(ValueError, match="runtime scalar"):
        program.run([1, 1], [2.0])


def test_a_missing_native_module_is_said(monkeypatch):
    monkeypatch.setattr(machine, "_native", None)
    monkeypatch.setattr(machine, "_missing", "no such file", raising=False)
    with pytest.raises(EngineUnavailableError, match="no such file"):
        Machine(unary("exp"))

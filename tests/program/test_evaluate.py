"""Kernels as lowering writes them, evaluated and compared with eager PyTorch."""

import math

import pytest
import sympy
import torch
import torch.nn.functional as F  # noqa: N812

from program.building import Kernel, buffer, module, outcome
from vtc.program.dtypes import DType
from vtc.program.evaluate import evaluate
from vtc.program.module import Branch
from vtc.program.tile import Access, Attention, Bound, Term
from vtc.program.verify import ProgramError

F32, F64, BF16, I64, BOOL = DType.F32, DType.F64, DType.BF16, DType.I64, DType.BOOL
SHAPES = [(1, 1), (3, 5), (7, 1), (1, 130), (0, 4), (5, 0)]
s0, s1 = sympy.symbols("s0 s1", integer=True, positive=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def softmax():
    """Of any two sizes."""
    k = Kernel("softmax", (s0, s1), (1,))
    x = k.load(0, s1, 1)
    e = k.op("exp", k.op("sub", x, k.reduce("max", x)))
    k.store(1, k.op("div", e, k.reduce("sum", e)), s1, 1)
    return module(k, buffers=[buffer("x", F32, s0 * s1), buffer("y", F32, s0 * s1)],
                  symbols=("s0", "s1"))  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape):
    x = torch.randn(shape)
    (y,) = outcome(softmax(), [x], dict(zip(("s0", "s1"), shape, strict=True)))
    torch.testing.assert_close(y.reshape(shape), torch.softmax(x, 1))


def norm(mean: bool, dtype):
    """LayerNorm (or RMSNorm) over the last dimension, with weight and bias along it."""
    n, c = s0, s1
    k = Kernel("norm", (n, c), (1,))
    x = k.load(0, c, 1, dtype=dtype)
    count = k.cast(k.const(c, I64), F32)
    if mean:
        x = k.op("sub", x, k.op("div", k.reduce("sum", x), count))
    square = k.op("div", k.reduce("sum", k.op("mul", x, x)), count)
    scale = k.op("rsqrt", k.op("add", square, k.const(1e-5)))
    y = k.op("mul", k.op("mul", x, scale), k.load(1, 0, 1, dtype=dtype))
    if mean:
        y = k.op("add", y, k.load(2, 0, 1, dtype=dtype))
    k.store(3, y, c, 1)
    buffers = [buffer("x", dtype, n * c), buffer("x_weight", dtype, c), buffer("x_bias", dtype, c),
               buffer("y", dtype, n * c)]  # fmt: skip
    return module(k, buffers=buffers, symbols=("s0", "s1"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_layer_norm_and_rms_norm(shape, dtype):
    own = dtype.torch_dtype
    x, w, b = (torch.randn(s, dtype=own) for s in (shape, shape[1:], shape[1:]))
    sizes = dict(zip(("s0", "s1"), shape, strict=True))
    tolerance = 2e-2 if dtype is BF16 else 1e-5
    (y,) = outcome(norm(True, dtype), [x, w, b], sizes)
    wanted = F.layer_norm(x.float(), shape[1:], w.float(), b.float(), 1e-5).to(own)
    torch.testing.assert_close(y.reshape(shape), wanted, rtol=tolerance, atol=tolerance)
    (y,) = outcome(norm(False, dtype), [x, w, b], sizes)
    wanted = F.rms_norm(x.float(), shape[1:], w.float(), 1e-5).to(own)
    torch.testing.assert_close(y.reshape(shape), wanted, rtol=tolerance, atol=tolerance)


def test_pieces_are_masked_loads_that_chain():
    """cat([a, b, c], 1) * 2, the parts read one behind the other."""
    a, b, c = (torch.randn(3, n) for n in (2, 0, 4))
    k = Kernel("cat", (3, 6))
    value = None
    for number, (low, high) in enumerate([(0, 2), (2, 2), (2, 6)]):
        width = high - low
        value = k.load(number, width, 1, offset=-low, other=value, mask=(Bound(1, low, high),))
    k.store(3, k.op("mul", value, k.const(2.0)), 6, 1)
    buffers = [buffer(f"x{n}", F32, 3 * w) for n, w in enumerate((2, 0, 4))]
    (y,) = outcome(module(k, buffers=[*buffers, buffer("y", F32, 18)]), [a, b, c])
    torch.testing.assert_close(y.reshape(3, 6), torch.cat([a, b, c], 1) * 2)


def test_masked_stores_leave_the_rest():
    x = torch.randn(4, 5)
    k = Kernel("pad", (4, 5))
    inside = (Bound(0, 1, 3), Bound(1, 0, 4))
    k.store(1, k.load(0, 5, 1), 7, 1, offset=1, mask=inside)
    made = module(k, buffers=[buffer("x", F32, 20), buffer("y", F32, 28)])
    wanted = torch.zeros(4, 7)
    wanted[1:3, 1:5] = x[1:3, :4]
    torch.testing.assert_close(outcome(made, [x])[0].reshape(4, 7), wanted)


def test_loads_and_stores_through_index_tensors():
    """y[order] = table[index] with negative indices, as index_put and embedding have them."""
    table, index = torch.randn(6, 3), torch.tensor([5, -1, 0, -6])
    order = torch.tensor([2, 0, -1, 1])
    k = Kernel("lookup", (4, 3))
    i, j = k.load(1, 1, 0, dtype=I64), k.load(2, 1, 0, dtype=I64)
    k.store(3, k.load(0, 0, 1, terms=(Term(i, 3, 6),)), 0, 1, terms=(Term(j, 3, 4),))
    buffers = [buffer("x", F32, 18), buffer("x_index", I64, 4), buffer("x_order", I64, 4),
               buffer("y", F32, 12)]  # fmt: skip
    made = module(k, buffers=buffers)
    (y,) = outcome(made, [table, index, order])
    wanted = torch.empty(4, 3)
    wanted[order] = table[index]
    torch.testing.assert_close(y.reshape(4, 3), wanted)
    for wrong in (6, -7):
        with pytest.raises(IndexError, match=f"kernel lookup: index {wrong} is out of bounds .* 6"):
            outcome(made, [table, torch.tensor([0, wrong, 0, 0]), order])


def test_an_index_that_is_masked_off_is_not_checked():
    k = Kernel("lookup", (4,))
    i = k.load(1, 1, dtype=I64)
    k.store(2, k.load(0, 0, terms=(Term(i, 1, 3),), mask=(Bound(0, 0, 2),)), 1)
    made = module(k, buffers=[buffer("x", F32, 3), buffer("x_index", I64, 4), buffer("y", F32, 4)])
    (y,) = outcome(made, [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, -3, 99, -99])])
    assert y.tolist() == [3.0, 1.0, 0.0, 0.0]


REDUCED = [("sum", torch.sum), ("prod", torch.prod), ("max", torch.amax), ("min", torch.amin)]


def reduction(name, shape, dims, dtype):
    """One reduction over `dims` of a contiguous tensor, into a contiguous one."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    kept = [1 if d in dims else n for d, n in enumerate(shape)]
    out = [0 if d in dims else math.prod(kept[d + 1 :]) for d in range(len(shape))]
    k = Kernel(name, shape, dims)
    value = k.reduce(name, k.load(0, *strides, dtype=dtype))
    k.store(1, value, *out)
    result = k.body[value].dtype
    buffers = [buffer("x", dtype, math.prod(shape)), buffer("y", result, math.prod(kept))]
    return module(k, buffers=buffers), kept


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("dtype", [F32, F64, I64, DType.I32], ids=str)
def test_reductions_over_any_dimensions(dims, dtype):
    x = (torch.randn(3, 4, 5) * 3).to(dtype.torch_dtype)
    for name, function in REDUCED:
        made, kept = reduction(name, (3, 4, 5), dims, dtype)
        (y,) = outcome(made, [x])
        if name == "prod":
            wanted = x
            for d in dims:
                wanted = wanted.prod(d, keepdim=True, dtype=x.dtype)
        else:
            wanted = function(x, dims, keepdim=True).to(x.dtype)
        torch.testing.assert_close(y.reshape(kept), wanted)


@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1)])
def test_places_of_the_largest_and_smallest(dims):
    x = torch.randint(-2, 3, (6, 7)).float()
    for special in (False, True):
        if special:
            x[2, 3] = x[4, 5] = math.nan
        for name, function in (("argmax", torch.argmax), ("argmin", torch.argmin)):
            made, kept = reduction(name, (6, 7), dims, F32)
            (y,) = outcome(made, [x])
            wanted = function(x) if len(dims) == 2 else function(x, dims[0])
            assert y.tolist() == wanted.reshape(-1).tolist(), kept


@pytest.mark.parametrize("size", [0, 1, 9])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "argmax"])
def test_reductions_of_few_elements_and_of_none(size, name):
    dtype = BOOL if name in ("any", "all") else F32
    made, _ = reduction(name, (3, size), (1,), dtype)
    x = torch.randn(3, size).to(dtype.torch_dtype)
    (y,) = outcome(made, [x])
    if size == 0:
        nothing = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "any": False,
                   "all": True, "argmax": 0}  # fmt: skip
        assert y.tolist() == [nothing[name]] * 3
    else:
        plain = {"max": torch.amax, "min": torch.amin}.get(name) or getattr(torch, name)
        torch.testing.assert_close(y, plain(x, 1))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [F32, I64], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_scans(name, dtype, dim):
    x = (torch.randn(4, 6) * 2).to(dtype.torch_dtype)
    k = Kernel("scan", (4, 6), (dim,))
    k.store(1, k.scan(name, k.load(0, 6, 1, dtype=dtype)), 6, 1)
    made = module(k, buffers=[buffer("x", dtype, 24), buffer("y", dtype, 24)])
    cumulative = {"sum": torch.cumsum, "prod": torch.cumprod,
                  "max": lambda t, d: torch.cummax(t, d).values,
                  "min": lambda t, d: torch.cummin(t, d).values}[name]  # fmt: skip
    torch.testing.assert_close(outcome(made, [x])[0].reshape(4, 6), cumulative(x, dim))


@pytest.mark.parametrize("dtype", [F32, F64, BF16, DType.F16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 0, 4, 5), (2, 3, 4, 0)])
def test_matmul_with_an_epilogue(dtype, sizes):
    """gelu-like: relu(a @ b^T + bias) * 0.5, with b as nn.Linear has it, over a batch."""
    batch, m, n, depth = sizes
    own = dtype.torch_dtype
    a, b, bias = (torch.randn(s, dtype=own) for s in ((batch, m, depth), (n, depth), (n,)))
    k = Kernel("linear", (batch, m, n))
    left, right = Access(0, 0, (m * depth, depth, 0, 1)), Access(1, 0, (0, 0, depth, 1))
    y = k.op("add", k.matmul(left, right, depth, dtype), k.load(2, 0, 0, 1, dtype=dtype))
    y = k.op("maximum", y, k.const(0.0, dtype.compute))
    k.store(3, k.op("mul", y, k.const(0.5, dtype.compute)), m * n, n, 1)
    buffers = [buffer(f"x{i}", dtype, t.numel()) for i, t in enumerate((a, b, bias))]
    (y,) = outcome(module(k, buffers=[*buffers, buffer("y", dtype, batch * m * n)]), [a, b, bias])
    wanted = (a.double() @ b.double().T + bias.double()).relu() * 0.5
    tolerance = 4 * torch.finfo(own).eps
    torch.testing.assert_close(
        y.reshape(batch, m, n), wanted.to(own), rtol=tolerance, atol=tolerance
    )


def attention(q, k, v, dtype, mask=None, **more):
    """Grouped heads as two dimensions: q [b, g, r, s, d], k and v [b, g, t, d]."""
    b, g, r, s, d = q.shape
    t, columns = k.shape[2], v.shape[3]
    query = Access(0, 0, (g * r * s * d, r * s * d, s * d, d, 1, 0))
    key = Access(1, 0, (g * t * d, t * d, 0, 0, 1, d))
    value = Access(2, 0, (g * t * columns, t * columns, 0, 0, 1, columns))
    where = None if mask is None else Access(3, 0, (0, 0, 0, t, 0, 1))
    own = Attention(query, key, value, where, t, d, None, **more)
    kernel = Kernel("attention", (b, g, r, s, columns))
    out = kernel.attention(own, dtype)
    places = (g * r * s * columns, r * s * columns, s * columns, columns, 1)
    kernel.store(4 if mask is not None else 3, out, *places)
    tensors = [x for x in (q, k, v, mask) if x is not None]
    buffers = [buffer(f"x{i}", DType.of(x.dtype), x.numel()) for i, x in enumerate(tensors)]
    buffers.append(buffer("y", dtype, b * g * r * s * columns))
    return outcome(module(kernel, buffers=buffers), tensors)[0].reshape(b, g, r, s, columns)


def written_out(q, k, v, seen=None, bias=None, softcap=None):
    scores = q.double() @ k.double()[:, :, None].transpose(-1, -2) * q.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return (torch.softmax(scores, -1).nan_to_num(0.0) @ v.double()[:, :, None]).to(q.dtype)


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
def test_attention_of_grouped_heads(dtype):
    own = dtype.torch_dtype
    q, k, v = (torch.randn(s, dtype=own) for s in ((2, 2, 3, 4, 8), (2, 2, 6, 8), (2, 2, 6, 5)))
    rows, keys = torch.arange(4)[:, None], torch.arange(6)
    visible = torch.rand(4, 6) > 0.4
    visible[2] = False
    bias = torch.randn(4, 6, dtype=own)
    tolerance = {"rtol": 4 * torch.finfo(own).eps, "atol": 4 * torch.finfo(own).eps}
    for more, wanted in (
        ({}, {}),
        ({"causal": True}, {"seen": keys <= rows}),
        ({"causal": True, "shift": 2}, {"seen": keys <= rows + 2}),
        ({"causal": True, "shift": -1}, {"seen": keys <= rows - 1}),
        ({"causal": True, "shift": 2, "window": 3},
         {"seen": (keys <= rows + 2) & (keys > rows - 1)}),
        ({"softcap": 2.5}, {"softcap": 2.5}),
        ({"mask": visible}, {"seen": visible}),
        ({"mask": bias, "softcap": 1.5}, {"bias": bias, "softcap": 1.5}),
    ):  # fmt: skip
        found = attention(q, k, v, dtype, **more)
        torch.testing.assert_close(found, written_out(q, k, v, **wanted), **tolerance)


def test_attention_is_that_of_pytorch():
    q, k, v = torch.randn(2, 3, 1, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    wanted = F.scaled_dot_product_attention(q[:, :, 0], k, v)
    torch.testing.assert_close(attention(q, k, v, F32)[:, :, 0], wanted)
    empty = attention(q, k[:, :, :0], v[:, :, :0], F32)
    assert (empty == 0).all()


def test_branches_read_what_was_stored():
    """y = x * 2 if x.sum() > 0 else x - 1, with the predicate in a temporary."""
    predicate = Kernel("predicate", (4,), (0,))
    total = predicate.reduce("sum", predicate.load(0, 1))
    predicate.store(1, predicate.op("gt", total, predicate.const(0.0)), 0)
    double, less = Kernel("double", (4,)), Kernel("less", (4,))
    double.store(2, double.op("mul", double.load(0, 1), double.const(2.0)), 1)
    less.store(2, less.op("sub", less.load(0, 1), less.const(1.0)), 1)
    made = module(
        predicate,
        Branch(1, (double.done(),), (less.done(),)),
        buffers=[buffer("x", F32, 4), buffer("t", BOOL, 1), buffer("y", F32, 4)],
    )
    x = torch.tensor([1.0, 2.0, -0.5, 1.0])
    torch.testing.assert_close(outcome(made, [x])[0], x * 2)
    torch.testing.assert_close(outcome(made, [-x])[0], -x - 1)


def test_scalars_come_from_parameters_sizes_and_coordinates():
    k = Kernel("mixed", (s0, 3))
    row, size = k.iota(0), k.const(2 * s0 + 1, I64)
    value = k.op("add", k.op("mul", row, size), k.param(1, I64))
    k.store(0, k.op("mul", k.cast(value, F32), k.param(0)), 3, 1)
    made = module(k, buffers=[buffer("y", F32, 3 * s0)], symbols=("s0",), params=2)
    (y,) = outcome(made, [], {"s0": 4}, (0.5, 7.0))
    wanted = (torch.arange(4) * 9 + 7).float() * 0.5
    torch.testing.assert_close(y.reshape(4, 3), wanted[:, None].expand(4, 3))


def test_updates_in_place_and_strided_tensors():
    """An input is memory from its first element: a slice is written through its strides."""
    base = torch.randn(5, 8)
    before = base.clone()
    k = Kernel("update", (3, 2))
    k.store(0, k.op("neg", k.load(0, 16, 3)), 16, 3)
    made = module(k, buffers=[buffer("x", F32, 36)])
    evaluate(made, {}, [base[0:5:2, 1::3]])
    before[0:5:2, 1:6:3] *= -1
    torch.testing.assert_close(base, before)


def test_a_value_that_nothing_stores_is_not_computed():
    k = Kernel("dead", (2,))
    i = k.load(1, 1, dtype=I64)
    k.load(0, 0, terms=(Term(i, 1, 2),))
    k.store(2, k.op("neg", k.load(0, 1)), 1)
    made = module(k, buffers=[buffer("x", F32, 2), buffer("x_index", I64, 2), buffer("y", F32, 2)])
    (y,) = outcome(made, [torch.ones(2), torch.tensor([0, 99])])
    assert y.tolist() == [-1.0, -1.0]


def test_a_value_stays_what_it_was_when_its_memory_is_stored_to():
    k = Kernel("swap", ())
    old = k.load(0)
    k.store(0, k.const(3.0))
    k.store(1, old)
    x = torch.tensor([5.0])
    (y,) = outcome(module(k, buffers=[buffer("x", F32, 1), buffer("y", F32, 1)]), [x])
    assert (x.item(), y.item()) == (3.0, 5.0)


def test_what_a_module_may_not_do_at_run_time():
    x, y = buffer("x", F32, 4), buffer("y", F32, 4)
    outside = Kernel("outside", (4,))
    outside.store(1, outside.load(0, 1, offset=1), 1)
    twice = Kernel("twice", (s0, 2))
    twice.store(1, twice.load(0, 1, 1), 1, 1)
    shifted = Kernel("shifted", (3,))
    shifted.store(0, shifted.load(0, 1), 1, offset=1)
    later = Kernel("later", (4,))
    later.store(0, later.load(0, 1), 1)
    later.store(1, later.load(0, 1), 1)
    for kernel, reason in (
        (outside, "%0 load: element 4 of x, which has 4"),
        (twice, "%1 store: two points store to one address"),
        (shifted, "%1 store: it stores what another point loads as %0"),
        (later, "%1 store: it stores what another point loads as %2"),
    ):
        made = module(kernel, buffers=[x, y], symbols=("s0",))
        with pytest.raises(ProgramError, match=reason):
            outcome(made, [torch.randn(4)], {"s0": 2})


def test_tensors_must_fit_their_buffers():
    made = softmax()
    sizes = {"s0": 2, "s1": 3}
    for tensors, reason in (
        ([torch.randn(5), torch.zeros(6)], "x has 5 of 6"),
        ([torch.randn(6).double(), torch.zeros(6)], "x of torch.float32 is given torch.float64"),
        ([torch.randn(6), None], "y of torch.float32 is given nothing"),
    ):
        with pytest.raises(ProgramError, match=reason):
            evaluate(made, sizes, tensors)


def test_temporaries_start_as_garbage():
    """A kernel that stores half of a temporary and reads all of it shows."""
    half, read = Kernel("half", (2,)), Kernel("read", (4,))
    half.store(1, half.load(0, 1), 1)
    read.store(2, read.load(1, 1), 1)
    made = module(
        half, read, buffers=[buffer("x", F32, 2), buffer("t", F32, 4), buffer("y", F32, 4)]
    )
    (y,) = outcome(made, [torch.ones(2)])
    assert y[:2].tolist() == [1.0, 1.0]
    assert y[2:].isnan().all()

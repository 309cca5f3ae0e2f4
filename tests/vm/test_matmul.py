"""Products and attention on the native machine against float64."""

import pytest
import sympy
import torch

from program.building import Kernel, buffer, module
from vm.running import native, with_threads
from vtc.program.dtypes import DType
from vtc.program.tile import Access, Attention, Term

M, K, N = sympy.symbols("m k n", integer=True, positive=True)
SIZES = [(1, 1, 1), (1, 70, 130), (3, 33, 65), (8, 100, 31), (9, 17, 33), (50, 64, 100),
         (130, 77, 70), (4, 0, 6), (0, 3, 5), (200, 5, 1), (1, 0, 70), (3, 0, 8),
         (40, 0, 64)]  # fmt: skip


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def product(transposed, dtype=DType.F32):
    kernel = Kernel("linear", (M, N))
    right = Access(1, 0, (0, K, 1)) if transposed else Access(1, 0, (0, 1, N))
    value = kernel.matmul(Access(0, 0, (K, 0, 1)), right, K, dtype)
    value = kernel.op("add", value, kernel.load(2, 0, 1, dtype=dtype))
    value = kernel.op("maximum", value, kernel.const(0.0, dtype.compute))
    if dtype.compute is not dtype:
        value = kernel.cast(value, dtype)
    kernel.store(3, value, N, 1)
    sizes = zip(("x0", "x1", "x2", "y"), (M * K, K * N, N, M * N), strict=True)
    return module(kernel, buffers=[buffer(n, dtype, e) for n, e in sizes], symbols=("m", "k", "n"))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.F64])
def test_products_with_an_epilogue(sizes, transposed, dtype):
    m, k, n = sizes
    x, w, b = (torch.randn(s).to(dtype.torch_dtype) for s in ((m, k), (k, n), (n,)))
    given = w.t().contiguous() if transposed else w
    (found,) = native(product(transposed, dtype), [x, given, b], m, k, n)
    expected = (x.double() @ w.double() + b.double()).relu()
    rtol, atol = {DType.BF16: (8e-3, 1e-2), DType.F16: (1e-3, 2e-3)}.get(dtype, (1e-5, 1e-4))
    torch.testing.assert_close(found.view(m, n).double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("sizes", [*SIZES, (16, 196, 16), (16, 49, 16), (33, 130, 20)])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64])
def test_left_operands_that_lie_in_columns(sizes, dtype):
    m, k, n = sizes
    kernel = Kernel("linear", (M, N))
    value = kernel.matmul(Access(0, 0, (1, 0, M)), Access(1, 0, (0, 1, N)), K, dtype)
    if dtype.compute is not dtype:
        value = kernel.cast(value, dtype)
    kernel.store(2, value, N, 1)
    extents = zip(("x0", "x1", "y"), (M * K, K * N, M * N), strict=True)
    made = module(kernel, buffers=[buffer(name, dtype, e) for name, e in extents],
                  symbols=("m", "k", "n"))  # fmt: skip
    x, w = (torch.randn(s).to(dtype.torch_dtype) for s in ((m, k), (k, n)))
    (found,) = native(made, [x.t().contiguous(), w], m, k, n)
    rtol, atol = (8e-3, 1e-2) if dtype is DType.BF16 else (1e-5, 1e-4)
    expected = x.double() @ w.double()
    torch.testing.assert_close(found.view(m, n).double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("sizes", [(1, 900, 150), (4, 257, 133), (7, 4100, 9), (61, 300, 210)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_long_products_do_not_depend_on_the_number_of_threads(sizes, transposed, dtype):
    m, k, n = sizes
    x, w, b = (torch.randn(s).to(dtype.torch_dtype) for s in ((m, k), (k, n), (n,)))
    given = w.t().contiguous() if transposed else w
    made = product(transposed, dtype)
    first, *others = with_threads(lambda: native(made, [x, given, b], m, k, n)[0])
    assert all(torch.equal(first, other) for other in others)
    expected = (x.double() @ w.double() + b.double()).relu()
    rtol, atol = (1e-2, 0.1) if dtype is DType.BF16 else (1e-5, 1e-3)
    torch.testing.assert_close(first.view(m, n).double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("s", [1, 70])
def test_attention_does_not_depend_on_the_number_of_threads(s):
    q, k, v = torch.randn(5, 4, s, 32), torch.randn(5, 300, 32), torch.randn(5, 300, 32)
    first, *others = with_threads(lambda: attended(q, k, v))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("m", [2, 20])
def test_batched_products_of_strided_operands(m):
    """a [b, h, m, k] and b [b, h, n, k], both stored as [b, m or n, h, k]."""
    batch, heads, n, k = 2, 3, 37, 24
    a, b = torch.randn(batch, m, heads, k), torch.randn(batch, n, heads, k)
    kernel = Kernel("scores", (batch, heads, m, n))
    left = Access(0, 0, (m * heads * k, k, heads * k, 0, 1))
    right = Access(1, 0, (n * heads * k, k, 0, heads * k, 1))
    kernel.store(2, kernel.matmul(left, right, k), heads * m * n, m * n, n, 1)
    sizes = zip(("x0", "x1", "y"), (a.numel(), b.numel(), batch * heads * m * n), strict=True)
    made = module(kernel, buffers=[buffer(name, DType.F32, e) for name, e in sizes])
    (found,) = native(made, [a, b])
    expected = torch.einsum("bmhk,bnhk->bhmn", a.double(), b.double())
    torch.testing.assert_close(found.double().view_as(expected), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("m", [3, 40])
def test_rows_are_looked_up(m):
    table, weight = torch.randn(50, 32), torch.randn(32, 21)
    index = torch.randint(-50, 50, (m,))
    kernel = Kernel("embed", (m, 21))
    rows = kernel.load(2, 1, 0, dtype=DType.I64)
    left = Access(0, 0, (0, 0, 1), (Term(rows, 32, 50),))
    kernel.store(3, kernel.matmul(left, Access(1, 0, (0, 1, 21)), 32), 21, 1)
    buffers = [buffer("x0", DType.F32, 1600), buffer("x1", DType.F32, 672)]
    buffers += [buffer("x2", DType.I64, m), buffer("y", DType.F32, m * 21)]
    (found,) = native(module(kernel, buffers=buffers), [table, weight, index])
    expected = table[index].double() @ weight.double()
    torch.testing.assert_close(found.double().view(m, 21), expected, rtol=1e-5, atol=1e-5)


def attended(q, k, v, mask=None, dtype=DType.F32, **more):
    """Grouped attention of q [h, g, s, d] over k and v [h, t, d]; mask [s, t]."""
    heads, groups, s, d = q.shape
    t, e = v.shape[1:]
    own = Attention(
        query=Access(0, 0, (groups * s * d, s * d, d, 1, 0)),
        key=Access(1, 0, (t * d, 0, 0, 1, d)),
        value=Access(2, 0, (t * e, 0, 0, 1, e)),
        mask=None if mask is None else Access(3, 0, (0, 0, t, 0, 1)),
        length=t,
        head_dim=d,
        scale=None,
        **more,
    )
    kernel = Kernel("attend", (heads, groups, s, e))
    value = kernel.attention(own, dtype.compute)
    if dtype.compute is not dtype:
        value = kernel.cast(value, dtype)
    kernel.store(3 if mask is None else 4, value, groups * s * e, s * e, e, 1)
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    buffers = [buffer(f"x{n}", DType.of(x.dtype), x.numel()) for n, x in enumerate(inputs)]
    buffers.append(buffer("y", dtype, heads * groups * s * e))
    (found,) = native(module(kernel, buffers=buffers), inputs)
    return found.view(heads, groups, s, e)


def written_out(q, k, v, seen=None, bias=None, softcap=None):
    q, k, v = q.double(), k.double()[:, None], v.double()[:, None]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    if seen is not None:
        scores = scores.masked_fill(~seen, -float("inf"))
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


@pytest.mark.parametrize("s", [1, 5, 70, 300])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64])
def test_attention_of_grouped_heads(s, dtype):
    t = 333
    q, k, v = (
        torch.randn(n).to(dtype.torch_dtype) for n in ((2, 3, s, 40), (2, t, 40), (2, t, 24))
    )
    found = attended(q, k, v, dtype=dtype)
    tolerance = 1e-2 if dtype is DType.BF16 else 1e-5
    torch.testing.assert_close(found.double(), written_out(q, k, v), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("s", [1, 9, 150])
@pytest.mark.parametrize("window", [None, 20])
def test_causal_and_windowed_attention(s, window):
    t = 200
    q, k, v = torch.randn(2, 2, s, 32), torch.randn(2, t, 32), torch.randn(2, t, 32)
    found = attended(q, k, v, causal=True, shift=t - s - 30, window=window)
    query, key = torch.arange(s)[:, None] + t - s - 30, torch.arange(t)
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    torch.testing.assert_close(found.double(), written_out(q, k, v, seen), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_and_softcap(kind):
    s, t = 11, 150
    q, k, v = torch.randn(1, 2, s, 16), torch.randn(1, t, 16), torch.randn(1, t, 16)
    mask = torch.rand(s, t) > 0.4 if kind == "bool" else torch.randn(s, t)
    if kind == "bool":
        mask[3] = False  # a row that sees nothing is 0
        found = attended(q, k, v, mask)
        expected = written_out(q, k, v, seen=mask)
    else:
        found = attended(q, k, v, mask, softcap=3.0)
        expected = written_out(q, k, v, bias=mask, softcap=3.0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)

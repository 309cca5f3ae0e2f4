"""Products by way of aligned rows, by the device's copies as this machine runs them."""

import pytest
import torch

from vm import cuda_on_cpu
from vtc.runtime import products


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch):
    monkeypatch.setattr(products, "_native", lambda index: cuda_on_cpu.Native())
    monkeypatch.setattr(products, "_stream", lambda index: 0)


SHAPES = [(1, 1, 1), (3, 17, 9), (21, 8, 131), (5, 131, 16), (7, 64, 40), (130, 9, 77)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strided", [False, True])
def test_padded_products_equal_plain_ones(shape, dtype, strided):
    """Operands that begin anywhere, and are surrounded by what is no number."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(k)

    def operand(rows, columns):
        whole = torch.full((rows + 1, columns + 3), torch.nan, dtype=dtype)
        inner = whole[1:, 1 : 1 + columns] if strided else whole.flatten()[1 : 1 + rows * columns]
        inner = inner.view(rows, columns) if not strided else inner
        return inner.copy_(torch.randn(rows, columns, generator=generator))

    a, b, c = operand(m, k), operand(k, n), operand(1, n)[0]
    for bias in (None, c):
        found = products._padded(a, b, bias)
        wide = a.double() @ b.double() + (0 if bias is None else bias.double())
        torch.testing.assert_close(found.double(), wide, rtol=1e-2, atol=5e-2)
        assert found.shape == (m, n)
        assert found.is_contiguous()


def meta(rows, columns, dtype=torch.float16, device="cuda"):
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(rows, columns, dtype=dtype, device=device)


def test_large_products_of_unaligned_sizes_are_padded_and_no_others():
    padded = products.to_be_padded
    assert padded(meta(453, 1795), meta(1795, 3833))
    assert padded(meta(1024, 1023), meta(1023, 1024))
    assert not padded(meta(1024, 1024), meta(1024, 1024))  # aligned
    assert not padded(meta(45, 115), meta(115, 157))  # small
    assert not padded(meta(3, 8001), meta(8001, 8001))  # nothing but its operands' bytes
    assert not padded(meta(453, 1795, torch.float32), meta(1795, 3833, torch.float32))
    assert not padded(meta(453, 1795), meta(3833, 1795).t())
    assert not padded(meta(453, 1795, device="cpu"), meta(1795, 3833, device="cpu"))

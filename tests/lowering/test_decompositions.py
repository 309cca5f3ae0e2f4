"""Operators that TorchInductor is told to decompose as eager PyTorch computes them."""

import contextlib

import pytest
import torch
from torch._inductor.utils import fresh_cache

import vtc
from vtc.lowering import implement
from vtc.runtime import stock

pytestmark = pytest.mark.usefixtures("clean_dynamo")
EDGES = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, torch.inf, -torch.inf, torch.nan, 0.1, -0.7, 5e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_remainders_have_the_divisors_sign_and_are_exact(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.remainder(x, y), x % 3, 7 % y, torch.roll(x, 1) % -2

    if dtype is torch.int64:
        x, y = torch.arange(-20, 20), torch.tensor([3, -7]).repeat(20)
    else:
        edges = torch.tensor(EDGES, dtype=dtype)
        x, y = edges.repeat_interleave(len(edges)), edges.repeat(len(edges))
    for got, want in zip(vtc.compile(run, objective="bytes")(x, y), run(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        known = ~want.isnan()
        assert torch.equal(got.signbit()[known], want.signbit()[known])


def test_what_was_decomposed_otherwise_is_not_taken_from_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As another release of vtc has left it."""
    x, y = torch.tensor([3.0, -3.0] * 16), torch.full((32,), torch.inf)

    def compiled() -> torch.Tensor:
        torch._dynamo.reset()
        return vtc.compile(torch.remainder, objective="bytes", dynamic=False)(x, y)

    with fresh_cache():
        with monkeypatch.context() as otherwise:
            for module in (implement, stock):
                otherwise.setattr(module, "decomposed_alike", contextlib.nullcontext)
            compiled()
        torch.testing.assert_close(compiled(), torch.remainder(x, y))

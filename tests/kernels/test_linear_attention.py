"""Linear attention: its kernels in the interpreter and compiled for Hopper, and its meaning."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from kernels import attention_offline, linear_attention_offline
from vtc.kernels.linear_attention import (
    OVERLOAD,
    Tiling,
    as_argument,
    candidates,
    launch,
    written_out,
)
from vtc.kernels.linear_attention_triton import result_kernel, sum_kernel

KERNELS = sum_kernel, result_kernel
EPS = 1e-5


def operands(
    batch: int, heads: int, tokens: int, dim: int, width: int, layout: str
) -> tuple[Tensor, ...]:
    torch.manual_seed(tokens)
    if layout == "tokens":  # parts of one projection, channels last
        base = torch.randn(batch, tokens, heads, 2 * dim + width)
        return base.transpose(1, 2).split([dim, dim, width], -1)
    base = torch.randn(batch, heads, 2 * dim + width, tokens)  # channels first
    return base.transpose(2, 3).split([dim, dim, width], -1)


def exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (t.double() for t in (query.relu(), key.relu(), value))
    return q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + EPS)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize(
    ("shape", "tiling"),
    [
        ((2, 3, 70, 16, 16), Tiling(16, 1, 32, 4)),
        ((1, 2, 70, 16, 16), Tiling(16, 4, 64, 4)),
        ((1, 2, 9, 24, 40), Tiling(32, 3, 16, 4)),
        ((2, 1, 64, 32, 32), Tiling(32, 2, 32, 4)),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_interpreted_kernels_equal_float64(
    shape: tuple[int, ...], tiling: Tiling, layout: str
) -> None:
    given = operands(*shape, layout)
    found = launch(KERNELS, *given, EPS, as_argument(tiling))
    torch.testing.assert_close(found.double(), exact(*given), rtol=1e-4, atol=1e-5)
    assert found.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_operator_is_what_it_says(dtype: torch.dtype) -> None:
    given = [t.to(dtype) for t in operands(2, 3, 20, 8, 12, "tokens")]
    found = OVERLOAD(*given, eps=EPS)
    limit = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(found.double(), exact(*given), rtol=limit, atol=limit)
    assert found.dtype is dtype
    assert found.stride() == written_out(*given, EPS).stride()


@pytest.mark.parametrize("pairs", [1, 12, 192, 1000])
@pytest.mark.parametrize("tokens", [1, 256, 1024, 5000])
def test_candidates_cover_all_tokens_with_no_empty_split(pairs: int, tokens: int) -> None:
    for tiling in candidates(pairs, tokens, 132):
        assert 1 <= tiling.splits <= max(1, -(-tokens // tiling.keys))


@pytest.mark.parametrize("name", linear_attention_offline.KERNELS)
def test_machine_code_keeps_everything_in_registers(name: str) -> None:
    done = subprocess.run(
        [sys.executable, linear_attention_offline.__file__],
        capture_output=True,
        text=True,
        check=False,
        env=attention_offline.offline(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)[name]
    assert found["local"] == 0
    assert found["mma"] or found["wgmma"]

"""On a CUDA device: attention that stores new rows into its caches, in the sizes of models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

import vtc
from lowering import test_storing as layers
from vtc.kernels import storing_attention
from vtc.kernels.attention_tiling import Shape, Tiling, as_argument
from vtc.lowering import attention as attention_choice
from vtc.lowering import cached_attention
from vtc.lowering.contest import Times

pytestmark = pytest.mark.gpu
SHAPES = [
    (1, 32, 8, 1, 1003, 128),
    (16, 32, 8, 1, 4160, 128),
    (1, 16, 8, 1, 4160, 256),
    (3, 8, 2, 4, 777, 64),
]
"""Batch, heads, heads of keys and values, queries, keys, head dimension."""


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_candidate_stores_and_sees_the_new_rows(shape: tuple[int, ...]) -> None:
    batch, heads, kv_heads, queries, keys, dim = shape
    for tiling in storing_attention.candidates(Shape(*shape), 132):
        caches = [normal(batch, kv_heads, keys, dim) for _ in range(2)]
        for _ in range(5):
            places = torch.randperm(keys, device="cuda")[:queries]
            mask = torch.arange(keys, device="cuda")[None, None, None] <= places.max()
            # Ten times as large, so that an old row in the place of a new one would show.
            new = [10 * normal(batch, queries, kv_heads, dim).transpose(1, 2) for _ in range(2)]
            operands = (normal(batch, heads, queries, dim), *caches, *new, places, mask)
            want, *after = torch.ops.vtc.storing_attention(*operands, scale=dim**-0.5)
            out = torch.ops.vtc.storing_attention_(
                *operands, scale=dim**-0.5, tiling=as_argument(tiling)
            )
            assert all(map(torch.equal, caches, after)), tiling
            torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("library", [True, False])
def test_a_compiled_layer_stores_its_new_rows_as_eager_does(
    library: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tiling = Tiling(16, 32, 2, 4, 2)
    monkeypatch.setattr(attention_choice, "_measured", lambda *_: (tiling, 1.0, 2.0))
    times = Times(as_argument(tiling), "a tiling", 1.0, 2.0)
    monkeypatch.setattr(cached_attention, "measured", lambda *_: times)
    monkeypatch.setattr(layers, "KEYS", 512)
    torch._dynamo.reset()
    layer = layers.Layer("stored", library=library).cuda().bfloat16().eval()
    compiled = vtc.compile(layer, options={"verify": False, "cache_dir": tmp_path})
    ours = [normal(4, 2, 512, layers.DIM) for _ in range(2)]
    theirs = [t.clone() for t in ours]
    codes: list[str] = []
    with torch.no_grad():
        for turn in range(4):
            x, place = normal(4, 1, 32), torch.tensor([100 * turn], device="cuda")
            if turn == 0:
                got, codes = run_and_get_code(compiled, x, *ours, place)
            else:
                got = compiled(x, *ours, place)
            torch.testing.assert_close(got, layer(x, *theirs, place), rtol=3e-2, atol=3e-2)
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert any("vtc.storing_attention_" in code for code in codes)


@pytest.mark.parametrize("shape", [(1, 32, 8, 1, 4160, 128), (16, 32, 8, 1, 4160, 128)])
def test_every_candidate_rotates_queries_and_new_keys(shape: tuple[int, ...]) -> None:
    batch, heads, kv_heads, queries, keys, dim = shape
    for tiling in storing_attention.candidates(Shape(*shape), 132):
        caches = [normal(batch, kv_heads, keys, dim) for _ in range(2)]
        places = torch.randperm(keys, device="cuda")[:queries]
        mask = torch.arange(keys, device="cuda")[None, None, None] <= places.max()
        new = [normal(batch, queries, kv_heads, dim).transpose(1, 2) for _ in range(2)]
        angle = 7 * torch.randn(1, 1, queries, dim, device="cuda")
        table = angle.cos().bfloat16(), angle.sin().bfloat16()
        operands = (normal(batch, heads, queries, dim), *caches, *new, places, mask, *table)
        want, *after = torch.ops.vtc.storing_attention(*operands, scale=dim**-0.5)
        out = torch.ops.vtc.storing_attention_(
            *operands, scale=dim**-0.5, tiling=as_argument(tiling)
        )
        torch.testing.assert_close(caches[0], after[0], rtol=2**-7, atol=1e-6)
        assert torch.equal(caches[1], after[1]), tiling
        torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)

"""On a CUDA device: caches that move on in place, in the sizes of models, again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

import vtc
from lowering import test_shift as layers
from vtc.kernels import shift, sliding_attention
from vtc.kernels.attention_tiling import Shape, Tiling, as_argument
from vtc.lowering import attention as attention_choice

pytestmark = pytest.mark.gpu
CACHES = [(1, 8, 4096, 256), (16, 8, 4096, 256), (3, 8, 1000, 64), (2, 5, 777, 48)]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("shape", CACHES)
def test_every_candidate_moves_a_cache_on_bit_by_bit(shape: tuple[int, ...], rows: int) -> None:
    batch, heads, keys, dim = shape
    for tiling in shift.candidates(batch * heads, keys, dim, 132):
        cache = normal(*shape)
        for _ in range(3):
            new = normal(batch, heads, rows, dim)
            want = torch.cat([cache[:, :, rows:], new], 2)
            torch.ops.vtc.shift_(cache, new, 2, shift.as_argument(tiling))
            assert torch.equal(cache, want), tiling


@pytest.mark.parametrize("shape", CACHES)
def test_every_candidate_of_attention_moves_its_caches_on(shape: tuple[int, ...]) -> None:
    batch, heads, keys, dim = shape
    for tiling in sliding_attention.candidates(Shape(batch, 2 * heads, heads, 1, keys, dim), 132):
        key, value = normal(*shape), normal(*shape)
        mask = torch.where(torch.rand(1, 1, 1, keys, device="cuda") < 0.9, 0.0, -3e38)
        for _ in range(3):
            query = normal(batch, 2 * heads, 1, dim)
            new = [normal(batch, heads, 1, dim) for _ in range(2)]
            options = {"scale": dim**-0.5, "softcap": 50.0}
            operands = (query, key, value, *new, mask.bfloat16())
            want, keys_after, values_after = torch.ops.vtc.sliding_attention(*operands, **options)
            out = torch.ops.vtc.sliding_attention_(*operands, **options, tiling=as_argument(tiling))
            assert torch.equal(key, keys_after), tiling
            assert torch.equal(value, values_after), tiling
            torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("name", ["roll and index_put", "cat"])
def test_a_compiled_layer_moves_its_caches_on_as_eager_does(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tiling = Tiling(16, 32, 1, 4, 2)
    monkeypatch.setattr(attention_choice, "_measured", lambda *_: (tiling, 1.0, 2.0))
    monkeypatch.setattr(layers, "KEYS", 512)
    torch._dynamo.reset()
    layer = layers.Layer(layers.WAYS[name][0]).cuda().bfloat16().eval()
    compiled = vtc.compile(layer, options={"verify": False, "cache_dir": tmp_path})
    ours = [normal(4, 2, 512, layers.DIM) for _ in range(2)]
    theirs = [t.clone() for t in ours]
    codes: list[str] = []
    with torch.no_grad():
        for turn in range(4):
            x, mask = normal(4, 1, 32), normal(1, 1, 1, 512)
            if turn == 0:
                got, codes = run_and_get_code(compiled, x, *ours, mask)
            else:
                got = compiled(x, *ours, mask)
            torch.testing.assert_close(got, layer(x, *theirs, mask), rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert any("vtc.sliding_attention_" in code or "vtc.shift_" in code for code in codes)

"""On a CUDA device: our attention kernels against float64, called by themselves and compiled."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

import vtc
from kernels.attention_cases import Form, error, operands
from vtc.kernels.attention_tiling import Shape, candidates
from vtc.lowering import attention as choice

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.bfloat16: 2.5e-2, torch.float16: 4e-3}
CONTEXTS = (1, 2, 63, 64, 65, 129, 1000, 4097)
SPLIT = (16, 64, 4, 4, 3)

HEADS = [(32, 8), (16, 8), (8, 8), (8, 1)]
FORMS = {
    **{
        f"{h} on {kv}, {d}, {str(t).removeprefix('torch.')}": Form(
            heads=h, kv_heads=kv, dim=d, dtype=t
        )
        for (h, kv), d, t in [
            (HEADS[0], 128, torch.bfloat16),
            (HEADS[0], 64, torch.float16),
            (HEADS[1], 256, torch.bfloat16),
            (HEADS[2], 128, torch.float16),
            (HEADS[3], 64, torch.bfloat16),
            (HEADS[3], 256, torch.float16),
        ]
    },
    "bool mask": Form(heads=32, kv_heads=8, dim=128, mask="bool"),
    "mask row": Form(heads=32, kv_heads=8, dim=128, mask="line"),
    "dead tail": Form(heads=32, kv_heads=8, dim=128, mask="tail", layout="slice"),
    "finite dead tail": Form(heads=16, kv_heads=8, dim=256, mask="finite", softcap=50.0),
    "a sequence without keys": Form(heads=8, kv_heads=2, dim=64, mask="empty"),
    "a sequence without keys, as NaN": Form(heads=8, kv_heads=2, dim=64, mask="empty", safe=False),
    "hidden by finite numbers": Form(heads=8, kv_heads=2, dim=64, mask="nothing"),
    "bias": Form(heads=8, kv_heads=8, dim=128, mask="bias-none", dtype=torch.float16),
    "soft-cap": Form(heads=16, kv_heads=8, dim=256, softcap=30.0, scale=0.5),
    "slice": Form(heads=16, kv_heads=8, dim=128, layout="slice"),
    "heads inside": Form(heads=8, kv_heads=8, dim=64, layout="bshd"),
    "keys innermost": Form(heads=8, kv_heads=4, dim=64, layout="transposed"),
    "lengths": Form(batch=5, heads=8, kv_heads=2, dim=128, lengths=True),
    "four queries": Form(heads=8, kv_heads=2, dim=128, queries=4, lengths=True, causal=True),
    "odd dimension": Form(heads=8, kv_heads=2, dim=80, dtype=torch.float16),
}
PREFILL = {
    "causal": Form(heads=8, kv_heads=2, queries=300, keys=300, dim=128, causal=True),
    "odd": Form(heads=4, kv_heads=4, queries=129, keys=257, dim=64, dtype=torch.float16),
    "window": Form(heads=4, kv_heads=2, queries=500, keys=500, dim=128, causal=True, window=100),
    "padding": Form(heads=4, kv_heads=2, queries=200, keys=200, dim=128, mask="bool"),
    "gemma": Form(heads=4, kv_heads=2, queries=200, keys=264, dim=256, mask="finite", softcap=50.0),
    "lengths": Form(heads=4, kv_heads=2, queries=100, keys=400, causal=True, lengths=True, dim=64),
}


def half(form: Form) -> Form:
    return form.but(dtype=torch.bfloat16) if form.dtype is torch.float32 else form


def found(form: Form, tiling: tuple[int, ...] | None = None) -> float:
    given = operands(form, "cuda")
    result = torch.ops.vtc.attention(*given.args, **given.options, tiling=tiling)
    return error(form, result, given)


@pytest.mark.parametrize("name", FORMS)
def test_decoding_equals_float64_at_every_context(name: str) -> None:
    form = half(FORMS[name])
    rows = form.queries * (form.heads // form.kv_heads)
    for keys in CONTEXTS:
        if keys >= form.queries:
            tiling = (max(16, rows), *SPLIT[1:]) if form.dim <= 128 else (16, 32, 4, 4, 2)
            assert found(form.but(keys=keys), tiling) < TOLERANCE[form.dtype], keys


@pytest.mark.parametrize("name", PREFILL)
def test_prefill_equals_float64(name: str) -> None:
    form = half(PREFILL[name])
    assert found(form) < TOLERANCE[form.dtype]


@pytest.mark.parametrize("queries", [1, 16])
def test_pages_equal_float64(queries: int) -> None:
    form = Form(heads=8, kv_heads=2, keys=1000, dim=128, layout="pages", queries=queries)
    assert found(form.but(dtype=torch.bfloat16, causal=True)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("shape", [(1, 32, 8, 1, 1003, 128), (2, 16, 8, 1, 520, 256)])
def test_every_candidate_equals_float64(shape: tuple[int, ...]) -> None:
    batch, heads, kv_heads, queries, keys, dim = shape
    form = Form(batch, heads, kv_heads, queries, keys, dim, mask="line", dtype=torch.bfloat16)
    for tiling in candidates(Shape(*shape), 132):
        given = tiling.block_m, tiling.block_n, tiling.splits, tiling.warps, tiling.stages
        assert found(form, given) < TOLERANCE[torch.bfloat16], tiling


def test_generated_code_copies_no_strided_operand() -> None:
    """Of a cache longer and wider than what is read, with an expanded mask."""
    cache = torch.randn(2, 2, 3, 640, 144, device="cuda", dtype=torch.bfloat16)
    query = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    line = torch.rand(600, device="cuda") < 0.5
    weight = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)

    def block(query: Tensor, cache: Tensor, line: Tensor, weight: Tensor) -> Tensor:
        key, value = (cache[i, :, 1:, 7:607, 16:] for i in range(2))
        out = torch.ops.vtc.attention(query.transpose(1, 2), key, value, line.view(1, 1, 1, -1))
        return out.transpose(1, 2).reshape(2, 1, 1024) @ weight

    with torch.no_grad():
        result, (code,) = run_and_get_code(torch.compile(block), query, cache, line, weight)
        torch.testing.assert_close(result, block(query, cache, line, weight), rtol=2e-2, atol=1e-1)
    assert "decode_kernel" in code
    assert "combine_kernel" in code
    # Inductor may transpose the query, of one row, before it calls kernels that are not its own.
    hints = re.findall(r"pointwise\(\s*size_hints=\{([^}]*)\}", code)
    assert len(hints) == code.count("async_compile.triton('triton_poi")
    sizes = [math.prod(map(int, re.findall(r": (\d+)", hint))) for hint in hints]
    assert all(size <= query.numel() for size in sizes), "keys, values or the mask are copied"


class Layer(torch.nn.Module):
    """Attention on a static cache with repeated heads, written out when it has a soft-cap."""

    def __init__(self, softcap: float | None) -> None:
        super().__init__()
        self.softcap = softcap
        self.project = torch.nn.Linear(256, 256 + 2 * 128)
        self.out = torch.nn.Linear(256, 256)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.project(x).split([256, 128, 128], -1)
        q, k, v = (t.view(b, s, -1, 64).transpose(1, 2) for t in (q, k, v))
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        key, value = (
            t[:, :, None].expand(b, 2, 2, t.shape[2], 64).reshape(b, 4, t.shape[2], 64)
            for t in (keys, values)
        )
        seen = torch.arange(key.shape[2], device=x.device) <= position.view(-1, 1)
        mask = seen[None, None].expand(b, -1, -1, -1)
        if self.softcap is None:
            out = functional.scaled_dot_product_attention(q, key, value, mask)
        else:
            logits = q @ key.transpose(2, 3) * 0.125
            logits = torch.tanh(logits / self.softcap) * self.softcap
            lowest = torch.finfo(x.dtype).min
            logits = logits + torch.where(mask, torch.zeros((), dtype=x.dtype), lowest)
            out = torch.softmax(logits, -1, dtype=torch.float32).to(x.dtype) @ value
        return self.out(out.transpose(1, 2).reshape(b, s, 256))


@pytest.mark.parametrize("softcap", [None, 50.0])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_compiled_layer_uses_our_kernels_and_equals_eager(
    softcap: float | None, queries: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = chosen_everywhere(monkeypatch)
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = Layer(softcap).cuda().bfloat16().eval()
    options = {"verify": False, "cache_dir": tmp_path}
    compiled = vtc.compile(layer, options=options)
    caches = torch.randn(2, 3, 2, 300, 64, device="cuda", dtype=torch.bfloat16)
    ours, theirs = caches.clone(), caches.clone()
    with torch.no_grad():
        for start in (200, 205):
            x = torch.randn(3, queries, 256, device="cuda", dtype=torch.bfloat16)
            position = torch.arange(start, start + queries, device="cuda")
            got = compiled(x, *ours, position)
            torch.testing.assert_close(got, layer(x, *theirs, position), rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert used


def chosen_everywhere(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Our kernels are taken whatever they cost; what was asked for."""
    asked: list[Any] = []

    def measured(problem: Any, *_: Any) -> tuple[Any, float, float]:
        asked.append(problem)
        shapes = [torch.empty(a.shape, device="meta") for a in problem.layouts[:3]]
        return candidates(Shape.of(*shapes), 132)[0], 1.0, 2.0

    monkeypatch.setattr(choice, "_measured", measured)
    return asked


def test_each_shape_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []
    replayed = choice.timing.replayed
    monkeypatch.setattr(choice.timing, "replayed", lambda *a: timed.append(a) or replayed(*a))
    layer = Layer(50.0).cuda().bfloat16().eval()
    options = {"cache_dir": tmp_path, "verify": False}
    counts = []
    for _ in range(2):
        torch._dynamo.reset()
        caches = torch.randn(2, 3, 2, 300, 64, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(3, 1, 256, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            compiled = vtc.compile(layer, options=options)
            compiled(x, *caches, torch.tensor([299], device="cuda"))
        counts.append(len(timed))
    assert counts[0] > 1
    assert counts[1] == counts[0]

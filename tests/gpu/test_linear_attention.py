"""On a CUDA device: linear attention against float64, and in a compiled block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vtc
from graph.test_linear_attention import Block
from kernels.test_linear_attention import EPS, exact, operands
from vtc.kernels.linear_attention import OVERLOAD, as_argument, candidates
from vtc.lowering import implement
from vtc.lowering import linear_attention as choice

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 12, 1024, 32, 32), (1, 24, 256, 32, 32), (3, 2, 70, 24, 40)])
def test_every_candidate_equals_float64(
    shape: tuple[int, ...], dtype: torch.dtype, layout: str
) -> None:
    given = [t.to("cuda", dtype) for t in operands(*shape, layout)]
    expected = exact(*given)
    for tiling in candidates(shape[0] * shape[1], shape[2], 132):
        found = OVERLOAD(*given, eps=EPS, tiling=as_argument(tiling))
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE[dtype], tiling


def test_a_compiled_block_uses_our_kernels_and_equals_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def measured(operands: Any, eps: float, *_: Any) -> tuple[Any, float, float]:
        asked.append(eps)
        batch, heads, tokens, _ = operands[0].shape
        return candidates(batch * heads, tokens, 132)[0], 1.0, 2.0

    compiled_targets: list[Any] = []

    def inductor(graph_module: Any, *args: Any, **options: Any) -> Any:
        compiled_targets.extend(n.target for n in graph_module.graph.nodes)
        return compile_(graph_module, *args, **options)

    compile_ = implement.inductor
    monkeypatch.setattr(implement, "inductor", inductor)
    monkeypatch.setattr(choice, "_measured", measured)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Block().cuda().half().eval()
    compiled = vtc.compile(model, options={"verify": False, "cache_dir": tmp_path})
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 16, 12, 9, device="cuda", dtype=torch.float16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)
    assert asked == [EPS]
    assert OVERLOAD not in compiled_targets, "it is called as it is"

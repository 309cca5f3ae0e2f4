"""On a CUDA device: norms in the kernels of the matmuls around them, in the sizes of models."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import vtc
from vtc.kernels.normalized import NORMALIZED, SQUARE_SUMS
from vtc.lowering import norms

pytestmark = pytest.mark.gpu
WIDTH = 1024


class Unit(nn.Module):
    """Two gated units of a decoder, each behind a norm, the first of what a projection adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scales = nn.ParameterList(torch.rand(WIDTH) + 0.5 for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.out(y)
        for scale, gate, up, down in zip(
            self.scales, self.gates, self.ups, self.downs, strict=True
        ):
            wide = x.to(torch.float32)
            unit = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
            n = scale * unit.to(x.dtype)
            x = x + down(F.silu(gate(n)) * up(n))
        return x


@pytest.mark.parametrize("batch", [1, 3, 16, 33])
def test_split_norms_are_as_near_to_float64_as_eager(
    batch: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[int] = []
    split = norms.split

    def always(program, plan, cache, progress):
        other = split(program)
        targets = [n.target for n in other.program.nodes]
        seen.append(targets.count(SQUARE_SUMS) + targets.count(NORMALIZED))
        return other, ()

    monkeypatch.setattr("vtc.lowering.choose.with_split_norms", always)
    torch._dynamo.reset()
    torch.manual_seed(batch)
    model = Unit().cuda().bfloat16().eval()
    double = copy.deepcopy(model).double()
    compiled = vtc.compile(model, options={"verify": False, "cache_dir": tmp_path})
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randn(2, batch, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
            got, eager = compiled(x, y), model(x, y)
            exact = double(x.double(), y.double())
            ours, theirs = ((t.double() - exact).square().mean().sqrt() for t in (got, eager))
            assert ours <= 1.3 * theirs
    assert seen == [2 + 4]

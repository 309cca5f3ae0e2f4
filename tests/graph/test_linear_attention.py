"""Linear attention is recognised as timm writes it, and nothing else is taken for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from captures import program_of
from vtc.graph.linear_attention import find, rewrite
from vtc.kernels.linear_attention import OVERLOAD


class Block(nn.Module):
    """timm's LiteMLA between a projection and a convolution."""

    def __init__(self, fill: float = 1.0, keep: str = "") -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(16, 72, 1), nn.Conv2d(24, 16, 1)
        self.fill, self.keep = fill, keep

    def forward(self, x):
        b, _, h, w = x.shape
        y = self.qkv(x).reshape(b, -1, 24, h * w).transpose(-1, -2)
        q, k, v = y.chunk(3, dim=-1)
        q, k, v = F.relu(q), F.relu(k), F.pad(v, (0, 1), mode="constant", value=self.fill)
        kept = k if self.keep == "relu" else v
        with torch.autocast("cpu", enabled=False):
            kv = k.float().transpose(-1, -2) @ v.float()
            out = q.float() @ kv
            result = out[..., :-1] / (out[..., -1:] + 1e-5)
            result = result.to(x.dtype)
        result = self.out(result.transpose(-1, -2).reshape(b, -1, h, w))
        return (result, kept, out) if self.keep else result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rewritten_block_gives_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    model, x = Block().eval().to(dtype), torch.randn(2, 16, 5, 4, dtype=dtype)
    program, inputs = program_of(model, x)
    (found,) = find(program)
    assert found.eps == 1e-5
    rewritten = rewrite(program, {found: {"tiling": None}}, OVERLOAD)
    targets = [n.target for n in rewritten.nodes]
    assert targets.count(OVERLOAD) == 1
    assert torch.ops.aten.matmul.default not in targets
    with torch.no_grad():
        (got,), expected = rewritten.graph_module(*inputs), model(x)
    limit = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("model", [Block(fill=2.0), Block(keep="relu"), Block(keep="product")])
def test_what_is_something_else_or_used_elsewhere_stays(model: nn.Module) -> None:
    program, _ = program_of(model.eval(), torch.randn(1, 16, 3, 3))
    assert not find(program)

"""Blocks of image models as one program: what movement is left, and what is computed where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lowering.dvm.evaluated import Compiled
from lowering.dvm.test_convolution import check, images, kernels
from vtc.lowering.dvm.plan import ModuleStep


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def block(inner: int, outer: int, taps: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, taps, stride, taps // 2, bias=False),
        nn.BatchNorm2d(outer),
        nn.SiLU(),
    )


class C3K2(nn.Module):
    """A block of YOLO11: half of the channels go on, all intermediate ones are joined."""

    def __init__(self, inner: int, half: int, outer: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.last = block(inner, 2 * half), block(3 * half, outer)
        self.inner = nn.Sequential(block(half, half // 2, 3), block(half // 2, half, 3))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        found = self.inner(parts[-1])
        parts.append(parts[-1] + found if self.shortcut else found)
        return self.last(torch.cat(parts, 1))


class Neck(nn.Module):
    """A pyramid: what comes from below is upsampled and joined to what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = block(4, 8), block(8, 16, 3, 2)
        self.up, self.down = C3K2(24, 8, 12, False), block(12, 8, 3, 2)
        self.last = C3K2(24, 8, 16, True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = self.wide(x)
        deep = self.deep(wide)
        joined = torch.cat([functional.interpolate(deep, scale_factor=2.0), wide], 1)
        found = self.up(joined)
        return found, self.last(torch.cat([self.down(found), deep], 1))


class Attention(nn.Module):
    """Self-attention over an image's points as YOLO11 writes it, its positions a convolution."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.depth = heads, width // heads
        self.key = self.depth // 2
        self.qkv = nn.Conv2d(width, width + 2 * self.key * heads, 1)
        self.position = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.last = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        whole = self.qkv(x).view(n, self.heads, 2 * self.key + self.depth, h * w)
        q, k, v = whole.split([self.key, self.key, self.depth], dim=2)
        scores = (q.transpose(-2, -1) @ k) * self.key**-0.5
        found = v @ scores.softmax(dim=-1).transpose(-2, -1)
        where = self.position(v.reshape(n, c, h, w))
        return self.last(found.view(n, c, h, w) + where)


class LinearAttention(nn.Module):
    """Of EfficientViT (arXiv:2205.14756, section 3.1): ones beside the values give the sums."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.dim, self.eps = dim, 1e-5
        self.qkv = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.more = nn.Sequential(
            nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width, bias=False),
            nn.Conv2d(3 * width, 3 * width, 1, groups=3 * width // dim, bias=False),
        )
        self.last = nn.Sequential(nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        qkv = self.qkv(x)
        scales = torch.cat([qkv, self.more(qkv)], 1)
        scales = scales.reshape(n, -1, 3 * self.dim, h * w).transpose(-1, -2)
        q, k, v = scales.chunk(3, dim=-1)
        q, k = q.relu(), k.relu()
        v = functional.pad(v, (0, 1), value=1.0)
        found = q @ (k.transpose(-1, -2) @ v)
        found = found[..., :-1] / (found[..., -1:] + self.eps)
        return self.last(found.transpose(-1, -2).reshape(n, -1, h, w)) + x


class Head(nn.Module):
    """Boxes and scores of all points of two maps, and the maps themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv2d(6, 8, 3, 2, 1)
        self.scores = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, 3, 1, 1, groups=c), nn.Conv2d(c, 5, 1)) for c in (6, 8)
        )
        self.boxes = nn.ModuleList(nn.Conv2d(c, 4, 3, 1, 1) for c in (6, 8))

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = x.relu()
        maps = [x, self.deep(x).relu()]
        scores = torch.cat([s(m).flatten(2) for s, m in zip(self.scores, maps, strict=True)], 2)
        boxes = torch.cat([b(m).flatten(2) for b, m in zip(self.boxes, maps, strict=True)], 2)
        whole = torch.cat([boxes.softmax(1), scores.sigmoid()], 1)
        return {"whole": whole, "scores": scores, "boxes": boxes, "maps": maps}


def copies(compiled: Compiled) -> int:
    return sum(plan.copies for plan in compiled.plans)


def anchors(compiled: Compiled) -> int:
    steps = [s for plan in compiled.plans for s in plan.steps if isinstance(s, ModuleStep)]
    return sum(k.anchor is not None for s in steps for k in s.module.kernels())


@pytest.mark.parametrize("shortcut", [False, True])
def test_a_block_of_yolo_moves_nothing(shortcut: bool) -> None:
    compiled = check(C3K2(12, 8, 16, shortcut), *images(12, (2, 6, 7), (3, 9, 8)))
    assert (copies(compiled), kernels(compiled)) == (0, 4), compiled.text


def test_a_neck_moves_what_it_upsamples_and_nothing_else() -> None:
    model = Neck()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    model.eval()
    compiled = Compiled(model)
    for x in images(4, (2, 8, 12), (3, 6, 10)):
        with torch.no_grad():
            want = model(x)
        for got, one in zip(compiled(x), want, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-5)
            assert got.stride() == one.stride()
    # The upsampled convolution is computed once a point, its activation with it.
    assert (copies(compiled), kernels(compiled)) == (1, 12), compiled.text
    assert anchors(compiled) == 11


def test_attention_over_points_moves_nothing() -> None:
    compiled = check(Attention(32, 2), *images(32, (2, 5, 6), (1, 7, 4)), tolerance=1e-4)
    assert copies(compiled) == 0, compiled.text
    # One depthwise kernel a head, whose channels lie together.
    assert anchors(compiled) == 6, compiled.text


def test_linear_attention_moves_nothing() -> None:
    compiled = check(LinearAttention(16, 8), *images(16, (2, 5, 6), (1, 4, 7)), tolerance=1e-4)
    assert copies(compiled) == 0, compiled.text
    # No address is computed at run time, for any size.
    assert "fmod" not in compiled.text
    assert "floordiv" not in compiled.text


def test_a_head_stores_what_it_returns_in_place() -> None:
    model = Head()
    compiled = Compiled(model)
    for x in images(6, (2, 6, 8), (1, 9, 7)):
        with torch.no_grad():
            want = model(x)
        got = compiled(x)
        for name in ("whole", "scores", "boxes"):
            torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)
            assert got[name].stride() == want[name].stride()
        for one, other in zip(got["maps"], want["maps"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()
    assert copies(compiled) == 0, compiled.text


@pytest.mark.parametrize("filled", [1.0, 0.5, 0.0])
def test_a_product_with_a_padded_operand(filled: float) -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        whole = a @ functional.pad(b, (0, 1), value=filled)
        return whole, whole[..., :-1] / (whole[..., -1:] + 2)

    compiled = Compiled(f)
    for n, k in ((3, 5), (4, 9)):
        a, b = torch.rand(2, n, k), torch.rand(2, k, 6)
        for got, want in zip(compiled(a, b), f(a, b), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            assert got.stride() == want.stride()
    assert not compiled.eager

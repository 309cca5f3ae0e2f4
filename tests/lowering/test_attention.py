"""Attentions that are made ours are planned like library calls: on caches, with grouped heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from vtc.kernels import attention as kernels
from vtc.kernels import storing_attention
from vtc.kernels.attention import OVERLOAD
from vtc.kernels.attention_tiling import Tiling
from vtc.lowering import attention as choice
from vtc.lowering import choose
from vtc.lowering.plan import Plan

KEYS, DIM = 40, 8


class Layer(nn.Module):
    """One decoder layer's attention on a static cache, two query heads on each cached one."""

    def __init__(self, *, library: bool) -> None:
        super().__init__()
        self.library = library
        self.project = nn.Linear(32, 64)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.project(x).split([32, 16, 16], -1)
        q, k, v = (t.view(b, s, -1, DIM).transpose(1, 2) for t in (q, k, v))
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        key, value = (
            t[:, :, None].expand(b, 2, 2, KEYS, DIM).reshape(b, 4, KEYS, DIM)
            for t in (keys, values)
        )
        seen = torch.arange(KEYS) <= position.view(-1, 1)
        mask = seen[None, None].expand(b, -1, -1, -1)
        if self.library:
            out = nn.functional.scaled_dot_product_attention(q, key, value, mask)
        else:
            logits = torch.tanh(q @ key.transpose(2, 3) * 0.3 / 5.0) * 5.0
            logits = logits + torch.where(mask, torch.zeros(()), torch.finfo(x.dtype).min)
            out = torch.softmax(logits, -1, dtype=torch.float32).to(x.dtype) @ value
        return self.out(out.transpose(1, 2).reshape(b, s, 32))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Our operator is taken everywhere, on a CPU too; the plans that are made."""
    made: list[Plan] = []
    prepare = choose.prepare
    monkeypatch.setattr(kernels, "supports", lambda *_: True)
    monkeypatch.setattr(storing_attention, "supports", lambda *_: False)
    monkeypatch.setattr(choice, "_measured", lambda *_: (Tiling(16, 16, 1, 4, 2), 1.0, 2.0))
    monkeypatch.setattr("vtc.compiler.prepare", lambda *a: made.append(prepare(*a)) or made[-1])
    torch._dynamo.reset()
    torch.manual_seed(0)
    return made


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("queries", [1, 3])
def test_a_layer_on_a_cache_reads_grouped_heads_in_place(
    library: bool, queries: int, plans: list[Plan], tmp_path: Path
) -> None:
    layer = Layer(library=library).eval()
    options = {"verify": False, "profile_budget_s": 0.0, "cache_dir": tmp_path, "min_gain_us": 0.0}
    compiled = vtc.compile(layer, options=options)
    ours = torch.randn(2, 2, 2, KEYS, DIM)
    theirs = ours.clone()
    with torch.no_grad():
        for start in (20, 21):
            x, position = torch.randn(2, queries, 32), torch.arange(start, start + queries)
            got = compiled(x, *ours, position)
            torch.testing.assert_close(got, layer(x, *theirs, position))
            torch.testing.assert_close(ours, theirs)
    (plan,) = plans
    assert len(plan.attentions) == 1
    assert "vtc::attention" in plan.attentions[0]
    calls = [n for n in plan.program.nodes if n.target is OVERLOAD]
    assert len(calls) == 1


class Pixels(nn.Module):
    """The attention of YOLO11, whose tokens are the pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(16, 2 * (2 * 4 + 8), 1)
        self.out = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 2, 16, h * w).split([4, 4, 8], dim=2)
        weights = ((q * 0.5).transpose(-2, -1) @ k).softmax(dim=-1)
        y = (v @ weights.transpose(-2, -1)).view(b, c, h, w)
        return self.out(y + v.reshape(b, c, h, w))


def test_the_pixels_of_an_image_are_attended_where_they_are(
    plans: list[Plan], tmp_path: Path
) -> None:
    layer = Pixels().eval().to(memory_format=torch.channels_last)
    options = {"verify": False, "profile_budget_s": 0.0, "cache_dir": tmp_path}
    compiled = vtc.compile(layer, options=options)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 16, 5, 6).to(memory_format=torch.channels_last)
            got = compiled(x)
            exact = layer.double()(x.double())
            layer.float()
            torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5)
    (plan,) = plans
    (said,) = plan.attentions
    assert "vtc::attention" in said
    targets = [n.target for n in plan.program.nodes]
    assert targets.count(OVERLOAD) == 1
    assert not {torch.ops.aten.matmul.default, torch.ops.aten.mul.Tensor} & set(targets)


def test_what_is_slower_stays_as_it_is(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "_measured", lambda *_: (Tiling(16, 16, 1, 4, 2), 2.0, 2.0))
    options = {"verify": False, "profile_budget_s": 0.0, "cache_dir": tmp_path}
    args: tuple[Any, ...] = (torch.randn(2, 1, 32), *torch.randn(2, 2, 2, KEYS, DIM))
    with torch.no_grad():
        vtc.compile(Layer(library=True).eval(), options=options)(*args, torch.tensor([3]))
    (plan,) = plans
    assert plan.attentions == ()
    assert OVERLOAD not in [n.target for n in plan.program.nodes]


def test_a_cpu_keeps_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is measured on a CPU")

    monkeypatch.setattr(choice, "_measured", refuse)
    torch._dynamo.reset()
    options = {"verify": False, "profile_budget_s": 0.0, "cache_dir": tmp_path}
    layer = Layer(library=True).eval()
    x, caches, position = torch.randn(2, 1, 32), torch.randn(2, 2, 2, KEYS, DIM), torch.tensor([3])
    with torch.no_grad():
        want = layer(x, *caches.clone(), position)
        torch.testing.assert_close(vtc.compile(layer, options=options)(x, *caches, position), want)


def test_keys_are_timed_where_they_are_cached(plans: list[Plan], tmp_path: Path) -> None:
    problems: list[Any] = []

    def measured(problem: Any, *_: Any) -> tuple[Tiling, float, float]:
        problems.append(problem)
        return Tiling(16, 16, 1, 4, 2), 1.0, 2.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_measured", measured)
        options = {"verify": False, "profile_budget_s": 0.0, "cache_dir": tmp_path}
        caches = torch.randn(2, 2, 2, KEYS + 5, DIM)[..., :KEYS, :]
        with torch.no_grad():
            args = (torch.randn(2, 1, 32), *caches, torch.tensor([3]))
            vtc.compile(Layer(library=False).eval(), options=options)(*args)
    (problem,) = problems
    query, key, value, _ = problem.layouts
    assert query.shape == (2, 4, 1, DIM)
    assert key.shape == value.shape == (2, 2, KEYS, DIM)
    assert key.stride == (2 * (KEYS + 5) * DIM, (KEYS + 5) * DIM, DIM, 1)
    assert (problem.scale, problem.softcap, problem.grouped) == (0.3, 5.0, 2)

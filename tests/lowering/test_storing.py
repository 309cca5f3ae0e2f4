"""Attention on caches that get new rows: recognised, and the rows stored by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowering.test_shift import DIM, KEYS, called, plans, run
from vtc.kernels import attention, storing_attention
from vtc.lowering.plan import Plan

assert plans  # a fixture


class Layer(nn.Module):
    """One decoder layer's attention on static caches, two query heads on each cached one.

    how: "stored" at one place; "apart", values at another; "stale", the old keys are read too;
    "twice", the new keys are read by another operator.
    """

    def __init__(self, how: str, *, library: bool) -> None:
        super().__init__()
        self.how, self.library = how, library
        self.project = nn.Linear(32, 64)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.project(x).split([32, 16, 16], -1)
        q, k, v = (t.view(b, s, -1, DIM).transpose(1, 2) for t in (q, k, v))
        more = keys.sum() if self.how == "stale" else 0.0
        keys.index_copy_(2, place, k * 2)
        values.index_copy_(2, (place + 1) % KEYS if self.how == "apart" else place, v)
        if self.how == "twice":
            more = keys.amax()
        key, value = (
            t[:, :, None].expand(b, 2, 2, KEYS, DIM).reshape(b, 4, KEYS, DIM)
            for t in (keys, values)
        )
        mask = (torch.arange(KEYS, device=x.device) <= place.max())[None]
        if self.library:
            out = nn.functional.scaled_dot_product_attention(q, key, value, mask, scale=0.3)
        else:
            logits = torch.tanh(q @ key.transpose(2, 3) * 0.3 / 5.0) * 5.0
            logits = logits + torch.where(mask, 0.0, torch.finfo(x.dtype).min)
            out = torch.softmax(logits, -1, dtype=torch.float32).to(x.dtype) @ value
        return self.out(out.transpose(1, 2).reshape(b, s, 32)) + more


def layer(how: str, library: bool, rows: int, batch: int, path: Path) -> str:
    """Two calls at different places, as eager PyTorch; the code of the first."""
    caches = [torch.randn(batch, 2, KEYS, DIM) for _ in range(2)]
    places = iter(torch.randperm(KEYS)[: 4 * rows].split(rows))

    def inputs() -> list[Tensor]:
        return [torch.randn(batch, rows, 32), next(places)]

    return run(Layer(how, library=library).eval(), caches, inputs, path)


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("library", [True, False])
def test_attention_stores_the_new_rows(
    library: bool, batch: int, rows: int, plans: list[Plan], tmp_path: Path
) -> None:
    code = layer("stored", library, rows, batch, tmp_path)
    (plan,) = plans
    assert called(plan, storing_attention.OVERLOAD) == 1
    assert called(plan, attention.OVERLOAD) == called(plan, torch.ops.aten.index_copy.default) == 0
    assert "vtc.storing_attention_.default" in code
    assert "index_copy" not in code
    assert any("vtc::storing_attention" in note for note in plan.attentions)


class Rotated(nn.Module):
    """A layer whose queries and keys are rotated. how: "plain"; "chunk", halves as chunks; "other
    order", the first half is negated; "two tables", keys are rotated by another; "read", something
    else reads the rotated keys; "tables alone", a table for each sequence."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.project = nn.Linear(32, 64)
        self.out = nn.Linear(32, 32)

    def turned(self, x: Tensor) -> Tensor:
        if self.how == "chunk":
            first, second = x.chunk(2, -1)
        else:
            first, second = x[..., : DIM // 2], x[..., DIM // 2 :]
        parts = [second, -first] if self.how == "other order" else [-second, first]
        return torch.cat(parts, -1)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, angle: Tensor, place: Tensor
    ) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.project(x).split([32, 16, 16], -1)
        q, k, v = (t.view(b, s, -1, DIM).transpose(1, 2) for t in (q, k, v))
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        q = q * cos + self.turned(q) * sin
        own = (cos * 2, sin) if self.how == "two tables" else (cos, sin)
        k = k * own[0] + self.turned(k) * own[1]
        more = k.amax() if self.how == "read" else 0.0
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        key, value = (
            t[:, :, None].expand(b, 2, 2, KEYS, DIM).reshape(b, 4, KEYS, DIM)
            for t in (keys, values)
        )
        mask = (torch.arange(KEYS, device=x.device) <= place.max())[None]
        out = nn.functional.scaled_dot_product_attention(q, key, value, mask, scale=0.3)
        return self.out(out.transpose(1, 2).reshape(b, s, 32)) + more


def rotated_layer(how: str, rows: int, batch: int, path: Path) -> str:
    caches = [torch.randn(batch, 2, KEYS, DIM) for _ in range(2)]
    places = iter(torch.randperm(KEYS)[: 4 * rows].split(rows))
    tables = batch if how == "tables alone" else 1

    def inputs() -> list[Tensor]:
        return [torch.randn(batch, rows, 32), torch.randn(tables, rows, DIM), next(places)]

    return run(Rotated(how).eval(), caches, inputs, path, exact=False)


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("how", ["plain", "chunk", "tables alone"])
def test_attention_rotates_what_it_stores(
    how: str, batch: int, rows: int, plans: list[Plan], tmp_path: Path
) -> None:
    rotated_layer(how, rows, batch, tmp_path)
    (plan,) = plans
    (call,) = (n for n in plan.program.nodes if n.target is storing_attention.OVERLOAD)
    assert len(call.args) == 9
    assert called(plan, torch.ops.aten.cat.default) == called(plan, torch.ops.aten.neg.default) == 0
    assert any("rotates" in note for note in plan.attentions)


@pytest.mark.parametrize("how", ["other order", "two tables", "read"])
def test_other_rotations_stay(how: str, plans: list[Plan], tmp_path: Path) -> None:
    rotated_layer(how, 1, 2, tmp_path)
    (plan,) = plans
    (call,) = (n for n in plan.program.nodes if n.target is storing_attention.OVERLOAD)
    assert len(call.args) == 7


@pytest.mark.parametrize("how", ["apart", "stale", "twice"])
def test_what_is_stored_or_read_otherwise_stays(
    how: str, plans: list[Plan], tmp_path: Path
) -> None:
    layer(how, True, 1, 2, tmp_path)
    (plan,) = plans
    assert called(plan, storing_attention.OVERLOAD) == 0
    assert called(plan, attention.OVERLOAD) == 1

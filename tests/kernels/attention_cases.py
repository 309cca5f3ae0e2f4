"""Attention in many forms: operands, and what they give in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """One form of attention. layout: where keys and values lie; mask: its kind and broadcast.

    layout: "dense" (batch, heads, keys, d); "slice", a part of a longer and wider cache; "bshd";
    "transposed", d outside of keys; "pages" of 16 keys in a shuffled order.
    """

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    queries: int = 1
    keys: int = 77
    dim: int = 16
    value_dim: int | None = None
    layout: str = "dense"
    mask: str = "none"
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    lengths: bool = False
    safe: bool = True
    dtype: torch.dtype = torch.float32

    def but(self, **changes: Any) -> Form:
        return replace(self, **changes)


@dataclass(frozen=True)
class Operands:
    """Arguments of the operator, and its keys and values as (batch, kv_heads, keys, d)."""

    args: tuple[Tensor | None, ...]
    options: dict[str, Any]
    key: Tensor
    value: Tensor


def operands(form: Form, device: str = "cpu", seed: int = 0) -> Operands:
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(form.dtype)

    width = form.value_dim or form.dim
    query = normal(form.batch, form.queries, form.heads, form.dim).transpose(1, 2)
    table = None
    if form.layout == "pages":
        count = -(-form.keys // 16)
        order = torch.randperm(form.batch * count + 3, generator=generator, device=device)
        table = order[: form.batch * count].view(form.batch, count).int()
        stored = [normal(len(order), form.kv_heads, 16, d) for d in (form.dim, width)]
        key, value = (
            t[table.long()].transpose(1, 2).flatten(2, 3)[:, :, : form.keys] for t in stored
        )
    else:
        stored = [_laid_out(form, d, normal) for d in (form.dim, width)]
        key, value = stored
    lengths = None
    if form.lengths or table is not None:
        low = max(1, form.keys // 3) if table is None else form.keys
        lengths = torch.randint(
            low, form.keys + 1, (form.batch,), generator=generator, device=device
        )
    options = {
        "causal": form.causal,
        "window": form.window,
        "softcap": form.softcap,
        "scale": form.scale,
        "safe": form.safe,
    }
    mask = _mask(form, generator, device)
    return Operands((query, *stored, mask, lengths, table), options, key, value)


def _laid_out(form: Form, dim: int, normal: Any) -> Tensor:
    shape = form.batch, form.kv_heads, form.keys, dim
    if form.layout == "slice":
        return normal(shape[0], shape[1] + 1, shape[2] + 9, dim + 16)[:, 1:, 3 : 3 + shape[2], 16:]
    if form.layout == "bshd":
        return normal(shape[0], shape[2], shape[1], dim).transpose(1, 2)
    if form.layout == "transposed":
        return normal(shape[0], shape[1], dim, shape[2]).transpose(2, 3)
    return normal(*shape)


def _mask(form: Form, generator: torch.Generator, device: str) -> Tensor | None:
    """`KIND` or `KIND-BROADCAST`: what it broadcasts over is "heads" (the default) or "none"."""
    kind, _, over = form.mask.partition("-")
    if kind == "none":
        return None
    heads = form.heads if over == "none" else 1
    shape = (form.batch, heads, form.queries, form.keys)
    if kind == "bias":
        return torch.randn(shape, generator=generator, device=device).to(form.dtype) * 2
    seen = torch.rand(shape, generator=generator, device=device) < 0.7
    seen[..., 0] = True
    if kind in ("tail", "finite", "infinite"):  # as of a cache that is not full
        seen &= torch.arange(form.keys, device=device) < max(1, form.keys // 2)
    if kind in ("empty", "nothing"):  # the first sequence sees no key
        seen[0] = False
    if kind in ("finite", "nothing"):
        return torch.where(seen, 0.0, torch.finfo(form.dtype).min).to(form.dtype)
    if kind == "infinite":
        return torch.where(seen, 0.0, -torch.inf).to(form.dtype)
    if kind == "line":  # one row for all sequences, heads and queries
        return seen[:1, :1, :1]
    return seen


def expected(form: Form, given: Operands) -> Tensor:
    """The result in float64."""
    query, _, _, mask, lengths, _ = given.args
    assert query is not None
    group = form.heads // form.kv_heads
    head = torch.arange(form.heads, device=query.device) // group
    q, k, v = query.double(), given.key.double()[:, head], given.value.double()[:, head]
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k)
    logits = logits * (form.scale or 1 / math.sqrt(form.dim))
    if form.softcap is not None:
        logits = form.softcap * torch.tanh(logits / form.softcap)
    i = torch.arange(form.queries, device=q.device).view(1, 1, -1, 1)
    j = torch.arange(form.keys, device=q.device)
    seen = torch.ones_like(logits, dtype=torch.bool)
    if lengths is not None:
        ends = lengths.view(-1, 1, 1, 1)
        seen, i = seen & (j < ends), i + ends - form.queries
    if form.causal:
        seen = seen & (j <= i)
    if form.window is not None:
        seen = seen & (j > i - form.window)
    if mask is not None and mask.dtype is torch.bool:
        seen = seen & mask
    elif mask is not None:
        logits = logits + mask.double()
    logits = torch.where(seen, logits, -torch.inf)
    highest = logits.amax(-1, keepdim=True)
    weights = torch.exp(logits - torch.where(highest == -torch.inf, 0.0, highest))
    total = weights.sum(-1, keepdim=True)
    result = (weights / total) @ v
    return torch.where(total == 0, 0.0, result) if form.safe else result


def error(form: Form, found: Tensor, given: Operands) -> float:
    """The largest difference from float64, NaN against NaN counting as none; 0 if empty."""
    want = expected(form, given)
    assert found.shape == want.shape
    assert found.dtype is form.dtype
    assert torch.equal(found.isnan(), want.isnan()), "NaN where float64 has none, or not"
    difference = (found.double() - want).abs().nan_to_num()
    return float(difference.max()) if difference.numel() else 0.0

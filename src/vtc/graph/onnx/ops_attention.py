"""Attention and rotary embeddings. `scaled_dot_product_attention` wherever it computes what the
node asks for, with grouped heads passed as they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx.control import Subgraph, call
from vtc.graph.onnx.host import Value
from vtc.graph.onnx.registry import rule


def _split_heads(x: Tensor, heads: int | None) -> Any:
    """(batch, length, heads * size) -> (batch, heads, length, size)."""
    if x.dim() == 4:
        return x
    batch, length, _ = x.shape
    return x.reshape(batch, length, heads, -1).transpose(1, 2)


def _bias(
    q: Tensor,
    keys: int,
    mask: Value,
    offset: Any,
    lengths: Value,
    is_causal: int,
    left: int,
    right: int,
) -> Any:
    """What is added to the scores (broadcast to batch, heads, queries, keys), or None.

    `offset` is the position of the first query among the keys: a number, or one for each batch
    element.
    """
    if mask is not None and mask.shape[-1] < keys:
        fill = False if mask.dtype == torch.bool else -math.inf
        mask = F.pad(mask, [0, keys - mask.shape[-1]], value=fill)
    i = torch.arange(q.shape[2], device=q.device).unsqueeze(1) + offset
    j = torch.arange(keys, device=q.device)
    allowed = []
    if is_causal:
        allowed.append(j <= i)
    if left >= 0:
        allowed.append(i - j <= left)
    if right >= 0:
        allowed.append(j - i <= right)
    if lengths is not None:
        allowed.append(j < lengths.reshape(-1, 1, 1, 1))
    if mask is not None and mask.dtype == torch.bool:
        allowed.append(mask)
        mask = None
    if not allowed:
        return mask
    together = allowed[0]
    for more in allowed[1:]:
        together = together & more
    base = torch.zeros((), dtype=q.dtype, device=q.device) if mask is None else mask
    return torch.where(together, base, -math.inf)


@rule("Attention")
def attention(
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value = None,
    past_key: Value = None,
    past_value: Value = None,
    nonpad_kv_seqlen: Value = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: torch.dtype | None = None,
    outputs: int,
) -> Any:
    packed = q.dim() == 3
    q = _split_heads(q, q_num_heads)
    k, v = _split_heads(k, kv_num_heads), _split_heads(v, kv_num_heads)
    if past_key is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    lengths = nonpad_kv_seqlen
    offset: Any = 0 if past_key is None else past_key.shape[2]
    if lengths is not None and past_key is None:
        offset = lengths.reshape(-1, 1, 1, 1) - q.shape[2]
    only_causal = is_causal and attn_mask is None and lengths is None and past_key is None
    windowed = left_window_size >= 0 or right_window_size >= 0
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    plain = softcap == 0.0 and outputs < 4 and softmax_precision in (None, q.dtype, torch.float32)
    scores = None
    if only_causal and not windowed and plain and q.shape[2] == k.shape[2]:
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=factor, enable_gqa=q.shape[1] != k.shape[1]
        )
    else:
        bias = _bias(
            q,
            k.shape[2],
            attn_mask,
            offset,
            lengths,
            is_causal,
            left_window_size,
            right_window_size,
        )
        if plain:
            y = F.scaled_dot_product_attention(
                q, k, v, bias, scale=factor, enable_gqa=q.shape[1] != k.shape[1]
            )
        else:
            y, scores = _explicit(
                q, k, v, bias, factor, softcap, softmax_precision, qk_matmul_output_mode
            )
    if packed:
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return (y, k, v, scores)[:outputs] if outputs > 1 else y


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Value,
    factor: float,
    softcap: float,
    precision: torch.dtype | None,
    mode: int,
) -> tuple[Tensor, Tensor]:
    """Attention written out; a query that may see no key gives zeros. With the scores at the stage
    `mode`: after the product, the soft cap, the bias, or softmax."""
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    root = math.sqrt(factor)
    scores = torch.matmul(q * root, k.transpose(-1, -2) * root)
    stages = [scores]
    scores = torch.tanh(scores / softcap) * softcap if softcap > 0 else scores
    stages.append(scores)
    scores = scores if bias is None else scores + bias
    stages.append(scores)
    wide = scores if precision is None else scores.to(precision)
    weights = torch.softmax(wide, -1).to(q.dtype)
    if bias is not None:
        hidden = torch.amax(scores, -1, keepdim=True) == -math.inf
        weights = torch.where(hidden, torch.zeros_like(weights), weights)
    stages.append(weights)
    return torch.matmul(weights, v), stages[mode]


@rule("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    q: Value,
    k: Value,
    v: Value,
    *,
    prob_mod: Subgraph | None = None,
    scale: float | None = None,
    score_mod: Subgraph | None = None,
    softmax_precision: torch.dtype | None = None,
) -> Any:
    precision = softmax_precision or (torch.float64 if q.dtype == torch.float64 else torch.float32)
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = torch.matmul(q.to(precision), k.to(precision).transpose(-1, -2)) * factor
    if score_mod is not None:
        (scores,) = call(score_mod, scores)
    weights = torch.softmax(scores, -1)
    if prob_mod is not None:
        (weights,) = call(prob_mod, weights)
    return torch.matmul(weights, v.to(precision)).to(q.dtype)


@rule("RotaryEmbedding")
def rotary_embedding(
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    heads = _split_heads(x, num_heads)  # (batch, heads, length, size)
    size = rotary_embedding_dim or heads.shape[-1]
    rotated, rest = torch.split(heads, [size, heads.shape[-1] - size], -1)
    cos, sin = cos_cache, sin_cache
    if position_ids is not None:
        cos, sin = (torch.ops.aten.index.Tensor(t, [position_ids]) for t in (cos, sin))
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        pairs = torch.stack([cos * a - sin * b, sin * a + cos * b], -1)
        turned = pairs.reshape(rotated.shape)
    else:
        a, b = torch.split(rotated, size // 2, -1)
        turned = torch.cat([cos * a - sin * b, sin * a + cos * b], -1)
    out = torch.cat([turned, rest], -1)
    return out.transpose(1, 2).reshape(x.shape) if x.dim() == 3 else out

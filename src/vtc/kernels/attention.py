"""The operator `vtc::attention`: softmax(q k^T) v with grouped heads, masks, soft-cap and window.

On CUDA it runs our Triton kernels, which read queries, keys, values and mask through their strides;
elsewhere it is written out in PyTorch. Inductor sees through it, so that the kernels are called
from generated code. How the kernels are tiled is an argument, chosen by measurement
(`attention_tiling`).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vtc.kernels.attention_launch import launch, result_like

AVAILABLE = importlib.util.find_spec("triton") is not None
"""Is Triton installed? Without it the operator exists but has no CUDA kernels."""
if AVAILABLE:
    from torch.library import wrap_triton

    from vtc.kernels.attention_prefill import prefill_kernel
    from vtc.kernels.attention_splits import combine_kernel
    from vtc.kernels.attention_triton import decode_kernel


def supports(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Do the kernels take these operands? Half-precision, head dimensions up to 256, on CUDA."""
    dtypes = {query.dtype, key.dtype, value.dtype}
    return (
        AVAILABLE
        and query.device.type == "cuda"
        and dtypes in ({torch.bfloat16}, {torch.float16})
        and query.dim() == key.dim() == value.dim() == 4
        and 0 < query.shape[-1] <= 256
        and 0 < value.shape[-1] <= 256
        and query.shape[0] == key.shape[0] == value.shape[0]
        and 0 < key.shape[1] == value.shape[1]
        and query.shape[1] % key.shape[1] == 0
        and 0 not in (*query.shape, *key.shape)
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    enable_gqa: bool = False,
    safe: bool = True,
    tiling: Sequence[int] | None = None,
) -> Tensor:
    """softmax(cap(query key^T scale) + mask) value, accumulated in float32.

    query (batch, heads, queries, d); key (batch, kv_heads, keys, d); value (batch, kv_heads, keys,
    dv): any strides; each key/value head serves heads / kv_heads query heads, as with `enable_gqa`
    of scaled_dot_product_attention (the argument itself changes nothing). mask broadcasts to
    (batch, heads, queries, keys): bool, true where a key is visible, or a float that is added.
    scale is 1 / sqrt(d) by default; softcap is c in c * tanh(x / c). lengths (batch,), an integer
    tensor: keys at or beyond it are not there. causal: query i sees keys up to i, or up to
    lengths - queries + i; window: of those the last `window` ones. With block_table (batch, pages),
    key and value are pages (pages, kv_heads, page size, d), and key n of a sequence is row n % page
    size of page block_table[n // page size]. A query that sees no key gives 0, or NaN unless
    `safe`. tiling is `astuple` of a Tiling.

    Returns (batch, heads, queries, dv) in query's dtype, laid out in memory as (batch, queries,
    heads, dv). Raises ValueError for a window without `causal`.
    """
    if window is not None and not causal:
        raise ValueError("a window needs causal attention")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    options = {
        "causal": causal,
        "scale": scale,
        "softcap": softcap,
        "window": window,
        "safe": safe,
        "lengths": lengths,
        "block_table": block_table,
    }
    if query.device.type != "cuda" or 0 in (*query.shape, key.shape[2], value.shape[-1]):
        return written_out(query, key, value, mask, **options)  # type: ignore[arg-type]
    kernels = (
        wrap_triton(decode_kernel),
        wrap_triton(combine_kernel),
        wrap_triton(prefill_kernel),
    )
    with torch.cuda.device_of(query):
        return launch(kernels, query, key, value, mask, tiling=tiling, **options)  # type: ignore[arg-type]


operator: Any = torch.library.triton_op("vtc::attention", attention, mutates_args=())
OVERLOAD = torch.ops.vtc.attention.default


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
    softcap: float | None,
    window: int | None,
    safe: bool,
    lengths: Tensor | None,
    block_table: Tensor | None,
) -> Tensor:
    """`attention` in PyTorch operators, in the order of transformers' eager attention."""
    if block_table is not None:
        key, value = _gathered(key, block_table), _gathered(value, block_table)
    group = query.shape[1] // max(key.shape[1], 1)
    key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
    logits = torch.matmul(query, key.transpose(2, 3)) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    hidden = _hidden(logits, lengths, causal, window)
    if mask is not None and mask.dtype is torch.bool:
        hidden = ~mask if hidden is None else hidden | ~mask
    elif mask is not None:
        logits = logits + mask
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    if safe:
        weights = torch.where((logits == -torch.inf).all(-1, keepdim=True), 0.0, weights)
    result = torch.matmul(weights.to(query.dtype), value)
    out = result_like(query, value.shape[-1])
    return torch.empty_strided(
        out.shape, out.stride(), dtype=query.dtype, device=query.device
    ).copy_(result)


def _gathered(pages: Tensor, table: Tensor) -> Tensor:
    """Pages (pages, heads, page size, d) as (batch, heads, keys, d)."""
    return pages[table.long()].transpose(1, 2).flatten(2, 3)


def _hidden(
    logits: Tensor, lengths: Tensor | None, causal: bool, window: int | None
) -> Tensor | None:
    """True where a query does not see a key, by length, order and window; None if it sees all."""
    queries, keys = logits.shape[-2:]
    if lengths is None and not causal:
        return None
    key = torch.arange(keys, device=logits.device)
    query = torch.arange(queries, device=logits.device)[:, None]
    hidden = torch.zeros((), dtype=torch.bool, device=logits.device)
    if lengths is not None:
        limit = lengths.reshape(-1, 1, 1, 1)
        hidden, query = key >= limit, query + limit - queries
    if causal:
        hidden = hidden | (key > query)
    if window is not None:
        hidden = hidden | (key <= query - window)
    return hidden

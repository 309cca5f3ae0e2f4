"""The operators `vtc::storing_attention` and `vtc::storing_attention_`: attention on caches after
new keys and values are stored into them.

`storing_attention_` stores them in place: on CUDA the decoding kernel does it before it reads the
cache, so that no kernel of its own copies them. `storing_attention` is what it means: two
`index_copy` and one `vtc::attention`. Given the cosines and sines of a rotary embedding, both
rotate queries and new keys first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vtc.kernels import attention
from vtc.kernels.attention import AVAILABLE
from vtc.kernels.attention_launch import Stored, launch, result_like
from vtc.kernels.attention_tiling import DECODE_ROWS, Shape, Tiling
from vtc.kernels.attention_tiling import candidates as decoding

if AVAILABLE:
    from vtc.kernels.attention_splits import combine_kernel
    from vtc.kernels.attention_triton import decode_kernel


def candidates(shape: Shape, processors: int) -> tuple[Tiling, ...]:
    """Tilings that are worth timing: those of decoding, and some whose last split joins all."""
    found = decoding(shape, processors)
    joined = [replace(t, joined=1) for t in found if t.splits > 1]
    return (*found, *joined[:3])


def supports(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    places: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> bool:
    """Do the kernels take these operands? Those of `vtc::attention` in decoding."""
    if cos is not None and not (sin is not None and _tables(query, new_key, cos, sin)):
        return False
    return (
        attention.supports(query, key, value)
        and Shape.of(query, key, value).rows <= DECODE_ROWS
        and (new_key.dtype, new_value.dtype) == (key.dtype, value.dtype)
        and new_key.shape == (*key.shape[:2], places.shape[0], key.shape[3])
        and new_value.shape == (*value.shape[:2], places.shape[0], value.shape[3])
        and places.dtype in (torch.int64, torch.int32)
        and places.is_contiguous()
    )


def _tables(query: Tensor, new_key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Do cosines and sines belong to each query, and to the new key in its place?"""
    batch, _, queries, dim = query.shape
    return (
        cos.dim() == 4
        and cos.shape == sin.shape
        and cos.stride() == sin.stride()
        and cos.dtype == sin.dtype
        and cos.shape[0] in (1, batch)
        and cos.shape[1:] == (1, queries, dim)
        and new_key.shape[2] == queries
        and dim % 2 == 0
    )


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows (.., d) under a rotary embedding, computed in float32: sines multiply the second half of
    a row, negated, and then its first."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x.float() * cos.float() + turned.float() * sin.float()).to(x.dtype)


def storing_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    places: Tensor,
    mask: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    safe: bool = True,
    tiling: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention on the caches with new rows at `places`, and these two.

    query (batch, heads, queries, d); key (batch, kv_heads, keys, d) and value alike; new_key and
    new_value alike with as many rows as places (rows,), integers; mask, scale, softcap and safe are
    those of `vtc::attention`. cos and sin (batch or 1, 1, queries, d), of the same strides: where
    they are given, queries and new keys, as many, are rotated first, by the rows of these. tiling
    is for `storing_attention_`, which has the same arguments.
    """
    if cos is not None and sin is not None:
        query, new_key = rotated(query, cos, sin), rotated(new_key, cos, sin)
    keys, values = key.index_copy(2, places, new_key), value.index_copy(2, places, new_value)
    out = attention.attention(query, keys, values, mask, scale=scale, softcap=softcap, safe=safe)
    return out, keys, values


def storing_attention_(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    places: Tensor,
    mask: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    safe: bool = True,
    tiling: Sequence[int] | None = None,
) -> Tensor:
    """`storing_attention` that leaves the new rows in `key` and `value`. On CUDA a place outside of
    the cache stops the device with an assertion, as in PyTorch.

    Returns (batch, heads, queries, dv), laid out in memory as (batch, queries, heads, dv).
    """
    options = {"scale": scale, "softcap": softcap, "safe": safe}
    rows = Stored(new_key, new_value, places, cos, sin)
    if query.device.type != "cuda" or not supports(query, key, value, *rows):
        if cos is not None and sin is not None:
            query, new_key = rotated(query, cos, sin), rotated(new_key, cos, sin)
        key.index_copy_(2, places, new_key)
        value.index_copy_(2, places, new_value)
        return attention.attention(query, key, value, mask, **options)  # type: ignore[arg-type]
    kernels = (decode_kernel, combine_kernel, None)
    with torch.cuda.device_of(query):
        return launch(kernels, query, key, value, mask, tiling=tiling, stored=rows, **options)  # type: ignore[arg-type]


operator: Any = torch.library.triton_op(
    "vtc::storing_attention", storing_attention, mutates_args=()
)
in_place: Any = torch.library.custom_op(
    "vtc::storing_attention_", storing_attention_, mutates_args=("key", "value")
)
OVERLOAD = torch.ops.vtc.storing_attention.default
IN_PLACE = torch.ops.vtc.storing_attention_.default


@in_place.register_fake
def _fake(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    return result_like(query, value.shape[-1])

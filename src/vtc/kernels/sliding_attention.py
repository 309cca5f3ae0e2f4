"""The operators `vtc::sliding_attention` and `vtc::sliding_attention_`: attention on caches that
move on by new keys and values first.

`sliding_attention_` moves the caches on in place while it reads them: on CUDA by the kernels of
`sliding_triton`, elsewhere through a copy. `sliding_attention` is what it means: two `vtc::shift`
and one `vtc::attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vtc.kernels import attention, shift
from vtc.kernels.attention import AVAILABLE
from vtc.kernels.attention_launch import (
    broadcast_strides,
    combined,
    constants_of,
    partial_results,
    result_like,
)
from vtc.kernels.attention_tiling import DECODE_ROWS, Shape, Tiling, power_of_two

if AVAILABLE:
    from vtc.kernels.attention_splits import combine_kernel
    from vtc.kernels.shift_triton import edges_kernel
    from vtc.kernels.sliding_triton import sliding_kernel


def candidates(shape: Shape, processors: int) -> tuple[Tiling, ...]:
    """Tilings that are worth timing."""
    block_m = max(16, power_of_two(shape.rows))
    pairs = max(1, shape.batch * shape.kv_heads)
    found: dict[Tiling, None] = {}
    for programs in (2, 4):  # of each processor
        for block_n, warps in ((16, 4), (32, 4), (64, 8)):
            splits = max(1, min(programs * processors // pairs, -(-shape.keys // block_n), 128))
            found[Tiling(block_m, block_n, splits, warps, 1)] = None
    return tuple(found)


def supports(query: Tensor, key: Tensor, value: Tensor, new_key: Tensor, new_value: Tensor) -> bool:
    """Do the kernels take these operands? Those of `vtc::attention` in decoding, on dense caches
    that keep some of their rows."""
    return (
        attention.supports(query, key, value)
        and Shape.of(query, key, value).rows <= DECODE_ROWS
        and shift.supports(key, new_key, 2)
        and shift.supports(value, new_value, 2)
    )


def sliding_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    safe: bool = True,
    tiling: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention on `shift(key, new_key)` and `shift(value, new_value)`, and these two.

    query (batch, heads, queries, d); key (batch, kv_heads, keys, d) and value alike; new_key and
    new_value alike with fewer rows; mask, scale, softcap and safe are those of `vtc::attention`.
    tiling is for `sliding_attention_`, which has the same arguments.
    """
    keys, values = shift.shift(key, new_key, 2), shift.shift(value, new_value, 2)
    out = attention.attention(query, keys, values, mask, scale=scale, softcap=softcap, safe=safe)
    return out, keys, values


def sliding_attention_(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    safe: bool = True,
    tiling: Sequence[int] | None = None,
) -> Tensor:
    """`sliding_attention` that leaves the moved caches in `key` and `value`.

    Returns (batch, heads, queries, dv), laid out in memory as (batch, queries, heads, dv).
    """
    options = {"scale": scale, "softcap": softcap, "safe": safe}
    operands = (query, key, value, new_key, new_value)
    if query.device.type != "cuda" or not supports(*operands):
        key.copy_(shift.shift(key, new_key, 2))
        value.copy_(shift.shift(value, new_value, 2))
        return attention.attention(query, key, value, mask, **options)  # type: ignore[arg-type]
    kernels = (edges_kernel, sliding_kernel, combine_kernel)
    with torch.cuda.device_of(query):
        return launch(kernels, *operands, mask, tiling, **options)  # type: ignore[arg-type]


operator: Any = torch.library.triton_op(
    "vtc::sliding_attention", sliding_attention, mutates_args=()
)
in_place: Any = torch.library.custom_op(
    "vtc::sliding_attention_", sliding_attention_, mutates_args=("key", "value")
)
OVERLOAD = torch.ops.vtc.sliding_attention.default
IN_PLACE = torch.ops.vtc.sliding_attention_.default


@in_place.register_fake
def _fake(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    return result_like(query, value.shape[-1])


def launch(
    kernels: tuple[Any, Any, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    new_key: Tensor,
    new_value: Tensor,
    mask: Tensor | None,
    tiling: Sequence[int] | None,
    *,
    scale: float,
    softcap: float | None,
    safe: bool,
) -> Tensor:
    """`sliding_attention_` by the three kernels that are given."""
    edges, sliding, combine = kernels
    shape = Shape.of(query, key, value)
    chosen = Tiling(*tiling) if tiling else candidates(shape, 132)[0]
    queries, splits = query.shape[2], chosen.splits
    out = result_like(query, value.shape[-1])
    pairs = shape.batch * shape.kv_heads
    parts = partial_results(query, pairs * shape.rows, splits, value.shape[-1])
    asides = [
        shift.put_aside(edges, cache, new, splits, chosen.block_n)
        for cache, new in ((key, new_key), (value, new_value))
    ]
    constants = constants_of(query, key, value, mask, chosen, scale, softcap, safe)
    sliding[pairs * splits,](
        *(query, key, value, *asides, query if mask is None else mask, out, *parts),
        *(*query.stride(), *key.stride()[:3], *value.stride()[:3]),
        *(*broadcast_strides(mask), *out.stride()[:3]),
        *(queries, shape.keys, shape.kv_heads, new_key.shape[2], splits),
        WHOLE=splits == 1,
        ALIGNED=shift.aligned(key) and shift.aligned(value),
        **constants,
    )
    if splits > 1:
        grouping = (queries, shape.kv_heads, splits, int(constants["GROUP"]))
        combined(combine, parts, out, grouping, int(constants["MASK"]), safe)
    return out

"""Launches of the attention kernels: constants, strides, splits and the sum over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vtc.kernels.attention_tiling import Shape, Tiling, candidates, power_of_two

SCAN = 1024
"""The most elements of a mask row that are looked at together for keys that no row sees, and the
fewest keys for which that is done."""


class Stored(NamedTuple):
    """Rows that come into the caches before they are read: new keys (batch, kv_heads, rows, d) and
    values alike, of any strides, and their places (rows,) in the caches, integers that differ.
    cos and sin, of the same strides: what queries and new keys are rotated by, (batch or 1, 1,
    queries, d); each new key is that of a query then."""

    key: Tensor
    value: Tensor
    places: Tensor
    cos: Tensor | None = None
    sin: Tensor | None = None


def launch(
    kernels: tuple[Any, Any, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    softcap: float | None,
    safe: bool,
    tiling: Sequence[int] | None,
    causal: bool = False,
    window: int | None = None,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    stored: Stored | None = None,
) -> Tensor:
    """`attention` by the decoding, combining and prefill kernels that are given.

    With `stored` the decoding kernel stores these rows into `key` and `value`, and may add up its
    splits by itself: counters for that are kept for each device and stream, so that graphs captured
    from one stream must not be replayed at the same time. Raises ValueError where it cannot store:
    with an order, lengths or pages, and for more rows than decoding takes.
    """
    decode, combine, prefill = kernels
    page = 0 if block_table is None else key.shape[2]
    keys = key.shape[2] if block_table is None else block_table.shape[1] * page
    shape = Shape.of(query, key, value, keys)
    chosen = Tiling(*tiling) if tiling else candidates(shape, _processors(query))[0]
    if stored and (causal or lengths is not None or page or not chosen.splits):
        raise ValueError("only decoding on whole caches stores new rows into them")
    batch, heads, queries, _ = query.shape
    out = result_like(query, value.shape[-1])
    constants = constants_of(query, key, value, mask, chosen, scale, softcap, safe)
    constants |= {
        "WINDOW": window or 0,
        "CAUSAL": causal,
        "LENGTHS": lengths is not None,
        "PAGE": page,
    }
    # A kernel that does not use an operand gets another tensor in its place.
    optional = [query if t is None else t for t in (mask, lengths, block_table)]
    mask_strides = broadcast_strides(mask)
    others = [*mask_strides, 0 if block_table is None else block_table.stride(0)]
    others += out.stride()[:3]
    caches = [*key.stride(), *value.stride()]
    sizes = [queries, keys]
    if not chosen.splits:
        grid = (-(-queries // chosen.block_m), batch * heads)
        strides = [*query.stride(), *caches, *others]
        prefill[grid](query, key, value, *optional, out, *strides, *sizes, heads, **constants)
        return out
    splits, pairs, group = chosen.splits, batch * shape.kv_heads, heads // shape.kv_heads
    one_row = (group == 1 or mask_strides[1] == 0) and (queries == 1 or mask_strides[2] == 0)
    scan = min(SCAN, max(128, power_of_two(-(-keys // splits))))
    constants |= {
        "ONE_MASK_ROW": one_row,
        "WHOLE": splits == 1,
        "STORES": stored is not None,
        "ROTATED": stored is not None and stored.cos is not None,
        "SCAN": scan if mask is not None and one_row and keys >= SCAN else 0,
    }
    counters = _counters(query.device, pairs) if stored and chosen.joined and splits > 1 else None
    constants["JOINED"] = counters is not None
    new: Sequence[Tensor] = [query if t is None else t for t in stored or [query] * 5]
    if stored is not None:
        constants |= {"debug": True, "sanitize_overflow": False}  # for the places' assertion
    coming = [0] * 11
    if stored is not None:
        turned = broadcast_strides(stored.cos)
        coming = [*stored.key.stride(), *stored.value.stride(), turned[0], *turned[2:]]
    parts = partial_results(query, pairs * shape.rows, splits, value.shape[-1])
    decode[pairs * splits,](
        *(query, key, value, *new, *optional, out, *parts),
        query if counters is None else counters,
        *(*query.stride(), *caches, *coming, *others),
        *(*sizes, shape.kv_heads, splits, stored.places.shape[0] if stored else 0),
        **constants,
    )
    if splits > 1 and counters is None:
        grouping = (queries, shape.kv_heads, splits, group)
        combined(combine, parts, out, grouping, int(constants["MASK"]), safe)
    return out


_held: dict[tuple[torch.device, int, int], Tensor] = {}


def _counters(device: torch.device, count: int) -> Tensor | None:
    """Zeros to count with, kept for the current stream; None where a capture would make them."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = device, stream, power_of_two(count)
    if key not in _held:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        _held[key] = torch.zeros(key[2], dtype=torch.int32, device=device)
    return _held[key]


def constants_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    tiling: Tiling,
    scale: float,
    softcap: float | None,
    safe: bool,
) -> dict[str, Any]:
    """What the kernels over keys are compiled for, and their launch options."""
    dim, width = query.shape[-1], value.shape[-1]
    return {
        "GROUP": query.shape[1] // key.shape[1],
        "D": dim,
        "DV": width,
        "SCALE": scale,
        "SOFTCAP": softcap or 0.0,
        "MASK": 0 if mask is None else 1 if mask.dtype is torch.bool else 2,
        "SAFE": safe,
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "BLOCK_D": max(16, power_of_two(dim)),
        "BLOCK_DV": max(16, power_of_two(width)),
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }


def partial_results(query: Tensor, rows: int, splits: int, width: int) -> list[Tensor]:
    """Room for what each split leaves of each row: weighted values, maxima and sums."""
    if splits == 1:
        return [query] * 3
    size = rows * splits
    return [query.new_empty(n, dtype=torch.float32) for n in (size * width, size, size)]


def combined(
    combine: Any,
    parts: Sequence[Tensor],
    out: Tensor,
    grouping: tuple[int, int, int, int],
    mask_kind: int,
    safe: bool,
) -> None:
    """Add up the splits into `out` (batch, heads, queries, dv); grouping: queries, key/value
    heads, splits, and heads of a group."""
    queries, kv_heads, splits, group = grouping
    width = out.shape[-1]
    block_dv = min(64, max(16, power_of_two(width)))
    combine[out.shape[0] * kv_heads * queries * group, -(-width // block_dv)](
        *parts,
        out,
        *out.stride()[:3],
        queries,
        kv_heads,
        splits,
        GROUP=group,
        DV=width,
        MASK=mask_kind,
        SAFE=safe,
        BLOCK_S=power_of_two(splits),
        BLOCK_DV=block_dv,
        num_warps=4,
    )


def result_like(query: Tensor, width: int) -> Tensor:
    """An empty result, laid out in memory as (batch, queries, heads, width)."""
    batch, heads, queries, _ = query.shape
    return query.new_empty(batch, queries, heads, width).transpose(1, 2)


def broadcast_strides(mask: Tensor | None) -> list[int]:
    """The four strides with which a mask is read, 0 along what it broadcasts over."""
    if mask is None:
        return [0] * 4
    missing = 4 - mask.dim()
    sizes = zip(mask.shape, mask.stride(), strict=True)
    return [0] * missing + [0 if size == 1 else step for size, step in sizes]


def _processors(query: Tensor) -> int:
    if query.device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(query.device).multi_processor_count)

"""The operator `vtc::attention`: softmax(q k^T) v with grouped heads, masks, soft-cap and window.

On CUDA it runs our Triton kernels, which read queries, keys, values and mask through their strides;
elsewhere it is written out in PyTorch. Inductor sees through it, so that the kernels are called
from generated code. How the kernels are tiled is an argument, chosen by measurement: `candidates`
lists what is worth timing for a shape.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

AVAILABLE = importlib.util.find_spec("triton") is not None
"""Is Triton installed? Without it the operator exists but has no CUDA kernels."""
if AVAILABLE:
    from torch.library import wrap_triton

    from vtc.kernels.attention_prefill import prefill_kernel
    from vtc.kernels.attention_triton import combine_kernel, decode_kernel

DECODE_ROWS = 64
"""The most rows (query positions times heads of a group) that one decoding tile holds."""
SCAN = 1024
"""The most elements of a mask row that are looked at together for keys that no row sees, and the
fewest keys for which that is done."""


@dataclass(frozen=True)
class Tiling:
    """How the kernels cut the work: rows and keys of a tile, splits of the keys, warps, stages.

    `splits` is 0 for the prefill kernel. `block_m` of the decoding kernel is a power of two that
    holds all rows.
    """

    block_m: int
    block_n: int
    splits: int
    warps: int
    stages: int

    def __str__(self) -> str:
        kind = f"{self.splits} splits" if self.splits else "prefill"
        tile = f"{self.block_m}x{self.block_n}"
        return f"{kind}, tiles of {tile}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True)
class Shape:
    """Sizes that tiling depends on; `head_dim` is the larger of those of keys and values."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, keys: int | None = None) -> Shape:
        """`keys` is given for paged caches."""
        batch, heads, queries, dim = query.shape
        length = key.shape[2] if keys is None else keys
        return Shape(batch, heads, key.shape[1], queries, length, max(dim, value.shape[-1]))

    @property
    def rows(self) -> int:
        return self.queries * (self.heads // max(self.kv_heads, 1))


def candidates(shape: Shape, processors: int) -> tuple[Tiling, ...]:
    """Tilings that are worth timing, the likeliest first; `processors` is the device's count of
    streaming multiprocessors."""
    if shape.rows > DECODE_ROWS:
        return _prefill_candidates(shape)
    block_m = max(16, power_of_two(shape.rows))
    forms = [(32, 4, 3), (64, 4, 3), (64, 8, 3)]
    if shape.head_dim > 128:
        forms = [(32, 4, 3), (64, 4, 2)]
    pairs = max(1, shape.batch * shape.kv_heads)
    found: dict[Tiling, None] = {}
    for programs in (2, 4):  # of each processor
        for block_n, warps, stages in forms:
            splits = max(1, min(programs * processors // pairs, -(-shape.keys // block_n), 128))
            found[Tiling(block_m, block_n, splits, warps, stages)] = None
    return tuple(found)


def _prefill_candidates(shape: Shape) -> tuple[Tiling, ...]:
    if shape.head_dim > 128:
        forms = [(128, 32, 8, 3), (64, 64, 8, 2)]
    else:
        forms = [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3)]
    return tuple(Tiling(m, n, 0, warps, stages) for m, n, warps, stages in forms)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()


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


def launch(
    kernels: tuple[Any, Any, Any],
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
    tiling: Sequence[int] | None,
) -> Tensor:
    """`attention` by the decoding, combining and prefill kernels that are given."""
    decode, combine, prefill = kernels
    page = 0 if block_table is None else key.shape[2]
    keys = key.shape[2] if block_table is None else block_table.shape[1] * page
    shape = Shape.of(query, key, value, keys)
    chosen = Tiling(*tiling) if tiling else candidates(shape, _processors(query))[0]
    batch, heads, queries, dim = query.shape
    width, group = value.shape[-1], heads // shape.kv_heads
    out = result_like(query, width)
    constants = {
        "GROUP": group,
        "D": dim,
        "DV": width,
        "SCALE": scale,
        "SOFTCAP": softcap or 0.0,
        "WINDOW": window or 0,
        "CAUSAL": causal,
        "MASK": 0 if mask is None else 1 if mask.dtype is torch.bool else 2,
        "LENGTHS": lengths is not None,
        "PAGE": page,
        "SAFE": safe,
        "BLOCK_M": chosen.block_m,
        "BLOCK_N": chosen.block_n,
        "BLOCK_D": max(16, power_of_two(dim)),
        "BLOCK_DV": max(16, power_of_two(width)),
        "num_warps": chosen.warps,
        "num_stages": chosen.stages,
    }
    # A kernel that does not use an operand gets another tensor in its place.
    tensors = [query, key, value]
    tensors += [query if t is None else t for t in (mask, lengths, block_table)]
    strides = [*query.stride(), *key.stride(), *value.stride()]
    mask_strides = broadcast_strides(mask)
    strides += mask_strides
    strides += [0 if block_table is None else block_table.stride(0), *out.stride()[:3]]
    sizes = [queries, keys]
    if not chosen.splits:
        grid = (-(-queries // chosen.block_m), batch * heads)
        prefill[grid](*tensors, out, *strides, *sizes, heads, **constants)
        return out
    splits, pairs, rows = chosen.splits, batch * shape.kv_heads, shape.rows
    one_row = (group == 1 or mask_strides[1] == 0) and (queries == 1 or mask_strides[2] == 0)
    scan = min(SCAN, max(128, power_of_two(-(-keys // splits))))
    constants |= {
        "ONE_MASK_ROW": one_row,
        "WHOLE": splits == 1,
        "SCAN": scan if mask is not None and one_row and keys >= SCAN else 0,
    }
    parts = partial_results(query, pairs * rows, splits, width)
    decode[pairs * splits,](
        *tensors, out, *parts, *strides, *sizes, shape.kv_heads, splits, **constants
    )
    if splits > 1:
        grouping = (queries, shape.kv_heads, splits, group)
        combined(combine, parts, out, grouping, int(constants["MASK"]), safe)
    return out


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


def as_argument(tiling: Tiling) -> list[int]:
    """A Tiling as the operator's argument."""
    return list(astuple(tiling))

"""The operator `vtc::linear_attention`: relu(q) (relu(k)^T [v | 1]), normalised by its last column.

Attention whose weights are products of features (EfficientViT, arXiv:2205.14756, section 3.1): the
keys and values of a head are summed into one small matrix, which every query then multiplies. On
CUDA two Triton kernels read queries, keys and values through their strides, once; elsewhere it is
written out in PyTorch. Products of half-precision numbers are exact in float32, and the sums are
multiplied in three passes of TF32, which is as exact as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from vtc.kernels.attention import AVAILABLE

if AVAILABLE:
    from torch.library import wrap_triton

    from vtc.kernels.linear_attention_triton import result_kernel, sum_kernel


@dataclass(frozen=True)
class Tiling:
    """Keys of a step and splits of the keys in the first kernel, queries of a program in the
    second, and the warps of both."""

    keys: int
    splits: int
    queries: int
    warps: int

    def __str__(self) -> str:
        return f"{self.splits} splits of {self.keys}, {self.queries} queries, {self.warps} warps"


def candidates(pairs: int, tokens: int, processors: int) -> tuple[Tiling, ...]:
    """Tilings that are worth timing; `pairs` are batch times heads."""
    found: dict[Tiling, None] = {}
    for keys, queries, programs in ((64, 64, 1), (64, 128, 2), (128, 128, 1), (32, 64, 4)):
        splits = max(1, min(programs * processors // max(pairs, 1), -(-tokens // keys), 32))
        found[Tiling(keys, splits, queries, 4)] = None
    return tuple(found)


def supports(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Do the kernels take these operands? Half precision, head dimensions up to 64, on CUDA."""
    return (
        AVAILABLE
        and query.device.type == "cuda"
        and query.dtype == key.dtype == value.dtype
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.dim() == key.dim() == value.dim() == 4
        and query.shape == key.shape
        and key.shape[:3] == value.shape[:3]
        and max(query.shape[-1], value.shape[-1]) <= 64
        and 0 not in (*query.shape, value.shape[-1])
    )


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    eps: float,
    tiling: Sequence[int] | None = None,
) -> Tensor:
    """out = (relu(q) kv)[..., :-1] / ((relu(q) kv)[..., -1:] + eps), kv = relu(k)^T [v | 1].

    query and key (batch, heads, tokens, d), value (batch, heads, tokens, dv), any strides; sums in
    float32. tiling is `astuple` of a Tiling. Returns (batch, heads, tokens, dv) in query's dtype,
    laid out in memory as (batch, tokens, heads, dv).
    """
    if query.device.type != "cuda" or 0 in (*query.shape, value.shape[-1]):
        return written_out(query, key, value, eps)
    kernels = wrap_triton(sum_kernel), wrap_triton(result_kernel)
    with torch.cuda.device_of(query):
        return launch(kernels, query, key, value, eps, tiling)


operator: Any = torch.library.triton_op("vtc::linear_attention", linear_attention, mutates_args=())
OVERLOAD = torch.ops.vtc.linear_attention.default


def launch(
    kernels: tuple[Any, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    eps: float,
    tiling: Sequence[int] | None,
) -> Tensor:
    """`linear_attention` by the two kernels that are given."""
    batch, heads, tokens, dim = query.shape
    width, pairs = value.shape[-1], batch * heads
    chosen = Tiling(*tiling) if tiling else candidates(pairs, tokens, 1)[0]
    sums, results = kernels
    out = _result_like(query, width)
    block = {"BLOCK_D": max(16, _power_of_two(dim)), "BLOCK_DV": max(16, _power_of_two(width))}
    # The sums of keys are a column more.
    size = pairs * chosen.splits * block["BLOCK_D"]
    products = query.new_empty(size * block["BLOCK_DV"], dtype=torch.float32)
    totals = query.new_empty(size, dtype=torch.float32)
    constants = {"D": dim, "DV": width, **block, "num_warps": chosen.warps}
    sums[pairs * chosen.splits,](
        key,
        value,
        products,
        totals,
        *key.stride(),
        *value.stride(),
        heads,
        tokens,
        chosen.splits,
        BLOCK_N=chosen.keys,
        **constants,
    )
    results[-(-tokens // chosen.queries), pairs](
        query,
        products,
        totals,
        out,
        *query.stride(),
        *out.stride()[:3],
        heads,
        tokens,
        chosen.splits,
        EPS=eps,
        BLOCK_N=chosen.queries,
        **constants,
    )
    return out


def _result_like(query: Tensor, width: int) -> Tensor:
    batch, heads, tokens, _ = query.shape
    return query.new_empty(batch, tokens, heads, width).transpose(1, 2)


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def written_out(query: Tensor, key: Tensor, value: Tensor, eps: float) -> Tensor:
    """`linear_attention` in PyTorch operators, as timm writes it."""
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = torch.relu(query).to(wide), torch.relu(key).to(wide), value.to(wide)
    v = torch.nn.functional.pad(v, (0, 1), value=1.0)
    out = q @ (k.transpose(-1, -2) @ v)
    out = (out[..., :-1] / (out[..., -1:] + eps)).to(query.dtype)
    made = _result_like(query, value.shape[-1])
    return torch.empty_strided(
        made.shape, made.stride(), dtype=query.dtype, device=query.device
    ).copy_(out)


def as_argument(tiling: Tiling) -> list[int]:
    """A Tiling as the operator's argument."""
    return list(astuple(tiling))

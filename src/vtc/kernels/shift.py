"""The operators `vtc::shift` and `vtc::shift_`: a cache whose oldest rows give way to new ones.

`shift_` does it in place, in one pass: on CUDA by the kernels of `shift_triton`, elsewhere through
a copy. `shift` is what it means, a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from vtc.kernels.attention import AVAILABLE
from vtc.kernels.attention_tiling import power_of_two

if AVAILABLE:
    from vtc.kernels.shift_triton import edges_kernel, shift_kernel

WIDEST = 256
"""The most elements of a row that one program moves."""


@dataclass(frozen=True)
class Tiling:
    """How a cache is cut: rows that move at once, programs that share one sequence, warps."""

    block_n: int
    splits: int
    warps: int

    def __str__(self) -> str:
        return f"{self.splits} splits, {self.block_n} rows at once, {self.warps} warps"


def candidates(outer: int, keys: int, inner: int, processors: int) -> tuple[Tiling, ...]:
    """Tilings that are worth timing for a cache (outer, keys, inner)."""
    strips = max(1, outer * -(-inner // WIDEST))
    found: dict[Tiling, None] = {}
    for block_n, warps, programs in ((32, 4, 4), (32, 4, 8), (64, 8, 4), (16, 4, 8)):
        splits = max(1, min(programs * processors // strips, -(-keys // block_n)))
        found[Tiling(block_n, splits, warps)] = None
    return tuple(found)


def supports(cache: Tensor, new: Tensor, dim: int) -> bool:
    """Can the kernels move this cache on? It is dense, on CUDA, and keeps some of its rows."""
    return (
        AVAILABLE
        and cache.device.type == "cuda"
        and cache.dtype == new.dtype
        and cache.is_contiguous()
        and cache.numel() > 0
        and 0 < new.shape[dim] < cache.shape[dim]
    )


def shift(cache: Tensor, new: Tensor, dim: int, tiling: Sequence[int] | None = None) -> Tensor:
    """cache[rows:] and `new` behind it, in dimension `dim`, of which `new` has `rows`.

    The other sizes of both agree. tiling is for `shift_`, which has the same arguments.
    """
    rows = new.shape[dim]
    return torch.cat([cache.narrow(dim, rows, cache.shape[dim] - rows), new], dim)


def shift_(cache: Tensor, new: Tensor, dim: int, tiling: Sequence[int] | None = None) -> None:
    """`shift` in place. cache: any strides on a CPU, contiguous on CUDA; new: any strides. tiling
    is `astuple` of a Tiling."""
    if cache.device.type != "cuda" or not supports(cache, new, dim):
        cache.copy_(shift(cache, new, dim))
        return
    with torch.cuda.device_of(cache):
        launch((edges_kernel, shift_kernel), cache, new, dim, tiling)


operator: Any = torch.library.triton_op("vtc::shift", shift, mutates_args=())
in_place: Any = torch.library.custom_op("vtc::shift_", shift_, mutates_args=("cache",))
in_place.register_fake(lambda *_, **__: None)
OVERLOAD = torch.ops.vtc.shift.default
IN_PLACE = torch.ops.vtc.shift_.default


def launch(
    kernels: tuple[Any, Any],
    cache: Tensor,
    new: Tensor,
    dim: int,
    tiling: Sequence[int] | None = None,
) -> None:
    """`shift_` of a contiguous cache by the two kernels that are given."""
    edges, move = kernels
    keys, rows = cache.shape[dim], new.shape[dim]
    outer = cache.shape[:dim].numel()
    old = cache.view(outer, 1, keys, -1)
    coming = new.reshape(outer, 1, rows, -1)
    inner = old.shape[-1]
    chosen = Tiling(*tiling) if tiling else candidates(outer, keys, inner, 132)[0]
    aside = put_aside(edges, old, coming, chosen.splits, chosen.block_n)
    block_d = min(WIDEST, power_of_two(inner))
    move[outer * chosen.splits, -(-inner // block_d)](
        old,
        aside,
        *old.stride()[:3],
        1,
        keys,
        rows,
        chosen.splits,
        D=inner,
        ALIGNED=aligned(old),
        BLOCK_N=chosen.block_n,
        BLOCK_D=block_d,
        num_warps=chosen.warps,
        num_stages=1,
    )


def put_aside(edges: Any, cache: Tensor, new: Tensor, splits: int, block_n: int) -> Tensor:
    """What comes behind each program's rows: [batch * heads * splits, rows, d].

    cache (batch, heads, keys, d) of unit stride in its last dimension; new (batch, heads, rows, d).
    """
    batch, heads, keys, width = cache.shape
    rows = new.shape[2]
    aside = cache.new_empty(batch * heads * splits, rows, width)
    block_d = min(WIDEST, power_of_two(width))
    edges[batch * heads * splits, -(-width // block_d)](
        cache,
        new,
        aside,
        *cache.stride()[:3],
        *new.stride(),
        heads,
        keys,
        rows,
        splits,
        D=width,
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        num_warps=1,
    )
    return aside


def aligned(cache: Tensor) -> bool:
    """Does every row of a cache (batch, heads, keys, d) begin at a multiple of 16 bytes?"""
    bytes_between = (cache.element_size() * n for n in (*cache.stride()[:3], cache.shape[3]))
    return cache.data_ptr() % 16 == 0 and all(n % 16 == 0 for n in bytes_between)


def as_argument(tiling: Tiling) -> list[int]:
    """A Tiling as the operators' argument."""
    return list(astuple(tiling))

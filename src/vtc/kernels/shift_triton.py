# ruff: noqa: N803 - compile-time constants have capitals, and branches of their own
# mypy: disable-error-code="no-untyped-def"
"""A cache moved on in place, in Triton: rows from `rows` on go to the front, new ones to the end.

A program owns the rows [start, stop) of one sequence. It walks over them in order and reads row n +
`rows` before it writes row n, with a barrier between, so that no thread overwrites what another
still reads. What lies behind `stop` is another program's to overwrite: `edges_kernel` has put those
`rows` rows aside before, and the new rows for the last program.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def owned(split, splits, keys, BLOCK_N: tl.constexpr):
    """The rows [start, stop) of one of `splits` programs: whole blocks but for the last."""
    each = tl.cdiv(tl.cdiv(keys, BLOCK_N), splits) * BLOCK_N
    start = tl.minimum(split * each, keys)
    return start, tl.minimum(start + each, keys)


@triton.jit
def edges_kernel(
    cache,
    new,
    edges,
    c_b,
    c_h,
    c_n,
    n_b,
    n_h,
    n_n,
    n_d,
    heads,
    keys,
    rows,
    splits,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """edges[pair, split, e] = what is row stop + e before the new rows come behind the old ones.

    grid (batch * heads * splits, D / BLOCK_D); edges [batch * heads, splits, rows, D].
    """
    pid = tl.program_id(0).to(tl.int64)
    split = (pid % splits).to(tl.int32)
    pair = pid // splits
    batch = pair // heads
    head = pair % heads
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    _, stop = owned(split, splits, keys, BLOCK_N)
    for e in range(rows):
        source = stop + e
        if source < keys:
            at = cache + batch * c_b + head * c_h + source.to(tl.int64) * c_n + d
        else:
            at = new + batch * n_b + head * n_h + (source - keys).to(tl.int64) * n_n + d * n_d
        row = tl.load(at, mask=d < D)
        tl.store(edges + (pid * rows + e) * D + d, row, mask=d < D)


@triton.jit
def moved_rows(cache, edges, c_n, n, stop, rows, D: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers [BLOCK_N] to what comes into rows n: rows n + `rows`, or those put aside.

    With ALIGNED every row begins at a multiple of 16 bytes, which the choice hides from Triton.
    """
    source = n + rows
    behind = (source - stop).to(tl.int64)
    moved = tl.where(source < stop, cache + source.to(tl.int64) * c_n, edges + behind * D)
    if ALIGNED:
        moved = tl.multiple_of(moved, [16])
    return moved


@triton.jit
def shift_kernel(
    cache,
    edges,
    c_b,
    c_h,
    c_n,
    heads,
    keys,
    rows,
    splits,
    D: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """cache[:, :, n] = cache[:, :, n + rows]; grid as of `edges_kernel`."""
    pid = tl.program_id(0).to(tl.int64)
    split = (pid % splits).to(tl.int32)
    pair = pid // splits
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    cache += (pair // heads) * c_b + (pair % heads) * c_h
    edges += pid * rows * D
    start, stop = owned(split, splits, keys, BLOCK_N)
    for block in range(start, stop, BLOCK_N):
        n = block + tl.arange(0, BLOCK_N)
        inside = (n < stop)[:, None] & (d < D)[None, :]
        moved = moved_rows(cache, edges, c_n, n, stop, rows, D, ALIGNED)
        values = tl.load(moved[:, None] + d[None, :], mask=inside)
        tl.debug_barrier()
        tl.store(cache + n.to(tl.int64)[:, None] * c_n + d[None, :], values, mask=inside)

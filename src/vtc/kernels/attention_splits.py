# ruff: noqa: N803 - compile-time constants in capitals
# mypy: disable-error-code="no-untyped-def"
"""Attention in Triton: what a split of the keys leaves of its rows, and how splits are added up, by
a kernel of their own or by the last split that arrives."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def quotient(acc, total, SAFE: tl.constexpr):
    """Weighted values over the sum of weights; a row without visible keys is 0, or NaN."""
    if SAFE:
        return acc / tl.where(total > 0, total, 1.0)
    return acc / total


@triton.jit
def store_rows(
    acc,
    top,
    total,
    out,
    partial,
    tops,
    totals,
    o_h,
    o_s,
    slot,
    row,
    head,
    number,
    rows,
    DV: tl.constexpr,
    SAFE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Store the results of rows into `out`, of one sequence; or, unless WHOLE, what one split has
    of them at their slots."""
    dv = tl.arange(0, BLOCK_DV)
    kept = (row < rows)[:, None] & (dv < DV)[None, :]
    if WHOLE:
        result = quotient(acc, total[:, None], SAFE)
        o_at = out + head * o_h + number * o_s
        tl.store(o_at[:, None] + dv[None, :], result.to(out.dtype.element_ty), mask=kept)
    else:
        tl.store(partial + slot[:, None] * DV + dv[None, :], acc, mask=kept)
        tl.store(tops + slot, top, mask=row < rows)
        tl.store(totals + slot, total, mask=row < rows)


@triton.jit
def join_rows(
    out,
    partial,
    tops,
    totals,
    o_h,
    o_s,
    slot,
    row,
    head,
    number,
    rows,
    splits,
    DV: tl.constexpr,
    MASK: tl.constexpr,
    SAFE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Add up what all splits have of rows, in their order, and store the results; `slot` [M] are
    those of the first split."""
    factor: tl.constexpr = LOG2_E if MASK == 2 else 1.0
    dv = tl.arange(0, BLOCK_DV)
    kept = (row < rows)[:, None] & (dv < DV)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for split in range(splits):
        # Past the first-level cache, which does not see what other multiprocessors wrote.
        at = slot + split
        other = tl.load(tops + at, mask=row < rows, other=float("-inf"), cache_modifier=".cg")
        sums = tl.load(totals + at, mask=row < rows, other=0.0, cache_modifier=".cg")
        parts = partial + at[:, None] * DV + dv[None, :]
        values = tl.load(parts, mask=kept, other=0.0, cache_modifier=".cg")
        highest = tl.maximum(top, other)
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        decay = tl.exp2((top - shift) * factor)
        weight = tl.exp2((other - shift) * factor)
        acc = acc * decay[:, None] + values * weight[:, None]
        total = total * decay + sums * weight
        top = highest
    result = quotient(acc, total[:, None], SAFE)
    o_at = out + head * o_h + number * o_s
    tl.store(o_at[:, None] + dv[None, :], result.to(out.dtype.element_ty), mask=kept)


@triton.jit
def combine_kernel(
    partial,
    tops,
    totals,
    out,
    o_b,
    o_h,
    o_s,
    queries,
    kv_heads,
    splits,
    GROUP: tl.constexpr,
    DV: tl.constexpr,
    MASK: tl.constexpr,
    SAFE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Add up the splits of one row; grid (batch * kv_heads * rows, DV / BLOCK_DV)."""
    factor: tl.constexpr = LOG2_E if MASK == 2 else 1.0
    pid = tl.program_id(0).to(tl.int64)
    rows = queries * GROUP
    row = pid % rows
    pair = pid // rows
    split = tl.arange(0, BLOCK_S)
    dv = tl.program_id(1) * BLOCK_DV + tl.arange(0, BLOCK_DV)
    slot = pid * splits + split
    top = tl.load(tops + slot, mask=split < splits, other=float("-inf"))
    total = tl.load(totals + slot, mask=split < splits, other=0.0)
    acc = tl.load(
        partial + slot[:, None] * DV + dv[None, :],
        mask=(split < splits)[:, None] & (dv < DV)[None, :],
        other=0.0,
    )
    highest = tl.max(top, 0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2((top - shift) * factor)
    result = quotient(tl.sum(acc * weight[:, None], 0), tl.sum(total * weight, 0), SAFE)
    head = pair % kv_heads * GROUP + row % GROUP
    o_at = out + (pair // kv_heads) * o_b + head * o_h + (row // GROUP) * o_s
    tl.store(o_at + dv, result.to(out.dtype.element_ty), mask=dv < DV)

# ruff: noqa: N803 - compile-time constants in capitals
# mypy: disable-error-code="no-untyped-def"
"""Attention in Triton: prefill, many queries at once."""

from __future__ import annotations

import triton
import triton.language as tl

from vtc.kernels.attention_splits import quotient
from vtc.kernels.attention_triton import update


@triton.jit
def prefill_kernel(
    query,
    key,
    value,
    mask,
    lengths,
    table,
    out,
    q_b,
    q_h,
    q_s,
    q_d,
    k_b,
    k_h,
    k_n,
    k_d,
    v_b,
    v_h,
    v_n,
    v_d,
    m_b,
    m_h,
    m_s,
    m_n,
    t_b,
    o_b,
    o_h,
    o_s,
    queries,
    keys,
    heads,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    LENGTHS: tl.constexpr,
    PAGE: tl.constexpr,
    SAFE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """BLOCK_M queries of one head of one sequence; grid (blocks of queries, batch * heads).

    Keys that all rows see are added without checks: those behind the diagonal, or all but the last
    incomplete block.
    """
    # The last queries see the most keys under a causal mask: start them first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    kv_head = head // GROUP
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    q_at = query + batch * q_b + head * q_h + row.to(tl.int64) * q_s
    q = tl.load(
        q_at[:, None] + d[None, :] * q_d,
        mask=(row < queries)[:, None] & (d < D)[None, :],
        other=0.0,
    )
    limit = keys
    if LENGTHS:
        limit = tl.minimum(keys, tl.load(lengths + batch).to(tl.int32))
    ahead = limit - queries if LENGTHS else 0  # key position of query 0
    position = row + ahead
    start = 0
    stop = limit
    seen_by_all = limit
    if CAUSAL:
        stop = tl.minimum(limit, tl.maximum((block + 1) * BLOCK_M + ahead, 0))
        seen_by_all = tl.minimum(limit, tl.maximum(block * BLOCK_M + ahead + 1, 0))
        if WINDOW > 0:
            start = tl.maximum(block * BLOCK_M + ahead - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
            seen_by_all = start
    whole = start + tl.maximum(seen_by_all - start, 0) // BLOCK_N * BLOCK_N
    bounded = tl.minimum(row, queries - 1).to(tl.int64)
    mask_rows = mask + batch * m_b + head * m_h + bounded[:, None] * m_s
    key += kv_head * k_h + (0 if PAGE > 0 else batch * k_b)
    value += kv_head * v_h + (0 if PAGE > 0 else batch * v_b)
    table += batch * t_b
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for phase in tl.static_range(2):
        acc, top, total = update(
            q,
            acc,
            top,
            total,
            key,
            value,
            mask_rows,
            table,
            start if phase == 0 else whole,
            whole if phase == 0 else stop,
            position,
            k_b,
            k_n,
            k_d,
            v_b,
            v_n,
            v_d,
            m_n,
            phase == 1,
            D,
            DV,
            SCALE,
            SOFTCAP,
            WINDOW,
            CAUSAL,
            MASK,
            PAGE,
            BLOCK_N,
            BLOCK_D,
            BLOCK_DV,
        )
    result = quotient(acc, total[:, None], SAFE)
    o_at = out + batch * o_b + head * o_h + row.to(tl.int64) * o_s
    tl.store(
        o_at[:, None] + dv[None, :],
        result.to(out.dtype.element_ty),
        mask=(row < queries)[:, None] & (dv < DV)[None, :],
    )

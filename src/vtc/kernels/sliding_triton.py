# ruff: noqa: N803 - compile-time constants in capitals
# mypy: disable-error-code="no-untyped-def"
"""Decoding on a sliding-window cache in Triton: the cache moves on while attention reads it.

The caches are those of `shift_triton`, whose scheme this is: a program owns a range of keys of one
sequence and head, reads each block of what they become, writes it where it belongs, and adds it to
its rows. Keys and values are read once and written once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vtc.kernels.attention_splits import LOG2_E, store_rows
from vtc.kernels.attention_triton import capped, decayed, group_rows, masked
from vtc.kernels.shift_triton import moved_rows, owned


@triton.jit
def sliding_kernel(
    query,
    key,
    value,
    key_edges,
    value_edges,
    mask,
    out,
    partial,
    tops,
    totals,
    q_b,
    q_h,
    q_s,
    q_d,
    k_b,
    k_h,
    k_n,
    v_b,
    v_h,
    v_n,
    m_b,
    m_h,
    m_s,
    m_n,
    o_b,
    o_h,
    o_s,
    queries,
    keys,
    kv_heads,
    moved,
    splits,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASK: tl.constexpr,
    SAFE: tl.constexpr,
    WHOLE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """One split of the keys of one key/value head of one sequence; grid (batch * heads * splits,).

    Rows, partial, tops and totals as of `decode_kernel`; `moved` rows are new. Keys [batch,
    kv_heads, keys, D] and values alike have unit stride in their last dimension.
    """
    factor: tl.constexpr = LOG2_E if MASK == 2 else 1.0
    unit: tl.constexpr = 1.0 if MASK == 2 else LOG2_E
    pid = tl.program_id(0).to(tl.int64)
    split = (pid % splits).to(tl.int32)
    pair = pid // splits
    batch = pair // kv_heads
    kv_head = pair % kv_heads
    rows = queries * GROUP
    query += batch * q_b
    row, head, number, q = group_rows(
        query, q_h, q_s, q_d, kv_head, queries, GROUP, D, BLOCK_M, BLOCK_D
    )
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    shown = tl.where(row < rows, row, 0)
    mask_rows = (
        mask
        + batch * m_b
        + (kv_head * GROUP + shown % GROUP)[:, None] * m_h
        + (shown // GROUP)[:, None] * m_s
    )
    key += batch * k_b + kv_head * k_h
    value += batch * v_b + kv_head * v_h
    key_edges += pid * moved * D
    value_edges += pid * moved * DV
    start, stop = owned(split, splits, keys, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for block in range(start, stop, BLOCK_N):
        n = block + tl.arange(0, BLOCK_N)
        inside = n < stop
        k_from = moved_rows(key, key_edges, k_n, n, stop, moved, D, ALIGNED)
        v_from = moved_rows(value, value_edges, v_n, n, stop, moved, DV, ALIGNED)
        k_kept = inside[:, None] & (d < D)[None, :]
        v_kept = inside[:, None] & (dv < DV)[None, :]
        k = tl.load(k_from[:, None] + d[None, :], mask=k_kept, other=0.0)
        v = tl.load(v_from[:, None] + dv[None, :], mask=v_kept, other=0.0)
        tl.debug_barrier()
        tl.store(key + n.to(tl.int64)[:, None] * k_n + d[None, :], k, mask=k_kept)
        tl.store(value + n.to(tl.int64)[:, None] * v_n + dv[None, :], v, mask=v_kept)
        logits = capped(tl.dot(q, tl.trans(k), input_precision="ieee"), SCALE, SOFTCAP, unit)
        logits = masked(logits, mask_rows, n, m_n, inside, MASK)
        logits = tl.where(inside[None, :], logits, float("-inf"))
        weights, decay, top = decayed(logits, top, factor)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    slot = (pair * rows + row) * splits + split
    out += batch * o_b
    store_rows(
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
        DV,
        SAFE,
        WHOLE,
        BLOCK_DV,
    )

# ruff: noqa: N803, SIM102 - compile-time constants have capitals, and branches of their own
# mypy: disable-error-code="no-untyped-def"
"""Attention in Triton: the loop over keys, and split-KV decoding.

Decoding and prefill walk over blocks of keys with a running maximum and sum (Milakov and
Gimelshein 2018; Dao et al. 2022) and read keys and values through strides of any kind, or through a
table of pages. All query heads that share a key/value head are rows of one tile in decoding, so
that the cache is read once. Splits of the keys are independent programs, whose partial results
are added up as `attention_splits` says.

Logits are kept in units in which a weight is `exp2((logit - maximum) * factor)`. Without an
additive mask log2(e) is part of the scale; with one it is not, since a mask of the smallest finite
number would overflow: a row that is masked with it everywhere is a plain mean, as in PyTorch.

`MASK` is 0 for none, 1 for a bool mask (true is visible), 2 for one that is added.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vtc.kernels.attention_splits import LOG2_E, join_rows, store_rows
from vtc.kernels.rotary_triton import rotated

MASKED = tl.constexpr(-1e30)
"""An additive mask at or below this hides its key wherever another key of the row is above it."""


@triton.jit
def capped(products, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, UNIT: tl.constexpr):
    """Logits of products of queries and keys, times `UNIT`."""
    if SOFTCAP > 0:
        # cap * tanh(x / cap), with tanh(y) = 2 / (1 + exp(-2 y)) - 1
        scaled = tl.exp2(products * (-2.0 * SCALE / SOFTCAP * LOG2_E))
        return (2.0 / (1.0 + scaled) - 1.0) * (SOFTCAP * UNIT)
    return products * (SCALE * UNIT)


@triton.jit
def masked(logits, mask, n, m_n, inside, MASK: tl.constexpr):
    """Logits [M, N] of the keys `n` [N] under a mask; `mask` points to the rows' elements for key
    0, [M, 1] or [1, 1]."""
    if MASK > 0:
        given = tl.load(mask + n[None, :] * m_n, mask=inside[None, :], other=0)
        if MASK == 1:
            logits = tl.where(given, logits, float("-inf"))
        else:
            logits = logits + given.to(tl.float32)
    return logits


@triton.jit
def decayed(logits, top, FACTOR: tl.constexpr):
    """Weights of more logits, what sums so far are to be multiplied with, and the new maximum."""
    highest = tl.maximum(top, tl.max(logits, 1))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2((logits - shift[:, None]) * FACTOR)
    return weights, tl.exp2((top - shift) * FACTOR), highest


@triton.jit
def update(
    q,
    acc,
    top,
    total,
    key,
    value,
    mask,
    table,
    start,
    stop,
    position,
    k_page,
    k_n,
    k_d,
    v_page,
    v_n,
    v_d,
    m_n,
    CHECK: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Add the keys [start, stop) to a tile of rows.

    q [M, BLOCK_D]; acc [M, BLOCK_DV], top and total [M] in float32; `mask` points to the rows'
    elements for key 0, [M, 1] or [1, 1]; `position` [M] is the key position of each row's query.
    Without CHECK every key of the range is visible to every row.
    """
    factor: tl.constexpr = LOG2_E if MASK == 2 else 1.0
    unit: tl.constexpr = 1.0 if MASK == 2 else LOG2_E
    d = tl.arange(0, BLOCK_D)
    dv = tl.arange(0, BLOCK_DV)
    for block in range(start, stop, BLOCK_N):
        n = block + tl.arange(0, BLOCK_N)
        inside = n < stop
        if PAGE > 0:
            page = tl.load(table + n // PAGE, mask=inside, other=0).to(tl.int64)
            k_row = page * k_page + (n % PAGE) * k_n
            v_row = page * v_page + (n % PAGE) * v_n
        else:
            k_row = n.to(tl.int64) * k_n
            v_row = n.to(tl.int64) * v_n
        k_at = key + k_row[None, :] + d[:, None] * k_d
        v_at = value + v_row[:, None] + dv[None, :] * v_d
        if CHECK or D != BLOCK_D:
            k = tl.load(k_at, mask=inside[None, :] & (d < D)[:, None], other=0.0)
        else:
            k = tl.load(k_at)
        logits = tl.dot(q, k, input_precision="ieee")
        logits = capped(logits, SCALE, SOFTCAP, unit)
        logits = masked(logits, mask, n, m_n, inside, MASK)
        if CHECK:
            visible = inside[None, :]
            if CAUSAL:
                visible = visible & (n[None, :] <= position[:, None])
            if WINDOW > 0:
                visible = visible & (n[None, :] > position[:, None] - WINDOW)
            logits = tl.where(visible, logits, float("-inf"))
        weights, decay, top = decayed(logits, top, factor)
        total = total * decay + tl.sum(weights, 1)
        acc = acc * decay[:, None]
        if CHECK or DV != BLOCK_DV:
            v = tl.load(v_at, mask=inside[:, None] & (dv < DV)[None, :], other=0.0)
        else:
            v = tl.load(v_at)
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return acc, top, total


@triton.jit
def _live_range(mask, m_n, start, stop, keys, MASK: tl.constexpr, SCAN: tl.constexpr):
    """The part of [start, stop) outside of which a mask row hides every key.

    Keys under a finite additive mask count where the row has no others at all.
    """
    low = stop
    high = start
    for first in range(start, stop, SCAN):
        n = first + tl.arange(0, SCAN)
        live = _is_live(mask, m_n, n, stop, MASK)
        low = tl.minimum(low, tl.min(tl.where(live, n, stop), 0))
        high = tl.maximum(high, tl.max(tl.where(live, n + 1, start), 0))
    if MASK == 2:
        if high <= low:
            seen = 0
            for first in range(0, keys, SCAN):
                n = first + tl.arange(0, SCAN)
                live = _is_live(mask, m_n, n, keys, MASK)
                seen = tl.maximum(seen, tl.max(live.to(tl.int32), 0))
            if seen == 0:
                low = start
                high = stop
    return low, high


@triton.jit
def _is_live(mask, m_n, n, stop, MASK: tl.constexpr):
    if MASK == 1:
        return tl.load(mask + n * m_n, mask=n < stop, other=0) != 0
    given = tl.load(mask + n * m_n, mask=n < stop, other=float("-inf"))
    return given.to(tl.float32) > MASKED


@triton.jit
def group_rows(
    query,
    q_h,
    q_s,
    q_d,
    kv_head,
    queries,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Numbers, heads and queries of the rows of a group of heads, [BLOCK_M] each, and the queries'
    values [BLOCK_M, BLOCK_D]. A row is a query head of the group at one query position."""
    row = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + row % GROUP
    number = row // GROUP
    d = tl.arange(0, BLOCK_D)
    at = query + head * q_h + number * q_s
    inside = (row < queries * GROUP)[:, None] & (d < D)[None, :]
    q = tl.load(at[:, None] + d[None, :] * q_d, mask=inside, other=0.0)
    return row, head, number, q


@triton.jit
def store_new_rows(
    cache,
    new,
    places,
    cos,
    sin,
    t_n,
    t_d,
    c_n,
    c_d,
    n_n,
    n_d,
    coming,
    start,
    stop,
    keys,
    ROTATED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """cache[places[j]] = new[j], in order, for those of `coming` places within [start, stop); with
    ROTATED what is stored is new[j] rotated by row j of `cos` and `sin`."""
    d = tl.arange(0, BLOCK_D)
    for j in range(coming):
        place = tl.load(places + j).to(tl.int64)
        tl.device_assert((place >= 0) & (place < keys), "index out of range")
        if (place >= start) & (place < stop):
            row = tl.load(new + j * n_n + d * n_d, mask=d < D)
            if ROTATED:
                at = new + j * n_n
                row = rotated(row, at, n_d, d, cos + j * t_n, sin + j * t_n, t_d, d < D, D)
            tl.store(cache + place * c_n + d * c_d, row, mask=d < D)


@triton.jit
def decode_kernel(
    query,
    key,
    value,
    new_key,
    new_value,
    places,
    cos,
    sin,
    mask,
    lengths,
    table,
    out,
    partial,
    tops,
    totals,
    counters,
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
    nk_b,
    nk_h,
    nk_n,
    nk_d,
    nv_b,
    nv_h,
    nv_n,
    nv_d,
    c_b,
    c_s,
    c_d,
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
    kv_heads,
    splits,
    coming,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    ONE_MASK_ROW: tl.constexpr,
    LENGTHS: tl.constexpr,
    PAGE: tl.constexpr,
    SAFE: tl.constexpr,
    WHOLE: tl.constexpr,
    STORES: tl.constexpr,
    ROTATED: tl.constexpr,
    JOINED: tl.constexpr,
    SCAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """One split of the keys of one key/value head of one sequence; grid (batch * heads * splits,).

    With WHOLE, of one split, `out` is written, else partial [batch * kv_heads, rows, splits, DV],
    and tops and totals without DV. With STORES the program stores those of the `coming` new keys
    and values whose places [coming] are in its split, before it reads it: then CAUSAL, LENGTHS and
    PAGE are not set. With ROTATED queries and new keys are first rotated, by row s of cos and sin
    for query s and new key s. With JOINED the last program of a key/value head to arrive, by
    counters [batch * kv_heads] that every launch leaves at zero, adds up all splits into `out`.
    """
    pid = tl.program_id(0)
    split = pid % splits
    pair = pid // splits
    batch = (pair // kv_heads).to(tl.int64)
    kv_head = (pair % kv_heads).to(tl.int64)
    rows = queries * GROUP
    query += batch * q_b
    row, head, number, q = group_rows(
        query, q_h, q_s, q_d, kv_head, queries, GROUP, D, BLOCK_M, BLOCK_D
    )
    position = number
    key += kv_head * k_h + (0 if PAGE > 0 else batch * k_b)
    value += kv_head * v_h + (0 if PAGE > 0 else batch * v_b)

    limit = keys
    first = 0
    mask_at = mask + batch * m_b
    if ONE_MASK_ROW:
        mask_at += kv_head * GROUP * m_h
        mask_rows = mask_at + tl.zeros([1, 1], tl.int64)
    else:
        bounded = tl.where(row < rows, row, 0)
        mask_rows = (
            mask_at
            + (kv_head * GROUP + bounded % GROUP)[:, None] * m_h
            + (bounded // GROUP)[:, None] * m_s
        )
    if LENGTHS:
        limit = tl.minimum(keys, tl.load(lengths + batch).to(tl.int32))
    if CAUSAL:
        if LENGTHS:
            position += limit - queries
            earliest = limit - queries
        else:
            limit = tl.minimum(limit, queries)
            earliest = 0
        if WINDOW > 0:
            first = tl.maximum(earliest - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    each = tl.cdiv(tl.cdiv(limit - first, BLOCK_N), splits) * BLOCK_N
    start = tl.minimum(first + split * each, limit)
    stop = tl.minimum(start + each, limit)
    if STORES:
        new_key += batch * nk_b + kv_head * nk_h
        new_value += batch * nv_b + kv_head * nv_h
        cos += batch * c_b
        sin += batch * c_b
        if ROTATED:
            d = tl.arange(0, BLOCK_D)
            q_at = (query + head * q_h + number * q_s)[:, None]
            table_at = (number * c_s)[:, None]
            inside = (row < rows)[:, None] & (d < D)[None, :]
            q = rotated(q, q_at, q_d, d[None, :], cos + table_at, sin + table_at, c_d, inside, D)
        store_new_rows(
            key,
            new_key,
            places,
            cos,
            sin,
            c_s,
            c_d,
            k_n,
            k_d,
            nk_n,
            nk_d,
            coming,
            start,
            stop,
            keys,
            ROTATED,
            D,
            BLOCK_D,
        )
        store_new_rows(
            value,
            new_value,
            places,
            cos,
            sin,
            c_s,
            c_d,
            v_n,
            v_d,
            nv_n,
            nv_d,
            coming,
            start,
            stop,
            keys,
            False,
            DV,
            BLOCK_DV,
        )
        tl.debug_barrier()
    if SCAN > 0:
        low, stop = _live_range(mask_at, m_n, start, stop, keys, MASK, SCAN)
        # Blocks stay where they would be, so that rows of the cache stay aligned.
        start += tl.maximum(low - start, 0) // BLOCK_N * BLOCK_N

    acc, top, total = update(
        q,
        tl.zeros([BLOCK_M, BLOCK_DV], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        key,
        value,
        mask_rows,
        table + batch * t_b,
        start,
        stop,
        position,
        k_b,
        k_n,
        k_d,
        v_b,
        v_n,
        v_d,
        m_n,
        True,
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
    slot = (pair.to(tl.int64) * rows + row) * splits + split
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
    if JOINED:
        # All threads' stores come before the counter's release.
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + pair, 1, sem="acq_rel")
        if arrived == splits - 1:
            tl.store(counters + pair, 0)
            join_rows(
                out,
                partial,
                tops,
                totals,
                o_h,
                o_s,
                slot - split,
                row,
                head,
                number,
                rows,
                splits,
                DV,
                MASK,
                SAFE,
                BLOCK_M,
                BLOCK_DV,
            )

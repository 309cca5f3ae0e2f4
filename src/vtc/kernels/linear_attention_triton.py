# ruff: noqa: N803 - compile-time constants in capitals
# mypy: disable-error-code="no-untyped-def"
"""The Triton kernels of `vtc::linear_attention`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_kernel(
    key, value, products, totals,
    kb, kh, kn, kd, vb, vh, vn, vd, heads, tokens, splits,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """relu(k)^T v and the sum of relu(k) over one split of a head's keys, in float32."""
    part = tl.program_id(0)
    pair = part // splits
    split = part % splits
    head = (pair % heads).to(tl.int64)
    batch = (pair // heads).to(tl.int64)
    ds = tl.arange(0, BLOCK_D)
    es = tl.arange(0, BLOCK_DV)
    share = tl.cdiv(tl.cdiv(tokens, splits), BLOCK_N) * BLOCK_N
    first = split * share
    last = tl.minimum(first + share, tokens)
    key += batch * kb + head * kh
    value += batch * vb + head * vh
    product = tl.zeros((BLOCK_D, BLOCK_DV), tl.float32)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(first, last, BLOCK_N):
        ns = start + tl.arange(0, BLOCK_N)
        inside = ns < last
        k = tl.load(
            key + ns[:, None].to(tl.int64) * kn + ds[None, :] * kd,
            mask=inside[:, None] & (ds < D)[None, :],
            other=0.0,
        )
        v = tl.load(
            value + ns[:, None].to(tl.int64) * vn + es[None, :] * vd,
            mask=inside[:, None] & (es < DV)[None, :],
            other=0.0,
        )
        k = tl.maximum(k, 0.0, propagate_nan=tl.PropagateNan.ALL).to(v.dtype)
        product = tl.dot(tl.trans(k), v, product, input_precision="ieee")
        total += tl.sum(k.to(tl.float32), 0)
    at = part.to(tl.int64) * BLOCK_D + ds
    tl.store(products + at[:, None] * BLOCK_DV + es[None, :], product)
    tl.store(totals + at, total)


@triton.jit
def result_kernel(
    query, products, totals, out,
    qb, qh, qn, qd, ob, oh, on, heads, tokens, splits,
    EPS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """relu(q) times the sums of all splits, divided by relu(q) times the sum of keys, plus EPS."""
    pair = tl.program_id(1)
    head = (pair % heads).to(tl.int64)
    batch = (pair // heads).to(tl.int64)
    ns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ds = tl.arange(0, BLOCK_D)
    es = tl.arange(0, BLOCK_DV)
    product = tl.zeros((BLOCK_D, BLOCK_DV), tl.float32)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for split in range(splits):
        at = (pair.to(tl.int64) * splits + split) * BLOCK_D + ds
        product += tl.load(products + at[:, None] * BLOCK_DV + es[None, :])
        total += tl.load(totals + at)
    query += batch * qb + head * qh
    q = tl.load(
        query + ns[:, None].to(tl.int64) * qn + ds[None, :] * qd,
        mask=(ns < tokens)[:, None] & (ds < D)[None, :],
        other=0.0,
    )
    q = tl.maximum(q.to(tl.float32), 0.0, propagate_nan=tl.PropagateNan.ALL)
    above = tl.dot(q, product, input_precision="tf32x3")
    below = tl.sum(q * total[None, :], 1) + EPS
    result = above / below[:, None]
    out += batch * ob + head * oh
    tl.store(
        out + ns[:, None].to(tl.int64) * on + es[None, :],
        result.to(out.dtype.element_ty),
        mask=(ns < tokens)[:, None] & (es < DV)[None, :],
    )

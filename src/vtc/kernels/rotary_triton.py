# mypy: disable-error-code="no-untyped-def"
"""Rotary embedding in Triton, of rows as a kernel reads them: x * cos + turned(x) * sin in float32,
where `turned` has the second half, negated, in front of the first (Su et al. 2021)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotated(rows, at, step, d, cos, sin, c_d, inside, D: tl.constexpr):
    """Rows [.., BLOCK_D] that were loaded from `at` [.., 1], of `step` between elements, in their
    own type; `cos` and `sin` [.., 1] point to the table's rows, of `c_d` between elements."""
    half: tl.constexpr = D // 2
    other = tl.where(d < half, d + half, d - half)
    sign = tl.where(d < half, -1.0, 1.0)
    turned = tl.load(at + other * step, mask=inside, other=0.0).to(tl.float32) * sign
    c = tl.load(cos + d * c_d, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + d * c_d, mask=inside, other=0.0).to(tl.float32)
    return (rows.to(tl.float32) * c + turned * s).to(rows.dtype)

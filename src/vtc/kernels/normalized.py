"""The operators `vtc::square_sums` and `vtc::normalized`: a root-mean-square norm in two halves,
which the kernels of the matmuls in front of it and behind it compute on the way.

    before: n = x * rsqrt(mean(x^2) + eps) * w;  y = n @ W
    after:  s = square_sums(x), z = x * w;  y = normalized(z @ W, s)

The scale of a row commutes with the product, so that it is known in time when the product is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def square_sums(rows: Tensor, width: int) -> Tensor:
    """The float32 sums of squares of `width` elements each along the last dimension, which `width`
    divides: (..., n) -> (..., n / width)."""
    return rows.float().square().unflatten(-1, (-1, width)).sum(-1)


def normalized(product: Tensor, sums: Tensor, count: int, eps: float) -> Tensor:
    """`product` (..., n) over the root of the mean of the `count` squares that `sums` (..., g) adds
    up, and eps; computed in float32."""
    scale = torch.rsqrt(sums.sum(-1, keepdim=True) / count + eps)
    return (product.float() * scale).to(product.dtype)


_square_sums: Any = torch.library.triton_op("vtc::square_sums", square_sums, mutates_args=())
_normalized: Any = torch.library.triton_op("vtc::normalized", normalized, mutates_args=())
SQUARE_SUMS = torch.ops.vtc.square_sums.default
NORMALIZED = torch.ops.vtc.normalized.default

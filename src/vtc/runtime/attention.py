"""Attention on a CUDA device, by kernels that take any sizes.

Where PyTorch prefers cuDNN's attention, that is planned for each set of sizes not met before:
60 ms a set of sizes on one H200, and a second to load. A program that is to run at any sizes calls
PyTorch's two other fused kernels instead; what they do not take is PyTorch's choice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

ALIGNED = 16
"""Elements of which a multiple lies from one row of a mask to the next."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As `torch.nn.functional.scaled_dot_product_attention`, without gradients. Masks that are not
    `additive` yet are made so in each call."""
    if query.dim() == 4 and query.shape[-1] % 8 == 0:
        given = torch._C._SDPAParams(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if attn_mask is None and torch._C._can_use_flash_attention(given, False):
            found: tuple[Tensor, ...] = torch._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )
            return found[0]
        if (
            attn_mask is not None
            and attn_mask.dtype in (torch.bool, query.dtype)
            and attn_mask.dim() > 1
            and query.shape[1] == key.shape[1] == value.shape[1]
            and torch._C._can_use_mem_efficient_attention(given, False)
        ):
            mask = additive(attn_mask, query.dtype).expand(*query.shape[:-1], key.shape[-2])
            found = torch._scaled_dot_product_efficient_attention(
                query, key, value, mask, False, dropout_p, is_causal, scale=scale
            )
            return found[0]
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as one that is added to scores of `dtype`, its rows aligned: one of booleans, True for
    what takes part, or one of that dtype, which is returned as it is if it lies so."""
    boolean = mask.dtype is torch.bool
    *strides, last = mask.stride()
    if not boolean and last == 1 and all(s % ALIGNED == 0 for s in strides):
        return mask
    *outer, columns = mask.shape
    padded = -(-columns // ALIGNED) * ALIGNED
    made = torch.empty((*outer, padded), dtype=dtype, device=mask.device)[..., :columns]
    return made.fill_(-math.inf).masked_fill_(mask, 0.0) if boolean else made.copy_(mask)

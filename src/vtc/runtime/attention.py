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
    """As `torch.nn.functional.scaled_dot_product_attention`, without gradients. A mask of booleans
    is PyTorch's choice: `additive` makes it one for the fused kernel."""
    if query.dim() == 4 and query.shape[-1] % 8 == 0:
        given = torch._C._SDPAParams(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if attn_mask is None and torch._C._can_use_flash_attention(given, False):
            found: tuple[Tensor, ...] = torch._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )
            return found[0]
        if (
            attn_mask is not None
            and attn_mask.dtype == query.dtype
            and attn_mask.stride(-2) % ALIGNED == 0
            and query.shape[1] == key.shape[1] == value.shape[1]
            and torch._C._can_use_mem_efficient_attention(given, False)
        ):
            wide = attn_mask.expand(*query.shape[:-1], key.shape[-2])
            found = torch._scaled_dot_product_efficient_attention(
                query, key, value, wide, False, dropout_p, is_causal, scale=scale
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
    """A mask of booleans, True for what takes part, as one to be added to scores of `dtype`."""
    *outer, columns = mask.shape
    padded = -(-columns // ALIGNED) * ALIGNED
    made = torch.empty((*outer, padded), dtype=dtype, device=mask.device)
    return made[..., :columns].fill_(-math.inf).masked_fill_(mask, 0.0)

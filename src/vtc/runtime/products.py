"""Products of matrices by the library, on a CUDA device, at sizes for which it has no fast kernels.

cuBLAS moves 16-bit elements 8 at a time only where rows begin at multiples of 16 bytes and all
sizes are multiples of 8: otherwise it is some five times slower. Where a product is large enough,
its operands are copied into such rows, with zeros around them, and its result is copied out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vtc.vm.device import interpreter

LEAST_FLOPS = 300e6
"""From here on the copies, and two more launches, are worth it (docs/performance-log.md)."""
MOST_BYTES_A_FLOP = 0.08  # of operands and result: they are copied at the memory's rate
MOST_ELEMENTS = 1 << 30
HALVES = (torch.float16, torch.bfloat16)
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def up(size: int) -> int:
    """The next multiple of 8."""
    return (size + 7) // 8 * 8


def to_be_padded(a: Tensor, b: Tensor) -> bool:
    """Is the product of two matrices on a CUDA device faster by way of padded ones?"""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not a.is_cuda:
        return False
    (m, k), n = a.shape, b.shape[1]
    if not (k % 8 or n % 8) or 2 * m * k * n < LEAST_FLOPS:
        return False
    if a.dtype not in HALVES or b.dtype is not a.dtype or max(m, n) * k + m * n >= MOST_ELEMENTS:
        return False
    if a.stride(1) != 1 or b.stride(1) != 1 or a.stride(0) < k or b.stride(0) < n:
        return False
    return 2 * (m * k + k * n + m * n) < MOST_BYTES_A_FLOP * 2 * m * k * n


def mm(a: Tensor, b: Tensor) -> Tensor:
    """torch.mm."""
    return _padded(a, b, None) if to_be_padded(a, b) else torch.mm(a, b)


def addmm(c: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Tensor:
    """torch.addmm."""
    row = not scales and c.dim() == 1 and c.dtype is a.dtype and c.stride(0) == 1
    if row and c.shape[0] == b.shape[-1] and to_be_padded(a, b):
        return _padded(a, b, c)
    return torch.addmm(c, a, b, **scales)


@functools.cache
def _native(index: int) -> Any:
    return interpreter(index).native


def _padded(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    wide, deep = up(n), up(k)
    whole_a, whole_b = a.new_empty(m, deep), a.new_empty(deep, wide)
    index = a.get_device()
    native, stream = _native(index), _stream(index)
    copies = [
        (a.data_ptr(), whole_a.data_ptr(), m, k, a.stride(0), m, deep),
        (b.data_ptr(), whole_b.data_ptr(), k, n, b.stride(0), deep, wide),
    ]
    if c is None:
        native.pad(copies, stream)
        found = torch.mm(whole_a, whole_b)
    else:
        whole_c = a.new_empty(wide)
        copies.append((c.data_ptr(), whole_c.data_ptr(), 1, n, n, 1, wide))
        native.pad(copies, stream)
        found = torch.addmm(whole_c, whole_a, whole_b)
    if wide == n:
        return found
    result = a.new_empty(m, n)
    native.unpad((found.data_ptr(), result.data_ptr(), m, n, wide, 0, 0), stream)
    return result

"""Views of one storage: how far they reach, and whether they overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def extent_of(shape: Iterable[int], stride: Iterable[int]) -> int:
    """The elements of storage from a tensor's first to its last."""
    spans = [(size - 1, step) for size, step in zip(shape, stride, strict=True)]
    return 0 if any(n < 0 for n, _ in spans) else 1 + sum(n * step for n, step in spans)


def alike(a: Any, b: Any) -> bool:
    """Are the strides of two tensors of one shape alike where they matter?"""
    if 0 in a.shape:
        return True
    return all(n == 1 or x == y for n, x, y in zip(a.shape, a.stride(), b.stride(), strict=True))


def shared(a: Tensor, b: Tensor) -> bool:
    """Are both in one storage?"""
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def identical(a: Tensor, b: Tensor) -> bool:
    """Two tensors of one shape that are one and the same view."""
    same_start = a.storage_offset() == b.storage_offset()
    return shared(a, b) and same_start and a.stride() == b.stride()


def overlap(a: Tensor, b: Tensor) -> bool:
    """Do the views share an element?"""
    if not a.numel() or not b.numel() or not shared(a, b):
        return False
    (start, end), (other, other_end) = map(_range, (a, b))
    if end <= other or other_end <= start:
        return False
    first = min(start, other)
    touched = torch.zeros(max(end, other_end) - first, dtype=torch.bool)
    touched.as_strided(a.shape, a.stride(), start - first).fill_(True)
    return bool(touched.as_strided(b.shape, b.stride(), other - first).any())


def _range(view: Tensor) -> tuple[int, int]:
    start = view.storage_offset()
    return start, start + extent_of(view.shape, view.stride())

"""Copies of arguments, for calls that may update them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def fresh(args: Sequence[Any]) -> list[Any]:
    """Copies of the arguments with their strides; a tensor that is passed twice stays one."""
    made: dict[int, Any] = {}
    for a in args:
        if isinstance(a, Tensor) and id(a) not in made:
            storage = torch.empty(0, dtype=a.dtype).set_(a.untyped_storage().clone())
            made[id(a)] = storage.as_strided(a.shape, a.stride(), a.storage_offset())
    return [made.get(id(a), a) for a in args]

"""Decompositions for TorchInductor that mean what eager PyTorch does: of operators that draw random
numbers, and of the remainder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]

_DRAWING = (aten.rrelu_with_noise_functional.default,)
"""Operators that PyTorch 2.11 decomposes whatever `fallback_random` says: into draws for every
element, where eager PyTorch draws for the negative ones alone."""


def decompositions() -> Table:
    """What `compile_fx` takes beside `fallback_random`."""
    table: Table = {k: by for k, by in select_decomp_table().items() if k not in _DRAWING}
    return {**table, **dict.fromkeys(_REMAINDERS, _remainder)}


_REMAINDERS = (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of the divisor, as eager PyTorch computes it: exactly, for infinite divisors
    too. TorchInductor's own, x - y * floor(x / y), is none of both."""
    dtype = torch.result_type(x, y)
    if not dtype.is_floating_point:
        return NotImplemented
    if not isinstance(x, Tensor):
        x = torch.full((), x, dtype=dtype, device=y.device)
    found = torch.fmod(x, y)
    turned = (found != 0) & ((found < 0) != (y < 0))
    return torch.where(turned, found + y, found)

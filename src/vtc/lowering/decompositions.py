"""Decompositions for TorchInductor that mean what eager PyTorch does: of operators that draw random
numbers, and of the remainder."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor import decomposition

aten = torch.ops.aten

_DRAWING = (aten.rrelu_with_noise_functional.default,)
"""Operators that PyTorch 2.11 decomposes whatever `fallback_random` says: into draws for every
element, where eager PyTorch draws for the negative ones alone."""

_REMAINDERS = (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
_TAG = f"decompositions {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"


@contextlib.contextmanager
def decomposed_alike() -> Iterator[None]:
    """What TorchInductor compiles meanwhile, with `fallback_random`, is decomposed so.

    Its caches are asked for what was compiled so: their keys leave decompositions out. (It would
    take a table for an argument, but keeps nothing on disk then.)
    """
    table, config = decomposition.decompositions, torch.compiler.config
    before = {operator: table.pop(operator, None) for operator in (*_DRAWING, *_REMAINDERS)}
    table.update(dict.fromkeys(_REMAINDERS, _remainder))
    try:
        with config.patch(cache_key_tag=f"{config.cache_key_tag} {_TAG}".strip()):
            yield
    finally:
        for operator, by in before.items():
            if by is None:
                table.pop(operator, None)
            else:
                table[operator] = by


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

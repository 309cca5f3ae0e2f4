"""Decompositions for TorchInductor that leave random numbers as eager PyTorch draws them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table

Table = dict[Any, Callable[..., Any]]

_DRAWING = (torch.ops.aten.rrelu_with_noise_functional.default,)
"""Operators that PyTorch 2.11 decomposes whatever `fallback_random` says: into draws for every
element, where eager PyTorch draws for the negative ones alone."""


def decompositions() -> Table | None:
    """What `compile_fx` takes beside `fallback_random`; None where its own are right."""
    table: Table = select_decomp_table()
    if not any(operator in table for operator in _DRAWING):
        return None
    return {operator: by for operator, by in table.items() if operator not in _DRAWING}

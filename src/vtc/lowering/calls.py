"""How library kernels are called: the fastest of several equivalent calls, by measurement.

A vendor library's speed depends on which operand it is told is the matrix. On some processors
`linear` of a few rows runs far from the memory bandwidth, and the same product with the weight on
the left does not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from vtc.graph.program import value_of
from vtc.kernels import libraries
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.plan import Plan

WORTH = 0.9
"""Another call is taken when it needs less than this part of the default call's time."""


def transposed(plan: Plan, cache: ProfileCache, progress: Callable[[str], None]) -> frozenset[str]:
    """The names of the linear operators that run faster as (weight @ rows.T).T.

    Each shape is measured once and kept in `cache`.
    """
    chosen = set()
    for node in plan.program.nodes:
        if not libraries.may_transpose(node):
            continue
        rows, weight = value_of(node.args[0]), value_of(node.args[1])
        count = rows.numel() // rows.shape[-1]
        ratio = _ratio(count, weight, cache, progress)
        if ratio < WORTH:
            chosen.add(node.name)
    return frozenset(chosen)


def _ratio(
    count: int, weight: torch.Tensor, cache: ProfileCache, progress: Callable[[str], None]
) -> float:
    """Time of the transposed call over that of the default one."""
    outputs, inner = weight.shape
    key = f"linear-{count}-{outputs}-{inner}-{str(weight.dtype).removeprefix('torch.')}"
    known = [cache.get(f"{key}-{form}") for form in ("default", "transposed")]
    if known[0] is None or known[1] is None:
        progress(f"measuring linear of {count} x {inner} by {outputs}")
        fakes = (torch.empty(count, inner, device="meta"), torch.empty_like(weight, device="meta"))
        forms = {
            "default": torch.nn.functional.linear,
            "transposed": lambda rows, matrix: torch.mm(matrix, rows.t()).t(),
        }
        for form, call in forms.items():
            arguments = [torch.randn(t.shape, dtype=weight.dtype) for t in fakes]
            cache.put(f"{key}-{form}", timing.microseconds(call, arguments))
        known = [cache.get(f"{key}-{form}") for form in forms]
    default, other = known
    return other / default if default and other else 1.0

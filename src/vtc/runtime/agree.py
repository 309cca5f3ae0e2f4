"""Two ways to run a graph must give the same answer: a check of kernels of ours against stock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vtc.lowering.timing import NOTHING_HELD, Held, clones

LIMITS = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float32: 2e-3, torch.float64: 1e-6}
"""Relative root-mean-square difference that rounding and other orders of addition explain."""


def difference(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    inputs: Sequence[Any],
    updated: Sequence[int],
    held: Held = NOTHING_HELD,
) -> str | None:
    """How the answers differ, results and what is updated, in a sentence; None where they agree.

    Both run on private copies of the updated inputs, so that nothing of the caller's changes; what
    else they update is `held`, and put back.
    """
    answers = []
    for run in (ours, theirs):
        own = clones(inputs, updated)
        with torch.no_grad():
            results = run(*own)
        left = [t.clone() for t in held.tensors]
        held.put_back()
        answers.append([*pytree.tree_leaves(results), *(own[i] for i in updated), *left])
    for number, (found, expected) in enumerate(zip(*answers, strict=True)):
        if isinstance(expected, torch.Tensor) and not _alike(found, expected):
            return f"result {number} of {list(expected.shape)} differs from stock TorchInductor's"
    return None


def _alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    limit = LIMITS.get(expected.dtype)
    if limit is None:
        return bool(torch.equal(found, expected))
    finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(found), finite):
        return False
    one, two = (t[finite].double() for t in (found, expected))
    size = two.square().mean().sqrt()
    error = (one - two).square().mean().sqrt()
    return two.numel() == 0 or bool(error <= limit * size + 1e-6)

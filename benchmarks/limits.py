"""What a case must at least move and compute, and how fast the device moves and computes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from vtc.bench.suite import Request

COPIED_BYTES = 1 << 30
SIDE = 8192


@dataclass(frozen=True)
class Needed:
    """Bytes: every weight that the call reads, once, every tensor that it updates, once (a cache
    full to the context is read whole), the inputs and the outputs. Operations: of matmuls and
    convolutions, a multiply-add being two."""

    bytes: int
    operations: int


@dataclass(frozen=True)
class Rates:
    """Measured: terabytes a second read and written by a copy of 1 GiB, and teraflops of a bf16
    matmul of 8192 x 8192 x 8192 on random values."""

    copy_tb_s: float
    matmul_tflops: float

    @staticmethod
    def measured(device: torch.device) -> Rates:
        source = torch.randn(COPIED_BYTES // 4, device=device)
        target = torch.empty_like(source)
        copy_us = microseconds(lambda: target.copy_(source))
        a, b = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        matmul_us = microseconds(lambda: torch.mm(a, b, out=out))
        return Rates(
            round(2 * COPIED_BYTES / copy_us / 1e6, 3), round(2 * SIDE**3 / matmul_us / 1e6, 1)
        )


def microseconds(call: Callable[[], Any], calls: int = 12) -> float:
    """The median time of a call between two events."""
    for _ in range(3):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) * 1e3


@torch.no_grad()
def needed(request: Request) -> Needed:
    """Of one call of a case, by running it once in eager PyTorch."""
    case = request.build()
    assert isinstance(case.model, torch.nn.Module)
    tables = [m.weight for m in case.model.modules() if isinstance(m, torch.nn.Embedding)]
    multiplied = {
        id(m.weight) for m in case.model.modules() if isinstance(m, torch.nn.Linear)
    }  # a head may share its weight with the embedding
    skipped = {id(t) for t in tables if id(t) not in multiplied}
    weights = {id(t): t for t in (*case.model.parameters(), *case.model.buffers())}
    case.reset()
    with FlopCounterMode(display=False) as counter:
        outputs = case.call()
    passed = [t for t in pytree.tree_leaves((case.args, outputs)) if isinstance(t, torch.Tensor)]
    held = [t for key, t in weights.items() if key not in skipped]
    tensors = {id(t): t for t in (*held, *case.updated().values(), *passed)}
    case.reset()
    return Needed(sum(t.nbytes for t in tensors.values()), counter.get_total_flops())

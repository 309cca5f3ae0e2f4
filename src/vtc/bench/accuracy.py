"""Whether a system computes what the model says: judged against a float64 copy of the model.

The measure is that of PyTorch's own benchmarks, `torch._dynamo.utils.same`: a system is right if
its error against float64 is at most about twice that of eager PyTorch in the same precision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import same
from torch.utils import _pytree as pytree

from vtc.bench.case import Case

STEPS = 3
TOLERANCE = 1e-4
# Half precision: what torchbench's runner takes for float16 and bfloat16 inference.
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Answer:
    """What a sequence of calls gave: the output tensors of each, then the updated inputs."""

    outputs: list[Tensor]
    updated: dict[str, Tensor]

    def tensors(self) -> list[Tensor]:
        return [*self.outputs, *self.updated.values()]


@dataclass(frozen=True)
class Accuracy:
    """correct: by `same` against float64. max_rel_error: see `relative_error`."""

    correct: bool
    max_rel_error: float


def answer(
    case: Case, run: Callable[[], Any], seed: int, steps: int = STEPS, fresh: bool = True
) -> Answer:
    """The results of `steps` calls on fresh inputs of `seed`; afterwards counters are reset.

    Where a call updates nothing, one call is made. fresh=False starts from the inputs as they are.
    """
    if fresh:
        case.fresh_inputs(seed)
    sequence = steps if case.updated() else 1
    outputs: list[Tensor] = []
    for step in range(sequence):
        if case.python_counters and case.device.type == "cuda":
            # A captured graph does not repeat what Python counts: the same position each time.
            case.reset()
        case.advance(seed, step)
        outputs += [t.clone() for t in output_tensors(run())]
    updated = {name: t.clone() for name, t in case.updated().items()}
    case.reset()
    return Answer(outputs, updated)


def output_tensors(value: Any) -> list[Tensor]:
    """The tensors of a model's output, in the order in which PyTorch flattens it."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def compare(result: Answer, eager: Answer, exact: Answer) -> Accuracy:
    """`result` against `eager` (same precision) and `exact` (float64), tensor by tensor."""
    found, native, double = result.tensors(), eager.tensors(), exact.tensors()
    if len(found) != len(native):
        return Accuracy(False, float("inf"))
    error = max((relative_error(a, b) for a, b in zip(found, double, strict=True)), default=0.0)
    correct = all(_same(a, b, c) for a, b, c in zip(native, found, double, strict=True))
    return Accuracy(correct, error)


def relative_error(found: Tensor, exact: Tensor) -> float:
    """The largest difference, divided by the largest magnitude of the exact tensor."""
    if found.shape != exact.shape:
        return float("inf")
    if not found.numel():
        return 0.0
    exact = exact.to(torch.float64)
    difference = (found.to(device=exact.device, dtype=torch.float64) - exact).abs().max()
    scale = exact.abs().max()
    if not torch.isfinite(difference):
        return float("inf")
    return float(difference / scale) if scale else float(difference)


def _same(native: Tensor, found: Tensor, exact: Tensor) -> bool:
    if native.shape != found.shape or native.dtype != found.dtype:
        return False
    if not native.is_floating_point():
        return torch.equal(native, found.to(native.device))
    half = native.dtype in (torch.float16, torch.bfloat16)
    log = logging.getLogger(__name__)
    return same(
        native,
        found.to(native.device),
        fp64_ref=exact.to(torch.float64),
        tol=HALF_TOLERANCE if half else TOLERANCE,
        log_error=log.info,
    )

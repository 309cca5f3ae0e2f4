"""What a convolution does of the instructions behind it: activations, an addition, the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import hardswish, silu

from program.building import Kernel
from vm.convolving import (
    BEHIND,
    CASES,
    FRONT,
    Behind,
    Case,
    convolution,
    in_memory,
    operands,
    sums,
    written,
)
from vm.running import native


def gate(kernel: Kernel, x: int) -> int:
    """min(max(x + 3, 0), 6)."""
    three, zero, six = (kernel.const(c) for c in (3.0, 0.0, 6.0))
    return kernel.op("minimum", kernel.op("maximum", kernel.op("add", x, three), zero), six)


def swished(kernel: Kernel, x: int, by: int) -> int:
    return kernel.op("div", kernel.op("mul", x, by), kernel.const(6.0))


def added(kernel: Kernel, x: int, case: Case, turned: bool = False) -> int:
    """x plus the tile of buffer 4, which lies as the output does."""
    (oh, ow), wide = case.output(), FRONT + case.co + BEHIND
    groups = case.groups
    depthwise = groups == case.ci == case.co
    own = (1,) if depthwise else (case.co // groups, 1)
    other = kernel.load(4, oh * ow * wide, ow * wide, wide, *own, offset=FRONT)
    return kernel.op("add", other, x) if turned else kernel.op("add", x, other)


def gated(kernel: Kernel, x: int) -> int:
    return kernel.op("mul", x, kernel.op("sigmoid", x))


def gate_kept(kernel: Kernel, x: int) -> int:
    by = kernel.op("sigmoid", x)
    return kernel.op("add", kernel.op("mul", by, x), by)


def sums_kept(kernel: Kernel, x: int) -> int:
    return kernel.op("add", gated(kernel, x), x)


def bound_kept(kernel: Kernel, x: int) -> int:
    by = gate(kernel, x)
    return kernel.op("add", swished(kernel, x, by), by)


def six(x: Tensor) -> Tensor:
    return (x + 3).clamp(0, 6)


# What is behind the sums, and what it gives of them and of the tile of buffer 4.
KINDS: dict[str, tuple[Callable[[Case], Behind], Callable[[Tensor, Tensor], Tensor]]] = {
    "none": (lambda case: lambda k, x: x, lambda x, _: x),
    "silu": (lambda case: gated, lambda x, _: silu(x)),
    "hardswish": (lambda case: lambda k, x: swished(k, x, gate(k, x)), lambda x, _: hardswish(x)),
    "addition": (lambda case: lambda k, x: added(k, x, case), lambda x, y: x + y),
    "addition turned": (lambda case: lambda k, x: added(k, x, case, True), lambda x, y: y + x),
    "silu, addition": (
        lambda case: lambda k, x: added(k, gated(k, x), case), lambda x, y: silu(x) + y,
    ),
    "hardswish, addition": (
        lambda case: lambda k, x: added(k, swished(k, x, gate(k, x)), case),
        lambda x, y: hardswish(x) + y,
    ),
    "silu of a sum": (
        lambda case: lambda k, x: gated(k, added(k, x, case)), lambda x, y: silu(x + y),
    ),
    # Values on the way that are read again.
    "silu + gate": (lambda case: gate_kept, lambda x, _: silu(x) + x.sigmoid()),
    "silu + sums": (lambda case: sums_kept, lambda x, _: silu(x) + x),
    "hardswish + gate": (lambda case: bound_kept, lambda x, _: hardswish(x) + six(x)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.runs == 1], ids=str)
def test_what_is_behind_a_convolution(case: Case, kind: str) -> None:
    behind, meaning = KINDS[kind]
    made = convolution(case, behind=behind(case))
    given = operands(case)
    other = torch.randn(case.size[0], *case.output(), FRONT + case.co + BEHIND)
    more = [other] if len(made.buffers) == 5 else []
    (found,) = native(made, [*in_memory(case, given), *more])
    want = meaning(sums(case, given), other[..., FRONT : FRONT + case.co].double())
    torch.testing.assert_close(written(case, found), want, rtol=2e-5, atol=3e-5)


@pytest.mark.parametrize("kind", ["silu", "hardswish"])
def test_activations_keep_nan_and_infinities(kind: str) -> None:
    case = Case(20, 40, taps=1, pad=0, size=(1, 3, 30))
    behind, meaning = KINDS[kind]
    given = operands(case)
    given[2][:4] = torch.tensor([float("nan"), float("inf"), 3e37, -3e37])
    (found,) = native(convolution(case, behind=behind(case)), given)
    want = meaning(sums(case, given), torch.zeros(())).float().double()
    torch.testing.assert_close(written(case, found), want, equal_nan=True, rtol=2e-5, atol=3e-5)


def test_a_division_behind_a_gate_is_rounded_once() -> None:
    """x * min(max(x + 3, 0), 6) / by, for values of every size and divisors of every kind."""
    case = Case(1, 64, taps=1, pad=0, size=(1, 30, 30))
    channels = torch.arange(64).float()
    for by in (6.0, 3.0, 7.0, -0.375, 8.0, 1.1, 1e-30):
        made = convolution(
            case,
            behind=lambda k, x, by=by: k.op("div", k.op("mul", x, gate(k, x)), k.const(by)),
        )
        given = operands(case)
        mantissa = torch.rand(given[0].shape) + 1
        given[0].copy_(mantissa * torch.exp2(torch.randint(-149, 30, mantissa.shape).float()))
        given[1].copy_((1 - 2 * (channels % 2)).view_as(given[1]))
        given[2].zero_()
        (found,) = native(made, given)
        x = given[0][..., FRONT : FRONT + 1] * given[1].flatten()
        want = x * (x + 3).clamp(0, 6) / by
        assert torch.equal(written(case, found).float(), want)

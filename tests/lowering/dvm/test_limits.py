"""Kernels stay within what a device has room for, and are written of graphs of any depth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lowering.dvm.evaluated import Compiled, check
from vtc.lowering.dvm import body
from vtc.lowering.dvm.plan import ModuleStep
from vtc.program.tile import TileKernel
from vtc.vm.isa import MAX_DIMS

ACCESSES = 64
"""Of a kernel on a device: `kMostAccesses` of vm/cuda/layout.h."""


def _kernels(compiled: Compiled) -> list[TileKernel]:
    return [
        kernel
        for plan in compiled.plans
        for step in plan.steps
        if isinstance(step, ModuleStep)
        for kernel in step.module.kernels()
    ]


def _accesses(compiled: Compiled) -> list[int]:
    return [sum(i.op in ("load", "store") for i in k.body) for k in _kernels(compiled)]


def _sum_of_many(*tensors: Tensor) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _pooled_pools(x: Tensor) -> Tensor:
    return F.max_pool2d(F.avg_pool2d(x, 4), 3, 2, 1).softmax(-1)


def _wide_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 8, 1, 3)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (_sum_of_many, [(5, 7)] * 90),
        (_pooled_pools, [(2, 3, 40, 41)]),
        (_wide_pool, [(2, 3, 20, 21)]),
    ],
)
def test_a_kernel_of_too_many_loads_is_several(
    function: Callable[..., Tensor],
    shapes: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = [torch.randn(shape) for shape in shapes]
    assert max(_accesses(check(function, args, dynamic=False))) <= ACCESSES
    monkeypatch.setattr(body, "MOST_LOADS", 1000)  # else there would be
    assert max(_accesses(check(function, args, dynamic=False))) > ACCESSES


def test_a_chain_is_written_whatever_its_length() -> None:
    def chain(x: Tensor) -> Tensor:
        for k in range(1200):
            x = x * 0.5 + k % 3
        return x

    assert len(_accesses(check(chain, [torch.randn(5, 7)], dynamic=False))) > 1


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.tile(2, 2, 2, 2, 2), (3, 3, 3, 2, 2)),
        (lambda x: x.mT.repeat(3, 1, 2, 2, 1, 3) * 2, (2, 2, 2, 6, 2)),
        (lambda x: x.repeat(2, 3, 2, 2, 2).amax((1, 4)), (2, 3, 3, 2, 4)),
        (lambda x: x.permute(8, 1, 6, 3, 4, 5, 2, 7, 0).exp(), (2, 3, 2, 1, 2, 2, 3, 2, 2)),
        (lambda x: x.permute(9, 1, 3, 5, 7, 8, 6, 4, 2, 0).contiguous(), (2, 2, 3, 2, 2) * 2),
    ],
)
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_kernel_has_no_more_dimensions_than_the_machine(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], dynamic: bool
) -> None:
    """What repeats in many dimensions, and movement of many, is read by index."""
    compiled = check(function, (torch.randn(shape),), dynamic=dynamic)
    assert max(len(kernel.sizes) for kernel in _kernels(compiled)) <= MAX_DIMS

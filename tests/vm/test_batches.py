"""Kernels that go through the batch in parts, so that what they hand on stays in the caches."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch import nn

from lowering.dvm.evaluated import Compiled
from program.building import Kernel, buffer, module
from vm.running import encoded, native, with_threads
from vm.test_encoder import names
from vtc.program.dtypes import DType
from vtc.program.module import Module

N, C = sympy.symbols("n c", integer=True, positive=True)
ROWS = 64
WIDE = 8192  # 64 rows of it are 2 MiB, of which two buffers are too much for two items
ITEM = ROWS * C


def double(source: int, target: int, last: bool = False) -> Kernel:
    """target = 2 source, item by item or (`last`) from the last item of the source on."""
    kernel = Kernel(f"double{target}", (N, ROWS, C))
    x = (
        kernel.load(source, -ITEM, C, 1, offset=ITEM * (N - 1))
        if last
        else kernel.load(source, ITEM, C, 1)
    )
    kernel.store(target, kernel.op("add", x, x), ITEM, C, 1)
    return kernel


def over_items(source: int, target: int) -> Kernel:
    """The sum over all items."""
    kernel = Kernel("over_items", (N, ROWS, C), reduced=(0,))
    kernel.store(target, kernel.reduce("sum", kernel.load(source, ITEM, C, 1)), 0, C, 1)
    return kernel


def shared(source: int, other: int, target: int) -> Kernel:
    """target = source + other, which is the same for all items."""
    kernel = Kernel("shared", (N, ROWS, C))
    added = kernel.op("add", kernel.load(source, ITEM, C, 1), kernel.load(other, 0, C, 1))
    kernel.store(target, added, ITEM, C, 1)
    return kernel


def with_buffers(*kernels: Kernel, kinds: str) -> Module:
    """Buffers as named by letters: x and y have items, t as well, s is one item of output."""
    count = dict.fromkeys(kinds, 0)
    buffers = []
    for letter in kinds:
        extent = ITEM if letter in "sw" else N * ITEM
        name = {"s": "y", "w": "x"}.get(letter, letter)
        count[name] = count.get(name, 0) + 1
        buffers.append(buffer(f"{name}{count[name] + (letter in 'sw') * 10}", DType.F32, extent))
    return module(*kernels, buffers=buffers, symbols=("n", "c"))


def runs(made: Module, items: int, wide: int = WIDE) -> int:
    """How many kernels a program has."""
    return len(names(encoded(made, items, wide))[1])


CHAIN = (double(0, 1), double(1, 2), double(2, 3))


@pytest.mark.parametrize("items", [3, 16])
def test_items_go_through_a_chain_part_by_part(items: int) -> None:
    made = with_buffers(*CHAIN, kinds="xtty")
    parts = runs(made, items) // 3
    assert parts > 1
    assert items % parts == 0
    assert parts <= 8
    # Temporaries hold a part.
    assert encoded(made, items, WIDE).arena_bytes == 2 * 4 * ROWS * WIDE * items // parts
    x = torch.randn(items, ROWS, WIDE)
    (found,) = native(made, [x], items, WIDE)
    torch.testing.assert_close(found, (x * 8).flatten(), rtol=0, atol=0)


def test_small_batches_stay_whole() -> None:
    made = with_buffers(*CHAIN, kinds="xtty")
    assert runs(made, 4, 64) == 3


def test_what_reads_other_items_waits_for_all() -> None:
    made = with_buffers(double(0, 1), double(1, 2, last=True), double(2, 3), kinds="xtty")
    x = torch.randn(4, ROWS, WIDE)
    (found,) = native(made, [x], 4, WIDE)
    torch.testing.assert_close(found, (x.flip(0) * 8).flatten(), rtol=0, atol=0)


def test_what_is_needed_behind_the_parts_is_kept_whole() -> None:
    made = with_buffers(*CHAIN, over_items(1, 4), kinds="xttys")
    assert runs(made, 4) > 4
    x = torch.randn(4, ROWS, WIDE)
    found, total = native(made, [x], 4, WIDE)
    torch.testing.assert_close(found, (x * 8).flatten(), rtol=0, atol=0)
    torch.testing.assert_close(total, (x * 2).sum(0).flatten())


def test_an_update_in_place_before_a_read_of_another_item_stays_in_order() -> None:
    """The second kernel overwrites what the third reads from the other end."""
    made = with_buffers(
        double(0, 1), double(1, 2), double(2, 1), double(1, 3, last=True), kinds="xtty"
    )
    x = torch.randn(4, ROWS, WIDE)
    (found,) = native(made, [x], 4, WIDE)
    torch.testing.assert_close(found, (x.flip(0) * 16).flatten(), rtol=0, atol=0)


def test_a_batch_whose_shared_operand_is_as_large_as_an_item() -> None:
    made = with_buffers(double(0, 1), shared(1, 2, 3), double(3, 4), kinds="xtwty")
    x, other = torch.randn(4, ROWS, WIDE), torch.randn(ROWS, WIDE)
    (found,) = native(made, [x, other], 4, WIDE)
    torch.testing.assert_close(found, ((x * 2 + other) * 2).flatten(), rtol=0, atol=0)


def test_a_chain_of_convolutions_gives_each_image_what_it_gets_alone() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(
        nn.Conv2d(16, 128, 1), nn.Hardswish(), nn.Conv2d(128, 128, 3, padding=1, groups=128),
        nn.Hardswish(), nn.Conv2d(128, 16, 1), nn.Conv2d(16, 64, 3, 2, 1), nn.SiLU(),
    ).eval()  # fmt: skip
    compiled = Compiled(model)
    x = torch.randn(6, 16, 72, 72)
    with torch.no_grad():
        want = model.double()(x.double())
        model.float()
        torch.testing.assert_close(compiled(x).double(), want, rtol=1e-5, atol=1e-5)
        first, *others = with_threads(lambda: compiled(x))
        for other in others:
            assert torch.equal(first, other)

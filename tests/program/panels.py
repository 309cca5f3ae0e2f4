"""Packing the right operand of a product into the panels of another buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vtc.index.sizes import Size
from vtc.program.tile import Access, Panel


def fill_panels(
    tensors: Sequence[torch.Tensor | None],
    packed: Access,
    panel: Panel,
    right: Access,
    sizes: Sequence[Size],
    value: Callable[[Size], int],
) -> None:
    """Writes what `right` shows, over (..., columns, k) of `sizes`, to where `packed` has it."""
    source, target = tensors[right.buffer], tensors[packed.buffer]
    assert source is not None
    assert target is not None
    if target.numel() == 0:
        return
    target.zero_()
    rank = len(sizes)
    at = []
    for d, size in enumerate(sizes):
        count = value(size) if right.stride[d] != 0 or d >= rank - 2 else 1
        at.append(torch.arange(count).reshape([-1 if e == d else 1 for e in range(rank)]))
    *outer, column, k = at
    here = torch.tensor(value(right.offset))
    for stride, points in zip(right.stride, at, strict=True):
        here = here + value(stride) * points
    there = torch.tensor(0)
    for stride, points in zip(packed.stride, outer, strict=False):
        there = there + value(stride) * points
    there = there + column // panel.width * value(packed.stride[-2])
    there = there + k // panel.depth * value(packed.stride[-1])
    there = there + column % panel.width * panel.depth + k % panel.depth
    here, there = torch.broadcast_tensors(here, there)
    target[there.flatten()] = source[here.flatten()]

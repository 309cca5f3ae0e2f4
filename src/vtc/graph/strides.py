"""Sizes and strides that are known, strides that an element shows, and giving a result the strides
that it is to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from vtc.index import Size, sizes

aten = torch.ops.aten


def numbers(values: Sequence[int | torch.SymInt]) -> tuple[Any, ...]:
    """Sizes, strides or offsets; those that guards leave one value, which were symbols when the
    tensor was made, as ints."""
    return tuple(int(n) if is_concrete_int(n) else n for n in values)


def is_empty(tensor: torch.Tensor) -> bool:
    """Is a size of the tensor known to be 0?"""
    return any(isinstance(n, int) and n == 0 for n in numbers(tensor.shape))


def known(tensor: torch.Tensor) -> bool:
    """Are all sizes and strides numbers? To compare those that are symbols would guard them."""
    return all(isinstance(n, int) for n in numbers((*tensor.shape, *tensor.stride())))


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Do two tensors of one shape have the same strides, or some that are not known?"""
    if not (known(one) and known(other)):
        return True
    shown = (seen(numbers(t.shape), numbers(t.stride())) for t in (one, other))
    return next(shown) == next(shown)


def seen(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The strides that an element shows: sizes of 1 and empty tensors show none."""
    if 0 in shape:
        return []
    return [step for step, size in zip(stride, shape, strict=True) if size != 1]


def is_dense(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Do the elements fill a run of memory, each in its own place, whatever the symbols are? Then a
    clone keeps the strides."""
    if 0 in shape:
        return True
    left = [(n, step) for n, step in zip(shape, stride, strict=True) if n != 1]
    filled: Size = 1
    while left:
        found = next((pair for pair in left if pair[1] == filled), None)
        if found is None:
            return False
        left.remove(found)
        filled = sizes.mul(filled, found[0])
    return True


def restrided(
    node: fx.Node, value: torch.Tensor, stride: Sequence[int], before: fx.Node | None = None
) -> fx.Node | None:
    """A node behind `node`, whose fake value is `value`, that holds the same in other strides. It
    is the next one, or comes right before `before`.

        y   becomes   y.permute(order).clone().permute(inverse)

    The sizes are numbers. None where the strides are not those of a dense tensor.
    """
    shape, stride = numbers(value.shape), numbers(stride)
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], d))
    inverse = [order.index(d) for d in range(len(shape))]
    with value.fake_mode:
        dense = torch.empty([shape[d] for d in order], device="meta").permute(inverse)
    if seen(shape, dense.stride()) != seen(shape, stride):
        return None
    calls: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...] = (
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (inverse,), {}),
    )
    for target, args, kwargs in calls:
        place = node.graph.inserting_before(before) if before else node.graph.inserting_after(node)
        with place:
            made = node.graph.call_function(target, (node, *args), kwargs)
        with value.fake_mode:
            value = target(value, *args, **kwargs)
        made.meta["val"] = value
        node = made
    return node

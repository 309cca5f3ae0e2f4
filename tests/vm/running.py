"""Running modules on the native machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vtc.program.module import Module
from vtc.vm.machine import Encoded, Machine


def encoded(made: Module, *sizes: int) -> Encoded:
    """The program of a module at these sizes."""
    return Machine(made).encode(sizes)


def native(
    made: Module, inputs: Sequence[torch.Tensor], *sizes: int, params: Sequence[float] = ()
) -> list[torch.Tensor]:
    """The outputs, flat, of one run; `inputs` in the order of the module's buffers.

    Outputs start as garbage, and have guards around them that must survive.
    """
    program = encoded(made, *sizes)
    given = iter(inputs)
    guard = 32
    held: list[torch.Tensor | None] = []
    pointers = []
    for buffer, extent in zip(made.buffers, program.extents, strict=True):
        if buffer.kind == "temporary":
            pointers.append(0)
            continue
        if buffer.kind == "input":
            tensor = next(given)
            assert tensor.dtype is buffer.dtype.torch_dtype
            pointers.append(tensor.data_ptr())
            continue
        dtype = buffer.dtype.torch_dtype
        held.append(torch.full((extent + 2 * guard,), 1, dtype=dtype))
        pointers.append(held[-1].data_ptr() + guard * dtype.itemsize)
    program.run(pointers, list(params))
    for whole in held:
        assert bool((whole[:guard] == 1).all())
        assert bool((whole[len(whole) - guard :] == 1).all())
    return [whole[guard : len(whole) - guard].clone() for whole in held]


def with_threads(run: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """What `run` gives with one, two and three threads."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(run())
    finally:
        torch.set_num_threads(before)
    return found

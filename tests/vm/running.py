"""Running modules on the native machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vtc.program.module import Module
from vtc.vm.machine import Encoded, Machine, Validated, from_words, index_error

PARALLEL = np.uint64(1 << 48)  # of the fifth word of a program: is it worth several threads?


def encoded(made: Module, *sizes: int) -> Encoded:
    """The program of a module at these sizes."""
    return Machine(made).encode(sizes)


def offered(program: Encoded) -> Validated:
    """The program, offered to helpers however short it is."""
    words = program.words
    words[4] |= PARALLEL
    return from_words(words)


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
    if fault := offered(program).run(pointers, list(params)):
        raise index_error(made, fault)
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

"""Programs in device memory, run by launches that a CUDA graph has captured.

    slots = Slots(machine, largest)
    with torch.cuda.graph(graph):
        slots.launch()
    slots.write(sizes, pointers)
    graph.replay()

The launches do not say what they run: they run what lies in their slots, for whatever sizes it was
encoded. They have blocks for the whole device, of which those without a task end at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtc.vm.device import DeviceMachine, failure, interpreter

# Kernels and words beyond those of the largest sizes, as others may tile otherwise.
MORE_KERNELS = 2
LEAST_WORDS = 1024
SHARED_BYTES = 112 << 10  # of a block: two of them fit a processor


class Slots:
    """Room on a device for one module's program. Not for several threads at once.

    largest: sizes whose program is about as long as any: of the module's symbols, in their order.
    Raises NotImplementedError where the device cannot run it.
    """

    def __init__(self, machine: DeviceMachine, largest: Sequence[int]) -> None:
        self.machine, self.device = machine, machine.device
        self._interpreter = interpreter(machine.device.index)
        launches = machine.encode(largest).program.launches
        longest = max((words for words, *_ in launches), default=0)
        self.kernels = len(launches) + MORE_KERNELS
        self.words = max(LEAST_WORDS, 2 * longest // 2 * 2)
        self.shared_bytes = max([SHARED_BYTES, *(bytes_ for *_, bytes_ in launches)])
        self._memory = torch.zeros(
            self.kernels, self.words, dtype=torch.int64, device=machine.device
        )
        self._arena: torch.Tensor | None = None

    def launch(self) -> None:
        """Queues the launches on the current stream; to be called while a graph captures it."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        for slot in self._memory:
            self._interpreter.native.launch_slot(slot.data_ptr(), self.shared_bytes, stream)

    def write(
        self, sizes: Sequence[int], pointers: Sequence[int], params: Sequence[float] = ()
    ) -> None:
        """Puts the program for these sizes in place, behind what the current stream has queued.

        pointers: an address a buffer of the module, 0 for temporaries; they are used by every
        replay until the next `write`. Raises ValueError for a program that does not fit the slots,
        NotImplementedError for one that the device cannot run, IndexError for an index out of range
        that a kernel before this has found, KernelFailedError for one that failed.
        """
        if fault := self._interpreter.native.take_fault():
            raise failure(self.machine.module, fault)
        program = self.machine.encode(sizes).program
        if any(bytes_ > self.shared_bytes for *_, bytes_ in program.launches):
            raise ValueError("a kernel of the program needs more shared memory than was captured")
        need = program.arena_bytes
        if need and (self._arena is None or self._arena.numel() < need):
            self._arena = torch.empty(need, dtype=torch.uint8, device=self.device)
        arena = 0 if self._arena is None else self._arena.data_ptr()
        fault_address = self._interpreter.fault.data_ptr()
        words = program.slots(pointers, params, arena, fault_address, self.kernels, self.words)
        self._memory.view(-1).copy_(torch.from_numpy(words.view("int64")))

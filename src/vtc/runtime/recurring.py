"""Sizes that recur: a DVM program's calls on a CUDA device, replayed as CUDA graphs.

A program runs at any sizes at once, but each call costs the host a launch for every program and
library kernel in it. Where these are many, the third call of the same sizes is captured, and
replayed from then on; calls of other sizes run as before. Weights and updated inputs are read where
they are. Other arguments are copied in and results copied out, so that all graphs can share their
memory: they are replayed one after another, whatever stream a call is on.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from vtc.errors import KernelFailedError
from vtc.graph.program import Program as Captured
from vtc.graph.program import is_parameter
from vtc.lowering.dvm.loops import Loop
from vtc.lowering.dvm.plan import EagerStep, ModuleStep, Plan, ScalarRef, references
from vtc.lowering.settings import Compiled
from vtc.runtime.collection import without_collection
from vtc.runtime.cuda_graph import Returned, capturable, launches_directly
from vtc.runtime.dvm import Program, counters
from vtc.runtime.dvm_text import call_sizes, updates
from vtc.runtime.unchanged import MISSES, Same
from vtc.vm.device import raise_faults

logger = logging.getLogger(__name__)

RECURRING = 3
"""The call of the same sizes that is captured. A capture takes about as long as two calls."""
KEPT = 64
"""Graphs that are kept of a program; the one not used for longest goes first."""
CAPTURES = 256
"""Captures that are made of a program, at most."""
NOTED = 1024
"""Sizes of which calls are counted."""
STEPS = 16
"""Steps of the least program that is captured: a few are launched as fast as arguments copied."""
COPIED_BYTES = 1 << 20
"""Bytes of arguments a step that are copied at most: what a device copies in a part of a launch."""
SHARE = 8
"""Graphs may take one part in so many of a device's memory."""

Replay = Callable[[], None]


class Recorder(Protocol):
    """What captures and replays on a device."""

    full: bool
    """No more is to be captured."""

    def record(self, run: Callable[..., Any], args: Sequence[Any]) -> tuple[Replay, Sequence[Any]]:
        """Captures `run(*args)`, which computes nothing yet: what does, and its results."""

    def begin(self) -> None:
        """What follows is queued behind all replays so far. Raises what their kernels found."""

    def release(self, everything: bool) -> None:
        """Waits for all replays, before a graph is dropped, or `everything` that was captured."""


class Recurring:
    """A program whose calls of sizes that recur are replayed.

    in_place: the numbers of the inputs that are used where they are. What is bound to their
    addresses is dropped when one has moved; where they often do, nothing is captured any more.
    """

    def __init__(self, program: Program, in_place: Sequence[int], recorder: Recorder) -> None:
        self.program, self.recorder = program, recorder
        plan = program.plan
        self.updated = sorted({plan.spaces[n].number for n in _updated(plan)})
        self.in_place = sorted({*in_place, *self.updated})
        self.copied = [i for i in _tensors(plan) if i not in self.in_place]
        self.sizes = call_sizes(plan)
        self.seen: dict[tuple[Any, ...], int] = {}
        self.captures: OrderedDict[tuple[Any, ...], _Capture] = OrderedDict()
        self.made, self.closed = 0, False
        self.unmoved: Same[bool] = Same()
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if not self.closed and not launches_directly():
            with self.lock:
                capture = self._capture(self.sizes(*args), args)
                if capture is not None:
                    self.recorder.begin()
                    counters.replays += 1
                    return capture.replay(args)
        return self.program(*args)

    def _capture(self, sizes: tuple[Any, ...], args: Sequence[Any]) -> _Capture | None:
        """What to replay, if there is something."""
        capture = self.captures.get(sizes)
        if capture is None and not self._recurs(sizes):
            return None
        if not self._stayed(args):
            return None
        if capture is not None:
            self.captures.move_to_end(sizes)
            return capture
        return self._made(sizes, args)

    def _recurs(self, sizes: tuple[Any, ...]) -> bool:
        count = self.seen.pop(sizes, 0) + 1
        self.seen[sizes] = count
        if len(self.seen) > NOTED:
            del self.seen[next(iter(self.seen))]
        return count >= RECURRING and self.made < CAPTURES and not self.recorder.full

    def _stayed(self, args: Sequence[Any]) -> bool:
        """Are the tensors that are used in place where they were? What was captured before they
        moved is dropped, and calls are counted anew."""
        held = [*(args[i] for i in self.in_place), *self.program.plan.constants]
        if not held or self.unmoved(held):
            return True
        if self.captures:
            self.recorder.release(everything=True)
        self.captures.clear()
        first = self.unmoved.known is None and self.unmoved.misses == 0
        self.unmoved.note(held, True)
        self.closed = self.unmoved.misses > MISSES or self.unmoved.known is None
        if not first:
            self.seen.clear()
        return first and not self.closed

    def _made(self, sizes: tuple[Any, ...], args: Sequence[Any]) -> _Capture | None:
        bytes_ = sum(args[i].numel() * args[i].itemsize for i in self.copied)
        if bytes_ > COPIED_BYTES * len(self.program.plan.steps):
            return None
        if len(self.captures) >= KEPT:
            self.recorder.release(everything=False)
            self.captures.popitem(last=False)
        self.recorder.begin()
        try:
            capture = _Capture(self, args)
        except (IndexError, KernelFailedError):
            raise  # found by a kernel before it
        except Exception:  # what cannot be captured runs as before, whatever the reason
            logger.info("calls of sizes that recur are not captured", exc_info=True)
            self.closed = True
            return None
        self.made += 1
        self.captures[sizes] = capture
        return capture


class _Capture:
    """One captured call."""

    def __init__(self, own: Recurring, args: Sequence[Any]) -> None:
        plan = own.program.plan
        self.updated = own.updated
        # What is made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            self.buffers = {i: _buffer(args[i]) for i in own.copied}
        arguments = [self.buffers.get(i, a) for i, a in enumerate(args)]
        self.launch, outputs = own.recorder.record(own.program.run, arguments)
        constants = range(plan.inputs, plan.inputs + len(plan.constants))
        in_place = [*own.in_place, *constants]
        self.returned = Returned(outputs, [*arguments, *plan.constants], in_place)

    def replay(self, args: Sequence[Any]) -> tuple[Any, ...]:
        for i, buffer in self.buffers.items():
            buffer.copy_(args[i], non_blocking=True)
        self.launch()
        if self.updated:
            torch.autograd.graph.increment_version(tuple(args[i] for i in self.updated))
        return self.returned(args)


def _buffer(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as this one, with its values. RuntimeError for one that overlaps itself."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)


class DeviceRecorder:
    """CUDA graphs on one device that share their memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.full = False
        self.most = torch.cuda.get_device_properties(device).total_memory // SHARE
        self.taken = 0
        self.pool = torch.cuda.graph_pool_handle()
        self.side = torch.cuda.Stream(device)
        self.stream: torch.cuda.Stream | None = None
        self.number = -1

    def begin(self) -> None:
        raise_faults(self.device.index)
        number = torch._C._cuda_getCurrentRawStream(self.device.index)
        if number != self.number:
            stream = torch.cuda.current_stream(self.device)
            if self.stream is not None:
                stream.wait_stream(self.stream)
            self.stream, self.number = stream, number

    def release(self, everything: bool) -> None:
        torch.cuda.synchronize(self.device)
        if everything:  # memory without a graph cannot be captured into again
            self.pool, self.taken, self.full = torch.cuda.graph_pool_handle(), 0, False

    def record(self, run: Callable[..., Any], args: Sequence[Any]) -> tuple[Replay, Sequence[Any]]:
        before = torch.cuda.memory_reserved(self.device)
        graph = torch.cuda.CUDAGraph()
        # What a garbage collection frees may not be freed during a capture.
        with torch.cuda.device(self.device), torch.no_grad(), without_collection():
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                # Other threads may allocate and wait meanwhile.
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    outputs = run(*args)
                finally:
                    graph.capture_end()
        self.taken += max(torch.cuda.memory_reserved(self.device) - before, 0)
        self.full = self.taken > self.most
        return graph.replay, outputs


def recurring(program: Program, captured: Captured, wanted: bool) -> Compiled:
    """The program, replayed at sizes that recur if that is `wanted` and it can be captured."""
    plan = program.plan
    if not wanted or plan.device.type != "cuda" or len(plan.steps) < STEPS:
        return program
    if _waits(plan) or not capturable(captured):
        return program
    index = plan.device.index
    device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    weights = [i for i in _tensors(plan) if is_parameter(captured.inputs[i])]
    return Recurring(program, weights, DeviceRecorder(device))


def _waits(plan: Plan) -> bool:
    """Does the host read what the device computes, within a call?"""
    eager = [s for s in plan.steps if isinstance(s, EagerStep)]
    passed = [references((s.args, s.kwargs)) for s in eager]
    read = any(isinstance(r, ScalarRef) for own in (*passed, references(plan.outputs)) for r in own)
    return read or any(s.symbols or isinstance(s.target, Loop) for s in eager)


def _tensors(plan: Plan) -> list[int]:
    """The numbers of the inputs that are passed and are tensors."""
    numbers = {s.number for s in plan.spaces if s.kind == "input"}
    return sorted(n for n in numbers if n < plan.inputs)


def _updated(plan: Plan) -> set[int]:
    """The spaces of the caller's tensors that are written."""
    modules = [s for s in plan.steps if isinstance(s, ModuleStep)]
    return {n for step in modules for n in updates(plan, step)}

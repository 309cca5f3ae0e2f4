"""Timing: one step on random operands, and whole compiled graphs in turns."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vtc import errors

logger = logging.getLogger(__name__)

STEP_SECONDS = 0.05
WHOLE_SECONDS = 1.5
WARM_UPS = 3
ROTATED_BYTES = {"cpu": 96 * 2**20, "cuda": 256 * 2**20}
REPLAYS = 9
NEVER = 1e12
"""The microseconds of what cannot be run."""


def operands(values: Sequence[Any]) -> Iterator[Any]:
    """Real arguments for fake ones: normal floats, index tensors of zeros, sizes as they are."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            yield value
            continue
        extent = value.storage_offset() + 1
        extent += sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        storage = torch.zeros(max(extent, 0), dtype=value.dtype, device=value.device)
        if value.is_floating_point() or value.is_complex():
            storage.normal_()
        yield storage.as_strided(value.shape, value.stride(), value.storage_offset())


def processors(device: torch.device) -> int:
    """How many streaming multiprocessors a CUDA device has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def rotated(make: Callable[[], list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Sets of CUDA operands to use in turn, so that no call finds them in a cache."""
    first = make()
    size = sum(t.untyped_storage().nbytes() for t in first)
    more = min(15, ROTATED_BYTES["cuda"] // max(size, 1))
    return [first, *(make() for _ in range(more))]


def microseconds(call: Callable[..., Any], arguments: list[Any]) -> float:
    """Time of a call, on copies of its arguments that are used in turn, so that no call finds its
    operands in a cache that a model would have overwritten.

    The lower quintile: what the region takes when nothing else disturbs it.

    Raises ProfileMemoryError when the device has no room for the arguments.
    """
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    size = sum(t.untyped_storage().nbytes() for t in tensors)
    copies = max(1, min(8, ROTATED_BYTES.get(device.type, 0) // max(size, 1)))
    try:
        sets = [arguments] + [_copied(arguments) for _ in range(copies - 1)]
        with torch.no_grad():
            return _undisturbed(call, sets, device)
    except torch.cuda.OutOfMemoryError as error:
        raise errors.ProfileMemoryError("a region", size, str(device)) from error


def _copied(arguments: list[Any]) -> list[Any]:
    return list(operands(arguments))


def _undisturbed(call: Callable[..., Any], sets: list[list[Any]], device: torch.device) -> float:
    for _ in range(WARM_UPS):
        once(call, sets[0], device)
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < 7 or time.perf_counter() - started < STEP_SECONDS:
        samples.append(once(call, sets[len(samples) % len(sets)], device))
        if len(samples) >= 400 or time.perf_counter() - started > 20 * STEP_SECONDS:
            break
    return statistics.quantiles(samples, n=5)[0]


def once(call: Callable[..., Any], arguments: Sequence[Any], device: torch.device) -> float:
    """Microseconds of one call: by events on CUDA, else by the clock."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(*arguments)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3
    before = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - before) * 1e6


def replayed(call: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]]) -> float:
    """Microseconds of a call within a CUDA graph that makes one with each set of operands; the
    median of several replays. NEVER for what cannot be run or captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.no_grad():
            with torch.cuda.stream(stream):
                for _ in range(2):
                    call(*sets[0])
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for operands in sets:
                    call(*operands)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # out of shared memory, no kernel for these operands, no capture
        logger.debug("a kernel cannot be timed", exc_info=True)
        return NEVER
    samples = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / len(sets))
    return statistics.median(samples[2:])


def clones(inputs: Sequence[Any], updated: Sequence[int]) -> list[Any]:
    """The arguments with a private copy of every updated input: nothing of the caller's changes."""
    own = list(inputs)
    for i in updated:
        like = inputs[i]
        own[i] = torch.empty_strided(
            like.shape, like.stride(), dtype=like.dtype, device=like.device
        ).copy_(like)
    return own


class Held:
    """Tensors that callables update though no call brings them, and their values to put back."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self.values = [t.detach().clone() for t in tensors]

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, value in zip(self.tensors, self.values, strict=True):
                tensor.copy_(value)


NOTHING_HELD = Held(())


def interleaved(
    calls: Sequence[Callable[..., Any]],
    inputs: Sequence[Any],
    updated: Sequence[int],
    held: Held = NOTHING_HELD,
) -> list[float]:
    """Median microseconds of each callable on the same inputs, measured in turns.

    Updated inputs are private copies, put back before each call outside the timed part; what is
    `held` is put back after each.
    """
    own = [clones(inputs, updated) for _ in calls]
    device = next((a.device for a in inputs if isinstance(a, torch.Tensor)), torch.device("cpu"))
    samples: list[list[float]] = [[] for _ in calls]
    started = time.perf_counter()
    turn = 0
    while turn < WARM_UPS + 5 or time.perf_counter() - started < WHOLE_SECONDS * len(calls):
        for k, call in enumerate(calls):
            for i in updated:
                own[k][i].copy_(inputs[i])
            elapsed = once(call, own[k], device)
            held.put_back()
            if turn >= WARM_UPS:
                samples[k].append(elapsed)
        turn += 1
        if turn > 200:
            break
    return [statistics.median(s) for s in samples]

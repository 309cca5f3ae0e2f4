"""CUDA graphs: a compiled graph captured once and replayed, for each set of addresses it works on.

Weights and updated inputs (caches, counters) are used where they are, so that a capture is keyed by
their addresses: another cache object means another capture. All other tensor arguments are copied
into static buffers before a replay. Outputs are copied out after it, so that one that is held stays
valid over the next call; an output that is a view of an argument is one of the caller's tensor.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from vtc import errors
from vtc.runtime.outputs import Copies, viewed

CAPTURES = 8
"""Captures kept per compiled graph; the one not used for longest goes first."""


_direct: ContextVar[bool] = ContextVar("direct", default=False)


@contextlib.contextmanager
def launched_directly() -> Iterator[None]:
    """While it lasts, compiled graphs launch their kernels one by one: what they are and what they
    allocate can be observed, which a replay hides."""
    token = _direct.set(True)
    try:
        yield
    finally:
        _direct.reset(token)


class CudaGraphs:
    """Replays `run` as CUDA graphs.

    `in_place` numbers the inputs that keep their addresses: updated inputs and weights; `updated`
    those among them whose values a call changes.
    """

    def __init__(
        self, run: Callable[..., Any], in_place: Sequence[int], updated: Sequence[int]
    ) -> None:
        self.run = run
        self.in_place = tuple(sorted({*in_place, *updated}))
        self.updated = tuple(updated)
        self.captures: OrderedDict[tuple[int, ...], _Capture] = OrderedDict()
        self.refused = False

    def __call__(self, *args: Any) -> Any:
        if self.refused or _direct.get() or torch.cuda.is_current_stream_capturing():
            return self.run(*args)
        key = tuple([args[i].data_ptr() for i in self.in_place])
        capture = self.captures.get(key)
        if capture is None:
            try:
                capture = _Capture(self.run, args, self.in_place, self.updated)
            except RuntimeError as error:
                self.refused = True
                reason = f"it cannot be captured ({str(error).splitlines()[0]})"
                warnings.warn(
                    errors.FallbackWarning("the graph", reason, "kernels launched one by one"),
                    stacklevel=2,
                )
                return self.run(*args)
            self.captures[key] = capture
            if len(self.captures) > CAPTURES:
                self.captures.popitem(last=False)
        else:
            self.captures.move_to_end(key)
        return capture.replay(args)


class _Capture:
    def __init__(
        self,
        run: Callable[..., Any],
        args: Sequence[Any],
        in_place: Sequence[int],
        updated: Sequence[int],
    ) -> None:
        kept = set(in_place)
        self.copied = [
            i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in kept
        ]
        self.arguments = list(args)
        for i in self.copied:
            self.arguments[i] = torch.empty_strided(
                args[i].shape, args[i].stride(), dtype=args[i].dtype, device=args[i].device
            ).copy_(args[i])
        # Warm-up runs update the caller's tensors: put their values back afterwards.
        values = [(args[i], args[i].clone()) for i in updated]
        try:
            self._capture(run)
        finally:
            for tensor, value in values:
                tensor.copy_(value)
        storages = {args[i].untyped_storage()._cdata for i in in_place}
        self.views = [
            isinstance(o, torch.Tensor) and o.untyped_storage()._cdata in storages
            for o in self.outputs
        ]
        buffers = {self.arguments[i].untyped_storage()._cdata: i for i in self.copied}
        self.sources = [
            buffers.get(o.untyped_storage()._cdata) if isinstance(o, torch.Tensor) else None
            for o in self.outputs
        ]
        self.held = [
            k
            for k, out in enumerate(self.outputs)
            if isinstance(out, torch.Tensor) and not self.views[k] and self.sources[k] is None
        ]
        self.copies = Copies([self.outputs[k] for k in self.held])

    def _capture(self, run: Callable[..., Any]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(2):
                run(*self.arguments)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, stream=stream):
            self.outputs = run(*self.arguments)

    def replay(self, args: Sequence[Any]) -> tuple[Any, ...]:
        for i in self.copied:
            self.arguments[i].copy_(args[i], non_blocking=True)
        self.graph.replay()
        outputs = list(self.outputs)
        for k, copy in zip(self.held, self.copies(), strict=True):
            outputs[k] = copy
        for k, source in enumerate(self.sources):
            if source is not None:
                outputs[k] = viewed(outputs[k], self.arguments[source], args[source])
        return tuple(outputs)


def capturable(inputs: Sequence[Any]) -> bool:
    """Can a graph with these inputs be captured? Every tensor must be on one CUDA device."""
    devices = {a.device for a in inputs if isinstance(a, torch.Tensor)}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"

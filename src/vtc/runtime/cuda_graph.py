"""CUDA graphs: a compiled graph captured once and replayed, for each set of addresses it works on.

Weights and updated inputs (caches, counters) are used where they are, so that a capture is keyed by
their addresses: another cache object means another capture. All other tensor arguments are copied
into static buffers before a replay. Where several calls in a row bring the very same tensors, as
from input buffers of the caller's, another capture reads these where they are, until a call brings
others. Outputs are copied out after a replay, so that one that is held stays valid over the next
call; an output that is a view of an argument is one of the caller's tensor.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx

from vtc import errors
from vtc.graph.program import Program, value_of
from vtc.lowering.timing import Held
from vtc.runtime.outputs import Copies, viewed

logger = logging.getLogger(__name__)

CAPTURES = 8
"""Captures kept per compiled graph; the one not used for longest goes first."""
STEADY = 8
"""Calls in a row that bring the same tensors, after which they are read where they are."""
RESTLESS = 32
"""Calls that bring others, after which that is no longer looked for."""
TURNS = 4
"""How often a capture may be made anew for arguments that are steady, or no longer so."""
ALIGNED = 16
"""What the addresses of such tensors are multiples of, as those of buffers of ours are."""
WARM_UPS = 2
"""Calls before a capture: the first ones compile kernels and allocate workspaces."""
_TAKES_NUMBERS = (torch.ops.aten.masked_fill.Tensor, torch.ops.aten.fill.Tensor)
"""Operators that take a number from the CPU, beside those that compute point by point."""

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


def launches_directly() -> bool:
    """Is nothing to be replayed now: `launched_directly`, or in a capture of the caller's?"""
    return _direct.get() or torch.cuda.is_current_stream_capturing()


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
        if self.refused or launches_directly():
            return self.run(*args)
        key = tuple([args[i].data_ptr() for i in self.in_place])
        capture = self.captures.get(key)
        if capture is None or capture.turns(args):
            capture = self._captured(args, capture)
            if capture is None:
                return self.run(*args)
            self.captures[key] = capture
            if len(self.captures) > CAPTURES:
                self.captures.popitem(last=False)
        else:
            self.captures.move_to_end(key)
        return capture.replay(args)

    def _captured(self, args: Sequence[Any], before: _Capture | None) -> _Capture | None:
        """A capture, in the place of the one `before` it; None where there can be none."""
        try:
            made = _Capture(self.run, args, self.in_place, self.updated, before)
        except RuntimeError as error:
            if before is not None and not before.steady:
                logger.debug("arguments go on being copied", exc_info=True)
                before.watched = None
                return before
            self.refused = True
            reason = f"it cannot be captured ({str(error).splitlines()[0]})"
            warnings.warn(
                errors.FallbackWarning("the graph", reason, "kernels launched one by one"),
                stacklevel=3,
            )
            return None
        if before is not None:
            torch.cuda.current_stream().synchronize()  # the one before may be running
        return made


class _Steady:
    """Counts calls in a row that bring the same tensors, which it does not keep alive."""

    def __init__(self) -> None:
        self.references: tuple[weakref.ref[torch.Tensor], ...] = ()
        self.count = self.changes = 0

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Are they worth to be read where they are?"""
        held = [reference() for reference in self.references]
        if len(held) != len(tensors) or any(map(operator.is_not, tensors, held)):
            self.references = tuple(map(weakref.ref, tensors))
            self.count, self.changes = 0, self.changes + 1
            return False
        self.count += 1
        return self.count >= STEADY and all(t.data_ptr() % ALIGNED == 0 for t in tensors)


class _Capture:
    """One captured graph. It takes the place of the one `before` it, which is not replayed again:
    it is captured in the same memory, with no call ahead as all kernels are compiled, and reads
    arguments where they are if that one copies them."""

    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream
    outputs: Sequence[Any]
    steady: list[tuple[int, torch.Tensor, int]]
    turned: int

    def __init__(
        self,
        run: Callable[..., Any],
        args: Sequence[Any],
        in_place: Sequence[int],
        updated: Sequence[int],
        before: _Capture | None = None,
    ) -> None:
        kept = set(in_place)
        others = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in kept]
        steady = before is not None and not before.steady
        self.steady = [(i, args[i], args[i].data_ptr()) for i in others] if steady else []
        self.copied = [] if steady else others
        self.turned = before.turned + 1 if before else 0
        self.watched = _Steady() if others and not steady and self.turned < TURNS else None
        self.arguments = list(args)
        for i in self.copied:
            self.arguments[i] = torch.empty_strided(
                args[i].shape, args[i].stride(), dtype=args[i].dtype, device=args[i].device
            ).copy_(args[i])
        held = Held([args[i] for i in updated] if before is None else ())
        self._capture(run, held, before)
        self.returned = Returned(self.outputs, self.arguments, in_place)

    def _capture(self, run: Callable[..., Any], held: Held, before: _Capture | None) -> None:
        self.stream = before.stream if before else torch.cuda.Stream()
        if before is None:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(self.stream):
                warm_up(run, self.arguments, held)
            torch.cuda.current_stream().wait_stream(self.stream)
        self.graph = torch.cuda.CUDAGraph()
        pool = before.graph.pool() if before else None
        with torch.no_grad(), torch.cuda.graph(self.graph, pool=pool, stream=self.stream):
            self.outputs = run(*self.arguments)

    def turns(self, args: Sequence[Any]) -> bool:
        """Is another capture better from this call on?"""
        if self.steady:
            return any(args[i] is not own or own.data_ptr() != at for i, own, at in self.steady)
        if self.watched is None:
            return False
        if self.watched.changes > RESTLESS:
            self.watched = None
            return False
        return self.watched([args[i] for i in self.copied])

    def replay(self, args: Sequence[Any]) -> tuple[Any, ...]:
        for i in self.copied:
            self.arguments[i].copy_(args[i], non_blocking=True)
        self.graph.replay()
        return self.returned(args)


class Returned:
    """What a call returns after a replay, of what `run(*arguments)` returned while it was captured:
    copies, as the next replay writes there again, and views of the caller's tensors. Arguments
    `in_place` are the caller's, the others buffers that stand for them."""

    def __init__(
        self, outputs: Sequence[Any], arguments: Sequence[Any], in_place: Sequence[int]
    ) -> None:
        self.outputs = tuple(outputs)
        tensors = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
        buffers = {_storage(arguments[i]): i for i in tensors if i not in in_place}
        own = {_storage(arguments[i]) for i in in_place}
        self.sources: dict[int, int] = {}
        self.held: list[int] = []
        for k, out in enumerate(self.outputs):
            if not isinstance(out, torch.Tensor) or _storage(out) in own:
                continue
            source = buffers.get(_storage(out))
            if source is None:
                self.held.append(k)
            else:
                self.sources[k] = source
        self.copies = Copies([self.outputs[k] for k in self.held])
        self.buffers = {i: arguments[i] for i in self.sources.values()}

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        outputs = list(self.outputs)
        for k, copy in zip(self.held, self.copies(), strict=True):
            outputs[k] = copy
        for k, source in self.sources.items():
            outputs[k] = viewed(outputs[k], self.buffers[source], args[source])
        return tuple(outputs)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def warm_up(run: Callable[..., Any], args: Sequence[Any], held: Held) -> None:
    """Run twice before a capture, each time on the caller's values, which `held` puts back: what a
    call leaves in an input need not be legal in the next, as where it is an index."""
    for _ in range(WARM_UPS):
        try:
            run(*args)
        finally:
            held.put_back()


def capturable(program: Program) -> bool:
    """Can the graph be captured? What it is passed must be on one CUDA device, and it must copy
    nothing between devices but numbers that its kernels are handed, and draw nothing on the CPU,
    which a replay would not do again."""
    passed = program.inputs[: len(program.inputs) - len(program.constants)]
    devices = {value.device for value in map(value_of, passed) if isinstance(value, torch.Tensor)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return False
    found = next((n for n in program.nodes if _crosses(n) or _draws(n)), None)
    if found is not None:
        logger.info("%s uses the CPU: the graph's kernels are launched one by one", found.name)
    return found is None


def _crosses(node: fx.Node) -> bool:
    """Does an operator copy a tensor from one device to another?"""
    value = _first_value(node)
    if value is None:
        return False
    operands = [v for v in map(value_of, node.all_input_nodes) if isinstance(v, torch.Tensor)]
    other = [v for v in operands if v.device != value.device]
    numbers = all(v.dim() == 0 and v.device.type == "cpu" for v in other)
    takes = torch.Tag.pointwise in _tags(node) or node.target in _TAKES_NUMBERS
    return bool(other) and not (numbers and takes)


def _draws(node: fx.Node) -> bool:
    """Does an operator draw random numbers on the CPU?"""
    value = _first_value(node)
    drawn = torch.Tag.nondeterministic_seeded in _tags(node)
    return drawn and value is not None and value.device.type == "cpu"


def _first_value(node: fx.Node) -> torch.Tensor | None:
    value = value_of(node)
    value = value[0] if isinstance(value, list | tuple) and value else value
    return value if isinstance(value, torch.Tensor) else None


def _tags(node: fx.Node) -> Sequence[torch.Tag]:
    return getattr(node.target, "tags", ())

"""From Dynamo's graph to a running DVM program, and how Dynamo is to trace for it."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_config
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import counters as dynamo_counters
from torch._dynamo.variables import builder
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from vtc import errors
from vtc.graph.capture import capture
from vtc.graph.culprit import failure
from vtc.graph.program import Program as Captured
from vtc.graph.program import value_of
from vtc.lowering.dvm import Packing, Plan, lower
from vtc.lowering.dvm.hints import (
    TooWide,
    anew,
    check_assumed,
    check_copied,
    exclude_empty,
    settle,
)
from vtc.lowering.settings import Compiled, Settings
from vtc.program.module import Module
from vtc.runtime.bound import Bound, can_be_bound
from vtc.runtime.calls import sharing
from vtc.runtime.collection import without_collection
from vtc.runtime.direct import Codes, direct, suits
from vtc.runtime.direct_module import called_directly
from vtc.runtime.dvm import Machine, Program, native_machine
from vtc.runtime.recurring import recurring
from vtc.runtime.stock import Unsuitable, refuse_gradients, refuse_negated, run_eagerly
from vtc.runtime.tracing import quick_tracing
from vtc.runtime.watch import guarded, watched, weight_names
from vtc.virtual.record import (
    GraphReport,
    MovementTotals,
    OperatorFate,
    PeakBytes,
    SearchStats,
    VtogSummary,
)
from vtc.vm.machine import pairs_bf16, panel_width

logger = logging.getLogger(__name__)


def compile_graph(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    machine: Callable[[Module], Machine] | None = None,
) -> Compiled:
    """One graph of Dynamo's -> a callable on its inputs, for every size of them.

    What the DVM cannot run at all runs as eager PyTorch, with one warning that names the cause:
    this engine never compiles machine code.
    """
    try:
        refuse_gradients(graph_module, inputs)
        captured, plan, times = planned(graph_module, inputs, settings)
        run = Program(plan, machine or native_machine(plan.device), graph_module.forward)
    except Unsuitable as finding:
        return finding.instead
    except TooWide:
        if symbolic_config.backed_size_oblivious:
            raise  # to `_Traced`, which has the frame traced again
        return run_eagerly(graph_module, "the graph", "it takes a size of 0 or 1 for any size")
    except errors.CaptureError as error:
        if error.__cause__ is not None:  # what shape functions refuse they may take then
            anew()
        return run_eagerly(graph_module, error.model, error.of_graph)
    except Exception as error:  # a bug of ours must not stop the user's model
        logger.debug("lowering failed", exc_info=True)
        found = failure(error)
        return run_eagerly(graph_module, found.model, found.of_graph)
    if settings.records is not None:
        settings.records.append(record(len(settings.records), captured, plan, *times))
    return checked(run, graph_module, captured, settings.options.cuda_graphs)


def planned(
    graph_module: fx.GraphModule, inputs: Sequence[Any], settings: Settings
) -> tuple[Captured, Plan, tuple[float, float]]:
    """The graph as captured, and its plan; seconds of either.

    Raises CaptureError, TooWide, Unsuitable.
    """
    started = time.perf_counter()
    refuse_negated(graph_module, inputs)
    if symbolic_config.backed_size_oblivious:
        settle(graph_module)
    captured = capture(graph_module, inputs, branches=True)
    if symbolic_config.backed_size_oblivious:
        exclude_empty(captured.inputs)
        check_assumed(captured.nodes)
        check_copied(graph_module)
    updated = [i for i, _ in captured.updates]
    if sharing([*inputs, *captured.constants], updated):
        raise errors.CaptureError("the graph", "arguments share storage, and one is updated")
    capture_s = time.perf_counter() - started
    on_cpu = all(value.device.type == "cpu" for value in _tensors(captured))
    plan = lower(captured, packing(settings) if on_cpu else None)
    return captured, plan, (capture_s, time.perf_counter() - started - capture_s)


def _tensors(captured: Captured) -> list[torch.Tensor]:
    values = map(value_of, captured.inputs)
    return [v for v in values if isinstance(v, torch.Tensor)]


def checked(
    run: Program, graph_module: fx.GraphModule, captured: Captured, replayed: bool = False
) -> Compiled:
    """The program, on a CUDA device maybe `replayed`, with what is checked at each call: weights
    that Dynamo left in the graph keep their layout, and arguments do not overlap one that is
    updated."""
    names = weight_names(graph_module)
    watching: Compiled
    if names and can_be_bound(run):
        watching = Bound(run, names)
    else:
        own = recurring(run, captured, replayed)
        watching = watched(own, lambda: own, graph_module, captured, freeze=False)
    return guarded(watching, graph_module.forward, captured, ())


def packing(settings: Settings) -> Packing | None:
    """How weights are prepacked: for the machine at hand, within the option's bound."""
    most = int(settings.options.prepack_mib * (1 << 20))
    return Packing(panel_width(), most, pairs_bf16())


def record(
    number: int, captured: Captured, plan: Plan, capture_s: float, compile_s: float
) -> GraphReport:
    """The report of one captured graph: movement is in the kernels' addresses."""
    copies = plan.copies
    moved = [
        OperatorFate(m.movement.operator, node.name, "view" if m.movement.view else "folded")
        for node, m in captured.movements.items()
    ]
    before = sum(not m.movement.view for m in captured.movements.values())
    totals = MovementTotals(len(moved), 0, copies, before, copies, 0, 0)
    notes = [f"{name} runs as eager PyTorch" for name in dict.fromkeys(plan.eager)]
    return GraphReport(
        name=f"graph{number}",
        engine="dvm",
        objective="latency",
        movement=totals,
        peak_bytes=PeakBytes(None, None),
        vtog=VtogSummary(),
        search=SearchStats(),
        operators=tuple(moved),
        schedule=str(plan),
        texts={"captured graph": str(captured), "tile programs": str(plan)},
        notes=tuple(notes),
        capture_s=capture_s,
        compile_s=compile_s,
    )


def dynamic(model: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile(model, backend=backend, dynamic=True)` for size 1 too, with changing Python
    numbers and data-dependent sizes captured.

    Dynamo's settings for that hold only while it traces a frame of this model.
    """
    context = torch._dynamo.optimize(backend=backend, dynamic=True)
    codes = Codes(model) if isinstance(model, FunctionType) and suits(model) else None
    context.callback = _Traced(context.callback, codes)
    compiled: Callable[..., Any] = context(model)
    if codes is None:
        return called_directly(compiled)
    return direct(codes.function, compiled, codes)


class _Traced:
    """Dynamo's compilation of a frame.

    A frame is traced with size 1 as a size like others. What PyTorch cannot trace so (dimensions
    that are broadcast because their size is 1 now, tensors without elements), or only in pieces, it
    traces again by its usual rules: nothing of the frame has run yet. What it cannot trace with
    symbols for numbers that tensors hold (it may fail in the algebra of them) it traces a third
    time, in pieces between which such numbers are known.
    """

    def __init__(self, callback: Any, codes: Codes | None = None) -> None:
        self._torchdynamo_orig_backend = callback
        self.codes = codes

    def __getattr__(self, name: str) -> Any:
        if name == "_torchdynamo_orig_backend":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._torchdynamo_orig_backend, name)

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        # Dynamo's settings are those of all threads, in some releases.
        with compile_lock, _collected_later(), quick_tracing():
            found = self._traced_frame(frame, *args, **kwargs)
        if self.codes is not None:
            self.codes.add(frame.f_code, found)
        return found

    def _traced_frame(self, *args: Any, **kwargs: Any) -> Any:
        callback, breaks = self._torchdynamo_orig_backend, _graph_breaks()
        try:
            with _traced(oblivious=True):
                found = callback(*args, **kwargs)
            if _graph_breaks() == breaks:
                return found
        except Exception:  # PyTorch raises assertions, too
            logger.debug("a frame is traced again", exc_info=True)
        try:
            with _traced(oblivious=False):
                return callback(*args, **kwargs)
        except Exception:  # PyTorch raises assertions, too
            logger.debug("a frame is traced again, in pieces", exc_info=True)
        with _traced(oblivious=False, held_numbers=False):
            return callback(*args, **kwargs)


def _graph_breaks() -> int:
    return sum(dynamo_counters["graph_break"].values())


@contextlib.contextmanager
def _collected_later() -> Iterator[None]:
    """No garbage collection: a trace makes many objects, of which hardly any is garbage before it
    ends.

    What it leaves is collected then. The next collection of everything that a process holds, a
    quarter of a second with PyTorch's modules, is put off from the model's first run to later.
    """
    try:
        with without_collection():
            yield
    finally:
        if gc.isenabled():
            gc.collect(1)
            if gc.get_freeze_count() == 0:  # else they would not stay frozen
                gc.freeze()
                gc.unfreeze()


@contextlib.contextmanager
def _traced(oblivious: bool, held_numbers: bool = True) -> Iterator[None]:
    config = torch._dynamo.config
    before = (
        config.capture_scalar_outputs,
        config.capture_dynamic_output_shape_ops,
        symbolic_config.backed_size_oblivious,
        config.record_runtime_overhead,
    )
    try:
        _set(held_numbers, held_numbers, oblivious, False)
        with _constant_attributes():
            yield
    finally:
        _set(*before)


@contextlib.contextmanager
def _constant_attributes() -> Iterator[None]:
    """Dynamo takes the floats that modules hold (a batch norm's eps) for constants, as it does
    their integers: each would be a tensor that is made anew in every call. So it does with sizes
    of 1 of the tensors that modules hold, which are broadcast: as symbols they would be those of
    the inputs' sizes that are 1. A frame is traced again when one has changed."""
    stock = VariableBuilder.wrap_symfloat
    stock_sizes = builder._automatic_dynamic

    def wrapped(self: Any, value: float) -> Any:
        if not _of_module(self.source):
            return stock(self, value)
        with torch._dynamo.config.patch(specialize_float=True):
            return stock(self, value)

    def sizes(tensor: Any, tx: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        found = stock_sizes(tensor, tx, source, *args, **kwargs)
        if _of_module(source) and isinstance(found, StatelessSymbolicContext):
            for i, size in enumerate(tensor.shape):
                if size == 1 and found.dynamic_sizes[i] is DimDynamic.DUCK:
                    found.dynamic_sizes[i] = DimDynamic.STATIC
        return found

    VariableBuilder.wrap_symfloat = wrapped
    builder._automatic_dynamic = sizes
    try:
        yield
    finally:
        VariableBuilder.wrap_symfloat = stock
        builder._automatic_dynamic = stock_sizes


def _of_module(source: Any) -> bool:
    """Does Dynamo find a value in a module?"""
    kind = source.guard_source  # a method in some releases
    kind = kind() if callable(kind) else kind
    return bool(kind.is_unspecialized_nn_module())


def _set(scalars: bool, sizes: bool, oblivious: bool, overhead: bool) -> None:
    torch._dynamo.config.capture_scalar_outputs = scalars
    torch._dynamo.config.capture_dynamic_output_shape_ops = sizes
    symbolic_config.backed_size_oblivious = oblivious
    torch._dynamo.config.record_runtime_overhead = overhead  # two profiler calls in each call

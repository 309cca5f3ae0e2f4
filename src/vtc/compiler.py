"""The pipeline, read top to bottom: `compile_graph`. Around it, the ways in: `compile`, `export`,
and `backend` for `torch.compile(model, backend="vtc")`.

Dynamo's graph -> capture -> grouping -> opportunity graph -> search -> schedule -> check ->
implementations -> executable, timed whole against stock TorchInductor.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from vtc import errors, log
from vtc.graph.capture import capture, lift_attributes
from vtc.graph.dropout import without_idle_dropout
from vtc.graph.hidden_views import with_plain_splits
from vtc.graph.memory_format import scatter_into_copies
from vtc.graph.onnx import Model, imported, imported_call
from vtc.graph.strided_calls import refuse_offsets
from vtc.lowering.checked import checked
from vtc.lowering.choose import choose, prepare
from vtc.lowering.record import Times, record
from vtc.lowering.settings import Compiled, Progress, Settings
from vtc.options import Engine, Objective, Options, check_engine, check_objective
from vtc.runtime import dvm, dvm_compile
from vtc.runtime.candidates import Candidates
from vtc.runtime.direct_module import called_directly
from vtc.runtime.exported import Exported, name_of
from vtc.runtime.rival import Rival, rival
from vtc.runtime.stock import (
    Unsuitable,
    fall_back,
    refuse_gradients,
    refuse_negated,
    refuse_subclasses,
    run_eagerly,
    separate,
)
from vtc.runtime.watch import guarded, watched
from vtc.virtual.record import GraphReport

logger = logging.getLogger(__name__)


# The ways in.


def compile(
    model: Model,
    *,
    engine: Engine = "auto",
    objective: Objective = "latency",
    dynamic: bool | None = None,
    options: Options | Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a model, a function or an ONNX file for inference; call the result like the model.

    engine: "inductor"; "dvm", which compiles no machine code and serves all sizes with one program
    (`dynamic` is True by default there); or "auto" to let vtc choose. objective: what a plan is
    chosen by: "latency" (measured), "memory" (peak bytes) or "bytes" (traffic). dynamic: as for
    `torch.compile`.
    options: `vtc.Options`, or a mapping of its fields.

    The result's other methods are the model's own, and call what they called: for `generate` of
    transformers to run compiled code, compile `model.forward` and assign it.

    The model runs under `torch.no_grad()` or `torch.inference_mode()` as its caller does; a call
    that records gradients is compiled by stock TorchInductor, with one warning. An ONNX file is
    called with its inputs in order or by name, and gives its output, or a tuple of several. Raises
    UnknownChoiceError, InvalidOptionError, EngineUnavailableError and UnsupportedTorchError, and
    for a file OnnxFileError and UnsupportedOnnxError.
    """
    settings = _settings(engine, objective, options)
    if engine == "dvm" and dynamic is not False:
        return dvm_compile.dynamic(imported(model), Backend(settings))
    compiled = called_directly(
        torch.compile(imported(model), backend=Backend(settings), dynamic=dynamic)
    )
    return _Frozen(compiled) if settings.options.freeze else compiled


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str = "default",
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """The `torch_dynamo_backends` entry point: `torch.compile(model, backend="vtc")`.

    `options` takes the fields of `vtc.Options`, "engine" and "objective". Weights are frozen by
    `vtc.compile` only: Dynamo must know of it before it traces.
    """
    given = dict(options or {})
    if mode != "default":
        raise errors.UnknownChoiceError("mode", mode, ("default",))
    if given.get("freeze") and not torch._inductor.config.freezing:
        raise errors.InvalidOptionError("freeze", True, "to vtc.compile, which can freeze weights")
    engine, objective = given.pop("engine", "auto"), given.pop("objective", "latency")
    return Backend(_settings(engine, objective, given))(graph_module, example_inputs)


class Backend:
    """A Dynamo backend with its settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return compile_graph(graph_module, list(example_inputs), self.settings)


def _settings(engine: str, objective: str, options: Options | Mapping[str, Any] | None) -> Settings:
    check_engine(engine)
    check_objective(objective)
    if engine == "dvm":
        dvm.native_machine()  # raises where it is not built
    release = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if release < (2, 11):
        raise errors.UnsupportedTorchError(torch.__version__)
    _guard_weights()
    chosen = Options.of(options)
    log.set_level(chosen.log_level)
    return Settings(objective, chosen, engine=engine)  # type: ignore[arg-type]


def _guard_weights() -> None:
    """PyTorch 2.11 skips a weight's guards while the dictionaries on the way to it are the same: it
    misses new strides and gradients asked for. Later releases miss nothing."""
    config = torch._dynamo.config
    if getattr(config, "use_recursive_dict_tags_for_guards", False):
        config.use_recursive_dict_tags_for_guards = False
        config.skip_tensor_guards_with_matching_dict_tags = False


class _Frozen:
    """A model compiled with `freeze`: Dynamo leaves its weights as attributes of the graph.

    Beside calls, it is what `torch.compile` returns: the model's attributes are its attributes.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled
        functools.update_wrapper(self, compiled, updated=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        config = torch._inductor.config
        before = config.freezing
        config.freezing = True  # config.patch does the same in ten times as long
        try:
            with torch.no_grad():
                return self.compiled(*args, **kwargs)
        finally:
            config.freezing = before


def export(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    engine: Engine = "auto",
    objective: Objective = "latency",
    options: Options | Mapping[str, Any] | None = None,
) -> Exported:
    """Compile a model ahead of time for the signature of `args` and `kwargs`.

    The result is called like the model, without Dynamo's guards: it checks the shapes, strides,
    dtypes and devices of tensor arguments, whether PyTorch negates or conjugates them lazily, and
    the values of others by itself, and raises SignatureError for a call that differs. Weights are
    frozen unless `options` says otherwise; one that changes is frozen again. What else Python code
    reads of the model stays as it was. Nothing runs and nothing is updated at compile time. An ONNX
    file without `args` gets those that it declares. Raises CaptureError for a model that is not one
    graph, and what `vtc.compile` raises.
    """
    settings = _settings(engine, objective, _frozen_by_default(options))
    run = functools.partial(compile_graph, settings=settings)
    module, args, kwargs = imported_call(model, args, kwargs)
    return Exported(module, args, kwargs, run, freeze=settings.options.freeze)


def _frozen_by_default(options: Options | Mapping[str, Any] | None) -> Options:
    given = Options.of(options)
    return (
        given
        if isinstance(options, Options) or "freeze" in (options or {})
        else given.replace(freeze=True)
    )


def compile_records(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    engine: Engine = "auto",
    objective: Objective = "latency",
    options: Options | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[GraphReport]:
    """Compile a model for one call and return a report of every graph that was captured.

    The call runs on private copies of its arguments, and leaves the model's own tensors as they
    are. Raises CaptureError when nothing was captured.
    """
    settings = _settings(engine, objective, options)
    settings = dataclasses.replace(settings, records=[], progress=progress or settings.progress)
    args, kwargs = copy.deepcopy((tuple(args), dict(kwargs)))

    def on_copies(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        compile_graph(graph_module, list(example_inputs), settings)
        lifted, constants = lift_attributes(graph_module)

        def run(*inputs: Any) -> Any:
            own = [a.clone() if isinstance(a, torch.Tensor) else a for a in (*inputs, *constants)]
            return lifted(*own)

        return run

    compiled: Callable[..., Any] = torch.compile(model, backend=on_copies)
    if engine == "dvm":
        compiled = dvm_compile.dynamic(model, on_copies)
    elif settings.options.freeze:
        compiled = _Frozen(compiled)
    with torch.no_grad():
        compiled(*args, **kwargs)
    if not settings.records:
        raise errors.CaptureError(name_of(model), "no part of it was captured")
    return list(settings.records)


# The pipeline.


def compile_graph(
    graph_module: fx.GraphModule, example_inputs: list[Any], settings: Settings
) -> Compiled:
    """One graph of Dynamo's -> a callable on its inputs.

    What cannot be captured or planned goes to stock TorchInductor whole, with one warning that
    names the cause.
    """
    if settings.engine == "dvm":
        return dvm_compile.compile_graph(graph_module, example_inputs, settings)
    started = time.perf_counter()
    scatter_into_copies(graph_module)
    without_idle_dropout(graph_module)
    with_plain_splits(graph_module)
    try:
        refuse_gradients(graph_module, example_inputs)
        refuse_subclasses(graph_module, example_inputs)
        refuse_negated(graph_module, example_inputs)
        program = capture(graph_module, example_inputs)
        refuse_offsets(program)
        inputs, program = separate(graph_module, example_inputs, program)
        capture_s = time.perf_counter() - started
        quick = rival(graph_module, inputs, settings) if inputs is example_inputs else None
        if quick is not None and (known := quick.wins()) is not None:
            if known:
                return _quick(quick, graph_module, settings)
            quick = None
        settings = settings.for_constants(program.constants)
        plan = prepare(program, settings)
        program = plan.program
        choice, schedule = choose(plan, settings)
        checked(schedule, plan, settings)
    except Unsuitable as finding:
        return finding.instead
    except errors.CaptureError as error:
        if not error.stock:
            return run_eagerly(graph_module, error.model, error.of_graph)
        return fall_back(graph_module, example_inputs, error.model, error.of_graph)
    except Exception as error:  # a bug of ours must not stop the user's model
        logger.debug("planning failed", exc_info=True)
        first_line = str(error).partition("\n")[0]
        cause = f"it cannot be planned ({type(error).__name__}: {first_line})"
        return fall_back(graph_module, example_inputs, "the graph", cause)

    parted = inputs is not example_inputs
    candidates = Candidates(quick, plan, choice, schedule, graph_module, inputs, parted, settings)
    run = candidates.fastest()
    if quick is not None and candidates.rival_kept:
        return _quick(quick, graph_module, settings, tuple(candidates.notes))
    if settings.records is not None:
        choice, schedule = candidates.kept_plan()
        times = Times(capture_s, time.perf_counter() - started - capture_s)
        number = len(settings.records)
        notes = (*plan.attentions, *candidates.notes)
        settings.records.append(record(number, plan, choice, schedule, times, notes))
    run = watched(run, candidates.again, graph_module, program, settings.options.freeze)
    return guarded(run, graph_module.forward, program, plan.weights)


def _quick(
    quick: Rival, graph_module: fx.GraphModule, settings: Settings, notes: tuple[str, ...] = ()
) -> Compiled:
    """The DVM's program, which is the fastest way to run the graph that is known."""
    if settings.records is not None:
        made = dvm_compile.record(
            len(settings.records), quick.captured, quick.plan, quick.capture_s, quick.compile_s
        )
        settings.records.append(dataclasses.replace(made, notes=(*made.notes, *notes)))
    return dvm_compile.checked(quick.run, graph_module, quick.captured)

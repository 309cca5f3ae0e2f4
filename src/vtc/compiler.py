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
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor.compile_fx import compile_fx

from vtc import errors, log
from vtc.graph.capture import capture, lift_attributes
from vtc.graph.program import Program, value_of
from vtc.kernels.operators import is_random
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.calls import transposed
from vtc.lowering.check import check
from vtc.lowering.homes import Unschedulable
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import Pricing, ProfiledCost
from vtc.lowering.record import Choice, Times, record
from vtc.lowering.schedule import Schedule
from vtc.options import ENGINES, Engine, Objective, Options, check_engine, check_objective
from vtc.runtime.calls import OverlapGuard, WeightWatch, apart, overlapping, sharing
from vtc.runtime.cuda_graph import CudaGraphs, capturable
from vtc.runtime.executable import Executable
from vtc.runtime.exported import Exported, name_of
from vtc.runtime.signature import readable, source_name
from vtc.virtual import cost as costs
from vtc.virtual import search
from vtc.virtual.record import GraphReport
from vtc.virtual.search import SearchResult

logger = logging.getLogger(__name__)

Compiled = Callable[..., Any]
EQUAL = 1.01
"""Of two that are as fast within this the plan is kept: it moves less and needs less memory."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What the caller asked for.

    `records` receives a report of every captured graph; `progress` is called with a line of text
    as the compilation goes on.
    """

    objective: Objective = "latency"
    options: Options = field(default_factory=Options.from_env)
    records: list[GraphReport] | None = None
    progress: Progress = logger.info


# The ways in.


def compile(
    model: Callable[..., Any],
    *,
    engine: Engine = "auto",
    objective: Objective = "latency",
    dynamic: bool | None = None,
    options: Options | Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a model or function for inference; call the result like the model.

    engine: "inductor", or "auto" to let vtc choose. objective: what a plan is chosen by: "latency"
    (measured), "memory" (peak bytes) or "bytes" (traffic). dynamic: as for `torch.compile`.
    options: `vtc.Options`, or a mapping of its fields.

    The model runs under `torch.no_grad()` or `torch.inference_mode()` as its caller does; a call
    that records gradients is compiled by stock TorchInductor, with one warning. Raises
    UnknownChoiceError, EngineUnavailableError and UnsupportedTorchError.
    """
    settings = _settings(engine, objective, options)
    compiled = torch.compile(model, backend=Backend(settings), dynamic=dynamic)
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
        available = [e for e in ENGINES if e != "dvm"]
        raise errors.EngineUnavailableError(engine, "it is not part of this version", available)
    release = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if release < (2, 11):
        raise errors.UnsupportedTorchError(torch.__version__)
    chosen = Options.of(options)
    log.set_level(chosen.log_level)
    return Settings(objective, chosen)  # type: ignore[arg-type]


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
        with torch._inductor.config.patch(freezing=True), torch.no_grad():
            return self.compiled(*args, **kwargs)


def export(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    engine: Engine = "auto",
    objective: Objective = "latency",
    options: Options | Mapping[str, Any] | None = None,
) -> Exported:
    """Compile a model ahead of time for the signature of `args` and `kwargs`.

    The result is called like the model, without Dynamo's guards: it checks the shapes, strides,
    dtypes and devices of tensor arguments and the values of others by itself, and raises
    SignatureError for a call that differs. Weights are frozen unless `options` says otherwise; one
    that changes is frozen again. What else Python code reads of the model stays as it was. Nothing
    runs and nothing is updated at compile time. Raises CaptureError for a model that is not one
    graph.
    """
    settings = _settings(engine, objective, _frozen_by_default(options))
    run = functools.partial(compile_graph, settings=settings)
    freeze = settings.options.freeze
    return Exported(model, tuple(args), dict(kwargs or {}), run, freeze=freeze)


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
    if settings.options.freeze:
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
    fall_back = functools.partial(_fall_back, graph_module, example_inputs)
    tensors = [*example_inputs, *graph_module.parameters(), *graph_module.buffers()]
    if torch.is_grad_enabled() and any(map(_requires_grad, tensors)):
        return fall_back("a graph that records gradients", "vtc compiles inference")
    started = time.perf_counter()
    try:
        program = capture(graph_module, example_inputs)
    except errors.CaptureError as error:
        return fall_back(error.model, error.reason)
    capture_s = time.perf_counter() - started
    updated = [i for i, _ in program.updates]
    compile_inputs = example_inputs
    if sharing([*example_inputs, *program.constants], updated):
        overlap = overlapping([*example_inputs, *program.constants], updated)
        if overlap:
            _warn("the graph", "arguments overlap and one of them is updated", "eager PyTorch")
        separate = apart(example_inputs)
        if program.symbolic or sharing([*separate, *program.constants], updated):
            reason = "arguments share storage and one of them is updated"
            return graph_module.forward if overlap else fall_back("the graph", reason)
        example_inputs = separate
        # For calls whose arguments do not overlap; the rest are told apart at each call.
        compile_inputs = _fakes_of(example_inputs, program)
        program = capture(graph_module, compile_inputs)
    settings = _freezable(settings, program)

    try:
        plan = Plan.of(program)
        plan = dataclasses.replace(plan, transposed=faster_calls(plan, settings))
        chosen = choose(plan, settings)
        chosen, schedule = scheduled(plan, chosen)
        check(schedule, program)
    except Exception as error:  # a bug of ours must not stop the user's model
        logger.debug("planning failed", exc_info=True)
        first = str(error).partition("\n")[0]
        reason = f"it cannot be planned ({type(error).__name__}: {first})"
        return fall_back("the graph", reason)
    notes: list[str] = []
    planned = functools.partial(executable, schedule, program, settings.options)
    stock = functools.partial(_stock, graph_module, freeze=settings.options.freeze)
    fakes = [value_of(n) for n in program.inputs[: len(example_inputs)]]
    finish = functools.partial(captured, plan, fakes, settings.options)
    run, kept = fastest(
        planned,
        functools.partial(stock, compile_inputs),
        finish,
        not chosen.strategy and not plan.transposed,
        example_inputs,
        updated,
        settings,
        notes,
    )
    if program.constants:
        again = planned if kept == "plan" else functools.partial(_in_a_trace, stock, fakes)
        run = _watched(run, lambda: finish(again()), graph_module, program, settings.options)
    if settings.records is not None:
        compile_s = time.perf_counter() - started - capture_s
        times = Times(capture_s, compile_s)
        if kept == "stock":
            chosen, schedule = scheduled(plan, chosen.without_virtual_tensors())
        settings.records.append(record(len(settings.records), plan, chosen, schedule, times, notes))
    if not updated:
        return run
    return OverlapGuard(
        run,
        graph_module.forward,
        updated,
        plan.weights,
        len(example_inputs),
        program.constants,
    )


def faster_calls(plan: Plan, settings: Settings) -> frozenset[str]:
    """The linear operators that are to be called another way than PyTorch calls them."""
    options = settings.options
    measured = settings.objective == "latency" and options.cost == "profile"
    if not measured or options.freeze or plan.program.symbolic or options.materializes("all"):
        return frozenset()
    return transposed(plan, ProfileCache(options.cache_dir, plan.device), settings.progress)


def choose(plan: Plan, settings: Settings) -> Choice:
    """The strategy that the search finds best for the objective."""
    options = settings.options
    _warn_of_unknown(options.materialize - {"all"}, plan)
    model = costs.GPU if plan.device.type == "cuda" else costs.CPU
    static = costs.StaticCost(plan.graph, plan.vtog, plan.engine, model, settings.objective)
    # The order of random operators is part of their meaning, so that they stay in one step.
    if options.materializes("all") or any(map(is_random, plan.program.nodes)):
        base = static.cost(NOTHING)
        return Choice(SearchResult(NOTHING, base, base, 1, 0.0), static, settings.objective)
    pricing = Pricing(plan, static, options)
    if settings.objective == "latency" and options.cost == "profile" and not plan.program.symbolic:
        cache = ProfileCache(options.cache_dir, plan.device)
        pricing = ProfiledCost(plan, static, options, cache, settings.progress)
    found = search.greedy(
        plan.graph, plan.vtog, plan.engine, pricing, budget_s=options.profile_budget_s
    )
    if options.search == "exhaustive":
        best = search.exhaustive(
            plan.graph, plan.vtog, plan.engine, pricing, max_choices=options.max_exhaustive
        )
        found = dataclasses.replace(best, gap=search.optimality_gap(found.cost, best.cost))
    if settings.objective == "latency" and found.base_cost - found.cost < options.min_gain_us:
        found = dataclasses.replace(found, strategy=NOTHING, cost=found.base_cost)
    return Choice(found, static, settings.objective, pricing.profiles, pricing.cache_hits)


def _warn_of_unknown(names: Iterable[str], plan: Plan) -> None:
    """Say which names of `materialize` this graph does not have."""
    virtual = {e.tensor for e in plan.vtog.edges}
    known = [*virtual, *(r.name for r in plan.grouping.regions if r.name not in virtual)]
    for name in names:
        if name not in known:
            text = str(errors.UnknownTensorError(name, sorted(known)))
            warnings.warn(errors.VtcWarning(text), stacklevel=3)


def scheduled(plan: Plan, chosen: Choice) -> tuple[Choice, Schedule]:
    """The schedule of a choice; of the empty strategy where no steps can carry the choice out."""
    try:
        return chosen, plan.schedule(chosen.strategy)
    except Unschedulable as reason:
        logger.info("nothing is virtual: %s", reason)
        return chosen.without_virtual_tensors(), plan.schedule(NOTHING)


def executable(schedule: Schedule, program: Program, options: Options) -> Compiled:
    """Implement every step; the arena and the steps as one function of the graph's inputs."""
    steps = [implement(step, program, freeze=options.freeze) for step in schedule.steps]
    passed = len(program.inputs) - len(program.constants)
    return Executable(schedule, steps, passed, program.constants)


def captured(plan: Plan, example_inputs: list[Any], options: Options, run: Compiled) -> Compiled:
    """On CUDA, `run` replayed as one CUDA graph."""
    if plan.program.symbolic or not options.cuda_graphs or not capturable(example_inputs):
        return run
    passed = len(example_inputs)
    updated = [i for i, _ in plan.program.updates if i < passed]
    return CudaGraphs(run, [i for i in plan.weights if i < passed], updated)


def fastest(
    run: Callable[[], Compiled],
    stock: Callable[[], Compiled],
    finish: Callable[[Compiled], Compiled],
    stock_is_the_plan: bool,
    arguments: list[Any],
    updated: list[int],
    settings: Settings,
    notes: list[str],
) -> tuple[Compiled, Literal["plan", "stock"]]:
    """Time the plan whole against stock TorchInductor on the arguments at hand; keep the faster.

    Where nothing is virtual and every kernel is called as PyTorch calls it, the plan is stock
    TorchInductor, and there is nothing to time. A plan for memory or bytes is kept whatever its
    latency.
    """
    if stock_is_the_plan:
        return finish(stock()), "stock"
    ours = finish(run())
    options = settings.options
    private = all(i < len(arguments) for i in updated)  # else timing would update the model itself
    if settings.objective != "latency" or not options.verify or not private:
        return ours, "plan"
    settings.progress("compiling stock TorchInductor to compare")
    theirs = finish(stock())
    concrete = [a.node.hint if isinstance(a, torch.SymInt) else a for a in arguments]
    ours_us, theirs_us = timing.interleaved([ours, theirs], concrete, updated)
    notes.append(f"whole graph: {ours_us:.1f} us, stock TorchInductor {theirs_us:.1f} us")
    if ours_us <= theirs_us * EQUAL:
        return ours, "plan"
    notes.append("stock TorchInductor is faster and is kept")
    return theirs, "stock"


def _stock(graph_module: fx.GraphModule, inputs: Sequence[Any], *, freeze: bool) -> Compiled:
    """What `torch.compile` does with the graph, in the trace that Dynamo has going."""
    with torch._inductor.config.patch(freezing=freeze):
        compiled: Compiled = compile_fx(graph_module, list(inputs))
    return compiled


def _in_a_trace(compile_stock: Callable[[Sequence[Any]], Compiled], fakes: list[Any]) -> Compiled:
    """Compile again after Dynamo's trace is over."""
    with torch.no_grad(), tracing(TracingContext(detect_fake_mode(fakes))):
        return compile_stock(fakes)


def _fall_back(
    graph_module: fx.GraphModule, example_inputs: list[Any], what: str, reason: str
) -> Compiled:
    _warn(what, reason, "stock TorchInductor")
    return _stock(graph_module, example_inputs, freeze=False)


def _warn(what: str, reason: str, instead: str) -> None:
    warnings.warn(errors.FallbackWarning(what, reason, instead), stacklevel=4)


def _fakes_of(inputs: Sequence[Any], program: Program) -> list[Any]:
    """Fake tensors like `inputs`, each in a storage of its own."""
    mode = detect_fake_mode([value_of(n) for n in program.inputs])
    with mode:
        return [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
            if isinstance(a, torch.Tensor)
            else a
            for a in inputs
        ]


def _freezable(settings: Settings, program: Program) -> Settings:
    """Without `freeze` where a change of a weight could not be seen: inference tensors do not count
    their versions."""
    if not any(c.is_inference() for c in program.constants):
        return settings
    return dataclasses.replace(settings, options=settings.options.replace(freeze=False))


def _watched(
    run: Compiled,
    renew: Callable[[], Compiled],
    graph_module: fx.GraphModule,
    program: Program,
    options: Options,
) -> Compiled:
    """`run`, compiled again when a weight that it holds has changed."""
    first = len(program.inputs) - len(program.constants)
    attributes = dict.fromkeys(n.target for n in graph_module.graph.find_nodes(op="get_attr"))
    sources = getattr(graph_module, "_param_name_to_source", None) or {}
    names = [readable(source_name(sources.get(a))) or str(a) for a in attributes]
    updated = {i - first for i, _ in program.updates}
    folded = [k for k in range(len(names)) if options.freeze and k not in updated]
    if not names:  # the constants are literals of the model's code
        return run
    return WeightWatch(run, renew, names, program.constants[: len(names)], folded)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad

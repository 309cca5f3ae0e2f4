"""The pipeline, read top to bottom: `compile_graph`. Around it, the ways in: `compile`, `export`,
and `backend` for `torch.compile(model, backend="vtc")`.

Dynamo's graph -> capture -> grouping -> opportunity graph -> search -> schedule -> check ->
implementations -> executable, timed whole against stock TorchInductor.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx

from vtc import errors, log
from vtc.graph.capture import capture
from vtc.graph.program import Program
from vtc.kernels.operators import is_random
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.check import check
from vtc.lowering.implement import implement
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import Pricing, ProfiledCost
from vtc.lowering.record import Choice, Times, record
from vtc.lowering.schedule import Schedule
from vtc.options import ENGINES, Engine, Objective, Options, check_engine, check_objective
from vtc.runtime.calls import FrozenWeights, OverlapGuard, overlapping
from vtc.runtime.executable import Executable
from vtc.runtime.signature import Signature
from vtc.virtual import cost as costs
from vtc.virtual import search
from vtc.virtual.record import GraphReport
from vtc.virtual.search import SearchResult

logger = logging.getLogger(__name__)

Compiled = Callable[..., Any]
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
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Compiled:
    """The `torch_dynamo_backends` entry point: `torch.compile(model, backend="vtc")`.

    `options` takes the fields of `vtc.Options` and "objective".
    """
    given = dict(options or {})
    objective = given.pop("objective", "latency")
    return Backend(_settings("auto", objective, given))(graph_module, example_inputs)


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
    """A model compiled with `freeze`: Dynamo leaves its weights as attributes of the graph."""

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled
        functools.update_wrapper(self, compiled, updated=())

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

    The result is called like the model, without Dynamo's guards: it checks the shapes, dtypes and
    devices of tensor arguments by itself, and raises SignatureError for others. Weights are frozen
    unless `options` says otherwise. Nothing runs and nothing is updated at compile time. Raises
    CaptureError for a model that is not one graph.
    """
    settings = _settings(engine, objective, _frozen_by_default(options))
    return Exported(model, tuple(args), dict(kwargs or {}), settings)


class Exported:
    """A model compiled for one signature."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Settings,
    ) -> None:
        self.signature = Signature(args, kwargs)
        self.graphs: list[_Deferred] = []
        compiled = torch.compile(
            model,
            backend=self._defer(settings),
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        self.call = _Frozen(compiled) if settings.options.freeze else compiled
        try:
            with torch.no_grad():
                self.call(*args, **kwargs)  # compiles; the graph itself answers with blanks
        except torch._dynamo.exc.Unsupported as error:
            reason = str(error).strip().splitlines()[0]
            raise errors.CaptureError(
                getattr(model, "__name__", type(model).__name__), reason
            ) from error
        for graph in self.graphs:
            graph.armed = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.signature.check(args, kwargs)
        with torch.no_grad():
            return self.call(*args, **kwargs)

    def _defer(self, settings: Settings) -> Callable[..., Compiled]:
        def compile_deferred(
            graph_module: fx.GraphModule, example_inputs: Sequence[Any], **_: Any
        ) -> Compiled:
            run = compile_graph(graph_module, list(example_inputs), settings)
            self.graphs.append(_Deferred(run, graph_module))
            return self.graphs[-1]

        return compile_deferred


class _Deferred:
    """A compiled graph that first answers with blank outputs, so that compiling runs nothing."""

    def __init__(self, run: Compiled, graph_module: fx.GraphModule) -> None:
        self.run, self.armed = run, False
        (output,) = (n for n in graph_module.graph.nodes if n.op == "output")
        self.blank = [_blank(n) for n in output.args[0]]

    def __call__(self, *args: Any) -> Any:
        return self.run(*args) if self.armed else self.blank


def _blank(node: Any) -> Any:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else node
    if not isinstance(value, torch.Tensor):
        return value
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )


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

    The call runs on private copies of what it updates. Raises CaptureError when nothing was
    captured.
    """
    settings = _settings(engine, objective, options)
    settings = dataclasses.replace(settings, records=[], progress=progress or settings.progress)

    def on_copies(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        compile_graph(graph_module, list(example_inputs), settings)

        def run(*inputs: Any) -> Any:
            return graph_module(*(a.clone() if isinstance(a, torch.Tensor) else a for a in inputs))

        return run

    compiled: Callable[..., Any] = torch.compile(model, backend=on_copies)
    if settings.options.freeze:
        compiled = _Frozen(compiled)
    with torch.no_grad():
        compiled(*args, **kwargs)
    if not settings.records:
        name = getattr(model, "__name__", type(model).__name__)
        raise errors.CaptureError(name, "no part of it was captured")
    return list(settings.records)


# The pipeline.


def compile_graph(
    graph_module: fx.GraphModule, example_inputs: list[Any], settings: Settings
) -> Compiled:
    """One graph of Dynamo's -> a callable on its inputs.

    What cannot be captured or planned goes to stock TorchInductor whole, with one warning that
    names the cause.
    """
    stock = functools.partial(_stock, graph_module, example_inputs, settings.options)
    if torch.is_grad_enabled() and any(_requires_grad(a) for a in example_inputs):
        return _fall_back(stock, "a graph that records gradients", "vtc compiles inference")
    started = time.perf_counter()
    try:
        program = capture(graph_module, example_inputs)
    except errors.CaptureError as error:
        return _fall_back(stock, error.model, error.reason)
    capture_s = time.perf_counter() - started
    updated = [i for i, _ in program.updates]
    if overlapping([*example_inputs, *program.constants], updated):
        return _fall_back(stock, "the graph", "arguments overlap and one of them is updated")

    plan = Plan.of(program)
    chosen = choose(plan, settings)
    schedule = plan.schedule(chosen.strategy)
    check(schedule, program)
    notes: list[str] = []

    def build() -> Compiled:
        run = executable(schedule, program, settings.options)
        arguments = [*example_inputs, *program.constants]
        return fastest(run, stock, chosen, arguments, updated, settings, notes)

    run = FrozenWeights(program.constants, build) if program.constants else build()
    if settings.records is not None:
        compile_s = time.perf_counter() - started - capture_s
        times = Times(capture_s, compile_s)
        settings.records.append(record(len(settings.records), plan, chosen, schedule, times, notes))
    if not updated:
        return run
    return OverlapGuard(run, graph_module.forward, updated, plan.weights, len(example_inputs))


def choose(plan: Plan, settings: Settings) -> Choice:
    """The strategy that the search finds best for the objective."""
    options = settings.options
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
    found = search.greedy(plan.graph, plan.vtog, plan.engine, pricing)
    if options.search == "exhaustive":
        best = search.exhaustive(
            plan.graph, plan.vtog, plan.engine, pricing, max_choices=options.max_exhaustive
        )
        found = dataclasses.replace(best, gap=search.optimality_gap(found.cost, best.cost))
    if settings.objective == "latency" and found.base_cost - found.cost < options.min_gain_us:
        found = dataclasses.replace(found, strategy=NOTHING, cost=found.base_cost)
    return Choice(found, static, settings.objective, pricing.profiles, pricing.cache_hits)


def executable(schedule: Schedule, program: Program, options: Options) -> Compiled:
    """Implement every step; the arena and the steps as one function of the graph's inputs."""
    steps = [implement(step, program, freeze=options.freeze) for step in schedule.steps]
    passed = len(program.inputs) - len(program.constants)
    return Executable(schedule, steps, passed, program.constants)


def fastest(
    run: Compiled,
    stock: Callable[[], Compiled],
    chosen: Choice,
    arguments: list[Any],
    updated: list[int],
    settings: Settings,
    notes: list[str],
) -> Compiled:
    """Time the plan whole against stock TorchInductor on the arguments at hand; keep the faster.

    With nothing virtual the plan is stock TorchInductor, and there is nothing to time. A plan for
    memory or bytes is kept whatever its latency.
    """
    if not chosen.strategy:
        return stock()
    if settings.objective != "latency" or not settings.options.verify:
        return run
    settings.progress("compiling stock TorchInductor to compare")
    other = stock()
    ours, theirs = timing.interleaved([run, other], arguments, updated)
    notes.append(f"whole graph: {ours:.1f} us, stock TorchInductor {theirs:.1f} us")
    if ours <= theirs:
        return run
    notes.append("stock TorchInductor is faster and is kept")
    return other


def _stock(graph_module: fx.GraphModule, example_inputs: list[Any], options: Options) -> Compiled:
    """What `torch.compile` does with the graph, in the trace that Dynamo has going."""
    with torch._inductor.config.patch(freezing=options.freeze):
        compiled: Compiled = compile_fx(graph_module, example_inputs)
    return compiled


def _fall_back(stock: Callable[[], Compiled], what: str, reason: str) -> Compiled:
    warnings.warn(errors.FallbackWarning(what, reason, "stock TorchInductor"), stacklevel=3)
    return stock()


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad

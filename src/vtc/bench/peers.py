"""The systems that `vtc bench` compares, each prepared on a twin of the same case.

A peer gets the case and gives a `Prepared`: a call without arguments that runs the model once on
the twin's inputs, and what it cost to get there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import compilation_time_metrics

import vtc
from vtc.bench import exported
from vtc.bench.case import Case
from vtc.bench.narration import narrated
from vtc.bench.timing import Effort, Progress, Timed, clock_of, interleave, silent, spread
from vtc.errors import UnknownChoiceError
from vtc.options import Engine, Objective
from vtc.runtime.cuda_graph import launched_directly

PEERS = ("eager", "inductor", "inductor-best", "onnxruntime", "openvino", "vtc-export")
SYSTEMS = ("vtc", *PEERS)


@dataclass(frozen=True)
class Settings:
    """How the systems compile. max_autotune, and variants, the stock variants of the model that are
    tried (all by default), concern inductor-best alone."""

    engine: Engine = "auto"
    objective: Objective = "latency"
    freeze: bool = False
    max_autotune: bool = False
    variants: tuple[str, ...] = ()


@dataclass
class Prepared:
    """A system that is ready to be timed.

    run: what is timed; on CUDA a replay of a captured graph where one could be captured, captured
    in the same way for every system. direct: the same without that graph. in_torch: PyTorch's
    profiler sees its work. capture_s, compile_s: see `records.Row`. engine: the variant that runs.
    """

    system: str
    case: Case
    run: Callable[[], Any]
    direct: Callable[[], Any]
    first_call_s: float | None = None
    capture_s: float | None = None
    compile_s: float | None = None
    engine: str | None = None
    note: str | None = None
    in_torch: bool = True
    keep: list[Any] = field(default_factory=list)

    def once(self) -> None:
        """A call whose kernels are launched one by one, for the profiler."""
        with launched_directly():
            self.direct()

    def timed(self) -> Timed:
        return Timed(self.run, self.case.reset)


class Unsupported(Exception):  # noqa: N818 - not an error: the row says it
    """This system cannot run this case; the message says why."""


def check_systems(names: Sequence[str]) -> tuple[str, ...]:
    """The peers named. Raises `UnknownChoiceError` for one that there is not."""
    for name in names:
        if name not in PEERS:
            raise UnknownChoiceError("peer", name, PEERS)
    return tuple(dict.fromkeys(names))


def prepare(system: str, case: Case, settings: Settings, progress: Progress = silent) -> Prepared:
    """A system ready to run on a twin of the case.

    Raises `Unsupported`, and whatever the system itself raises.
    """
    progress(f"{system}: preparing")
    prepared = _PREPARE[system](case, settings, progress)
    _replay_a_graph(prepared)
    return prepared


def _eager(case: Case, settings: Settings, progress: Progress) -> Prepared:
    twin = case.twin()
    run, first = _first_call(twin, twin.call)
    return Prepared("eager", twin, run, run, first_call_s=first)


def _vtc(case: Case, settings: Settings, progress: Progress) -> Prepared:
    twin = case.twin()
    with narrated(progress) as options:
        compiled = vtc.compile(
            twin.model,
            engine=settings.engine,
            objective=settings.objective,
            options={"freeze": settings.freeze, **options},
        )
        prepared = _compiled("vtc", twin, compiled)
    prepared.engine = settings.engine
    return prepared


def _vtc_export(case: Case, settings: Settings, progress: Progress) -> Prepared:
    """The model exported for this one call, which like a session of ONNX Runtime's has no guards of
    Dynamo's. Its weights are frozen, as `vtc.export` does by itself."""
    twin = case.twin()
    with narrated(progress) as options:
        start = time.perf_counter()
        exported_model = vtc.export(
            twin.model,
            twin.args,
            twin.kwargs,
            engine=settings.engine,
            objective=settings.objective,
            options=dict(options),
        )
        compiled = time.perf_counter() - start
        prepared = _compiled("vtc-export", twin, exported_model)
    assert prepared.first_call_s is not None
    prepared.first_call_s += compiled
    prepared.capture_s, prepared.compile_s = None, compiled
    prepared.engine = settings.engine
    return prepared


def _inductor(case: Case, settings: Settings, progress: Progress) -> Prepared:
    twin = case.twin()
    return _compiled("inductor", twin, torch.compile(twin.model))


def _inductor_best(case: Case, settings: Settings, progress: Progress) -> Prepared:
    """The fastest of the model's stock variants, with freezing and max-autotune where asked."""
    options = {
        name: True
        for name, asked in (("freezing", settings.freeze), ("max_autotune", settings.max_autotune))
        if asked
    }
    if not case.best and not options:
        raise Unsupported(
            "no stock variant of this model differs from inductor; freezing and max-autotune are "
            "compared when they are asked for"
        )
    candidates: dict[str, Prepared] = {}
    failed: list[str] = []
    plain = ("",) if options or not case.best else ()
    tried = [name for name in case.best if not settings.variants or name in settings.variants]
    for name in (*plain, *tried):
        progress(f"inductor-best: compiling {name or ', '.join(options)}")
        twin = case.twin(case.best[name] if name else None)
        compiled = (
            torch.compile(twin.model, options=dict(options))
            if options
            else torch.compile(twin.model)
        )
        try:
            with torch._inductor.config.patch(options):  # Dynamo reads `freezing` too
                prepared = _compiled("inductor-best", twin, compiled)
        except Exception as error:  # a variant that stock cannot compile is not its best one
            failed.append(f"{name or 'the model as it is'}: {_short(error)}")
            continue
        prepared.engine = ", ".join(filter(None, (name, *options)))
        _replay_a_graph(prepared)  # variants compare as they are timed: without the host's share
        candidates[name] = prepared
    if not candidates:
        raise Unsupported("; ".join(failed))
    best = _fastest(candidates, case.device)
    if failed:
        best.note = "; ".join(filter(None, (best.note, "not compiled: " + "; ".join(failed))))
    return best


def _fastest(candidates: dict[str, Prepared], device: torch.device) -> Prepared:
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    effort = Effort(seconds=2.0, min_rounds=5, max_rounds=20, warm_up=2)
    systems = {name: prepared.timed() for name, prepared in candidates.items()}
    times = interleave(systems, clock_of(device), effort)
    return candidates[min(times, key=lambda name: spread(times[name]).median_ms)]


def _onnxruntime(case: Case, settings: Settings, progress: Progress) -> Prepared:
    if case.device.type == "cuda":
        return _exported("onnxruntime", exported.onnxruntime_cuda, case, progress)
    _only_on_cpu("onnxruntime", case)
    return _exported("onnxruntime", exported.onnxruntime_session, case, progress)


def _openvino(case: Case, settings: Settings, progress: Progress) -> Prepared:
    _only_on_cpu("openvino", case)
    return _exported("openvino", exported.openvino_request, case, progress)


def _only_on_cpu(system: str, case: Case) -> None:
    if case.device.type != "cpu" or case.dtype != torch.float32:
        raise Unsupported(f"{system} is compared on a CPU in float32")


def _exported(
    system: str, load: Callable[[Any, Case], Callable[[], Any]], case: Case, progress: Progress
) -> Prepared:
    if case.updated():
        raise Unsupported(
            "the model updates its inputs in place, which an exported ONNX graph cannot: the "
            "caches would be copied in each call"
        )
    twin = case.twin()
    progress(f"{system}: exporting to ONNX")
    start = time.perf_counter()
    try:
        model = exported.to_onnx(twin)
    except exported.ExportError as error:
        raise Unsupported(str(error)) from error
    captured = time.perf_counter()
    progress(f"{system}: loading")
    try:
        run = load(model, twin)
    except exported.ExportError as error:
        raise Unsupported(str(error)) from error
    loaded = time.perf_counter()
    run()
    return Prepared(
        system,
        twin,
        run,
        run,
        first_call_s=time.perf_counter() - start,
        capture_s=captured - start,
        compile_s=loaded - captured,
        engine=case.device.type.upper(),
        in_torch=False,
    )


_PREPARE: dict[str, Callable[[Case, Settings, Progress], Prepared]] = {
    "vtc": _vtc,
    "eager": _eager,
    "inductor": _inductor,
    "inductor-best": _inductor_best,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "vtc-export": _vtc_export,
}


def _compiled(system: str, twin: Case, compiled: Callable[..., Any]) -> Prepared:
    """Compile in the first call, and take apart what it cost.

    Dynamo times each frame that it compiles, and within it the call of the backend: what is left
    is capture.
    """

    def run() -> Any:
        return compiled(*twin.args, **twin.kwargs)

    before = _dynamo_seconds()
    run, first = _first_call(twin, run)
    frame, backend = (b - a for a, b in zip(before, _dynamo_seconds(), strict=True))
    known = frame > 0
    return Prepared(
        system,
        twin,
        run,
        run,
        first_call_s=first,
        capture_s=frame - backend if known else None,
        compile_s=backend if known else None,
        keep=[compiled],
    )


def _dynamo_seconds() -> tuple[float, float]:
    """Seconds that Dynamo has spent on frames, and in backends, in this process."""
    return (
        sum(compilation_time_metrics.get("_compile.compile_inner", ())),
        sum(compilation_time_metrics.get("OutputGraph.call_user_compiler", ())),
    )


def _first_call(twin: Case, run: Callable[[], Any]) -> tuple[Callable[[], Any], float]:
    twin.reset()
    start = time.perf_counter()
    run()
    if twin.device.type == "cuda":
        torch.cuda.synchronize(twin.device)
    seconds = time.perf_counter() - start
    twin.reset()
    return run, seconds


def _replay_a_graph(prepared: Prepared) -> None:
    """Replace `run`, once, by the replay of a CUDA graph, or say why there is none."""
    case, direct = prepared.case, prepared.direct
    captured = prepared.run is not direct
    if case.device.type != "cuda" or not prepared.in_torch or captured:
        return
    try:
        with torch.cuda.device(case.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries allocate their workspaces before capture
                for _ in range(3):
                    case.reset()
                    direct()
            torch.cuda.current_stream().wait_stream(side)
            case.reset()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = direct()
    except Exception as error:  # any operator may refuse; the system is then timed as it is
        torch.cuda.synchronize(case.device)
        prepared.note = f"timed without a CUDA graph: {_short(error)}"
        return
    finally:
        case.reset()

    def replay() -> Any:
        graph.replay()
        return output

    prepared.run = replay
    prepared.keep.append(graph)


def _short(error: BaseException) -> str:
    """The first line of an error, for a note."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextlib.contextmanager
def fresh_compiler() -> Iterator[None]:
    """Compile without what earlier cases taught Dynamo (that a size varies, for one)."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()

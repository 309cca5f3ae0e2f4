"""One case, start to end: prepare every system, time them in pairs, judge them, write the rows."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import vtc
from vtc.bench import observe
from vtc.bench.accuracy import Accuracy, Answer, answer, compare
from vtc.bench.case import Case
from vtc.bench.models import build
from vtc.bench.narration import narrated
from vtc.bench.peers import Prepared, Settings, Unsupported, check_systems, fresh_compiler, prepare
from vtc.bench.records import OWN_SYSTEM, CaseRecord, Config, Row
from vtc.bench.timing import (
    USUAL_EFFORT,
    Effort,
    Progress,
    Ratio,
    clock_of,
    interleave,
    paired_ratio,
    silent,
    spread,
)
from vtc.errors import EngineUnavailableError, MissingExtraError, UnknownChoiceError
from vtc.options import Search
from vtc.report import Report

# Another seed than the one that the case was built and compiled with: fresh inputs.
JUDGED_SEED = 1234


@dataclass(frozen=True)
class Request:
    """What to run: a model by name, and the sizes that `models.build` takes."""

    model: str
    batch: int = 1
    device: str = "cpu"
    dtype: str | None = None
    size: int | None = None
    layers: int | None = None
    context: int | None = None
    settings: Settings = field(default_factory=Settings)

    def build(self) -> Case:
        """The case. Raises what `models.build` raises."""
        return build(
            self.model,
            batch=self.batch,
            device=self.device,
            dtype=self.dtype,
            size=self.size,
            layers=self.layers,
            context=self.context,
        )

    def record(self, case: Case, rows: Sequence[Row | Mapping[str, Any]]) -> CaseRecord:
        """The rows with the model, its configuration, this machine's versions and the date."""
        return CaseRecord(
            model=self.model,
            batch=self.batch,
            device=self.device,
            config=Config(
                size=case.config["size"],
                layers=case.config["layers"],
                context=case.config["context"],
                dtype=case.config["dtype"],
                engine=self.settings.engine,
                objective=self.settings.objective,
                freeze=self.settings.freeze,
            ),
            rows=rows,
        )


def bench(
    request: Request,
    peers: Sequence[str],
    effort: Effort = USUAL_EFFORT,
    progress: Progress = silent,
    kernels: dict[str, list[observe.Kernel]] | None = None,
) -> dict[str, Any]:
    """A bench case as its JSON object: vtc and the peers, timed and judged.

    kernels: receives the CUDA kernels of one call of each system.

    Raises `VtcError` for a request that cannot be built. A peer that cannot run the case has a row
    of nulls with a note; so has vtc where it fails, so that the peers' figures are not lost.
    """
    peers = check_systems(peers)
    progress(f"building {request.model}, batch {request.batch}")
    with torch.no_grad():
        case = request.build()
        with fresh_compiler():
            rows = _rows(case, (*peers, OWN_SYSTEM), request.settings, effort, progress, kernels)
        record = request.record(case, rows).to_dict()
    del case
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return record


def _rows(
    case: Case,
    systems: Sequence[str],
    settings: Settings,
    effort: Effort,
    progress: Progress,
    kernels: dict[str, list[observe.Kernel]] | None,
) -> list[Row]:
    # Ahead of the systems: a large model in float64 has no room beside them.
    eager, exact = _reference(case, progress)
    ready: dict[str, Prepared] = {}
    notes: dict[str, str] = {}
    for system in systems:
        try:
            ready[system] = prepare(system, case, settings, progress)
        except (EngineUnavailableError, UnknownChoiceError):
            raise  # the request cannot be met at all
        except (Unsupported, MissingExtraError) as error:
            notes[system] = str(error)
        except Exception as error:  # a peer may fail in any way; the others go on
            notes[system] = _failure(system, error)
    times = interleave(
        {name: prepared.timed() for name, prepared in ready.items()},
        clock_of(case.device),
        effort,
        progress,
    )
    observed = {name: _observe(prepared, progress) for name, prepared in ready.items()}
    if kernels is not None:
        kernels.update({name: _kernels(prepared) for name, prepared in ready.items()})
    judged: dict[str, Accuracy] = {}
    for name, prepared in ready.items():
        progress(f"{name}: checking its answer")
        judged[name] = compare(answer(prepared.case, prepared.run, JUDGED_SEED), eager, exact)
    own = times.get(OWN_SYSTEM)
    rows = []
    for system in systems:
        if system not in ready:
            rows.append(Row(system, note=notes[system]))
            continue
        prepared, accuracy = ready[system], judged[system]
        measured = spread(times[system])
        rows.append(
            Row(
                system,
                engine=prepared.engine,
                median_ms=measured.median_ms,
                p10_ms=measured.p10_ms,
                p90_ms=measured.p90_ms,
                capture_s=prepared.capture_s,
                compile_s=prepared.compile_s,
                first_call_s=prepared.first_call_s,
                max_rel_error=accuracy.max_rel_error,
                correct=accuracy.correct,
                ratio_to_vtc=_ratio(times[system], own),
                note=prepared.note,
                **observed[system],
            )
        )
    return rows


def _ratio(peer: list[float], own: list[float] | None) -> Ratio | None:
    return paired_ratio(peer, own) if own is not None and own is not peer else None


def _failure(system: str, error: BaseException) -> str:
    """One line for the row; the traceback goes to the log at level debug."""
    logging.getLogger(__name__).debug("%s failed", system, exc_info=error)
    # Dynamo wraps what a backend raises, and says so in the first line.
    cause = getattr(error, "inner_exception", error)
    lines = str(cause).strip().splitlines()
    return f"failed: {type(cause).__name__}: {lines[0][:200] if lines else 'no message'}"


def _observe(prepared: Prepared, progress: Progress) -> Mapping[str, Any]:
    """Movement kernels and peak memory of a call, where PyTorch's profiler sees them."""
    if not prepared.in_torch:
        return {}
    progress(f"{prepared.system}: profiling")
    case, device = prepared.case, prepared.case.device
    case.reset()
    prepared.once()
    case.reset()
    peak = observe.peak_bytes(prepared.once, device)
    kernels, milliseconds = observe.movement(prepared.once, device, case.reset)
    case.reset()
    return {"peak_bytes": peak, "movement_kernels": kernels, "movement_ms": milliseconds}


def _kernels(prepared: Prepared) -> list[observe.Kernel]:
    prepared.case.reset()
    found = observe.kernels(prepared.once, prepared.case.device) if prepared.in_torch else []
    prepared.case.reset()
    return found


def _reference(case: Case, progress: Progress) -> tuple[Answer, Answer]:
    """The answers of eager PyTorch and of a float64 copy on fresh inputs, to judge systems by."""
    native = case.twin()
    native.fresh_inputs(JUDGED_SEED)
    wide = torch.float64 if _fits(native, torch.float64) else torch.float32
    progress(f"computing the answer in {str(wide).removeprefix('torch.')}")
    # A copy of the rounded values: numbers drawn in float64 would be other ones.
    double = native.widened(wide)
    eager = answer(native, native.call, JUDGED_SEED)
    exact = answer(double, double.call, JUDGED_SEED, fresh=False)
    del native, double
    gc.collect()
    if case.device.type == "cuda":
        torch.cuda.empty_cache()
    return eager, exact


def _fits(case: Case, dtype: torch.dtype) -> bool:
    """Has the device room for a copy of a half-precision case in `dtype`, and for an answer? A
    model of billions of weights is judged against float32 where it has none."""
    if case.device.type != "cuda" or case.dtype not in (torch.float16, torch.bfloat16):
        return True
    model = case.model
    weights = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    caches = list(case.updated().values())
    held = sum(t.nbytes for t in (*weights, *caches, *caches))
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(case.device)
    return held * dtype.itemsize // case.dtype.itemsize < free * 0.8


def explain(
    request: Request, search: Search, progress: Progress = silent
) -> tuple[Report, dict[str, Any]]:
    """The report of `vtc.explain` on a case, and the case as its JSON object.

    Raises what `models.build` and `vtc.explain` raise.
    """
    progress(f"building {request.model}, batch {request.batch}")
    with torch.no_grad():
        case = request.build()
        case.reset()
        progress(f"compiling {request.model}: capture, search and profiles")
        with fresh_compiler(), narrated(progress) as options:
            report = vtc.explain(
                case.model,
                *case.args,
                search=search,
                objective=request.settings.objective,
                engine=request.settings.engine,
                options={"freeze": request.settings.freeze, **options},
                **case.kwargs,
            )
    report = replace(report, model=request.model, batch=request.batch, device=request.device)
    settings = {**report.settings, **{k: case.config[k] for k in ("size", "layers", "context")}}
    report = replace(report, settings=settings)
    return report, request.record(case, [report.to_dict()]).to_dict()

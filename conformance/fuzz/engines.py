"""The ways in which a case is compiled and run. Each returns what is wrong, or None."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args
from unittest.mock import patch

import torch
from cases import Case, seeded, traced
from judge import Judge, Run
from symbolic import Programs
from torch import fx

import vtc
from vtc import errors
from vtc.graph.capture import capture
from vtc.graph.program import Program
from vtc.lowering.check import check
from vtc.lowering.homes import Unschedulable
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.settings import Settings
from vtc.runtime import dvm_compile
from vtc.runtime.executable import Executable
from vtc.runtime.stock import Unsuitable, separate
from vtc.runtime.watch import guarded
from vtc.virtual.strategy import Strategy

EngineName = Literal["plan", "dvm", "both", "inductor", "dynamo"]
ENGINES: tuple[str, ...] = get_args(EngineName)
EXPECTED = (
    "share storage",
    "overlap and one",
    "no kernel for it",
    "higher-order",
    "broadcasts a size",
    "depends on data or bits",
    "internal overlap",
    "refers to a single memory location",
    "through windows",
    "as_strided() call",
    "DataDependentOutput",
    "Attempted to set the storage",
    "scan cannot be written",
    "Cannot view a tensor with shape",
    "takes a size of 0 or 1",
    "cannot be safely cast",
)
"""What a fallback may be for; any other reason is a fault of the compiler."""

Notes = Counter[str]
NOT_RUN = "not run"


class Fault(Exception):  # noqa: N818 - a finding
    """What is wrong, and what was run: a strategy, a plan, a schedule."""

    def __init__(self, what: str, details: str = "") -> None:
        super().__init__(what)
        self.details = details


class Warned(Fault):
    """An unexpected warning of a fallback; the results are right."""


class AsStock(Fault):
    """Stock TorchInductor goes wrong in the same way."""


def run(case: Case, engine: str, device: str, notes: Notes) -> None:
    """Raises Fault, or what the compiler raised, for a case that goes wrong."""
    seeded(case.seed, device)
    with full_precision():
        try:
            _judged(case, engine, device, notes)
        except Exception as error:
            if engine == "inductor" and fails_alike(case, device, error):
                raise AsStock(_told(error)) from error
            raise


def _judged(case: Case, engine: str, device: str, notes: Notes) -> None:
    try:
        judges = [Judge(case, world, device) for world in case.worlds]
        if device != "cpu":
            torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        # What fails on the device itself, as an assertion does, is no missing kernel.
        raise Fault(f"eager PyTorch: {error}") from error
    except RuntimeError:
        if device == "cpu":
            raise
        notes[NOT_RUN] += 1  # eager PyTorch has no kernel for it there
        return
    try:
        with quiet(notes), poisoned():
            _RUN[engine](case, judges, device, notes)
        if device != "cpu":
            torch.cuda.synchronize()  # what fails late is no fault of the next case
    except Exception:  # by shape functions of PyTorch's that are wrong anything may go wrong
        if not judges[0].misshapen:
            raise
        notes["a shape of PyTorch's is wrong"] += 1


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolutions of CUDA compute in float32, and not in TF32, which each algorithm rounds to
    otherwise."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@contextmanager
def quiet(notes: Notes) -> Iterator[None]:
    """Counts the warnings of expected fallbacks. Raises Warned for others."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield
    for warning in given:
        if issubclass(warning.category, errors.VtcWarning):
            text = str(warning.message)
            if not any(reason in text for reason in EXPECTED):
                raise Warned(f"a warning: {text}")
            notes[f"fallback: {text.partition(' runs')[0][:60]}"] += 1


@contextmanager
def poisoned() -> Iterator[None]:
    """Tensors that compiled code allocates hold nan, or odd numbers, until they are written."""
    empty_strided = torch.empty_strided

    def poison(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty_strided(*args, **kwargs)
        if made.dtype.is_floating_point:
            return made.fill_(float("nan"))
        return made if made.dtype.is_complex else made.fill_(77)

    with patch.object(torch, "empty_strided", poison):
        yield


# Capture, planning and rewriting; the steps run as eager PyTorch.


def plan(case: Case, judges: list[Judge], device: str, notes: Notes) -> None:
    (judge,) = judges
    graph_module, inputs = traced(case, case.args(0, device))
    try:
        program = capture(graph_module, inputs)
    except errors.CaptureError as error:
        _expected(error, judge, notes)
        return
    _planned(judge, graph_module, inputs, program, notes)


def _expected(error: errors.CaptureError, judge: Judge, notes: Notes) -> None:
    """Counts a graph that cannot be captured. Raises the error where it should be."""
    if any(reason in str(error) for reason in EXPECTED):
        notes["not captured"] += 1
    elif judge.misshapen:
        notes["not captured: a shape of PyTorch's is wrong"] += 1
    else:
        raise error


def _planned(
    judge: Judge, graph_module: fx.GraphModule, inputs: list[Any], program: Program, notes: Notes
) -> None:
    """The schedules of some strategies are right."""
    case, device = judge.case, judge.device
    try:
        parted, program = separate(graph_module, inputs, program)
    except errors.CaptureError as error:  # of arguments that share storage, as others
        _expected(error, judge, notes)
        return
    except Unsuitable:
        notes["unsuitable"] += 1
        return
    chosen = Plan.of(program)
    for strategy in strategies(chosen, case.seed):
        try:
            schedule = chosen.schedule(strategy)
        except Unschedulable:
            if not strategy:
                raise
            notes["unschedulable"] += 1
            continue
        try:
            check(schedule, program)
            steps = [(step.graph.forward, step) for step in schedule.steps]
            executable = Executable(schedule, steps, len(parted), program.constants)
            call = guarded(executable, graph_module.forward, program, chosen.weights)
            found = judge.fault(Run.of(_on_tensors(call), case.args(0, device)))
        except Exception as error:
            edges = [str(chosen.vtog.edges[k]) for k in sorted(strategy)]
            details = "\n".join([f"strategy: {edges}", str(program), str(schedule)])
            raise Fault(f"{type(error).__name__}: {error}", details) from error
        notes["strategies"] += 1
        if found is not None:
            edges = [str(chosen.vtog.edges[k]) for k in sorted(strategy)]
            raise Fault(found, "\n".join([f"strategy: {edges}", str(program), str(schedule)]))


def strategies(chosen: Plan, seed: int) -> Iterator[Strategy]:
    """Legal ones: none of the edges, as many loads or stores as there can be, and random ones."""
    edges = list(range(len(chosen.vtog.edges)))
    loads = {k for k in edges if chosen.vtog.edges[k].direction == "load"}
    seen = {NOTHING}
    yield NOTHING
    draw = random.Random(seed)
    for k in range(4):
        first = loads if k == 0 else set(edges) - loads
        draw.shuffle(edges)
        order = sorted(edges, key=lambda e: e not in first) if k < 2 else edges
        limit = len(edges) if k < 3 else draw.choice([1, 2, 3])
        strategy = NOTHING
        for edge in order:
            if len(strategy) < limit and chosen.checker.legal(strategy | {edge}).ok:
                strategy |= {edge}
        if strategy not in seen:
            seen.add(strategy)
            yield strategy


def _on_tensors(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` on each tensor once."""

    def run(*args: Any) -> Any:
        return call(*{id(a): a for a in args}.values())

    return run


# The DVM.


def dvm(case: Case, judges: list[Judge], device: str, notes: Notes) -> None:
    if case.symbolic:
        programs = Programs(case, device)
        for judge in judges:
            compiled = _on_tensors(programs.of(judge.world))
            _twice(judge, compiled, case, device, f"world {judge.world}", notes)
        notes["programs with symbols"] += programs.symbolic
        notes["cases that PyTorch traces no symbols of"] += not programs.symbolic
        notes["worlds run with known sizes"] += programs.others
        return
    (judge,) = judges
    graph_module, inputs = traced(case, case.args(0, device))
    _known_sizes(judge, graph_module, inputs, notes)


def _known_sizes(
    judge: Judge, graph_module: fx.GraphModule, inputs: list[Any], notes: Notes
) -> None:
    settings = Settings(engine="dvm", records=[])
    compiled = dvm_compile.compile_graph(graph_module, inputs, settings)
    details = settings.records[0].schedule if settings.records else ""
    _twice(judge, _on_tensors(compiled), judge.case, judge.device, details, notes)


def both(case: Case, judges: list[Judge], device: str, notes: Notes) -> None:
    """`dvm`, then `plan`, on one capture of a case of known sizes."""
    (judge,) = judges
    graph_module, inputs = traced(case, case.args(0, device))
    try:
        program = capture(graph_module, inputs, branches=True)
    except errors.CaptureError:
        program = None
    if program is None:
        dvm(case, judges, device, notes)
        plan(case, judges, device, notes)
        return
    with patch.object(dvm_compile, "capture", lambda *_, **__: program):
        _known_sizes(judge, graph_module, inputs, notes)
    _planned(judge, graph_module, inputs, program, notes)


def dynamo_dvm(case: Case, judges: list[Judge], device: str, notes: Notes) -> None:
    """Through Dynamo, for all sizes with one program."""
    torch._dynamo.reset()
    notes["through Dynamo"] += 1
    compiled = vtc.compile(case.function, engine="dvm", dynamic=None if case.symbolic else False)
    for judge in judges:
        _twice(judge, compiled, case, device, f"world {judge.world}", notes)


def _twice(
    judge: Judge,
    call: Callable[..., Any],
    case: Case,
    device: str,
    details: str,
    notes: Notes,
    stock: bool = False,
) -> None:
    """Two calls are right, and the second leaves the outputs of the first as they are."""
    first = Run.of(call, case.args(judge.world, device))
    second = Run.of(call, case.args(judge.world, device))
    for name, got in (("", first), ("the second call: ", second)):
        found = judge.fault(got, stock=stock, fused=True)
        if found is not None:
            raise Fault(f"{name}{found}", details)


# TorchInductor.


def inductor(case: Case, judges: list[Judge], device: str, notes: Notes) -> None:
    """All of it, with as much virtual as a plan for the fewest bytes has."""
    torch._dynamo.reset()
    compiled = vtc.compile(
        case.function,
        objective="bytes",
        dynamic=case.symbolic,
        options={"cost": "static", "verify": False},
    )
    for judge in judges:
        _twice(judge, compiled, case, device, f"world {judge.world}", notes, stock=True)


def fails_alike(case: Case, device: str, error: Exception) -> bool:
    """Does `torch.compile` without vtc give what is found wrong, to the number, or raise what it
    is, or what the fallback that is warned of is for?"""
    torch._dynamo.reset()
    compiled = torch.compile(case.function, dynamic=case.symbolic)
    try:
        for world in case.worlds:
            judge = Judge(case, world, device)
            _twice(judge, compiled, case, device, "", Counter(), stock=True)
    except Exception as theirs:
        if isinstance(error, Warned):
            return not isinstance(theirs, Fault) and _told(theirs) in _told(error)
        return _told(theirs) == _told(error)
    return False


def _told(error: Exception) -> str:
    """What a finding says: of an exception its type and first line."""
    if isinstance(error, Fault):
        return str(error)
    first_line, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first_line}"


_RUN: dict[str, Callable[[Case, list[Judge], str, Notes], None]] = {
    "plan": plan,
    "dvm": dvm,
    "both": both,
    "dynamo": dynamo_dvm,
    "inductor": inductor,
}

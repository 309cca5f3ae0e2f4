"""Running seeds in worker processes, so that one that ends its process is named."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
from cases import Case
from devices import on_device
from engines import NOT_RUN, AsStock, Fault, run
from generate import generate

CHUNK = {"plan": 50, "dvm": 20, "both": 20, "dynamo": 10, "inductor": 2}
"""Seeds that a process is given at a time."""
CHUNKS_OF_A_PROCESS = 60
LATE = 5
"""Seconds after the end of the time that processes have for the case that they are at."""
SECONDS = 150
"""The most time of its process that a case may take."""
ENDED = "eager PyTorch ends the process"
SYMBOLIC_SEEDS = 30_000
"""From this seed on the DVM takes only one in four of the cases with symbolic sizes that are drawn:
tracing one takes as long as six of known sizes."""
HANGS = 4 * SECONDS
"""After this long a process ends itself: native code hears no signal while it runs."""


@dataclass(frozen=True)
class Finding:
    """A case that went wrong; `as_stock`: stock TorchInductor does so too."""

    seed: int
    engine: str
    what: str
    details: str = ""
    as_stock: bool = False


@dataclass
class Outcome:
    """Sums over seeds; `seconds` of the processes together. `left` need another process. `as_stock`
    are the findings that stock TorchInductor gives too."""

    seeds: int = 0
    symbolic: int = 0
    statements: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    as_stock: list[Finding] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    @property
    def graphs(self) -> int:
        """The seeds whose cases were run."""
        return self.seeds - self.notes[NOT_RUN]

    def add(self, other: Outcome) -> None:
        self.seeds += other.seeds
        self.symbolic += other.symbolic
        self.statements += other.statements
        self.seconds += other.seconds
        self.kinds += other.kinds
        self.notes += other.notes
        self.findings += other.findings
        self.as_stock += other.as_stock


@dataclass(frozen=True)
class Task:
    """Which seeds to run, and how."""

    engine: str
    device: str
    statements: int | None = None
    dynamo_each: int = 0

    def case(self, seed: int) -> Case:
        """The seed's case. `plan` takes known sizes alone, the DVM more often from a seed on."""
        known = self.engine == "plan"
        known |= self.engine in ("dvm", "both") and seed >= SYMBOLIC_SEEDS and seed % 4 > 0
        case = generate(seed, symbolic=False if known else None, statements=self.statements)
        return case if self.device == "cpu" else on_device(case, self.device)

    def engines_of(self, case: Case) -> list[tuple[str, Case]]:
        """How a seed's case is run: engines and their cases; none where it cannot be."""
        if not case.outputs:
            return []  # eager PyTorch runs none of it on the device
        if self.engine in ("dvm", "both"):
            dynamo = bool(self.dynamo_each) and case.seed % self.dynamo_each == 0
            if self.engine == "both" and not (dynamo or case.symbolic):
                return [("both", case)]
            made = [("dynamo" if dynamo else "dvm", case)]
            if self.engine == "both":
                made.append(("plan", replace(self, engine="plan").case(case.seed)))
            return made
        return [(self.engine, case)]


def finding(task: Task, case: Case, notes: Counter[str]) -> Finding | None:
    """What goes wrong with a case, or None."""
    ways = task.engines_of(case)
    if not ways:
        notes[NOT_RUN] += 1
    for engine, own in ways:
        found = _finding(engine, own, task.device, notes)
        if found is not None:
            return found
    return None


def undrawn(task: Task, seed: int, error: Exception) -> Finding:
    """The finding that no case could be drawn for a seed: a fault of the fuzzer's own."""
    where = "".join(traceback.format_exception(error, limit=-4))
    return Finding(seed, task.engine, f"drawing it: {type(error).__name__}: {error}", where)


def _finding(engine: str, case: Case, device: str, notes: Counter[str]) -> Finding | None:
    try:
        with timed(SECONDS):
            run(case, engine, device, notes)
    except Fault as fault:
        stock = isinstance(fault, AsStock)
        return Finding(case.seed, engine, str(fault), fault.details, stock)
    except Exception as error:
        where = traceback.format_exc(limit=-4)
        return Finding(case.seed, engine, f"{type(error).__name__}: {error}", where)
    except TimeUp:
        return Finding(case.seed, engine, f"more than {SECONDS} s")
    return None


class TimeUp(BaseException):
    """No Exception: nothing that runs is to take it for one of its own."""


@contextmanager
def timed(seconds: int) -> Iterator[None]:
    """Raises TimeUp after so much time of this process, in its main thread."""

    def stop(*_: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_seeds(task: Task, seeds: Sequence[int], until: float = math.inf) -> Outcome:
    """The outcome of the seeds that are begun before `until`."""
    torch.set_num_threads(1)
    outcome, started = Outcome(), time.perf_counter()
    for k, seed in enumerate(seeds):
        if time.monotonic() > until:
            break
        outcome.seeds += 1
        try:
            case = task.case(seed)
        except torch.AcceleratorError:  # of eager PyTorch: the device is lost to this process
            outcome.notes.update([NOT_RUN, ENDED])
            outcome.left = list(seeds[k + 1 :])
            break
        except Exception as error:
            outcome.findings.append(undrawn(task, seed, error))
            continue
        outcome.symbolic += case.symbolic
        outcome.statements += len(case.statements)
        outcome.kinds.update(s.kind for s in case.statements)
        faulthandler.dump_traceback_later(HANGS, exit=True)
        found = finding(task, case, outcome.notes)
        faulthandler.cancel_dump_traceback_later()
        if found is not None:
            (outcome.as_stock if found.as_stock else outcome.findings).append(found)
            if task.device != "cpu" and "CUDA" in found.what:
                # After such an error nothing else runs on the device in this process.
                outcome.left = list(seeds[k + 1 :])
                break
    torch._dynamo.reset()
    outcome.seconds = time.perf_counter() - started
    return outcome


def run_all(
    task: Task, seeds: Sequence[int], jobs: int, until: float = math.inf
) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds, without gaps; no seed is begun after `until`, by
    `time.monotonic`, and processes that are not done soon after it are ended.

    A seed that ends its process is a finding.
    """
    size = CHUNK[task.engine] if task.device == "cpu" else 20
    chunks = [list(seeds[k : k + size]) for k in range(0, len(seeds), size)]
    order, found = deque(chunks), dict[int, Outcome]()
    for first, outcome in _run_chunks(task, deque(chunks), jobs, until):
        found[first] = outcome
        while order and order[0][0] in found:
            chunk = order.popleft()
            own = found.pop(chunk[0])
            yield own
            if own.seeds < len(chunk):
                return


def _run_chunks(
    task: Task, chunks: deque[list[int]], jobs: int, until: float
) -> Iterator[tuple[int, Outcome]]:
    """The first seed and the outcome of each chunk, as they come."""
    tasks = CHUNKS_OF_A_PROCESS if task.device == "cpu" else 1
    while chunks and time.monotonic() < until:
        waiting: dict[Future[Outcome], list[int]] = {}
        known: dict[int, Outcome] = {}
        try:
            with ProcessPoolExecutor(jobs, _processes(), max_tasks_per_child=tasks) as pool:
                while waiting or (chunks and time.monotonic() < until):
                    while chunks and len(waiting) < jobs and time.monotonic() < until:
                        chunk = chunks.popleft()
                        waiting[pool.submit(run_seeds, task, chunk, until)] = chunk
                    left = None if until == math.inf else max(0, until + LATE - time.monotonic())
                    done, _ = wait(waiting, left, return_when=FIRST_COMPLETED)
                    if not done:
                        for process in list(pool._processes.values()):
                            process.kill()
                        return
                    for future in done:
                        outcome = future.result()
                        chunk = waiting.pop(future)
                        known.setdefault(chunk[0], Outcome()).add(outcome)
                        if outcome.left:
                            rest = pool.submit(run_seeds, task, outcome.left, until)
                            waiting[rest] = chunk
                        else:
                            yield chunk[0], known.pop(chunk[0])
        except BrokenProcessPool:
            for chunk in waiting.values():
                yield chunk[0], _one_by_one(task, chunk, until)


def _processes() -> BaseContext:
    """Processes are forked from one that has imported what they need."""
    context = get_context("forkserver")
    # Importing PyTorch's compiler counts devices, after which a forked process can use none, unless
    # the driver's management library does the counting.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    own = str(Path(__file__).parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if own not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([own, *filter(None, paths)])
    context.set_forkserver_preload(["work"])
    return context


def _one_by_one(task: Task, seeds: Sequence[int], until: float = math.inf) -> Outcome:
    """Each seed by itself, a process for as long as it lives."""
    left, total = list(seeds), Outcome()
    while left and time.monotonic() < until:
        with ProcessPoolExecutor(1, mp_context=_processes()) as pool:
            try:
                while left and time.monotonic() < until:
                    total.add(pool.submit(run_seeds, task, left[:1]).result())
                    left.pop(0)
            except BrokenProcessPool:
                total.add(_ended(task, left.pop(0)))
    return total


def _ended(task: Task, seed: int) -> Outcome:
    """Of a seed that ends its process: no graph where eager PyTorch does, as the case is drawn."""
    with ProcessPoolExecutor(1, mp_context=_processes()) as pool:
        try:
            pool.submit(_drawn, task, seed).result()
        except BrokenProcessPool:
            return Outcome(seeds=1, notes=Counter({NOT_RUN: 1, ENDED: 1}))
    return Outcome(seeds=1, findings=[Finding(seed, task.engine, "the process ended")])


def _drawn(task: Task, seed: int) -> None:
    task.case(seed)


def run_apart(task: Task, case: Case) -> str | None:
    """What goes wrong with a case, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=_processes()) as pool:
        try:
            bare = replace(case)  # compiled code is no part of what is sent
            found = pool.submit(finding, task, bare, Counter()).result()
        except BrokenProcessPool:
            return "the process ended"
    return None if found is None else found.what

"""Running seeds in worker processes, so that one that ends its process is named."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import torch
from cases import Case
from engines import Fault, run
from generate import generate

CHUNK = 50


@dataclass(frozen=True)
class Finding:
    """A case that went wrong."""

    seed: int
    engine: str
    what: str
    details: str = ""


@dataclass
class Outcome:
    """Sums over seeds; `seconds` of the processes together."""

    seeds: int = 0
    symbolic: int = 0
    statements: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.seeds += other.seeds
        self.symbolic += other.symbolic
        self.statements += other.statements
        self.seconds += other.seconds
        self.kinds += other.kinds
        self.notes += other.notes
        self.findings += other.findings


@dataclass(frozen=True)
class Task:
    """Which seeds to run, and how."""

    engine: str
    device: str
    statements: int | None = None
    dynamo_each: int = 0

    def case(self, seed: int) -> Case:
        return generate(seed, statements=self.statements)

    def engine_of(self, case: Case) -> str | None:
        """The engine for a case: sizes that are symbols are traced by Dynamo alone."""
        if case.symbolic and self.engine == "plan":
            return None
        if self.device != "cpu" and any(s.kind == "make" for s in case.statements):
            return None  # tensors that the code makes are on the CPU
        if self.engine == "dvm" and self.dynamo_each and case.seed % self.dynamo_each == 0:
            return "dynamo"
        return self.engine


def finding(task: Task, case: Case, notes: Counter[str]) -> Finding | None:
    """What goes wrong with a case, or None."""
    engine = task.engine_of(case)
    if engine is None:
        return None
    try:
        run(case, engine, task.device, notes)
    except Fault as fault:
        return Finding(case.seed, engine, str(fault), fault.details)
    except Exception as error:
        where = traceback.format_exc(limit=-4)
        return Finding(case.seed, engine, f"{type(error).__name__}: {error}", where)
    return None


def run_seeds(task: Task, seeds: Sequence[int]) -> Outcome:
    torch.set_num_threads(1)
    outcome, started = Outcome(), time.perf_counter()
    for seed in seeds:
        case = task.case(seed)
        outcome.seeds += 1
        outcome.symbolic += case.symbolic
        outcome.statements += len(case.statements)
        outcome.kinds.update(s.kind for s in case.statements)
        found = finding(task, case, outcome.notes)
        if found is not None:
            outcome.findings.append(found)
    torch._dynamo.reset()
    outcome.seconds = time.perf_counter() - started
    return outcome


def run_all(task: Task, seeds: Sequence[int], jobs: int) -> Iterator[Outcome]:
    """Outcomes as they come. A seed that ends its process is a finding."""
    chunks = [list(seeds[k : k + CHUNK]) for k in range(0, len(seeds), CHUNK)]
    while chunks:
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=40)
        with pool:
            waiting: dict[Future[Outcome], list[int]] = {}
            try:
                while chunks or waiting:
                    while chunks and len(waiting) < jobs:
                        chunk = chunks.pop(0)
                        waiting[pool.submit(run_seeds, task, chunk)] = chunk
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
                        del waiting[future]
            except BrokenProcessPool:
                lost = list(waiting.values())
        if waiting:
            yield from _one_by_one(task, [seed for chunk in lost for seed in chunk])


def _one_by_one(task: Task, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Each seed by itself, a process for as long as it lives."""
    left = list(seeds)
    while left:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                while left:
                    yield pool.submit(run_seeds, task, left[:1]).result()
                    left.pop(0)
            except BrokenProcessPool:
                seed = left.pop(0)
                crash = Finding(seed, task.engine, "the process ended")
                yield Outcome(seeds=1, findings=[crash])


def run_apart(task: Task, case: Case) -> str | None:
    """What goes wrong with a case, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            bare = replace(case)  # compiled code is no part of what is sent
            found = pool.submit(finding, task, bare, Counter()).result()
        except BrokenProcessPool:
            return "the process ended"
    return None if found is None else found.what

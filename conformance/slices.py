"""All suites in slices of time: what a machine that is lent for minutes at a time runs.

    python conformance/slices.py --state DIR --jobs 30 --seconds 560
    python conformance/slices.py --state DIR --only fuzz-plan --only fuzz-cuda

A slice goes on where the one before it stopped; what is done takes seconds. Each suite has its
share of the time, and what one leaves goes to the others. DIR holds journals, and DIR/results the
scores of what is done so far. Give the next slice the same DIR; two slices may run in one DIR, of
other suites. Journals of another machine may be put below a suite's folder in DIR; the records of
the fuzzer, a file a suite, are joined by `conformance/fuzz --merge`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

HERE = Path(__file__).parent
LEAST = 15
"""Seconds below which no suite is begun."""
LATE = 20
"""Seconds after the end of its time that a suite has to write its score."""


@dataclass(frozen=True)
class Suite:
    """A script with its arguments; `share` of the time, beside the shares of the others."""

    share: float
    script: str
    arguments: tuple[str, ...]


def _fuzz(share: float, engine: str, seeds: int, *more: str) -> Suite:
    return Suite(share, "fuzz", ("--engine", engine, "--seeds", str(seeds), *more))


def _opinfo(share: float, engine: str, *more: str) -> Suite:
    return Suite(share, "opinfo.py", ("--engine", engine, *more))


SUITES: dict[str, Suite] = {
    "fuzz-cuda": _fuzz(6, "inductor", 2000, "--device", "cuda", "--start", "50000"),
    "models-dvm": Suite(2, "models.py", ("--engine", "dvm")),
    "onnx-nodes-dvm": Suite(2, "onnx_nodes.py", ("--engine", "dvm")),
    "fuzz-plan": _fuzz(6, "plan", 100_000),
    "fuzz-dvm": _fuzz(8, "dvm", 100_000),
    "fuzz-inductor": _fuzz(4, "inductor", 1000),
    "opinfo-dvm": _opinfo(8, "dvm"),
    "models-inductor": Suite(4, "models.py", ("--engine", "inductor")),
    "opinfo-inductor": _opinfo(4, "inductor"),
    "onnx-nodes-inductor": Suite(4, "onnx_nodes.py", ("--engine", "vtc")),
    "opinfo-dvm-inplace": _opinfo(1, "dvm", "--variant", "inplace"),
    "opinfo-dvm-view": _opinfo(1, "dvm", "--variant", "view"),
    "opinfo-dvm-base": _opinfo(1, "dvm", "--variant", "base"),
}


def main(
    state: Annotated[Path, typer.Option(help="The folder of journals and scores.")],
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long the slice may take.")] = 560,
    only: Annotated[list[str] | None, typer.Option(help="Suites; all if not given.")] = None,
) -> None:
    """Run suites until the time is up."""
    until = time.monotonic() + seconds
    (state / "results").mkdir(parents=True, exist_ok=True)
    names = list(only or suites())
    for k, name in enumerate(names):
        left = until - time.monotonic()
        own = left * SUITES[name].share / sum(SUITES[n].share for n in names[k:])
        if own < LEAST:
            continue
        print(f"{name}: {own:.0f} of {left:.0f} s", flush=True)
        # A suite's exit code says that something is wrong, which its score says too.
        run(command(name, state, jobs, own - LEAST / 2), own + LATE)


def run(command: list[str], seconds: float) -> None:
    """Runs a command, with all its processes, for at most that long."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def suites() -> Iterator[str]:
    """Those that this machine can run."""
    for name in SUITES:
        if not name.endswith("cuda") or torch.cuda.is_available():
            yield name


def command(name: str, state: Path, jobs: int, seconds: float) -> list[str]:
    """The suite's own command."""
    suite, score = SUITES[name], state / "results" / f"{name}.json"
    made = [sys.executable, str(HERE / suite.script), *suite.arguments]
    made += ["--jobs", str(jobs), "--seconds", f"{seconds:.0f}", "--json", str(score)]
    more = ("--shrinks", "0") if suite.script == "fuzz" else ("--state", str(state / name))
    return [*made, *more]


if __name__ == "__main__":
    typer.run(main)

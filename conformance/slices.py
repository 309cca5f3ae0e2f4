"""All suites in slices of time: what a machine that is lent for minutes at a time runs.

    python conformance/slices.py --state DIR --jobs 30 --seconds 560
    python conformance/slices.py --state DIR --only fuzz-plan --only fuzz-cuda

A slice goes on where the one before it stopped, in the order of SUITES; what is done takes seconds.
DIR holds journals, and DIR/results the scores of what is done so far. Give the next slice the same
DIR. Journals of another machine may be put below a suite's folder in DIR; its fuzzer's record is
joined by `conformance/fuzz --merge`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

HERE = Path(__file__).parent
LEAST = 20
"""Seconds below which no suite is begun."""

Arguments = tuple[str, ...]
SUITES: dict[str, Arguments] = {
    "fuzz-cuda": (
        *("fuzz", "--engine", "inductor", "--device", "cuda"),
        *("--start", "50000", "--seeds", "2000"),
    ),
    "fuzz-plan": ("fuzz", "--engine", "plan", "--seeds", "100000"),
    "fuzz-dvm": ("fuzz", "--engine", "dvm", "--seeds", "100000"),
    "fuzz-inductor": ("fuzz", "--engine", "inductor", "--seeds", "1000"),
    "opinfo-dvm": ("opinfo.py", "--engine", "dvm"),
    "opinfo-dvm-inplace": ("opinfo.py", "--engine", "dvm", "--variant", "inplace"),
    "opinfo-dvm-view": ("opinfo.py", "--engine", "dvm", "--variant", "view"),
    "opinfo-dvm-base": ("opinfo.py", "--engine", "dvm", "--variant", "base"),
    "opinfo-inductor": ("opinfo.py", "--engine", "inductor"),
    "onnx-nodes-dvm": ("onnx_nodes.py", "--engine", "dvm"),
    "onnx-nodes-inductor": ("onnx_nodes.py", "--engine", "vtc"),
    "models-dvm": ("models.py", "--engine", "dvm"),
    "models-inductor": ("models.py", "--engine", "inductor"),
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
    for name in only or suites():
        left = until - time.monotonic()
        if left < LEAST:
            break
        print(f"{name}: {left:.0f} s left", flush=True)
        # A suite's exit code says that something is wrong, which its score says too.
        subprocess.run(command(name, state, jobs, left - LEAST / 2), check=False)


def suites() -> Iterator[str]:
    """Those that this machine can run."""
    for name in SUITES:
        if not name.endswith("cuda") or torch.cuda.is_available():
            yield name


def command(name: str, state: Path, jobs: int, seconds: float) -> list[str]:
    """The suite's own command."""
    script, *arguments = SUITES[name]
    made = [sys.executable, str(HERE / script), *arguments]
    made += ["--jobs", str(jobs), "--seconds", f"{seconds:.0f}"]
    if script == "fuzz":
        return [*made, "--shrinks", "0", "--json", str(state / "results" / "fuzz.json")]
    score = state / "results" / f"{name}.json"
    return [*made, "--state", str(state / name), "--json", str(score)]


if __name__ == "__main__":
    typer.run(main)

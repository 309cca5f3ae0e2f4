"""Ways of calling a model: back to back, after idling, from several threads, and in turns with
PyTorch's own parallel work; on a CPU, against ONNX Runtime and eager PyTorch.

    python benchmarks/calls.py [--models shufflenet,efficientvit] [--seconds 4]

Each way is timed by itself: p50 and p99 of a call, in milliseconds, go to results/calls.json. The
question is what the median costs against a call in a row of calls (`ratio`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import vtc
from vtc.bench import exported
from vtc.bench.models import build
from vtc.bench.records import versions

RESULTS = Path(__file__).parent / "results" / "calls.json"
IDLE_S = 0.01
THREADS = 4
SHOWN = ("model", "system", "way", "p50_ms", "p99_ms", "ratio")
Call = Callable[[], Any]


def samples(call: Call, before: Call, seconds: float) -> list[float]:
    """Milliseconds of each call, `before` not counted."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 20:
        before()
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def at_once(call: Call, seconds: float) -> list[float]:
    """Milliseconds of each call, made from several threads that never wait."""
    found: list[list[float]] = [[] for _ in range(THREADS)]

    def work(own: list[float]) -> None:
        with torch.no_grad():
            own += samples(call, lambda: None, seconds)

    workers = [threading.Thread(target=work, args=(own,)) for own in found]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [ms for own in found for ms in own]


def ways(call: Call, seconds: float) -> Iterator[tuple[str, list[float]]]:
    """The ways of calling, each with its samples."""
    a, b = torch.randn(192, 192), torch.randn(192, 192)
    samples(call, lambda: None, seconds / 4)
    yield "warm", samples(call, lambda: None, seconds)
    yield "idle", samples(call, lambda: time.sleep(IDLE_S), seconds)
    yield "mm", samples(call, lambda: torch.mm(a, b), seconds)
    yield "threads", at_once(call, seconds)


def systems(name: str) -> Iterator[tuple[str, Call]]:
    case = build(name)
    compiled = vtc.compile(case.model, engine="dvm")
    yield "vtc", lambda: compiled(*case.args, **case.kwargs)
    session = exported.onnxruntime_session(exported.to_onnx(case), case)
    yield "onnxruntime", session
    yield "eager", case.call


def measure(name: str, seconds: float) -> Iterator[dict[str, Any]]:
    for system, call in systems(name):
        warm = 0.0
        for way, found in ways(call, seconds):
            found.sort()
            p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
            warm = p50 if way == "warm" else warm
            # Threads share the processors: each of them has its part of the time.
            ratio = p50 / warm / (THREADS if way == "threads" else 1)
            row = (name, system, way, round(p50, 4), round(p99, 4), round(ratio, 3))
            yield dict(zip(SHOWN, row, strict=True)) | {"calls": len(found)}


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "shufflenet",
    seconds: Annotated[float, typer.Option(help="Seconds of timing each way.")] = 4.0,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure ways of calling a model on this machine's CPU."""
    rows = []
    with torch.no_grad():
        for name in models.split(","):
            rows += measure(name, seconds)
    output.write_text(json.dumps({"versions": versions(), "rows": rows}, indent=1) + "\n")
    table = Table("model", "system", "way", "p50 ms", "p99 ms", "p50 / warm")
    for row in rows:
        table.add_row(
            *(str(row[k]) for k in ("model", "system", "way", "p50_ms", "p99_ms", "ratio"))
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

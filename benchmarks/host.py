"""What a call costs the host on a CUDA device: the time until the call returns, the kernels still
running.

    python benchmarks/host.py [--models llama3,shufflenet]

Calls are made in short rows, and the device is waited for between the rows, so that no call waits
for room in the queue. The median over rows of the time a call, in microseconds, goes to
results/host.json: of `vtc.export`, as it is by default and with `freeze` off; of `vtc.compile`; and
of replaying by hand a CUDA graph of the same model, which is what none can go below.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import vtc
from vtc.bench.case import Case
from vtc.bench.models import build
from vtc.bench.records import versions

RESULTS = Path(__file__).parent / "results" / "host.json"
ROW, ROWS = 10, 60


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds until a call returns."""
    samples = []
    for _ in range(ROWS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROW):
            call()
        samples.append((time.perf_counter() - start) / ROW * 1e6)
    return statistics.median(samples[ROWS // 6 :])


def ways(case: Case) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways of calling a model, each warmed up."""
    for name, options in (("export", {}), ("export, not frozen", {"freeze": False})):
        case.reset()
        exported = vtc.export(case.model, case.args, case.kwargs, options=options)
        yield name, lambda exported=exported: exported(*case.args, **case.kwargs)
    compiled = vtc.compile(case.model)
    yield "compile", lambda: compiled(*case.args, **case.kwargs)
    graph = torch.cuda.CUDAGraph()
    case.reset()
    with torch.cuda.graph(graph):
        case.call()
    yield "replay by hand", graph.replay


def measure(name: str) -> Iterator[dict[str, Any]]:
    case = build(name, device="cuda")
    calls = ways(case)
    while True:
        try:
            way, call = next(calls)
            call()
        except StopIteration:
            return
        except RuntimeError as error:  # eager code that cannot be captured
            yield {"model": name, "way": "replay by hand", "note": str(error).splitlines()[0]}
            return
        yield {"model": name, "way": way, "host_us": round(host_us(call), 2)}


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "llama3,shufflenet",
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure what calls cost the host."""
    rows = []
    with torch.no_grad():
        for name in models.split(","):
            for row in measure(name):
                Console().print(row)
                rows.append(row)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"versions": versions(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

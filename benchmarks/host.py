"""What a call costs the host on a CUDA device: the time until the call returns, the kernels still
running.

    python benchmarks/host.py [--models llama3,shufflenet] [--device cpu]

Calls are made in short rows, and the device is waited for between the rows, so that no call waits
for room in the queue. The median over rows of the time a call, in microseconds, goes to
results/host.json: of `vtc.export`, as it is by default and with `freeze` off; of what it checks at
a call, nothing being run; of `vtc.compile`; and of replaying by hand a CUDA graph of the model,
which is what none can go below. On a CPU a call computes before it returns: its checks alone are
timed.
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
from vtc.runtime.cuda_graph import CudaGraphs
from vtc.runtime.executable import Executable

RESULTS = Path(__file__).parent / "results" / "host.json"
ROW, ROWS = 10, 60


def host_us(call: Callable[[], Any], case: Case, device: str) -> float:
    """Microseconds until a call returns. The case is set back before each row of calls, so that
    its caches have room for them."""
    samples = []
    for _ in range(ROWS):
        case.reset()
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROW):
            call()
        samples.append((time.perf_counter() - start) / ROW * 1e6)
    return statistics.median(samples[ROWS // 6 :])


def checks(case: Case) -> Callable[[], Any]:
    """A call of an exported model that runs nothing: its compiled graph gives what it gave once."""
    case.reset()
    options = {"cost": "static", "verify": False}
    exported = vtc.export(case.model, case.args, case.kwargs, options=options)
    holder: Any = exported.trace.graph
    while hasattr(holder.run, "run") and not isinstance(holder.run, Executable | CudaGraphs):
        holder = holder.run
    run: Any = holder.run
    given: list[Any] = []

    def noted(*args: Any) -> Any:
        given.append(run(*args))
        return given[-1]

    holder.run = noted
    exported(*case.args, **case.kwargs)
    holder.run = lambda *_: given[0]
    return lambda: exported(*case.args, **case.kwargs)


def ways(case: Case) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways of calling a model, each warmed up."""
    yield "export, its checks", checks(case)
    if case.device.type != "cuda":
        return
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


def measure(name: str, device: str) -> Iterator[dict[str, Any]]:
    case = build(name, device=device)
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
        yield {"model": name, "way": way, "host_us": round(host_us(call, case, device), 2)}


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "llama3,shufflenet",
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure what calls cost the host."""
    rows = []
    with torch.no_grad():
        for name in models.split(","):
            for row in measure(name, device):
                Console().print(row)
                rows.append(row)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps({"device": device, "versions": versions(), "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    typer.run(main)

"""What a call costs the host on a CUDA device: the time until the call returns, the kernels still
running.

    python benchmarks/host.py [--models llama3,shufflenet] [--device cpu] [--again]

Calls are made in short rows, and the device is waited for between the rows, so that no call waits
for room in the queue. The median over rows of the time a call, in microseconds, goes to
results/host.json as soon as it is taken, and what is there already is not measured again: of
`vtc.export`, as it is by default, on other tensors in each call, and with `freeze` off; of what it
checks at a call, nothing being run; of `vtc.compile`; and of replaying by hand a CUDA graph of the
model, which is what none can go below. On a CPU a call computes before it returns: its checks alone
are timed. Plans are those of the cost model, without measurements: a graph is replayed whatever
kernels are in it.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
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
BY_MODEL = {"cost": "static", "verify": False}
"""Options of plans that are made in seconds."""
ROW, ROWS = 10, 60
WARM_UPS = 12
"""Calls ahead: steady arguments are found in the first ones."""


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
    exported = vtc.export(case.model, case.args, case.kwargs, options=BY_MODEL)
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


def exported(case: Case, **options: Any) -> Callable[[], Any]:
    case.reset()
    run = vtc.export(case.model, case.args, case.kwargs, options={**BY_MODEL, **options})
    return lambda: run(*case.args, **case.kwargs)


def on_others(case: Case) -> Callable[[], Any]:
    """Calls of an exported model on tensors that differ from those of the call before."""
    case.reset()
    run = vtc.export(case.model, case.args, case.kwargs, options=BY_MODEL)
    sets = [[a.clone() if isinstance(a, torch.Tensor) else a for a in case.args] for _ in range(3)]
    turn = itertools.cycle(sets)
    return lambda: run(*next(turn), **case.kwargs)


def compiled(case: Case) -> Callable[[], Any]:
    run = vtc.compile(case.model, options=BY_MODEL)
    return lambda: run(*case.args, **case.kwargs)


def by_hand(case: Case) -> Callable[[], Any]:
    case.reset()
    case.call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.call()
    return graph.replay


WAYS: dict[str, Callable[[Case], Callable[[], Any]]] = {
    "export, its checks": checks,
    "export": exported,
    "export, other tensors": on_others,
    "replay by hand": by_hand,
    "export, not frozen": lambda case: exported(case, freeze=False),
    "compile": compiled,
}
ON_CPU = ("export, its checks",)


def measure(name: str, way: str, device: str) -> dict[str, Any]:
    """A row. A case of its own for each way: what one leaves in caches is not another's."""
    torch._dynamo.reset()
    case = build(name, device=device)
    try:
        call = WAYS[way](case)
        case.reset()
        for _ in range(WARM_UPS):
            case.reset()
            call()
    except RuntimeError as error:  # eager code that cannot be captured
        return {"model": name, "way": way, "note": str(error).splitlines()[0]}
    return {"model": name, "way": way, "host_us": round(host_us(call, case, device), 2)}


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "llama3,shufflenet",
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure what calls cost the host."""
    rows: list[dict[str, Any]] = []
    if output.exists() and not again:
        found = json.loads(output.read_text())
        rows = found["rows"] if found["device"] == device else []
    known = {(row["model"], row["way"]) for row in rows}
    for name, way in itertools.product(models.split(","), WAYS if device == "cuda" else ON_CPU):
        if (name, way) in known:
            continue
        started = time.perf_counter()
        with torch.no_grad():
            rows.append(measure(name, way, device))
        Console().print(rows[-1], f"{time.perf_counter() - started:.0f} s")
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(
            json.dumps({"device": device, "versions": versions(), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    typer.run(main)

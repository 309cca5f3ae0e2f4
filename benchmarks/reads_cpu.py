"""How near decoding on a CPU comes to reading its weights and caches once.

    python benchmarks/reads_cpu.py [--models llama3,gemma2] [--batch 1,4] [--seconds 20]

In turns: a call of `vtc.compile(model)`, and a sum of a tensor as large as what the call must at
least read (every weight that it uses, once, and the caches up to the context). Their rates, and the
share of the sum's that the call reaches (a median over rounds), go to results/cpu-reads.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from limits import needed
from rich.console import Console
from rich.table import Table

import vtc
from vtc.bench.records import versions
from vtc.bench.suite import Request
from vtc.bench.timing import Effort, Timed, WallClock, interleave, paired_ratio, spread

RESULTS = Path(__file__).parent / "results" / "cpu-reads.json"


def measure(model: str, batch: int, seconds: float) -> dict[str, Any]:
    """One case: bytes, gigabytes a second, share of the rate of a sum."""
    case = Request(model, batch=batch).build()
    compiled = vtc.compile(case.model, engine="dvm")
    moved = needed(Request(model, batch=batch)).bytes
    same = torch.ones(moved // 4)
    with torch.no_grad():
        times = interleave(
            {
                "vtc": Timed(lambda: case.call(compiled), case.reset),
                "sum": Timed(same.sum),
            },
            WallClock(),
            Effort(seconds=seconds),
        )
    share = paired_ratio(times["sum"], times["vtc"])
    rates = {name: moved / spread(own).median_ms / 1e6 for name, own in times.items()}
    return {
        "model": model,
        "batch": batch,
        "bytes": moved,
        "vtc_ms": spread(times["vtc"]).median_ms,
        "vtc_gb_s": rates["vtc"],
        "sum_gb_s": rates["sum"],
        "share": {"median": share.median, "low": share.low, "high": share.high},
        "rounds": len(times["vtc"]),
        "versions": versions(),
    }


def main(
    models: Annotated[str, typer.Option()] = "llama3,gemma2",
    batch: Annotated[str, typer.Option()] = "1,4",
    seconds: Annotated[float, typer.Option(help="Of timing a case.")] = 20.0,
) -> None:
    """Measure decoding against the rate at which memory is read."""
    found = json.loads(RESULTS.read_text())["reads"] if RESULTS.exists() else []
    table = Table("model", "batch", "MB", "ms", "GB/s", "a sum, GB/s", "share")
    for model in models.split(","):
        for size in map(int, batch.split(",")):
            case = measure(model, size, seconds)
            found = [c for c in found if (c["model"], c["batch"]) != (model, size)] + [case]
            RESULTS.write_text(json.dumps({"reads": found}, indent=1) + "\n")
            share = case["share"]
            table.add_row(
                model,
                str(size),
                f"{case['bytes'] / 1e6:.0f}",
                f"{case['vtc_ms']:.1f}",
                f"{case['vtc_gb_s']:.1f}",
                f"{case['sum_gb_s']:.1f}",
                f"{share['median']:.0%} ({share['low']:.0%}-{share['high']:.0%})",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)

"""The CUDA figures: every built-in model at batch 1 and 16, in half precision.

    python benchmarks/gpu.py [--models llama3] [--batch 1,16] [--peers eager,inductor]

Each case is written to benchmarks/results/gpu-models.json as soon as it is measured, and one that
is there already is not measured again unless --again is given: a run that was cut short goes on
where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from cases import Plan, run

RESULTS = Path(__file__).parent / "results" / "gpu-models.json"


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    peers: Annotated[str, typer.Option(help="Systems to compare with.")] = "eager,inductor",
    device: Annotated[str, typer.Option(help="cuda or cuda:N.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="Seconds of timing a case.")] = 3.0,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure the built-in models on a GPU."""
    run(Plan.of(models, batch, peers, device, [False], seconds), output, again)


if __name__ == "__main__":
    typer.run(main)

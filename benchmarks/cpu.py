"""The CPU figures: every built-in model at batch 1 and 4 in float32, as it is and frozen.

    python benchmarks/cpu.py [--models llama3,yolo11] [--batch 1] [--no-freeze | --only-freeze]

Each case is written to benchmarks/results/cpu-models.json as soon as it is measured, and one that
is there already is not measured again unless --again is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from cases import Plan, run

from vtc.bench.peers import PEERS

RESULTS = Path(__file__).parent / "results" / "cpu-models.json"


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,4",
    peers: Annotated[str, typer.Option(help="Systems to compare with.")] = ",".join(PEERS),
    freeze: Annotated[bool, typer.Option(help="Also measure with frozen weights.")] = True,
    only_freeze: Annotated[bool, typer.Option("--only-freeze", help="Frozen cases only.")] = False,
    seconds: Annotated[float, typer.Option(help="Seconds of timing a case.")] = 40.0,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure the built-in models on this machine's CPU."""
    frozen = [True] if only_freeze else [False, True] if freeze else [False]
    run(Plan.of(models, batch, peers, "cpu", frozen, seconds), output, again)


if __name__ == "__main__":
    typer.run(main)

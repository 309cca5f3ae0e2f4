"""Random graphs: every engine and legal strategy against eager PyTorch.

    python conformance/fuzz --seeds 1000 --engine plan     schedules of random legal strategies
    python conformance/fuzz --seeds 1000 --engine dvm      the DVM
    python conformance/fuzz --seeds 1000 --engine both     both, on one capture where that will do
    python conformance/fuzz --seeds 50 --engine inductor   TorchInductor, through Dynamo
    python conformance/fuzz --seeds 2000 --engine inductor --device cuda --jobs 16
    python conformance/fuzz --seed 1234 --engine dvm       one case: its code, and what is wrong
    python conformance/fuzz --engine dvm --again --json F  what ever went wrong in a record
    python conformance/fuzz --merge other.json --json F    records of other machines, and sums

A case that goes wrong is printed as a program of a few lines. Exit code 1 if there is one. --json
writes a record, and adds to it where it has fewer seeds: `--seeds` is then the number in all.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import records
import typer
from engines import ENGINES
from rich.console import Console
from rich.progress import Progress
from shrink import shrink
from work import Finding, Task, finding, run_all, run_apart

console = Console(highlight=False, emoji=False)


def main(
    seeds: Annotated[int, typer.Option(help="How many.")] = 1000,
    start: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Only this one; prints its code.")] = None,
    engine: Annotated[str, typer.Option(help=", ".join(ENGINES) + ".")] = "plan",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    statements: Annotated[int | None, typer.Option(help="Operators in a case.")] = None,
    dynamo_each: Annotated[
        int, typer.Option(help="dvm: every which case is captured by Dynamo; 0 for none.")
    ] = 20,
    shrinks: Annotated[int, typer.Option(help="How many findings to make small.")] = 5,
    seconds: Annotated[float, typer.Option(help="Begin no seeds after this long.")] = math.inf,
    again: Annotated[
        bool, typer.Option("--again", help="Run what ever went wrong in the record once more.")
    ] = False,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Add the records of this file; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write a record.")] = None,
) -> None:
    """Run seeds and print what goes wrong, as small as it gets."""
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine} is none of {', '.join(ENGINES)}")
    if merge:
        try:
            held = records.merged([records.read_file(path) for path in (output, *merge)])
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if output is not None:
            records.write_file(output, held)
        console.print(records.totals(held), markup=False)
        return
    until = time.monotonic() + seconds
    task = Task(engine, device, statements, dynamo_each)
    if seed is not None:
        sys.exit(one(task, seed))
    record = records.Record.read(output, task, start)
    if again:
        record.again(jobs)
        seeds = record.outcome.seeds
        record.write(output)
    todo = range(start + record.outcome.seeds, start + seeds)
    with Progress(console=console) as progress:
        bar = progress.add_task(engine, total=seeds, completed=record.outcome.seeds)
        for outcome in run_all(task, todo, jobs, until):
            record.outcome.add(outcome)
            progress.update(bar, completed=record.outcome.seeds)
            for found in outcome.findings:
                progress.print(f"seed {found.seed}: {found.what.splitlines()[0]}", markup=False)
            record.write(output)
    console.print(str(record), markup=False)
    for found in record.outcome.findings[:shrinks]:
        console.rule(f"seed {found.seed}")
        show(task, found)
    sys.exit(bool(record.outcome.findings))


def one(task: Task, seed: int) -> bool:
    """Prints a case and what goes wrong with it."""
    case = task.case(seed)
    console.print(str(case), markup=False)
    found = finding(task, case, Counter())
    console.print("right" if found is None else f"{found.details}\n{found.what}", markup=False)
    return found is not None


def show(task: Task, found: Finding) -> None:
    """A finding as a small program."""
    try:
        case = task.case(found.seed)
    except Exception:  # what is found is that
        console.print(f"{found.details}\n{found.what}", markup=False)
        return
    crashes = found.what == "the process ended"

    def fails(candidate: Any) -> str | None:
        if crashes:
            return run_apart(task, candidate)
        result = finding(task, candidate, Counter())
        return None if result is None else result.what

    if fails(case) is not None:
        case = shrink(case, fails, tries=60 if crashes else 400)
    console.print(str(case), markup=False)
    console.print(found.what, markup=False)


if __name__ == "__main__":
    typer.run(main)

"""Scores vtc's ONNX front end on the node tests of the package onnx.

    python conformance/onnx_nodes.py                             every operator, eagerly
    python conformance/onnx_nodes.py --movement --engine maps    movement as index maps, bit for bit
    python conformance/onnx_nodes.py --movement --engine vtc     compiled, bit for bit
    python conformance/onnx_nodes.py --engine vtc --each 1       a case of every operator, compiled
    python conformance/onnx_nodes.py --engine dvm                every operator, through the DVM
    python conformance/onnx_nodes.py --filter softmax            the cases with that in their name

The score is printed and, with --json, written: counts, and the reason for every case that did not
pass.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from journal import Journal, Row, part, spread, watched
from onnx_cases import VERSIONS, Case, Engine, Verdict, cases, judge
from vtc.errors import UnknownChoiceError

console = Console()
STATUSES = ("passed", "failed", "unsupported")


def main(
    engine: Annotated[str, typer.Option(help="eager, maps, vtc or dvm.")] = "eager",
    filter: Annotated[str, typer.Option(help="Only cases with this in their name.")] = "",
    movement: Annotated[
        bool, typer.Option("--movement", help="Only the 18 movement operators.")
    ] = False,
    each: Annotated[
        int, typer.Option(help="At most this many cases of an operator; 0 is all.")
    ] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    seconds: Annotated[float, typer.Option(help="Begin no case after this long; 0 is never.")] = 0,
    state: Annotated[
        Path | None, typer.Option(help="A folder that keeps verdicts: a run goes on from there.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write the score.")] = None,
    share: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run node tests and print a score for each operator."""
    if engine not in get_args(Engine):
        raise typer.BadParameter(str(UnknownChoiceError("engine", engine, get_args(Engine))))
    if jobs > 1 and state is None:
        raise typer.BadParameter("several processes need --state")
    chosen = [c for c in cases() if filter in c.name and (c.moves or not movement)]
    if each:
        chosen = [c for k, c in enumerate(chosen) if earlier(chosen[:k], c.operator) < each]
    if share and state is not None:
        until = time.monotonic() + seconds if seconds else math.inf
        work(part(chosen, share), Journal(state, share), engine, until)  # type: ignore[arg-type]
        return
    if state is not None:
        spread(state, jobs, seconds, crash)
        verdicts = read(Journal(state))
    else:
        verdicts = [
            judge(case, engine)  # type: ignore[arg-type]
            for case in track(chosen, f"{len(chosen)} cases", console=console)
        ]
    console.print(table(verdicts))
    for verdict in verdicts:
        if verdict.status == "failed":
            console.print(f"{verdict.case}: {verdict.reason}", markup=False, highlight=False)
    if output is not None:
        output.write_text(text(score(verdicts, engine)))


def work(chosen: Sequence[Case], journal: Journal, engine: Engine, until: float) -> None:
    """Verdicts of the cases that have none yet."""
    known = {v.case for v in read(journal)}
    for case in chosen:
        if case.name in known:
            continue
        if time.monotonic() > until:
            return
        journal.append({"begun": [case.name, case.operator]})
        with watched():
            verdict = judge(case, engine)
        journal.append(asdict(verdict))


def crash(begun: Any, code: int) -> Row:
    return asdict(Verdict(*begun, "failed", f"the process ended with {code}"))


def read(journal: Journal) -> list[Verdict]:
    """Verdicts in the order of the package."""
    lists = ("movements", "fallbacks")
    rows = [row for row in journal.rows() if "begun" not in row]
    found = {r["case"]: Verdict(**r | {k: tuple(r[k]) for k in lists}) for r in rows}
    return [found[c.name] for c in cases() if c.name in found]


def earlier(before: Sequence[Case], operator: str) -> int:
    return sum(c.operator == operator for c in before)


def table(verdicts: Sequence[Verdict]) -> Table:
    made = Table()
    for heading in ("operator", *STATUSES):
        made.add_column(heading, justify="left" if heading == "operator" else "right")
    counts = Counter((v.operator, v.status) for v in verdicts)
    for operator in sorted({v.operator for v in verdicts}):
        made.add_row(operator, *(str(counts[operator, s] or "") for s in STATUSES))
    total = Counter(v.status for v in verdicts)
    made.add_section()
    made.add_row("all", *(str(total[s]) for s in STATUSES))
    return made


def compact(verdict: Verdict) -> dict[str, Any]:
    """A verdict without empty fields."""
    fields = {
        "case": verdict.case,
        "operator": verdict.operator,
        "status": verdict.status,
        "reason": verdict.reason,
        "movements": list(verdict.movements),
        "fallbacks": list(verdict.fallbacks),
    }
    return {key: value for key, value in fields.items() if value}


def score(verdicts: Sequence[Verdict], engine: str) -> dict[str, Any]:
    """Totals; how many cases of each operator passed; and the cases that there is more to say of.

    An operator is imported when a case of it passed.
    """
    passed = Counter(v.operator for v in verdicts if v.status == "passed")
    every = Counter(v.operator for v in verdicts)
    return {
        "suite": "node tests of the package onnx",
        "engine": engine,
        "versions": VERSIONS,
        "cases_run": len(verdicts),
        "cases_in_all": len(cases()),
        "totals": dict(Counter(v.status for v in verdicts)),
        "passed_with_a_fallback": sum(v.status == "passed" and bool(v.fallbacks) for v in verdicts),
        "imported_operators": len(passed),
        "cases_of_imported_operators": sum(every[operator] for operator in passed),
        "operators": {name: {"passed": passed[name], "of": every[name]} for name in sorted(every)},
        "cases": [
            compact(v) for v in verdicts if v.status != "passed" or v.movements or v.fallbacks
        ],
    }


def text(record: dict[str, Any]) -> str:
    """JSON with one line for each operator and case."""
    lines = []
    for key, value in record.items():
        if key == "operators":
            inside = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f' "{key}": {{\n{inside}\n }}')
        elif key == "cases":
            inside = ",\n".join(f"  {json.dumps(v)}" for v in value)
            lines.append(f' "{key}": [\n{inside}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    typer.run(main)

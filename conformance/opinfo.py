"""Scores vtc on the forward samples of PyTorch's operator database (OpInfo).

    python conformance/opinfo.py --engine dvm          every sample, sizes as symbols, below Dynamo
    python conformance/opinfo.py --engine dvm-static   the same with sizes that are known
    python conformance/opinfo.py --engine dvm-full     one sample an operator and dtype, vtc.compile
    python conformance/opinfo.py --engine inductor     the same through the Inductor engine
    python conformance/opinfo.py --engine stock        the same through stock torch.compile
    python conformance/opinfo.py --filter softmax      operators by a pattern of names
    python conformance/opinfo.py --variant inplace     in-place variants
    python conformance/opinfo.py --variant view        views that operators return, updated
    python conformance/opinfo.py --variant base        what they are views of, updated

Needs the package expecttest, which PyTorch's testing modules import. Samples run in processes of
their own, so that a crash is a verdict. Verdicts go to the folder `--state` one by one; a run that
is stopped, by `--seconds` or otherwise, goes on from there. `--json` writes the score of what is
done.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.utils import _pytree as pytree

from journal import Journal, part, spread, watched
from opinfo_cases import DTYPES, RIGHT, Engine, Variant, Verdict, operators, samples, verdict_of

Task = tuple[str, str]
FEW = 4
"""Samples of an operator and dtype that are judged before all of them are."""


def main(
    engine: Annotated[
        str, typer.Option(help="dvm, dvm-static, dvm-full, inductor, stock.")
    ] = "dvm",
    variant: Annotated[str, typer.Option(help="function, inplace, view or base.")] = "function",
    filter: Annotated[str, typer.Option(help="Only operators that this pattern is found in.")] = "",
    each: Annotated[int, typer.Option(help="Samples an operator and dtype; 0: all.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    seconds: Annotated[float, typer.Option(help="Stop after this long; 0 is never.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--state", help="The folder of verdicts, to go on from.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Judge once more what was not right or not compiled.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write the score.")] = None,
    share: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run samples and print a score."""
    state = folder or Path(f"opinfo-{engine}-{variant}")
    each = each or (1 if engine in ("dvm-full", "inductor", "stock") else 0)
    if share:
        chosen = part([(n, d) for n, d in tasks(variant) if re.search(filter, n)], share)
        until = time.monotonic() + seconds if seconds else float("inf")
        work(chosen, Journal(state, share), engine, variant, each, until)  # type: ignore[arg-type]
        return
    if again:
        forget(Journal(state), filter)
    # Freed memory is overwritten, so that a read of it shows.
    spread(state, jobs, seconds, crash, {"MALLOC_PERTURB_": "165"})
    found = read(Journal(state))
    print(summary(found.verdicts))
    if output is not None:
        output.write_text(text(score(found, engine, variant, each)))


def tasks(variant: str) -> Iterator[Task]:
    """Of each dtype all operators, so that a run that is stopped has seen most of them."""
    for dtype, own in DTYPES.items():
        for name, op in operators().items():
            if variant == "inplace" and op.inplace_variant is None:
                continue
            if op.supports_dtype(own, "cpu"):
                yield name, dtype


# Verdicts.


@dataclass(frozen=True)
class Found:
    """Verdicts, operators and dtypes of which there are all, and releases of PyTorch."""

    verdicts: list[Verdict]
    complete: set[Task]
    versions: list[str]


def read(journal: Journal) -> Found:
    verdicts: dict[tuple[str, str, int], Verdict] = {}
    complete: set[Task] = set()
    versions: set[str] = set()
    for row in journal.rows():
        if "torch" in row:
            versions.add(row["torch"])
        elif "complete" in row:
            complete.add(tuple(row["complete"]))
        elif "begun" not in row:
            fields = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
            made = Verdict(**fields)
            verdicts[made.operator, made.dtype, made.sample] = made
    return Found(list(verdicts.values()), complete, sorted(versions))


def crash(begun: Any, code: int) -> dict[str, Any]:
    return asdict(Verdict(*begun, "crash", f"the process ended with {code}"))


def forget(journal: Journal, filter: str) -> None:
    """Verdicts other than "compiled", "split" and "skipped" on the operators that are chosen."""
    open_ = {
        (v.operator, v.dtype)
        for v in read(journal).verdicts
        if v.status not in ("compiled", "split", "skipped") and re.search(filter, v.operator)
    }

    def gone(row: dict[str, Any]) -> bool:
        if "complete" in row:
            return tuple(row["complete"]) in open_
        if (row.get("operator"), row.get("dtype")) not in open_:
            return False
        return row["status"] not in ("compiled", "split", "skipped")

    journal.forget(gone)


def work(
    chosen: Sequence[Task],
    journal: Journal,
    engine: Engine,
    variant: Variant,
    each: int,
    until: float,
) -> None:
    """Verdicts of the samples that have none yet."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    found = read(journal)
    known = {(v.operator, v.dtype, v.sample) for v in found.verdicts}
    journal.append({"torch": torch.__version__})
    rounds = [(each, task) for task in chosen]
    if not each:
        rounds = [(FEW, task) for task in chosen] + rounds
    for most, (name, dtype) in rounds:
        if (name, dtype) in found.complete:
            continue
        op = operators()[name]
        for number, sample in chosen_samples(op, dtype, most):
            if (name, dtype, number) in known:
                continue
            if time.monotonic() > until:
                return
            journal.append({"begun": [name, dtype, number]})
            with watched():
                verdict = verdict_of(op, dtype, number, sample, engine, variant)
            journal.append(asdict(verdict))
            known.add((name, dtype, number))
        if most == each:
            journal.append({"complete": [name, dtype]})


def chosen_samples(op: Any, dtype: str, each: int) -> Iterator[tuple[int, Any]]:
    """All samples with their numbers; or `each` of them, evenly spread; or a large one."""
    found = enumerate(samples(op, DTYPES[dtype]))
    if not each:
        yield from found
        return
    every = list(found)
    if each == 1:
        yield from sorted(every, key=lambda pair: elements(pair[1]), reverse=True)[:1]
    else:
        yield from every[:: max(1, -(-len(every) // each))]


def elements(sample: Any) -> int:
    """Of all tensors of a sample; 0 if one has none, or if they are too many."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    counts = [a.numel() for a in leaves if isinstance(a, torch.Tensor)]
    return sum(counts) if all(counts) and sum(counts) < 100_000 else 0


# The score.


def summary(verdicts: Sequence[Verdict]) -> str:
    lines = []
    for dtype in [*DTYPES, "all"]:
        own = [v for v in verdicts if dtype in (v.dtype, "all")]
        counts = Counter(v.status for v in own)
        lines.append(
            f"{dtype}: {len(own)} samples, "
            + ", ".join(f"{n} {status}" for status, n in counts.most_common())
        )
    lines += [
        f"{v.status}: {v.operator} {v.dtype} {v.sample}: {v.reason}"
        for v in verdicts
        if v.status in ("wrong", "crash", "refused") or v.unwarned
    ]
    return "\n".join(lines)


def score(found: Found, engine: str, variant: str, each: int) -> dict[str, Any]:
    verdicts = found.verdicts
    judged = [v for v in verdicts if v.status != "skipped"]
    statuses = Counter(v.status for v in judged)
    compiled = statuses["compiled"] + statuses["split"]
    by_operator: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for v in verdicts:
        by_operator[v.operator][v.dtype][v.status] += 1
    reasons = Counter(n for v in judged if v.status in ("partly", "eager") for n in v.fallbacks)
    odd = [v for v in verdicts if v.status in ("refused", "wrong", "crash") or v.unwarned]
    return {
        "suite": "OpInfo",
        "engine": engine,
        "variant": variant,
        "samples_of_an_operator_and_dtype": f"at most {each}" if each else "all",
        "versions": {"torch": ", ".join(found.versions)},
        "operators_and_dtypes": {"done": len(found.complete), "of": len(list(tasks(variant)))},
        "samples": len(judged),
        "skipped": len(verdicts) - len(judged),
        **{status: statuses[status] for status in (*RIGHT, "refused", "wrong", "crash")},
        "share_compiled": round(compiled / max(1, len(judged)), 4),
        "share_by_dtype": {
            d: round(
                sum(v.status in ("compiled", "split") for v in judged if v.dtype == d)
                / max(1, sum(v.dtype == d for v in judged)),
                4,
            )
            for d in DTYPES
        },
        "unwarned": sum(bool(v.unwarned) for v in judged),
        "fallbacks": dict(reasons.most_common()),
        "operators": {
            name: {d: dict(c) for d, c in dtypes.items()}
            for name, dtypes in sorted(by_operator.items())
        },
        "cases": [asdict(v) for v in odd],
    }


def text(record: dict[str, Any]) -> str:
    """JSON with one line for each operator, fallback and case."""
    lines = []
    for key, value in record.items():
        if key in ("operators", "fallbacks"):
            inside = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f' "{key}": {{\n{inside}\n }}')
        elif key == "cases" and value:
            inside = ",\n".join(f"  {json.dumps(v)}" for v in value)
            lines.append(f' "{key}": [\n{inside}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    typer.run(main)

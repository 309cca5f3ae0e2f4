"""The committed record of a run."""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from work import Finding, Outcome, Task, run_all

import vtc


@dataclass
class Record:
    """What was run so far: seeds from `start` on, without gaps.

    What stock TorchInductor gets wrong in the same way is no mismatch, and listed apart.
    fixed: seeds that once went wrong, and what was wrong, that were right when run again.
    slices: which seeds were first run with which commit of vtc and version of PyTorch.
    """

    task: Task
    start: int
    outcome: Outcome = field(default_factory=Outcome)
    fixed: list[Finding] = field(default_factory=list)
    slices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The record's name in a file, which may hold records of other engines and seeds too."""
        return f"{self.task.engine} on {self.task.device} from seed {self.start}"

    @staticmethod
    def read(path: Path | None, task: Task, start: int) -> Record:
        record = Record(task, start)
        found = read_file(path).get(record.key)
        if found:
            record.outcome = Outcome(
                1 + found["seeds"][1] - found["seeds"][0],
                found["symbolic"],
                found["statements"],
                found["seconds"],
                Counter(found["kinds"]),
                Counter(found["notes"]),
                [Finding(**f) for f in found["mismatches"]],
                [Finding(**f, as_stock=True) for f in found.get("as_stock", ())],
            )
            record.fixed = [Finding(**f) for f in found.get("fixed", [])]
            record.slices = slices_of(found)
        return record

    def again(self, jobs: int) -> None:
        """Run the seeds that ever went wrong once more, with the compiler as it is now."""
        ever = (*self.outcome.findings, *self.outcome.as_stock, *self.fixed)
        before = {f.seed: f for f in ever}
        self.outcome.findings, self.outcome.as_stock = [], []
        for outcome in run_all(self.task, sorted(before), jobs):
            self.outcome.findings += outcome.findings
            self.outcome.as_stock += outcome.as_stock
            self.outcome.seconds += outcome.seconds
        wrong = {f.seed for f in (*self.outcome.findings, *self.outcome.as_stock)}
        self.fixed = [f for seed, f in sorted(before.items()) if seed not in wrong]

    def write(self, path: Path | None) -> None:
        if path is None:
            return
        own = self.outcome
        done = sum(1 + last - first for first, last in (s["seeds"] for s in self.slices))
        if own.seeds > done:
            new = [self.start + done, self.start + own.seeds - 1]
            now = {"commit": commit(), "torch": torch.__version__}
            self.slices = joined([*self.slices, {"seeds": new, **now}])
        made = {
            "seeds": [self.start, self.start + own.seeds - 1],
            "graphs": own.graphs,
            "symbolic": own.symbolic,
            "statements": own.statements,
            "mismatches": list(map(_written, own.findings)),
            "as_stock": list(map(_written, own.as_stock)),
            "fixed": list(map(_written, self.fixed)),
            "seconds": round(own.seconds, 1),
            "slices": self.slices,
            "versions": versions(self.slices),
            "notes": dict(sorted(own.notes.items())),
            "kinds": dict(sorted(own.kinds.items())),
        }
        write_file(path, read_file(path) | {self.key: made})

    def __str__(self) -> str:
        own = self.outcome
        each = 1e3 * own.seconds / max(own.seeds, 1)
        lines = [
            f"{own.graphs} graphs, {own.statements} statements, {len(own.findings)} mismatches, "
            f"{len(own.as_stock)} as stock TorchInductor, "
            f"{own.seconds:.0f} s ({each:.0f} ms a graph)",
            ", ".join(f"{k} {n}" for k, n in own.kinds.most_common()),
            ", ".join(f"{k} {n}" for k, n in own.notes.most_common()),
        ]
        return "\n".join(lines)


def _written(found: Finding) -> dict[str, Any]:
    return {"seed": found.seed, "engine": found.engine, "what": found.what, "details": ""}


@functools.cache
def commit() -> str:
    """The commit of the tree that is installed, or the package's version where it is in none."""
    git = ["git", "-C", str(Path(vtc.__file__).parent)]
    try:
        _output([*git, "ls-files", "--error-unmatch", "__init__.py"])
        return _output([*git, "rev-parse", "HEAD"])
    except (OSError, subprocess.CalledProcessError):
        return version("vtc")


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def versions(slices: list[dict[str, Any]]) -> dict[str, str]:
    releases = {s["torch"] for s in slices} or {torch.__version__}
    return {"python": platform.python_version(), "torch": ", ".join(sorted(releases))}


def slices_of(held: dict[str, Any]) -> list[dict[str, Any]]:
    """The slices of a record in a file; old records tell no commit."""
    if "slices" in held:
        return list(held["slices"])
    first, last = held["seeds"]
    if last < first:
        return []
    return [{"seeds": [first, last], "commit": "not known", "torch": held["versions"]["torch"]}]


def joined(slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Slices in the order of their seeds, neighbours of one commit and PyTorch as one."""
    made: list[dict[str, Any]] = []
    for own in sorted(slices, key=lambda s: s["seeds"]):
        last = made[-1] if made else None
        if last and last | {"seeds": 0} == own | {"seeds": 0} and _meet(last, own):
            made[-1] = own | {"seeds": [last["seeds"][0], own["seeds"][1]]}
        else:
            made.append(own)
    return made


def _meet(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Does a run of seeds begin where another ends?"""
    return bool(one["seeds"][1] + 1 == other["seeds"][0])


def merged(files: list[dict[str, Any]]) -> dict[str, Any]:
    """The records of several files: those of one engine and device whose seeds are neighbours as
    one record. Of two where one has all seeds of the other it is that one, of equal ones the later.

    Raises ValueError for records that have some seeds in common.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for held in files:
        for key, record in held.items():
            if record["seeds"][0] <= record["seeds"][1]:
                groups.setdefault(key.partition(" from ")[0], []).append(record)
    made = {}
    for name, records in groups.items():
        for record in _disjoint(name, records):
            made[f"{name} from seed {record['seeds'][0]}"] = record
    return made


def _disjoint(name: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    later_first = records[::-1]
    for record in sorted(later_first, key=lambda r: (r["seeds"][0], -r["seeds"][1])):
        last = made[-1] if made else None
        if last is None or last["seeds"][1] + 1 < record["seeds"][0]:
            made.append(record)
        elif _meet(last, record):
            made[-1] = _sum(last, record)
        elif record["seeds"][1] > last["seeds"][1]:
            both = f"{last['seeds']} and {record['seeds']}"
            raise ValueError(f"two records of {name} have seeds in common: {both}")
    return made


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A record of the seeds of two that are neighbours."""
    numbers = ("graphs", "symbolic", "statements", "seconds")
    lists = ("mismatches", "as_stock", "fixed")
    slices = joined([*slices_of(one), *slices_of(other)])
    made: dict[str, Any] = {"seeds": [one["seeds"][0], other["seeds"][1]]}
    made |= {k: round(one[k] + other[k], 1) for k in numbers}
    made |= {k: [*one.get(k, ()), *other.get(k, ())] for k in lists}
    made |= {"slices": slices, "versions": one["versions"] | {"torch": versions(slices)["torch"]}}
    counts = ("notes", "kinds")
    return made | {k: dict(sorted((Counter(one[k]) + Counter(other[k])).items())) for k in counts}


def read_file(path: Path | None) -> dict[str, Any]:
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def write_file(path: Path, held: dict[str, Any]) -> None:
    path.write_text(json.dumps(held, indent=1) + "\n")


def totals(held: dict[str, Any]) -> str:
    """Sums over the seeds, a line for each engine and device."""
    names = list(dict.fromkeys(key.partition(" from ")[0] for key in held))
    lines = []
    for name in names:
        own = [r for key, r in held.items() if key.partition(" from ")[0] == name]
        graphs, seconds = (sum(r[k] for r in own) for k in ("graphs", "seconds"))
        counts = (sum(len(r.get(k, ())) for r in own) for k in ("mismatches", "as_stock", "fixed"))
        wrong, stock, fixed = counts
        lines.append(
            f"{name}: {graphs} graphs, {wrong} mismatches, {stock} as stock TorchInductor, "
            f"{fixed} fixed, {seconds:.0f} s"
        )
    return "\n".join(lines)

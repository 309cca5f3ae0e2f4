"""The committed record of a run."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from work import Finding, Outcome, Task, run_all


@dataclass
class Record:
    """What was run so far: seeds from `start` on, without gaps.

    fixed: seeds that once went wrong, and what was wrong, that were right when run again.
    releases: the versions of PyTorch that seeds were run with.
    """

    task: Task
    start: int
    outcome: Outcome = field(default_factory=Outcome)
    fixed: list[Finding] = field(default_factory=list)
    releases: set[str] = field(default_factory=lambda: {torch.__version__})

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
            )
            record.fixed = [Finding(**f) for f in found.get("fixed", [])]
            record.releases.update(found["versions"]["torch"].split(", "))
        return record

    def again(self, jobs: int) -> None:
        """Run the seeds that went wrong once more, with the compiler as it is now."""
        before = {f.seed: f for f in self.outcome.findings}
        self.outcome.findings = []
        for outcome in run_all(self.task, sorted(before), jobs):
            self.outcome.findings += outcome.findings
            self.outcome.seconds += outcome.seconds
        wrong = {f.seed for f in self.outcome.findings}
        self.fixed += [f for seed, f in before.items() if seed not in wrong]

    def write(self, path: Path | None) -> None:
        if path is None:
            return
        own = self.outcome
        made = {
            "seeds": [self.start, self.start + own.seeds - 1],
            "graphs": own.graphs,
            "symbolic": own.symbolic,
            "statements": own.statements,
            "mismatches": [asdict(f) | {"details": ""} for f in own.findings],
            "fixed": [asdict(f) | {"details": ""} for f in self.fixed],
            "seconds": round(own.seconds, 1),
            "versions": {
                "python": platform.python_version(),
                "torch": ", ".join(sorted(self.releases)),
            },
            "notes": dict(sorted(own.notes.items())),
            "kinds": dict(sorted(own.kinds.items())),
        }
        write_file(path, read_file(path) | {self.key: made})

    def __str__(self) -> str:
        own = self.outcome
        each = 1e3 * own.seconds / max(own.seeds, 1)
        lines = [
            f"{own.graphs} graphs, {own.statements} statements, {len(own.findings)} mismatches, "
            f"{own.seconds:.0f} s ({each:.0f} ms a graph)",
            ", ".join(f"{k} {n}" for k, n in own.kinds.most_common()),
            ", ".join(f"{k} {n}" for k, n in own.notes.most_common()),
        ]
        return "\n".join(lines)


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
        wrong, fixed = (sum(len(r.get(k, ())) for r in own) for k in ("mismatches", "fixed"))
        lines.append(f"{name}: {graphs} graphs, {wrong} mismatches, {fixed} fixed, {seconds:.0f} s")
    return "\n".join(lines)

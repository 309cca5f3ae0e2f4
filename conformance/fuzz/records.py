"""The committed record of a run."""

from __future__ import annotations

import json
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from work import Finding, Outcome, Task


@dataclass
class Record:
    """What was run so far. `file` may hold records of other engines too."""

    task: Task
    start: int
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def key(self) -> str:
        return f"{self.task.engine} on {self.task.device} from seed {self.start}"

    @staticmethod
    def read(path: Path | None, task: Task, start: int) -> Record:
        record = Record(task, start)
        if path is not None and path.exists():
            found = json.loads(path.read_text()).get(record.key)
            if found:
                record.outcome = Outcome(
                    found["graphs"],
                    found["symbolic"],
                    found["statements"],
                    found["seconds"],
                    Counter(found["kinds"]),
                    Counter(found["notes"]),
                    [Finding(**f) for f in found["mismatches"]],
                )
        return record

    def write(self, path: Path | None) -> None:
        if path is None:
            return
        held: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        own = self.outcome
        held[self.key] = {
            "seeds": [self.start, self.start + own.seeds - 1],
            "graphs": own.seeds,
            "symbolic": own.symbolic,
            "statements": own.statements,
            "mismatches": [asdict(f) | {"details": ""} for f in own.findings],
            "seconds": round(own.seconds, 1),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "notes": dict(sorted(own.notes.items())),
            "kinds": dict(sorted(own.kinds.items())),
        }
        path.write_text(json.dumps(held, indent=1) + "\n")

    def __str__(self) -> str:
        own = self.outcome
        each = 1e3 * own.seconds / max(own.seeds, 1)
        lines = [
            f"{own.seeds} graphs, {own.statements} statements, {len(own.findings)} mismatches, "
            f"{own.seconds:.0f} s ({each:.0f} ms a graph)",
            ", ".join(f"{k} {n}" for k, n in own.kinds.most_common()),
            ", ".join(f"{k} {n}" for k, n in own.notes.most_common()),
        ]
        return "\n".join(lines)

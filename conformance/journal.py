"""Verdicts on disk, and the processes that reach them.

A folder holds a file for each process, a JSON object a line. All files are read, so a run that is
stopped goes on in any number of processes; folders of other machines may be put into it, and all
make one score.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARES_OF_A_JOB = 2
LATE = 5
"""Seconds after the end of the time that a process has for the verdict that it is at."""
HANGS = 1200
"""Seconds after which a verdict is taken to hang."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Journal:
    """The rows of a folder. `share`, as k/n, names the one file that is written.

    {"begun": WHAT} goes before a verdict: as a file's last row it says what ended its process.
    """

    folder: Path
    share: str = "0/1"

    @property
    def own(self) -> Path:
        return self.folder / f"{self.share.replace('/', '-of-')}.jsonl"

    def append(self, row: Row) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.own.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[Row]:
        return [row for path in sorted(self.folder.rglob("*.jsonl")) for row in _read(path)]

    def pending(self) -> Any | None:
        """What the process of this file had begun when it ended."""
        rows = _read(self.own) if self.own.exists() else []
        return rows[-1].get("begun") if rows else None

    def forget(self, gone: Callable[[Row], bool]) -> None:
        for path in self.folder.rglob("*.jsonl"):
            kept = [json.dumps(row) + "\n" for row in _read(path) if not gone(row)]
            path.write_text("".join(kept))


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextmanager
def watched(seconds: float = HANGS) -> Iterator[None]:
    """Ends the process after that long: native code hears no signal while it runs."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def part(items: list[Any], share: str) -> list[Any]:
    """Those of a share k/n: every n-th from the k-th on."""
    k, n = map(int, share.split("/"))
    return items[k::n]


def spread(
    folder: Path,
    jobs: int,
    seconds: float,
    crash: Callable[[Any, int], Row],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs this command for each share of its work, `jobs` at a time, for at most `seconds`.

    Where a process ends, `crash` is the row for what it had begun and its exit code, and another
    one goes on; one that is not done soon after the time is up is ended. Raises RuntimeError if a
    process fails with nothing begun.
    """
    until = time.monotonic() + seconds if seconds else math.inf
    shares = SHARES_OF_A_JOB * jobs if jobs > 1 else 1

    def supervise(k: int) -> None:
        journal = Journal(folder, f"{k}/{shares}")
        while (left := until - time.monotonic()) > 0:
            command = [sys.executable, *sys.argv, "--share", journal.share]
            if left < math.inf:
                command += ["--seconds", f"{left:.0f}"]
            env = {**os.environ, **(environment or {})}
            process = subprocess.Popen(command, env=env)
            try:
                code = process.wait(None if left == math.inf else left + LATE)
            except subprocess.TimeoutExpired:  # what it is at is begun again another time
                process.kill()
                process.wait()
                return
            begun = journal.pending()
            if code == 0:
                return
            if begun is None:
                raise RuntimeError(f"share {journal.share} ended with {code}")
            journal.append(crash(begun, code))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(supervise, range(shares)))

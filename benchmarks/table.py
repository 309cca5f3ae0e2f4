"""Prints the tables of the README from the committed result files.

python benchmarks/table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SYSTEMS = (
    "eager", "inductor", "inductor-best", "onnxruntime", "openvino", "vtc", "vtc-export",
)  # fmt: skip


def table(path: Path) -> str:
    """Median milliseconds of every case; then stock torch.compile's time over vtc's, with the
    95 % interval of the paired ratio; and the processor, where there are several."""
    cases = json.loads(path.read_text())["cases"]
    cases = [case for case in cases if case["config"]["objective"] == "latency"]
    systems = [s for s in SYSTEMS if any(_row(c, s) for c in cases)]
    processors = len({_processor(case) for case in cases}) > 1
    lines = [f"| model | batch | {' | '.join(systems)} | torch.compile / vtc |"]
    lines[0] += " on |" * processors
    lines.append("|---" * (len(systems) + 3 + processors) + "|")
    for case in cases:
        cells = [_name(case), str(case["batch"])]
        cells += [_milliseconds(_row(case, s)) for s in systems]
        cells += [_ratio(case), *[_processor(case)] * processors]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _name(case: dict[str, Any]) -> str:
    """With what departs from the default: all the layers of a language model, frozen weights."""
    config = case["config"]
    whole = config["layers"] is not None and config["layers"] > 4
    return case["model"] + f", {config['layers']} layers" * whole + ", frozen" * config["freeze"]


def _row(case: dict[str, Any], system: str) -> dict[str, Any] | None:
    rows = [r for r in case["rows"] if r["system"] == system and r["median_ms"] is not None]
    return rows[0] if rows else None


def _processor(case: dict[str, Any]) -> str:
    text: str = case["versions"]["processor"].partition(",")[0]
    return text.replace("(R)", "").replace(" Processor", "")


def _milliseconds(row: dict[str, Any] | None) -> str:
    return f"{row['median_ms']:.3g}" if row else "-"


def _ratio(case: dict[str, Any]) -> str:
    """Of stock torch.compile's time to vtc's: as it is, or frozen where vtc is."""
    row = _row(case, "inductor-best" if case["config"]["freeze"] else "inductor")
    if row is None or row["ratio_to_vtc"] is None:
        return "-"
    ratio = row["ratio_to_vtc"]
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


if __name__ == "__main__":
    for name in ("gpu-models", "cpu-models"):
        print(f"{name}:\n\n{table(RESULTS / f'{name}.json')}\n")

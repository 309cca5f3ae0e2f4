"""The one schema of result files, `{"cases": [...]}`: docs/results-schema.md describes it.

`vtc bench`, `vtc explain` and `vtc models` write it with `--json`, and so do the scripts in
benchmarks/. A bench case has one row for each system; an explain case has one row, the report.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import vtc
from vtc.bench import dvm_sections
from vtc.bench.checks import NUMBER, keys, typed
from vtc.bench.timing import Ratio

OWN_SYSTEM = "vtc"
EXPORTED_SYSTEM = "vtc-export"  # is compared with vtc, and is no peer of it
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "timm",
    "torchvision",
    "ultralytics",
    "onnx",
    "onnxruntime",
    "openvino",
    "numexpr",
)


def versions() -> dict[str, str]:
    """Versions of what takes part in a measurement, and the processor or GPU it ran on."""
    found = {"vtc": vtc.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["processor"] = f"{_processor()}, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Config:
    """The settings of a case; None where the model or the command has no such setting."""

    size: int | None = None
    layers: int | None = None
    context: int | None = None
    dtype: str | None = None
    engine: str | None = None
    objective: str | None = None
    freeze: bool = False


@dataclass(frozen=True)
class Row:
    """One system on one case; None where the system cannot tell.

    system: "vtc", "vtc-export" or a peer. engine: vtc's engine; for a peer the stock variant or
    provider that ran. median_ms, p10_ms, p90_ms: milliseconds a call. capture_s, compile_s: seconds
    of tracing and of compiling or converting; first_call_s: wall seconds from the uncompiled model
    to its first result. peak_bytes: most memory allocated in a call beyond what was held before.
    movement_kernels, movement_ms: kernels of a call that only move data, and their time.
    max_rel_error: largest difference from float64 over the largest magnitude, over all outputs
    and updated inputs. correct: by the measure of `torch._dynamo.utils.same`. ratio_to_vtc: this
    system's time over vtc's in paired rounds. note: why something is missing.
    """

    system: str
    engine: str | None = None
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    capture_s: float | None = None
    compile_s: float | None = None
    first_call_s: float | None = None
    peak_bytes: int | None = None
    movement_kernels: int | None = None
    movement_ms: float | None = None
    max_rel_error: float | None = None
    correct: bool | None = None
    ratio_to_vtc: Ratio | None = None
    note: str | None = None


@dataclass(frozen=True)
class CaseRecord:
    """One model, batch, device and configuration, with the rows that were found for it."""

    model: str
    batch: int | None
    device: str | None
    config: Config
    rows: Sequence[Row | Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=versions)
    date: str = field(default_factory=_now)

    def to_dict(self) -> dict[str, Any]:
        """The case as its JSON object."""
        timed = [row for row in self.rows if isinstance(row, Row)]
        return {
            "model": self.model,
            "batch": self.batch,
            "device": self.device,
            "config": asdict(self.config),
            "versions": dict(self.versions),
            "date": self.date,
            "rows": [asdict(row) if isinstance(row, Row) else dict(row) for row in self.rows],
            "ratio_to_best_peer": best_peer_ratio(timed),
        }


def best_peer_ratio(rows: Iterable[Row]) -> float | None:
    """The best correct peer's median time over vtc's; None without both."""
    rows = list(rows)
    own = [r.median_ms for r in rows if r.system == OWN_SYSTEM and r.median_ms]
    peers = [
        r.median_ms
        for r in rows
        if r.system not in (OWN_SYSTEM, EXPORTED_SYSTEM) and r.median_ms and r.correct is not False
    ]
    return min(peers) / own[0] if own and peers else None


def write(
    path: Path | str,
    cases: Iterable[Mapping[str, Any]],
    sections: Mapping[str, Any] | None = None,
) -> None:
    """Write a result file, whole or not at all; `sections` are those of `dvm_sections`.

    Raises `ValueError` for an invalid case or section.
    """
    document = {"cases": [dict(case) for case in cases], **(sections or {})}
    validate(document)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path | str) -> list[dict[str, Any]]:
    """The cases of a result file; none where there is no file. Raises `ValueError`."""
    document = _document(path)
    return list(document["cases"]) if document else []


def read_sections(path: Path | str) -> dict[str, Any]:
    """What a result file holds beside its cases. Raises `ValueError`."""
    return {name: value for name, value in _document(path).items() if name != "cases"}


def _document(path: Path | str) -> dict[str, Any]:
    path = Path(path)
    if not path.exists():
        return {}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    validate(document)
    return document


def case_key(case: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two cases the same measurement: model, batch, device and configuration."""
    config = [case["config"][f.name] for f in fields(Config)]
    return case["model"], case["batch"], case["device"], *config


_ROW_TYPES: dict[str, tuple[type, ...]] = {
    "system": (str,), "engine": (str,), "correct": (bool,), "ratio_to_vtc": (dict,),
    "note": (str,), "peak_bytes": (int,), "movement_kernels": (int,),
}  # fmt: skip
_CASE = ("model", "batch", "device", "config", "versions", "date", "rows", "ratio_to_best_peer")
_SECTIONS: dict[str, tuple[str, ...]] = {
    "movement": ("operators", "virtual", "residual", "kernels_before", "kernels_after",
                 "bytes_before", "bytes_after"),
    "peak_bytes": ("before", "after"),
    "vtog": ("nodes", "edges", "conflicts"),
    "search": ("profiles", "cache_hits", "seconds", "gap"),
}  # fmt: skip
_OPERATOR = ("operator", "node", "fate", "on", "direction", "type", "saving_us", "stack")
_FATES = ("view", "folded", "virtual", "residual")


def validate(document: Any) -> None:
    """Raises `ValueError` naming the place where `document` departs from the schema."""
    dvm_sections.validate(document)
    keys(document, ("cases", *(s for s in dvm_sections.SECTIONS if s in document)), "document")
    for number, case in enumerate(document["cases"]):
        _validate_case(case, f"cases[{number}]")


def _validate_case(case: Any, place: str) -> None:
    keys(case, _CASE, place)
    keys(case["config"], [f.name for f in fields(Config)], f"{place}.config")
    typed(case["model"], (str,), f"{place}.model")
    typed(case["ratio_to_best_peer"], NUMBER, f"{place}.ratio_to_best_peer", null=True)
    try:
        datetime.fromisoformat(case["date"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}.date is no ISO 8601 date: {error}") from None
    for position, row in enumerate(case["rows"]):
        explained = isinstance(row, dict) and "movement" in row
        check = _validate_report if explained else _validate_row
        check(row, f"{place}.rows[{position}]")


def _validate_row(row: Any, place: str) -> None:
    keys(row, [f.name for f in fields(Row)], place)
    for name, value in row.items():
        typed(value, _ROW_TYPES.get(name, NUMBER), f"{place}.{name}", null=name != "system")
    if row["ratio_to_vtc"] is not None:
        keys(row["ratio_to_vtc"], [f.name for f in fields(Ratio)], f"{place}.ratio_to_vtc")


def _validate_report(report: Any, place: str) -> None:
    keys(report, (*_SECTIONS, "operators"), place)
    for name, parts in _SECTIONS.items():
        keys(report[name], parts, f"{place}.{name}")
    for number, operator in enumerate(report["operators"]):
        keys(operator, _OPERATOR, f"{place}.operators[{number}]")
        if operator["fate"] not in _FATES:
            raise ValueError(f"{place}.operators[{number}].fate is {operator['fate']!r}")

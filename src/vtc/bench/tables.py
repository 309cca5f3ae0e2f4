"""Bench cases as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table


def table_of(case: Mapping[str, Any]) -> Table:
    """The rows of a bench case as a table."""
    config = ", ".join(f"{k} {v}" for k, v in case["config"].items() if v is not None)
    table = Table(title=f"{case['model']}, batch {case['batch']}, {case['device']} ({config})")
    table.add_column("system")
    for heading in (
        "ms a call",
        "p10",
        "p90",
        "time / vtc",
        "95% interval",
        "capture s",
        "compile s",
        "peak MiB",
        "movement kernels",
        "movement ms",
        "error",
        "right",
    ):
        table.add_column(heading, justify="right")
    for row in case["rows"]:
        ratio = row["ratio_to_vtc"]
        name = f"{row['system']} ({row['engine']})" if row["engine"] else row["system"]
        table.add_row(
            name,
            _number(row["median_ms"]),
            _number(row["p10_ms"]),
            _number(row["p90_ms"]),
            _number(ratio and ratio["median"]),
            f"{ratio['low']:.2f}-{ratio['high']:.2f}" if ratio else "",
            _number(row["capture_s"]),
            _number(row["compile_s"]),
            _number(row["peak_bytes"] and row["peak_bytes"] / 2**20),
            _number(row["movement_kernels"]),
            _number(row["movement_ms"]),
            "" if row["max_rel_error"] is None else f"{row['max_rel_error']:.1e}",
            {True: "yes", False: "[red]NO[/red]", None: ""}[row["correct"]],
        )
    return table


def notes_of(case: Mapping[str, Any]) -> Iterator[str]:
    """The notes of the rows, and the comparison with the best peer, as sentences."""
    for row in case["rows"]:
        if row["note"]:
            yield f"{row['system']}: {row['note']}"
    if case["ratio_to_best_peer"] is not None:
        yield f"best peer's time over vtc's: {case['ratio_to_best_peer']:.2f}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3g}"

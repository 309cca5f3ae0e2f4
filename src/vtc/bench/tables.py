"""Bench cases as tables and sentences for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

Row = Mapping[str, Any]


def table_of(case: Mapping[str, Any]) -> Group:
    """The rows of a bench case: a table of times and accuracy, and one of what they cost."""
    config = ", ".join(f"{k} {v}" for k, v in case["config"].items() if v not in (None, False))
    title = f"{case['model']}, batch {case['batch']}, {case['device']} ({config})"
    return Group(
        _table(
            title,
            ("ms a call", "p10 - p90", "time / vtc (95%)", "error", "right"),
            [(_label(row), *_times(row)) for row in case["rows"]],
        ),
        _table(
            "",
            ("capture s", "compile s", "first call s", "peak MiB", "movement", "of ms"),
            [(row["system"], *_costs(row)) for row in case["rows"]],
        ),
    )


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title or None, title_justify="left", min_width=78)
    table.add_column("system")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _label(row: Row) -> str:
    return f"{row['system']} ({row['engine']})" if row["engine"] else row["system"]


def _times(row: Row) -> tuple[str, ...]:
    ratio, error = row["ratio_to_vtc"], row["max_rel_error"]
    return (
        _number(row["median_ms"]),
        f"{_number(row['p10_ms'])} - {_number(row['p90_ms'])}" if row["p10_ms"] else "",
        f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})" if ratio else "",
        "" if error is None else f"{error:.0e}",
        {True: "yes", False: "[red]NO[/red]", None: ""}[row["correct"]],
    )


def _costs(row: Row) -> tuple[str, ...]:
    peak = row["peak_bytes"]
    return (
        _number(row["capture_s"]),
        _number(row["compile_s"]),
        _number(row["first_call_s"]),
        _number(None if peak is None else peak / 2**20),
        _number(row["movement_kernels"]),
        _number(row["movement_ms"]),
    )


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

"""The report as text: the summary first, then one line for each movement operator."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleRenderable, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from vtc.report.units import (
    bytes_text,
    change_text,
    count_text,
    percent_text,
    plural,
    seconds_text,
    us_text,
)
from vtc.virtual.record import GraphReport, OperatorFate

if TYPE_CHECKING:
    from vtc.report.report import Report

FATE_STYLES = {"view": "dim", "folded": "cyan", "virtual": "green", "residual": "yellow"}


def render_text(report: Report) -> str:
    """The whole report as plain text. No line is wrapped or cut, however long a source line is."""
    parts = Group(*renderables(report))
    console = Console(file=io.StringIO(), color_system=None, width=100_000)
    width = Measurement.get(console, console.options, parts).maximum
    console = Console(file=io.StringIO(), color_system=None, width=max(80, width))
    with console.capture() as capture:
        console.print(parts)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def headline(report: Report) -> str:
    """ "llama3, batch 4, cpu, dtype float32, engine auto, objective latency"."""
    parts = [report.model]
    if report.batch is not None:
        parts.append(f"batch {report.batch}")
    parts.append(report.device)
    for name, value in report.settings.items():
        if value is True:
            parts.append(name)
        elif value is not None and value is not False:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def measures(report: Report) -> tuple[tuple[str, int | None, int | None, bool], ...]:
    """What is compared: title, before, after, whether it counts bytes."""
    movement, peak = report.movement, report.peak_bytes
    return (
        ("movement kernels", movement.kernels_before, movement.kernels_after, False),
        ("bytes moved by them", movement.bytes_before, movement.bytes_after, True),
        ("peak of internal tensors", peak.before, peak.after, True),
    )


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    """The remaining figures of the summary: title and text."""
    counts, search = report.vtog_counts, report.search
    fates = ", ".join(f"{count} {fate}" for fate, count in report.fates.items() if count)
    gap = "not enumerated" if search.gap is None else percent_text(search.gap)
    return (
        ("movement operators", f"{report.movement.operators}" + (f": {fates}" if fates else "")),
        (
            "opportunity graph",
            f"{plural(counts['nodes'], 'node')}, {plural(counts['edges'], 'edge')}, "
            f"{plural(counts['conflicts'], 'conflict')}",
        ),
        (
            "search",
            f"{plural(search.profiles, 'profile')}, {search.cache_hits} from the cache, "
            f"{seconds_text(search.seconds)}; gap to the exhaustive search: {gap}",
        ),
        ("capture and compilation", _durations(report.graphs)),
    )


def _durations(graphs: tuple[GraphReport, ...]) -> str:
    if not graphs:
        return "nothing was captured"
    capture = [g.capture_s for g in graphs if g.capture_s is not None]
    compilation = [g.compile_s for g in graphs if g.compile_s is not None]
    return (
        f"{plural(len(graphs), 'graph')}, {seconds_text(sum(capture) if capture else None)} "
        f"and {seconds_text(sum(compilation) if compilation else None)}"
    )


def source_of(operator: OperatorFate) -> str:
    """The user's source line on one line."""
    return " ".join((operator.stack or "").split())


def renderables(report: Report) -> Iterator[ConsoleRenderable]:
    """The report's parts for a rich console."""
    yield Text(f"Data movement of {headline(report)}", style="bold")
    yield _summary(report)
    for graph in report.graphs:
        for note in graph.notes:
            yield Text(f"note: {note}", style="yellow")
    for graph in report.graphs:
        if graph.operators:
            yield Text(f"\n{graph.name}: movement operators in program order", style="bold")
            yield _operators(graph)


def _summary(report: Report) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    for title, before, after, in_bytes in measures(report):
        show = bytes_text if in_bytes else count_text
        table.add_row(title, f"{show(before)} -> {show(after)}  ({change_text(before, after)})")
    for title, text in facts(report):
        table.add_row(title, text)
    return table


def _operators(graph: GraphReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("operator", "node", "fate", "on", "direction", "type"):
        table.add_column(title, no_wrap=True)
    table.add_column("saving", no_wrap=True, justify="right")
    # The one column that gives way in a narrow terminal: rich shrinks what may wrap first.
    table.add_column("source")
    for fate in graph.operators:
        table.add_row(
            fate.operator,
            fate.node,
            Text(fate.fate, style=FATE_STYLES[fate.fate]),
            fate.on or "",
            fate.direction or "",
            fate.type or "",
            us_text(fate.saving_us) if fate.saving_us is not None else "",
            # As Text, since brackets of the user's code are no markup.
            Text(source_of(fate), no_wrap=True, overflow="ellipsis"),
        )
    return table

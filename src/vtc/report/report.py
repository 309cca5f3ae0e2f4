"""The report of `vtc.explain`: what moved before and after, and what became of each operator."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console, ConsoleOptions, RenderResult

from vtc.report.html import render_page
from vtc.report.text import render_text, renderables
from vtc.virtual.record import (
    Fate,
    GraphReport,
    MovementTotals,
    OperatorFate,
    PeakBytes,
    SearchStats,
)


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


@dataclass(frozen=True)
class Report:
    """Reports of all graphs that one call of a model was captured as, and their totals.

    Prints as text, with rich in colour; `save` writes a self-contained page; `to_dict` is what
    `vtc explain --json` writes for the model.

    settings: what the model was built and compiled with, by name, as the headline shows it; names
        with the values None and False are left out of it. date: UTC, ISO 8601.
    """

    model: str
    graphs: tuple[GraphReport, ...]
    batch: int | None = None
    device: str = "cpu"
    settings: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=_versions)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="minutes"))

    @property
    def movement(self) -> MovementTotals:
        """Sums over the graphs."""
        totals = [asdict(graph.movement) for graph in self.graphs]
        names = MovementTotals.__dataclass_fields__
        return MovementTotals(**{name: sum(total[name] for total in totals) for name in names})

    @property
    def peak_bytes(self) -> PeakBytes:
        """The largest peak of any graph: graphs run one after the other."""
        return PeakBytes(
            _greatest(graph.peak_bytes.before for graph in self.graphs),
            _greatest(graph.peak_bytes.after for graph in self.graphs),
        )

    @property
    def search(self) -> SearchStats:
        """Sums over the graphs; the gap is the largest one that is known."""
        stats = [graph.search for graph in self.graphs]
        gaps = [s.gap for s in stats if s.gap is not None]
        return SearchStats(
            profiles=sum(s.profiles for s in stats),
            cache_hits=sum(s.cache_hits for s in stats),
            seconds=sum(s.seconds for s in stats),
            gap=max(gaps, default=None),
        )

    @property
    def vtog_counts(self) -> dict[str, int]:
        """Numbers of nodes, edges and conflicts of all opportunity graphs."""
        return {
            "nodes": sum(len(graph.vtog.nodes) for graph in self.graphs),
            "edges": sum(len(graph.vtog.edges) for graph in self.graphs),
            "conflicts": sum(len(graph.vtog.conflicts) for graph in self.graphs),
        }

    @property
    def operators(self) -> tuple[OperatorFate, ...]:
        """Every movement operator, in program order, graph after graph."""
        return tuple(fate for graph in self.graphs for fate in graph.operators)

    @property
    def fates(self) -> dict[Fate, int]:
        """How many operators met each fate; every fate is a key."""
        found = Counter(operator.fate for operator in self.operators)
        return {fate: found[fate] for fate in get_args(Fate)}

    def to_dict(self) -> dict[str, Any]:
        """The totals and every operator as JSON data: "movement", "peak_bytes", "vtog", "search",
        "operators"."""
        return {
            "movement": asdict(self.movement),
            "peak_bytes": asdict(self.peak_bytes),
            "vtog": self.vtog_counts,
            "search": asdict(self.search),
            "operators": [asdict(operator) for operator in self.operators],
        }

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML page that needs no other file and no network."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_page(self), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from renderables(self)


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

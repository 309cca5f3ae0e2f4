"""The report as one HTML page: styles and drawings inline, no script, nothing from the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vtc.report.drawing import Gallery, opportunities, points_to
from vtc.report.text import facts, headline, measures, source_of
from vtc.report.units import bytes_text, change_text, count_text, seconds_text, us_text
from vtc.virtual.record import GraphReport

if TYPE_CHECKING:
    from vtc.report.report import Report


@dataclass(frozen=True)
class _Bar:
    title: str
    before: str
    after: str
    change: str
    before_percent: float
    after_percent: float


@dataclass(frozen=True)
class _GraphView:
    report: GraphReport
    chosen: Gallery
    all_edges: Gallery


def render_page(report: Report) -> str:
    """The page as text in UTF-8."""
    environment = Environment(
        loader=PackageLoader("vtc.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(us=us_text, seconds=seconds_text, svg=Markup)
    return environment.get_template("page.html.jinja").render(
        report=report,
        headline=headline(report),
        bars=[_bar(*measure) for measure in measures(report)],
        facts=facts(report),
        graphs=[_GraphView(g, points_to(g.vtog), opportunities(g.vtog)) for g in report.graphs],
        source_of=source_of,
    )


def _bar(title: str, before: int | None, after: int | None, in_bytes: bool) -> _Bar:
    most = max(before or 0, after or 0, 1)
    text = bytes_text if in_bytes else count_text
    return _Bar(
        title,
        text(before),
        text(after),
        change_text(before, after),
        100 * (before or 0) / most,
        100 * (after or 0) / most,
    )

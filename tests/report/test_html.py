"""The HTML page: complete, self-contained, and safe whatever the model's source says."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from vtc.report import Report

VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and gathers tags with their attributes and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def count(self, tag: str, css_class: str) -> int:
        return sum(
            name == tag and css_class in (attrs.get("class") or "").split()
            for name, attrs in self.tags
        )


def saved(report: Report, folder: Path) -> tuple[str, Page]:
    text = report.save(folder / "sub" / "x.html").read_text(encoding="utf-8")
    return text, Page(text)


def test_page_needs_nothing_from_elsewhere(report: Report, tmp_path: Path) -> None:
    text, page = saved(report, tmp_path)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not any({"src", "href", "xlink:href"} & set(attrs) for _, attrs in page.tags)
    for reference in ("http:", "https:", "url(", "@import"):
        assert reference not in text


def test_page_shows_every_operator_with_its_fate_and_source(report: Report, tmp_path: Path) -> None:
    _, page = saved(report, tmp_path)
    for operator in report.operators:
        assert page.count("tr", operator.fate) == 1
        assert operator.node in page.text
    assert "block.py:12 in forward: torch.cat([x, <y>], 1)" in page.text


def test_page_shows_bars_notes_and_the_schedule(report: Report, tmp_path: Path) -> None:
    text, page = saved(report, tmp_path)
    assert page.count("div", "before") == page.count("div", "after") == 3
    assert "-99.7%" in page.text
    assert report.graphs[0].notes[0] in page.text
    assert any("region0(x) -> buf0" in part for part in page.text)
    assert "prefers-color-scheme: dark" in text


def test_text_of_the_model_is_never_markup(report: Report, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    graph = report.graphs[0]
    operator = replace(graph.operators[0], stack=hostile, operator=hostile, on=hostile)
    report = replace(
        report,
        model=hostile,
        graphs=(replace(graph, operators=(operator,), schedule=hostile, notes=(hostile,)),),
    )
    text, _ = saved(report, tmp_path)
    assert "<script" not in text


def test_a_report_without_graphs_is_a_page(tmp_path: Path) -> None:
    _, page = saved(Report("m", ()), tmp_path)
    assert "Nothing was captured: the model ran as plain PyTorch." in page.text

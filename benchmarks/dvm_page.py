"""Writes docs/dvm.md and its plot from results/cpu-dvm.json.

python benchmarks/dvm_page.py
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "cpu-dvm.json"
DOCS = HERE.parent / "docs"
BANDS = ("L2", "L3", "memory")
PEERS = (
    ("eager", "eager_us"),
    ("torch.compile", "inductor_us"),
    ("torch.compile dynamic", "inductor_dynamic_us"),
    ("numexpr", "numexpr"),
)
WORST = 6
Entry = dict[str, Any]


def ratio(entry: Entry, peer: str) -> float | None:
    """A peer's time over the DVM's; numexpr by the faster of its two ways."""
    if peer == "numexpr":
        both = [entry["numexpr_us"], entry["numexpr_re_evaluate_us"]]
        return None if None in both else min(both) / entry["dvm_us"]
    return entry[peer] / entry["dvm_us"]


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def chosen(entries: Sequence[Entry], band: str, kinds: Sequence[str]) -> list[Entry]:
    return [e for e in entries if e["band"] == band and e["kind"] in kinds]


def ratios(entries: Iterable[Entry], peer: str) -> list[float]:
    return [r for e in entries if (r := ratio(e, peer)) is not None]


def summary(entries: Sequence[Entry]) -> list[str]:
    """Geometric means of what the peers take over what the DVM takes."""
    rows = []
    groups = (
        ("fused chains and norms", ("chain", "norm")),
        ("fused chains", ("chain",)),
        ("norms", ("norm",)),
        ("reductions", ("reduction",)),
        ("add alone", ("single",)),
    )
    for title, kinds in groups:
        for band in BANDS:
            own = chosen(entries, band, kinds)
            cells = [f"{geomean(ratios(own, peer)):.2f}" for _, peer in PEERS]
            rows.append([title, band, *("-" if c == "nan" else c for c in cells)])
    return table(["operators", "band", *(name for name, _ in PEERS)], rows)


def worst(entries: Sequence[Entry], name: str, peer: str) -> str:
    found = sorted(
        (r, e["operator"], e["shape"]) for e in entries if (r := ratio(e, peer)) is not None
    )
    cells = [f"{operator} {shape[0]}x{shape[1]} {r:.2f}" for r, operator, shape in found[:WORST]]
    return f"- against {name}: {', '.join(cells)}"


def compile_times(entries: Sequence[Entry]) -> list[str]:
    rows = []
    for name, key, run in (
        ("DVM, all shapes", "compile_ms", "dvm_us"),
        ("torch.compile, each shape", "inductor_compile_ms", "inductor_us"),
        ("torch.compile dynamic", "inductor_dynamic_compile_ms", "inductor_dynamic_us"),
    ):
        times = [e[key] for e in entries]
        ran = sum(e[run] for e in entries) * 1e-3
        rows.append(
            [name, f"{max(times):.0f}", f"{sum(times) / 1e3:.2f}", f"{sum(times) / ran:.1f}"]
        )
    return table(["system", "longest, ms", "all, s", "compiling over one run of all"], rows)


def every(entries: Sequence[Entry]) -> list[str]:
    rows = []
    for e in entries:
        cells = [
            e["operator"],
            f"{e['shape'][0]} x {e['shape'][1]}",
            e["band"],
            f"{e['dvm_us']:.1f}",
        ]
        for _, peer in PEERS:
            r = ratio(e, peer)
            cells.append("-" if r is None else f"{r:.2f}")
        rows.append(cells)
    return table(["operator", "shape", "band", "DVM, us", *(name for name, _ in PEERS)], rows)


def encode(entries: dict[str, Entry]) -> list[str]:
    rows = [
        [
            name,
            f"{e['median']:.1f}",
            f"{e['p99']:.1f}",
            f"{e['lower_ms']:.2f}",
            f"{e['load_ms']:.2f}",
            f"{e['first_call_ms']:.2f}",
            f"{e['first_call_max_ms']:.1f}",
        ]
        for name, e in entries.items()
    ]
    head = [
        "operator",
        "median, us",
        "p99, us",
        "lower, ms",
        "load, ms",
        "first call, ms",
        "longest",
    ]
    return table(head, rows)


def models(entries: Sequence[Entry]) -> list[str]:
    rows = [
        [
            e["model"],
            f"{e['total_s']['vtc']:.2f}",
            f"{e['total_s']['inductor']:.2f}",
            f"{e['inductor_total_to_vtc']:.1f}",
            f"{e['steady_s']['vtc'] * 20:.2f}",
            f"{e['steady_s']['eager'] * 20:.2f}",
            f"{e['steady_s']['inductor'] * 20:.2f}",
            f"{e['inductor_steady_to_vtc']:.2f}",
            f"{e['captures']} / {e['encodes']} / {e['compilations']}",
        ]
        for e in entries
    ]
    head = ["model", "cold, s", "torch.compile", "ratio", "steady, ms", "eager", "torch.compile",
            "ratio", "captures / encodings / compilations"]  # fmt: skip
    return table(head, rows)


def plot(entries: Sequence[Entry], path: Path) -> None:
    """Peers' times over the DVM's, one panel a band."""
    figure, panels = pyplot.subplots(1, len(BANDS), figsize=(11, 4), sharey=True)
    operators = list(dict.fromkeys(e["operator"] for e in entries))
    marks = (("eager", "eager_us", "o"), ("torch.compile", "inductor_us", "s"),
             ("numexpr", "numexpr", "^"))  # fmt: skip
    for panel, band in zip(panels, BANDS, strict=True):
        for name, peer, mark in marks:
            points = [
                (geomean(found), n)
                for n, operator in enumerate(operators)
                if (found := ratios((e for e in entries if e["band"] == band
                                     and e["operator"] == operator), peer))
            ]  # fmt: skip
            panel.plot(*zip(*points, strict=True), mark, label=name, markersize=5)
        panel.axvline(1, color="gray", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
        panel.set_title(band)
        panel.grid(axis="y", linewidth=0.3)
    panels[0].set_yticks(range(len(operators)), operators)
    panels[0].invert_yaxis()
    panels[1].set_xlabel("time of the peer over the time of the DVM")
    panels[-1].legend(fontsize=8)
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = "dvm"
    figure.savefig(path, metadata={"Date": None})


def page(document: dict[str, Any]) -> str:
    """The text of docs/dvm.md."""
    operators, machine = document["operators"], document["machine"]
    judged = [e for e in operators if e["kind"] in ("chain", "norm")]
    lines = [
        "# The DVM in figures",
        "",
        "Generated from `benchmarks/results/cpu-dvm.json` by `python benchmarks/dvm_page.py`;",
        "`python benchmarks/dvm.py` measures. How the DVM works: [architecture](architecture.md);",
        "its instructions: [isa](isa.md).",
        "",
        f"{machine['processor']}, float32. PyTorch {machine['torch']},",
        f"numexpr {machine['numexpr']}.",
        *([machine["note"]] if "note" in machine else []),
        "",
        "## Encoding",
        "",
        "A known program for a new shape, over random sizes from 2 to 4096; and the first call of",
        "a fresh function with what is in it: lowering, handing the program to the native",
        "machine, then encoding and running. Capture by Dynamo is not in it.",
        "",
        *encode(document.get("encode_us", {})),
        "",
        "## Operators",
        "",
        "Time of each peer over the time of the DVM, geometric means: above 1 the DVM is faster.",
        "All systems run in turns in one process. Every call of the DVM and of torch.compile pays",
        "for Dynamo's guards, as `add` alone shows: that is most of a call where all fits L2.",
        "numexpr: the faster of `evaluate` and `re_evaluate`. Goals for chains and norms: 1.5",
        "against eager, 1 against torch.compile, 2 against numexpr on what it can express.",
        "",
        *summary(operators),
        "",
        "![Operators](dvm.svg)",
        "",
        "Worst cases among chains and norms:",
        "",
        *(worst(judged, name, peer) for name, peer in PEERS),
        "",
        "Compiling, capture included:",
        "",
        *compile_times(operators),
        "",
        "## Models over changing sizes",
        "",
        "50 random pairs of batch and length. Cold: all 50 calls from the uncompiled model.",
        "Steady: mean milliseconds a call. Ratios: `torch.compile(dynamic=True)` over the DVM.",
        "",
        *models(document.get("sequences", [])),
        "",
        "## Every shape",
        "",
        *every(operators),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write the page and the plot."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    (DOCS / "dvm.md").write_text(page(document), encoding="utf-8")
    plot(document["operators"], DOCS / "dvm.svg")


if __name__ == "__main__":
    main()

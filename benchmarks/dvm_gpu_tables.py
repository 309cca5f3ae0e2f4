"""Tables of results/gpu-dvm.json, as `python benchmarks/dvm_gpu.py tables` prints them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Entry = dict[str, Any]
PEERS = ("eager", "inductor", "inductor-dynamic")
COMPILERS = ("vtc", "inductor", "inductor-dynamic")
TIMES = ("wall_us", "call_us", "device_us")


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def bandwidth(entries: Sequence[Entry]) -> list[str]:
    """TB/s, and the share of the copy's rate (eager's copy)."""
    copy = max((t for e in entries if e["operator"] == "copy" for t in e["tb_per_s"].values()),
               default=math.nan)  # fmt: skip
    rows = [
        [e["operator"], *(f"{e['tb_per_s'].get(s, math.nan):.2f}" for s in ("vtc", *PEERS)),
         f"{e['tb_per_s'].get('vtc', math.nan) / copy:.0%}"]
        for e in entries
    ]  # fmt: skip
    return table(["operator, TB/s", "vtc", *PEERS, "vtc of the copy rate"], rows)


def host(entries: Sequence[Entry]) -> list[str]:
    keys = ("encode_us", "encode_and_launch_us", "encode_and_launch_p90_us")
    rows = [[e["operator"], *(f"{e[k]:.1f}" for k in keys)] for e in entries]
    return table(["operator", "encode, us", "encode and launch", "90th percentile"], rows)


def ratios(entries: Iterable[Entry], times: str, peer: str) -> list[float]:
    """A peer's time over vtc's."""
    both = (e.get(times, {}) for e in entries)
    return [t[peer] / t["vtc"] for t in both if peer in t and "vtc" in t]


def operators(entries: Sequence[Entry], times: str) -> list[str]:
    """For each operator and peer the geometric mean of time over vtc's, and the share above 1."""
    names = list(dict.fromkeys(e["operator"] for e in entries))
    rows = []
    for title, own in [
        *((n, [e for e in entries if e["operator"] == n]) for n in names),
        ("all", list(entries)),
    ]:
        cells = []
        for peer in PEERS:
            found = ratios(own, times, peer)
            share = sum(r > 1 for r in found) / len(found) if found else math.nan
            cells.append(f"{geomean(found):.2f} ({share:.0%})")
        rows.append([title, str(len(own)), *cells])
    return table([f"operator, by {times[:-3]} time", "shapes", *PEERS], rows)


def compiling(entries: Sequence[Entry]) -> list[str]:
    """Longest and total compile time, and their total over one run of all shapes."""
    rows = []
    for name in dict.fromkeys(e["operator"] for e in entries):
        cells = []
        for system in COMPILERS:
            own = [e for e in entries if e["operator"] == name and system in e["compile_ms"]]
            spent = [e["compile_ms"][system] for e in own]
            ran = sum(e["call_us"][system] for e in own) * 1e-3
            cells.append(
                f"{max(spent):.0f} / {sum(spent):.0f} / {sum(spent) / ran:.0f}" if own else "-"
            )
        rows.append([name, *cells])
    return table(["compiling: longest ms / all ms / over one run of all", *COMPILERS], rows)


def models(entries: Sequence[Entry]) -> list[str]:
    rows = [
        [
            e["model"],
            *(f"{e['total_s'][s]:.2f}" for s in ("vtc", "eager", "inductor")),
            f"{e['inductor_total_to_vtc']:.1f}",
            *(f"{e['steady_s'][s] * 1e3 / len(e['pairs']):.2f}"
              for s in ("vtc", "eager", "inductor")),
            f"{e['inductor_steady_to_vtc']:.2f}",
            f"{e['captures']} / {e['encodes']} / {e['compilations']} / {e['eager']}",
        ]
        for e in entries
    ]  # fmt: skip
    head = ["model", "cold, s: vtc", "eager", "torch.compile dynamic", "ratio", "steady, ms: vtc",
            "eager", "torch.compile dynamic", "ratio",
            "captures / encodings / compilations / eager calls"]  # fmt: skip
    return table(head, rows)


def failures(entries: Iterable[Entry]) -> list[str]:
    return [
        f"- {e['operator']} {e.get('shape', '')} {name}: {why.splitlines()[0] if why else ''}"
        for e in entries
        for name, why in e["failed"].items()
    ]


def text(document: dict[str, Any]) -> str:
    """All tables of a result file."""
    swept = document.get("device_operators", [])
    lines = [
        *bandwidth(document.get("bandwidth", [])),
        *host(document.get("host", [])),
        *(line for times in TIMES for line in operators(swept, times)),
        *compiling(swept),
        *models(document.get("sequences", [])),
        *failures([*document.get("bandwidth", []), *swept]),
    ]
    return "\n".join(lines) + "\n"

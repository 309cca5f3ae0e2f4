"""Totals, JSON data and text of a report."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from vtc.report import Report
from vtc.virtual.record import GraphReport, PeakBytes, SearchStats, VtogEdge, VtogNode, VtogSummary

TEXT = """\
Data movement of llama3, batch 4, cpu, layers 2, context 2048, dtype float32
movement kernels          34 -> 2  (-94%)
bytes moved by them       1.21 GiB -> 3.34 MiB  (-99.7%)
peak of internal tensors  1.31 GiB -> 64.1 MiB  (-95%)
movement operators        4: 1 view, 1 folded, 1 virtual, 1 residual
opportunity graph         35 nodes, 43 edges, 2 conflicts
search                    31 profiles, 12 from the cache, 8.2 s; gap to the exhaustive search: 1.2%
capture and compilation   1 graph, 2.1 s and 14.0 s
note: region3 runs as eager PyTorch: operator foo has no lowering
"""


def test_to_dict_has_the_documented_keys_and_is_json(report: Report) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert data["movement"] == {
        "operators": 4,
        "virtual": 1,
        "residual": 1,
        "kernels_before": 34,
        "kernels_after": 2,
        "bytes_before": 1_300_000_000,
        "bytes_after": 3_500_000,
    }
    assert data["peak_bytes"] == {"before": 1_410_000_000, "after": 67_200_000}
    assert data["vtog"] == {"nodes": 35, "edges": 43, "conflicts": 2}
    assert data["search"] == {"profiles": 31, "cache_hits": 12, "seconds": 8.25, "gap": 0.0125}
    assert list(data) == ["movement", "peak_bytes", "vtog", "search", "operators"]
    assert data["operators"][3] == {
        "operator": "Concat",
        "node": "cat",
        "fate": "residual",
        "on": None,
        "direction": None,
        "type": None,
        "saving_us": -3.25,
        "stack": "block.py:12 in forward: torch.cat([x, <y>], 1)",
    }


def test_totals_add_up_over_graphs_and_peaks_do_not(report: Report, graph: GraphReport) -> None:
    other = replace(
        graph,
        name="graph1",
        peak_bytes=PeakBytes(None, 99_000_000),
        search=SearchStats(1, 2, 0.5, None),
    )
    both = replace(report, graphs=(graph, other))
    assert both.movement.kernels_before == 68
    assert both.peak_bytes == PeakBytes(1_410_000_000, 99_000_000)
    assert both.search == SearchStats(32, 14, 8.75, 0.0125)
    assert len(both.operators) == 8
    assert both.fates == {"view": 2, "folded": 2, "virtual": 2, "residual": 2}


def test_text_starts_with_the_summary(report: Report) -> None:
    assert str(report).startswith(TEXT)


def test_text_has_one_uncut_line_for_each_operator(report: Report) -> None:
    *_, reshape, scatter, transpose, concat = str(report).splitlines()
    assert reshape.split() == [
        *["Reshape", "view", "view", "linear", "load", "I", "0.0", "us"],
        *["modeling_llama.py:251", "in", "forward:", "k", "=", "self.k_proj(x).view(hidden_shape)"],
    ]
    assert "1.25 ms" in scatter
    assert scatter.endswith(
        "cache_utils.py:322 in update: self.keys[:, :, [0]] = k # [red]no markup[/red]"
    )
    assert transpose.split() == ["Transpose", "transpose", "folded", "view", "load", "II"]
    assert "residual" in concat


def test_prints_in_a_narrow_terminal_without_wrapping_rows(report: Report) -> None:
    console = Console(file=io.StringIO(), width=90)
    with console.capture() as capture:
        console.print(report)
    rows = [line for line in capture.get().splitlines() if line.strip().startswith("ScatterND")]
    assert len(rows) == 1
    assert len(rows[0]) <= 90


def test_a_report_without_graphs_says_so() -> None:
    report = Report("m", ())
    assert "nothing was captured" in str(report)
    assert report.to_dict()["peak_bytes"] == {"before": None, "after": None}


def test_a_vtog_with_a_dangling_edge_or_conflict_is_refused() -> None:
    node = VtogNode("a", "internal", (2,))
    with pytest.raises(ValueError, match="a -> b has an end that is no node"):
        VtogSummary((node,), (VtogEdge("a", "b", "Reshape", "load"),))
    with pytest.raises(ValueError, match="names an edge that is not there"):
        VtogSummary((node,), (), ((0, 1),))

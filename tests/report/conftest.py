"""A synthetic report: four layers alike, an updated cache, one concat with a residual part."""

import pytest

from vtc.report import Report
from vtc.virtual.record import (
    GraphReport,
    MovementTotals,
    OperatorFate,
    PeakBytes,
    SearchStats,
    VtogEdge,
    VtogNode,
    VtogSummary,
)

LAYERS = 4


def _layer(k: int) -> tuple[list[VtogNode], list[VtogEdge]]:
    def name(stem: str) -> str:
        return f"{stem}_{k}" if k else stem

    nodes = [
        VtogNode(name("key_cache"), "updated", (4, 8, 2048, 64)),
        VtogNode(name("linear"), "internal", (4, 1, 512)),
        VtogNode(name("view"), "internal", (4, 1, 8, 64)),
        VtogNode(name("transpose"), "internal", (4, 8, 1, 64)),
        VtogNode(name("index_copy"), "internal", (4, 8, 2048, 64)),
        VtogNode(name("expand"), "internal", (4, 8, 4, 2048, 64)),
        VtogNode(name("reshape"), "internal", (4, 32, 2048, 64)),
    ]
    edges = [
        VtogEdge(name("view"), name("linear"), "Reshape", "load", False, "I"),
        VtogEdge(name("linear"), name("view"), "Reshape", "store", True, "I"),
        VtogEdge(name("transpose"), name("view"), "Transpose", "load", False, "I"),
        VtogEdge(name("view"), name("transpose"), "Transpose", "store", True, "I"),
        VtogEdge(name("transpose"), name("index_copy"), "ScatterND", "store", True, "partial"),
        VtogEdge(name("index_copy"), name("key_cache"), "ScatterND", "load", True, "I"),
        VtogEdge(name("expand"), name("index_copy"), "Expand", "load", True, "I"),
        VtogEdge(name("reshape"), name("expand"), "Reshape", "load", True, "I"),
        VtogEdge(name("expand"), name("reshape"), "Reshape", "store", False, "I"),
    ]
    return nodes, edges


def _vtog() -> VtogSummary:
    nodes: list[VtogNode] = []
    edges: list[VtogEdge] = []
    for k in range(LAYERS):
        more_nodes, more_edges = _layer(k)
        nodes += more_nodes
        edges += more_edges
    nodes += [
        VtogNode("x", "input", (4, 64, 40, 40)),
        VtogNode("silu", "internal", (4, 32, 40, 40)),
        VtogNode("convolution_7", "internal", (4, 32, 40, 40)),
        VtogNode("cat", "internal", (4, 128, 40, 40)),
        VtogNode("split_part_with_a_very_long_module_name_0", "internal", (4, 64, 40, 40)),
        VtogNode("split_1", "output", (4, 64, "s0", 40)),
        VtogNode("alone", "internal", (4,)),
    ]
    long = "split_part_with_a_very_long_module_name_0"
    edges += [
        VtogEdge("x", "cat", "Concat", "store", False, "partial"),
        VtogEdge("silu", "cat", "Concat", "store", True, "partial"),
        VtogEdge("convolution_7", "cat", "Concat", "store", True, "partial"),
        VtogEdge(long, "cat", "Split", "load", True, "partial"),
        VtogEdge("split_1", "cat", "Split", "load", False, "partial"),
        VtogEdge("cat", "split_1", "Split", "store", False, "II"),
        VtogEdge(long, "convolution_7", "<Concat & more>", "load", False, "I"),
    ]
    return VtogSummary(tuple(nodes), tuple(edges), ((0, 2), (1, 3)))


@pytest.fixture
def graph() -> GraphReport:
    operators = (
        OperatorFate(
            "Reshape", "view", "view", "linear", "load", "I", 0.0,
            "modeling_llama.py:251 in forward: k = self.k_proj(x).view(hidden_shape)",
        ),
        OperatorFate(
            "ScatterND", "index_copy", "virtual", "key_cache", "store", "partial", 1250.4,
            "cache_utils.py:322 in update:\n    self.keys[:, :, [0]] = k  # [red]no markup[/red]",
        ),
        OperatorFate("Transpose", "transpose", "folded", "view", "load", "II", None, None),
        OperatorFate(
            "Concat", "cat", "residual", None, None, None, -3.25,
            "block.py:12 in forward: torch.cat([x, <y>], 1)",
        ),
    )  # fmt: skip
    return GraphReport(
        name="graph0",
        engine="inductor",
        objective="latency",
        movement=MovementTotals(4, 1, 1, 34, 2, 1_300_000_000, 3_500_000),
        peak_bytes=PeakBytes(1_410_000_000, 67_200_000),
        vtog=_vtog(),
        search=SearchStats(31, 12, 8.25, 0.0125),
        operators=operators,
        schedule="arena 64.1 MiB\n  buf0 [4, 128] f32\nsteps\n  region0(x) -> buf0[:, 32:64]",
        texts={"captured graph": "def forward(x): ..."},
        notes=("region3 runs as eager PyTorch: operator foo has no lowering",),
        capture_s=2.1,
        compile_s=14.0,
    )


@pytest.fixture
def report(graph: GraphReport) -> Report:
    return Report(
        "llama3",
        (graph,),
        batch=4,
        settings={"layers": 2, "context": 2048, "dtype": "float32", "size": None, "freeze": False},
        versions={"python": "3.11.7", "torch": "2.14.1"},
        date="2026-01-02T03:04+00:00",
    )

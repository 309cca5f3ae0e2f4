"""Real models through the virtual paths: right, with caches in place and nothing expanded."""

import pytest
import torch

import vtc
from vtc.bench import models, observe
from vtc.bench.accuracy import answer, compare

pytest.importorskip("transformers")
STATIC = {"cost": "static", "verify": False}
SMALL = {
    "llama3": {"layers": 1, "context": 128},
    "gemma2": {"layers": 1, "context": 128},
    "efficientvit": {"size": 64},
    "shufflenet": {"size": 64},
}


@pytest.fixture(autouse=True)
def fresh(clean_dynamo):
    """Every test compiles by itself."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.filterwarnings("error::vtc.errors.FallbackWarning")
def test_a_model_is_right_by_the_measure_of_float64_and_so_are_its_caches(name):
    case = models.build(name, batch=2, device="cpu", dtype="float32", **SMALL[name])
    with torch.no_grad():
        native, twin = case.twin(), case.twin()
        native.fresh_inputs(7)
        double = native.widened()
        eager = answer(native, native.call, 7)
        exact = answer(double, double.call, 7, fresh=False)
        objective = "latency" if name == "shufflenet" else "bytes"
        compiled = vtc.compile(twin.model, objective=objective, options=STATIC)
        found = answer(twin, lambda: compiled(*twin.args, **twin.kwargs), 7)
    assert compare(found, eager, exact).correct


@pytest.mark.slow
def test_llama_decode_neither_copies_its_caches_nor_expands_keys_and_values():
    case = models.build("llama3", batch=4, device="cpu", dtype="float32", layers=1, context=256)
    cache = min(t.nbytes for t in case.updated().values() if t.dim() == 4)
    with torch.no_grad():
        case.reset()
        report = vtc.explain(
            case.model, *case.args, objective="bytes", options=STATIC, **case.kwargs
        )
        (graph,) = report.graphs
        copies = [o for o in graph.operators if o.operator == "Identity" and o.fate != "view"]
        assert len(copies) == 2  # of the keys and of the values
        assert all(o.fate == "virtual" and o.on in _caches(graph) for o in copies)
        assert not any(
            o.fate == "residual" for o in graph.operators if o.operator in ("Expand", "Identity")
        )

        torch._dynamo.reset()
        compiled = vtc.compile(case.model, objective="bytes", options=STATIC)

        def call():
            return compiled(*case.args, **case.kwargs)

        case.reset()
        call()
        case.reset()
        assert observe.peak_bytes(call, case.device) < cache
        kernels, _ = observe.movement(call, case.device, case.reset)
    assert kernels <= 2  # the new value's row is written into its cache; no cache-sized copy


def _caches(graph):
    return {node.name for node in graph.vtog.nodes if node.kind == "updated"}

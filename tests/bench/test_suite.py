"""A bench of systems that stand in for compilers: what is prepared, judged and written."""

from __future__ import annotations

import pytest
import torch

from vtc.bench import peers, records, suite
from vtc.bench.peers import Prepared, Settings, Unsupported
from vtc.bench.timing import Effort
from vtc.errors import EngineUnavailableError, UnknownChoiceError

SHORT = Effort(seconds=0, min_rounds=3, max_rounds=3, warm_up=1)
REQUEST = suite.Request("shufflenet", size=32)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    """vtc and inductor run eagerly: these tests are about the bench."""

    def eager_as(system):
        def prepare(case, settings, progress):
            twin = case.twin()
            return Prepared(system, twin, twin.call, twin.call, first_call_s=0.1, engine="x")

        return prepare

    monkeypatch.setitem(peers._PREPARE, "vtc", eager_as("vtc"))
    monkeypatch.setitem(peers._PREPARE, "inductor", eager_as("inductor"))


def rows_of(case):
    records.validate({"cases": [case]})
    return {row["system"]: row for row in case["rows"]}


def test_every_system_has_a_row_and_the_peers_a_paired_ratio():
    case = suite.bench(REQUEST, ["eager", "inductor"], SHORT)
    rows = rows_of(case)
    assert list(rows) == ["eager", "inductor", "vtc"]
    for row in rows.values():
        assert row["correct"]
        assert 0 < row["max_rel_error"] < 1e-5
        assert row["p10_ms"] <= row["median_ms"] <= row["p90_ms"]
        assert row["movement_kernels"] > 10  # splits, concats and shuffles of ShuffleNet
        assert row["peak_bytes"] > 0
    assert rows["vtc"]["ratio_to_vtc"] is None
    assert rows["eager"]["ratio_to_vtc"]["low"] <= rows["eager"]["ratio_to_vtc"]["high"]
    best = min(rows[name]["median_ms"] for name in ("eager", "inductor"))
    assert case["ratio_to_best_peer"] == pytest.approx(best / rows["vtc"]["median_ms"])
    assert case["config"]["size"] == 32


def test_the_exported_model_has_a_row_of_its_own_and_is_no_peer():
    case = suite.bench(REQUEST, ["eager", "vtc-export"], SHORT)
    rows = rows_of(case)
    assert rows["vtc-export"]["correct"]
    assert rows["vtc-export"]["note"] is None
    assert rows["vtc-export"]["ratio_to_vtc"] is not None
    assert 0 < rows["vtc-export"]["compile_s"] < rows["vtc-export"]["first_call_s"]
    best = rows["eager"]["median_ms"]
    assert case["ratio_to_best_peer"] == pytest.approx(best / rows["vtc"]["median_ms"])


def test_a_wrong_result_is_said_and_is_no_best_peer(monkeypatch):
    def wrong(case, settings, progress):
        twin = case.twin()
        return Prepared("inductor", twin, call := lambda: twin.call() * 1.01, call)

    monkeypatch.setitem(peers._PREPARE, "inductor", wrong)
    case = suite.bench(REQUEST, ["inductor"], SHORT)
    row = rows_of(case)["inductor"]
    assert row["correct"] is False
    assert row["max_rel_error"] == pytest.approx(0.01, rel=0.1)
    assert case["ratio_to_best_peer"] is None


@pytest.mark.parametrize(
    ("raised", "note"),
    [
        (Unsupported("this peer has no caches"), "this peer has no caches"),
        (RuntimeError("boom\nand more"), "failed: RuntimeError: boom"),
    ],
)
@pytest.mark.parametrize("system", ["inductor", "vtc"])
def test_a_system_that_cannot_run_has_a_note_and_the_others_go_on(
    monkeypatch, system, raised, note
):
    def fails(case, settings, progress):
        raise raised

    monkeypatch.setitem(peers._PREPARE, system, fails)
    rows = rows_of(suite.bench(REQUEST, ["eager", "inductor"], SHORT))
    assert rows[system]["note"] == note
    assert rows[system]["median_ms"] is None
    assert rows["eager"]["correct"]


def test_an_engine_that_is_not_there_ends_the_bench(monkeypatch):
    def fails(case, settings, progress):
        raise EngineUnavailableError("dvm", "it is not built")

    monkeypatch.setitem(peers._PREPARE, "vtc", fails)
    with pytest.raises(EngineUnavailableError):
        suite.bench(REQUEST, ["eager"], SHORT)


def test_unknown_peers_are_refused_before_work():
    with pytest.raises(UnknownChoiceError, match="did you mean 'inductor'"):
        suite.bench(REQUEST, ["inducto"], SHORT)
    assert peers.check_systems(["eager", "eager"]) == ("eager",)


def test_stock_variants_are_compared_only_where_there_is_one():
    with torch.no_grad():
        case = REQUEST.build()
        with pytest.raises(Unsupported, match="no stock variant"):
            peers.prepare("inductor-best", case, Settings())


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_exported_peers_say_what_they_do_not_run(peer):
    with torch.no_grad():
        case = suite.Request("shufflenet", size=32, dtype="bfloat16").build()
        with pytest.raises(Unsupported, match="float32"):
            peers.prepare(peer, case, Settings())


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_exported_peers_compute_what_the_model_computes(peer):
    rows = rows_of(suite.bench(REQUEST, [peer], SHORT))
    row = rows[peer]
    assert row["note"] is None
    assert row["correct"]
    assert row["capture_s"] > 0
    assert row["peak_bytes"] is None
    assert row["movement_kernels"] is None


SPLIT_AND_CONCAT = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.widen, self.mix = torch.nn.Conv2d(8, 16, 1), torch.nn.Conv2d(24, 8, 1)

    def forward(self, x):
        a, b = self.widen(x).chunk(2, 1)
        return self.mix(torch.cat([a, b.relu(), x], 1))

def make(batch=1):
    return Block(), (torch.randn(batch, 8, 16, 16),)
"""


@pytest.mark.slow
def test_vtc_and_inductor_compile_a_users_model(monkeypatch, tmp_path):
    monkeypatch.undo()  # the real systems
    (tmp_path / "split_and_concat.py").write_text(SPLIT_AND_CONCAT)
    monkeypatch.syspath_prepend(tmp_path)
    request = suite.Request("split_and_concat:make", batch=2)
    rows = rows_of(suite.bench(request, ["inductor"], SHORT))
    for row in rows.values():
        assert row["note"] is None
        assert row["correct"]
        assert row["capture_s"] > 0
        assert row["compile_s"] > 0

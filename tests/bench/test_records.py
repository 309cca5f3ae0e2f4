"""Result files are checked when they are written and when they are read."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from vtc.bench import dvm_sections, records
from vtc.bench.records import CaseRecord, Config, Row
from vtc.bench.timing import Ratio
from vtc.runtime.dvm import counters


def case(*rows, **changes):
    config = Config(dtype="float32", engine="auto", objective="latency")
    return CaseRecord(**{"model": "m", "batch": 1, "device": "cpu", "config": config, **changes},
                      rows=rows).to_dict()  # fmt: skip


REPORT = {
    "movement": {"operators": 1, "virtual": 1, "residual": 0, "kernels_before": 1,
                 "kernels_after": 0, "bytes_before": 8, "bytes_after": 0},
    "peak_bytes": {"before": 8, "after": None},
    "vtog": {"nodes": 2, "edges": 1, "conflicts": 0},
    "search": {"profiles": 0, "cache_hits": 0, "seconds": 0.1, "gap": None},
    "operators": [{"operator": "Concat", "node": "cat", "fate": "virtual", "on": "buf",
                   "direction": "store", "type": "I", "saving_us": 3.0, "stack": "m.py:1"}],
}  # fmt: skip


def test_a_case_has_exactly_the_documented_keys():
    written = case(Row("eager"))
    assert list(written) == ["model", "batch", "device", "config", "versions", "date", "rows",
                             "ratio_to_best_peer"]  # fmt: skip
    assert list(written["config"]) == ["size", "layers", "context", "dtype", "engine",
                                       "objective", "freeze"]  # fmt: skip
    wanted = {"system", "engine", "median_ms", "p10_ms", "p90_ms", "capture_s", "compile_s",
              "first_call_s", "peak_bytes", "movement_kernels", "movement_ms",
              "max_rel_error"}  # fmt: skip
    assert wanted <= set(written["rows"][0])
    assert {"vtc", "python", "torch", "processor"} <= set(written["versions"])


def test_files_round_trip(tmp_path):
    cases = [case(Row("vtc", median_ms=1.0), Row("eager", ratio_to_vtc=Ratio(2.0, 1.5, 2.5))),
             case(REPORT)]  # fmt: skip
    path = tmp_path / "deep" / "results.json"
    records.write(path, cases)
    assert records.read(path) == json.loads(json.dumps(cases))
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]
    assert records.read(tmp_path / "absent.json") == []


def test_an_invalid_case_does_not_replace_a_file(tmp_path):
    path = tmp_path / "results.json"
    records.write(path, [case()])
    kept = path.read_text()
    with pytest.raises(ValueError, match="unknown colour"):
        records.write(path, [{**case(), "colour": "red"}])
    assert path.read_text() == kept


def _set(document, path, value):
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["cases", 0, "model"], None, r"cases\[0\].model is None"),
        (["cases", 0, "date"], "yesterday", "date"),
        (["cases", 0, "config"], {"size": 1}, "config lacks"),
        (["cases", 0, "ratio_to_best_peer"], "2", "ratio_to_best_peer"),
        (["cases", 0, "rows", 0, "median_ms"], "fast", "median_ms"),
        (["cases", 0, "rows", 0, "median_ms"], True, "median_ms"),
        (["cases", 0, "rows", 0, "peak_bytes"], 1.5, "peak_bytes"),
        (["cases", 0, "rows", 0, "ratio_to_vtc"], {"median": 1.0}, "ratio_to_vtc lacks"),
        (["cases", 0, "rows", 0, "extra"], 1, "unknown extra"),
        (["cases", 1, "rows", 0, "operators", 0, "fate"], "lost", "fate is 'lost'"),
        (["cases", 1, "rows", 0, "movement"], {}, "movement lacks"),
    ],
)
def test_the_validator_names_the_place(path, value, words):
    document = {"cases": [case(Row("eager")), case(REPORT)]}
    records.validate(document)
    with pytest.raises(ValueError, match=words):
        records.validate(_set(document, path, value))


def test_the_best_peer_is_the_fastest_correct_one():
    rows = [
        Row("vtc", median_ms=2.0, correct=True),
        Row("eager", median_ms=8.0, correct=True),
        Row("inductor", median_ms=6.0, correct=True),
        Row("onnxruntime", median_ms=1.0, correct=False),
        Row("openvino", note="no"),
        Row("vtc-export", median_ms=1.0, correct=True),
    ]
    assert records.best_peer_ratio(rows) == 3.0
    assert records.best_peer_ratio(rows[1:]) is None
    assert records.best_peer_ratio(rows[:1]) is None


def test_cases_are_the_same_measurement_by_model_batch_device_and_configuration():
    assert records.case_key(case(Row("eager"))) == records.case_key(case())
    assert records.case_key(case()) != records.case_key(case(batch=4))
    assert records.case_key(case()) != records.case_key(case(config=Config(freeze=True)))


ENCODED = {
    "median": 3.0, "p99": 7.5, "shapes": 2900, "lower_ms": 1.2, "load_ms": 0.3,
    "first_call_ms": 1.6, "first_call_max_ms": 20.0,
}  # fmt: skip
OPERATOR = {
    "operator": "gelu", "kind": "chain", "band": "L2", "shape": [224, 512], "dtype": "float32",
    "dvm_us": 40.0, "eager_us": 60.0, "inductor_us": 41.0, "inductor_dynamic_us": 42.0,
    "numexpr_us": None, "numexpr_re_evaluate_us": None, "compile_ms": 30.0,
    "inductor_compile_ms": 4000.0, "inductor_dynamic_compile_ms": 5000.0, "max_rel_error": 1e-7,
}  # fmt: skip


def test_the_sections_of_the_dvm_survive_a_round_trip(tmp_path):
    path = tmp_path / "cpu-dvm.json"
    sections = {"encode_us": {"softmax": ENCODED}, "operators": [OPERATOR], "sequences": []}
    records.write(path, [case(Row("eager"))], sections)
    assert records.read_sections(path) == sections
    assert len(records.read(path)) == 1
    assert records.read_sections(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"encode_us": {"softmax": ENCODED | {"p99": None}}}, r"encode_us\.softmax\.p99"),
        ({"operators": [OPERATOR | {"shape": 3}]}, r"operators\[0\]\.shape"),
        ({"operators": [OPERATOR | {"dvm_us": None}]}, r"operators\[0\]\.dvm_us"),
        ({"operators": [{"operator": "gelu"}]}, r"operators\[0\] lacks"),
        ({"sequences": [{"model": "mmoe"}]}, r"sequences\[0\] lacks"),
        ({"encodings": {}}, "unknown encodings"),
    ],
)
def test_a_section_that_departs_from_the_schema_is_named(sections, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        records.write(tmp_path / "x.json", [], sections)
    assert not (tmp_path / "x.json").exists()


def test_what_the_dvm_counts_has_a_place_in_its_sections():
    counted = set(dataclasses.asdict(counters))
    for name in ("sequences", "generation"):
        assert counted <= {*dvm_sections.LISTS[name], *dvm_sections.OPTIONAL[name]}

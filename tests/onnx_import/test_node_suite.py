"""The node tests of the package onnx, scored as conformance/onnx_nodes.py scores them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from onnx_cases import MOVEMENT, RANDOM, cases, has_defined_cast, judge

# Differences of rounding: the tests' tolerances allow no other order of summation than numpy's.
ROUNDED = {
    "Attention": "fp16 and bf16 results one unit in the last place apart",
    "DFT": "the same to 1e-6 where 1e-7 is asked for",
    "DeformConv": "the same to 1e-6 where 1e-7 is asked for",
}


@pytest.fixture(scope="module")
def eager():
    return [judge(case, "eager") for case in cases()]


def test_every_movement_case_passes(eager):
    moving = {c.name for c in cases() if c.moves}
    assert [v for v in eager if v.case in moving and v.status != "passed"] == []
    assert {c.operator for c in cases() if c.moves} == set(MOVEMENT)


def test_only_rounding_keeps_a_case_of_an_imported_operator_from_passing(eager):
    failed = [v for v in eager if v.status == "failed"]
    assert [v for v in failed if v.operator not in ROUNDED] == []
    assert all(v.reason.startswith("differs by") for v in failed)


def test_at_least_19_in_20_cases_of_imported_operators_pass(eager):
    passed = Counter(v.operator for v in eager if v.status == "passed")
    every = Counter(v.operator for v in eager)
    assert len(passed) >= 170
    assert sum(passed.values()) >= 0.95 * sum(every[name] for name in passed)


def test_unsupported_cases_say_why(eager):
    unsupported = [v for v in eager if v.status == "unsupported"]
    assert unsupported
    for verdict in unsupported:
        assert any(
            words in verdict.reason
            for words in ("no rule", "element type", "less than a byte", "no such operator")
        ), verdict


@pytest.mark.parametrize("operator", MOVEMENT)
def test_movement_operators_become_index_maps(operator):
    chosen = [c for c in cases() if c.moves and c.operator == operator]
    verdicts = [judge(case, "maps") for case in chosen]
    assert verdicts
    assert [v for v in verdicts if v.status != "passed"] == []
    # A reshape to the shape that is there already leaves nothing.
    assert any(v.movements for v in verdicts)


SAMPLE = (
    "test_concat_3d_axis_1",
    "test_slice_neg_steps",
    "test_reflect_pad",
    "test_gather_negative_indices",
    "test_scatternd",
    "test_spacetodepth",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_movement_compiled_is_exact(name):
    (case,) = [c for c in cases() if c.name == name]
    verdict = judge(case, "vtc")
    assert verdict.status == "passed", verdict


def test_a_wrong_result_is_noticed(monkeypatch):
    (case,) = [c for c in cases() if c.name == "test_concat_2d_axis_0"]
    assert judge(case, "eager").status == "passed"
    wrong = type(case)(**{**vars(case), "inputs": case.inputs[::-1]})
    for engine in ("eager", "maps"):
        assert judge(wrong, engine).status == "failed"


def test_a_cast_is_compared_where_onnx_defines_it():
    case = next(c for c in cases() if c.name == "test_cast_FLOAT_to_INT4")
    source = torch.tensor([-9.0, -8.9, -8.0, 7.9, 8.0, float("nan")])
    assert has_defined_cast(source, case).tolist() == [False, True, True, True, False, False]
    assert has_defined_cast(torch.arange(99), case).all()


def test_random_operators_are_those_without_one_answer():
    assert set(RANDOM) <= {c.operator for c in cases()} | {"RandomUniformLike"}

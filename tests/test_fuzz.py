"""The fuzzer of `conformance/fuzz`: a few cases of each kind are right, and what is wrong is found
and made small."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "conformance" / "fuzz"))

from engines import Fault, run
from generate import generate
from shrink import kind_of, shrink
from work import Task, finding, run_seeds

from vtc.program.scalars import SCALARS

pytestmark = pytest.mark.usefixtures("clean_dynamo")


@pytest.mark.parametrize("engine", ["plan", "dvm"])
def test_random_graphs_are_right(engine: str) -> None:
    outcome = run_seeds(Task(engine, "cpu"), range(16))
    assert outcome.findings == []
    assert outcome.statements > 80
    assert len(outcome.kinds) > 20


def test_a_seed_gives_one_case() -> None:
    first, again = generate(11), generate(11)
    assert str(first) == str(again)
    results = [first.function(*first.args()) for _ in range(2)]
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


def test_a_wrong_operator_is_found_and_made_small() -> None:
    """A machine whose minimum is a maximum: what is left of a case is that operator."""
    from vtc.lowering.dvm import rules_pointwise
    from vtc.lowering.dvm.rules import RULES

    wrong = {torch.ops.aten.minimum.default: rules_pointwise._maximum}
    assert "minimum" in SCALARS
    task = Task("dvm", "cpu")

    def fails(case):
        found = finding(task, case, Counter())
        return None if found is None else found.what

    with patch.dict(RULES, wrong):
        seeds = (s for s in range(400) if "torch.minimum" in generate(s, symbolic=False).code)
        bad = next(s for s in seeds if fails(generate(s, symbolic=False)))
        small = shrink(generate(bad, symbolic=False), fails)
        with pytest.raises(Fault, match=r"one right answer|more than"):
            run(small, "dvm", "cpu", Counter())
    assert len(small.statements) <= 2
    assert "torch.minimum" in small.code


def test_findings_of_one_kind_read_alike() -> None:
    assert kind_of("output 3 (v12) differs by 1.5") == kind_of("output 0 (v1) differs by 0.25")
    assert kind_of("output 3 (v12) differs by 1.5") != kind_of("output 3 has strides (1, 2)")

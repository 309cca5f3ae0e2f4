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

from cases import Argument, Case, Statement
from engines import Fault, run
from generate import generate
from records import Record, read_file, totals
from shrink import kind_of, shrink
from symbolic import Programs
from work import CHUNK, Finding, Task, finding, run_all, run_seeds

from vtc.program.scalars import SCALARS

pytestmark = pytest.mark.usefixtures("clean_dynamo")


@pytest.mark.parametrize("engine", ["plan", "dvm"])
def test_random_graphs_are_right(engine: str) -> None:
    outcome = run_seeds(Task(engine, "cpu"), range(16))
    assert outcome.findings == []
    assert outcome.statements > 80
    assert len(outcome.kinds) > 20
    assert bool(outcome.symbolic) == (engine == "dvm")


@pytest.mark.parametrize("seed", [2279, 2322, 8212, 9249, 10020, 17802, 20142, 24024, 26430])
def test_seeds_that_went_wrong_are_right(seed: int) -> None:
    """Views of one value returned, steps that wait for each other, an index of no elements, a view
    in the same dtype, a map that cannot be decided."""
    assert run_seeds(Task("plan", "cpu"), range(seed, seed + 1)).findings == []


def test_a_program_is_called_with_the_sizes_that_its_guards_hold_for() -> None:
    """Sizes of 2 and 3 go together; that x has as many rows as y holds of the first call alone."""
    texts = ("torch.randn(2, 4)", "torch.randn(3, 4)", "torch.randn(3, 4)")
    others = ("torch.randn(2, 1)", "torch.randn(3, 1)", "torch.randn(1, 1)")
    sized = Case(
        0,
        (Argument("a0", texts), Argument("a1", others)),
        (Statement("v0 = a0 + a1", "binary", ("v0",)),),
        ("v0",),
        symbolic=True,
    )
    programs = Programs(sized, "cpu")
    made = [programs.of(world) for world in sized.worlds]
    assert made[0] is made[1] is not made[2]
    notes = Counter[str]()
    run(sized, "dvm", "cpu", notes)
    assert notes["programs with symbols"] == 2


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


def test_outcomes_come_in_the_order_of_the_seeds_from_several_processes() -> None:
    task = Task("plan", "cpu", statements=2)
    with patch.dict(CHUNK, plan=2):
        outcomes = list(run_all(task, range(9), jobs=2))
        assert not list(run_all(task, range(9), jobs=2, until=0))
    assert [o.seeds for o in outcomes] == [2, 2, 2, 2, 1]
    alone = run_seeds(task, range(2))
    assert outcomes[0].kinds == alone.kinds
    assert outcomes[0].notes == alone.notes


def test_a_record_goes_on_and_tells_what_was_fixed(tmp_path: Path) -> None:
    path, task = tmp_path / "fuzz.json", Task("plan", "cpu", statements=2)
    record = Record(task, 5)
    record.outcome.add(run_seeds(task, range(5, 8)))
    record.outcome.findings.append(Finding(6, "plan", "what was wrong then"))
    record.write(path)
    record = Record.read(path, task, 5)
    assert record.outcome.seeds == 3
    record.again(jobs=1)
    record.write(path)
    (held,) = read_file(path).values()
    assert held["seeds"] == [5, 7]
    assert held["mismatches"] == []
    assert [f["seed"] for f in held["fixed"]] == [6]
    Record(task, 90).write(path)
    assert totals(read_file(path)).startswith("plan on cpu: 3 graphs, 0 mismatches, 1 fixed")

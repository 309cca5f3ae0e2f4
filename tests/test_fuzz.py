"""The fuzzer of `conformance/fuzz`: a few cases of each kind are right, and what is wrong is found
and made small."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

sys.path.append(str(Path(__file__).parents[1] / "conformance" / "fuzz"))

import movement
import work
from cases import Argument, Case, Statement, moved
from devices import aligned, made_there, on_device
from drawing import Draw, overlaps
from engines import Fault, run
from generate import generate
from judge import Judge, Run
from records import Record, commit, merged, read_file, totals
from shrink import kind_of, shrink
from symbolic import Programs, Symbols
from work import (
    CHUNK,
    ENDED,
    SYMBOLIC_SEEDS,
    Finding,
    Outcome,
    Task,
    finding,
    run_all,
    run_seeds,
)

from vtc.graph.capture import capture
from vtc.program.scalars import SCALARS

pytestmark = pytest.mark.usefixtures("clean_dynamo")


@pytest.mark.parametrize("engine", ["plan", "dvm"])
def test_random_graphs_are_right(engine: str) -> None:
    outcome = run_seeds(Task(engine, "cpu"), range(16))
    assert outcome.findings == []
    assert outcome.statements > 80
    assert len(outcome.kinds) > 20
    assert bool(outcome.symbolic) == (engine == "dvm")


@pytest.mark.parametrize(
    "seed",
    [
        *(3317, 5725, 2279, 2322, 8212, 9249, 10020, 17802, 20142, 24024, 26430),
        *(11673, 24480, 34383, 32729, 56621, 61079, 42009, 36676, 58745, 60937),
    ],
)
def test_seeds_that_went_wrong_are_right(seed: int) -> None:
    """Results in the strides of an arena, views of one value returned, steps that wait for each
    other, an index of no elements, a view in the same dtype, a map that cannot be decided, a view
    of a rolled tensor, a scatter into an expanded one, rows that are repeated but are no heads, an
    argument that is scattered and then updated, an update of a view of an updated view, one that
    another replaces, views of an upsampling, copysign on strides in two orders, operators that
    choose the order of a result by an operand that lies elsewhere."""
    assert run_seeds(Task("plan", "cpu"), range(seed, seed + 1)).findings == []


def test_a_tensor_that_is_empty_at_first_is_traced_by_the_usual_rules() -> None:
    assert run_seeds(Task("dvm", "cpu"), [968]).findings == []


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
    assert notes["programs with symbols"] == notes["worlds run with known sizes"] == 1


@pytest.mark.parametrize("world", range(3))
def test_a_size_may_be_the_integer_part_of_a_float_multiple(world: int) -> None:
    texts = ("torch.randn(2, 5, 2)", "torch.randn(10, 3, 10)", "torch.randn(1, 7, 1)")
    statements = (
        Statement("v0 = F.interpolate(a0, scale_factor=1.5, mode='nearest')", "pool", ("v0",)),
        Statement("v1 = torch.where(v0 > 0, v0, 0)", "where", ("v1",)),
    )
    case = Case(world, (Argument("a0", texts),), statements, ("v1",), symbolic=True)
    notes = Counter[str]()
    run(case, "dvm", "cpu", notes)
    assert notes["programs with symbols"] == 1


@pytest.mark.parametrize(("seed", "known"), [(0, 2), (1, 1), (2, 1)])
def test_a_case_is_traced_with_the_sizes_that_its_seed_picks(seed: int, known: int) -> None:
    """In the first world a row is broadcast: its program does for no other one."""
    texts = ("torch.randn(3, 4)", "torch.randn(2, 4)", "torch.randn(3, 4)")
    others = ("torch.randn(1, 1)", "torch.randn(2, 1)", "torch.randn(3, 1)")
    arguments = (Argument("a0", texts), Argument("a1", others))
    statement = Statement("v0 = a0 + a1", "binary", ("v0",))
    notes = Counter[str]()
    run(Case(seed, arguments, (statement,), ("v0",), symbolic=True), "dvm", "cpu", notes)
    assert (notes["programs with symbols"], notes["worlds run with known sizes"]) == (1, known)


def test_a_seed_of_which_no_case_is_drawn_is_a_finding() -> None:
    with patch.object(Task, "case", side_effect=IndexError("tuple index out of range")):
        outcome = run_seeds(Task("dvm", "cpu"), [3, 4])
    assert [f.seed for f in outcome.findings] == [3, 4]
    assert outcome.seeds == 2


def test_later_seeds_have_symbolic_sizes_less_often() -> None:
    counts = [
        sum(Task("dvm", "cpu").case(seed).symbolic for seed in range(first, first + 400))
        for first in (0, SYMBOLIC_SEEDS)
    ]
    assert counts[0] > 2 * counts[1] > 0


def test_guards_with_alternatives_are_all_to_hold() -> None:
    symbols = Symbols([torch.randn(2, 3)])
    fakes = symbols.fakes()
    with patch.object(ShapeEnv, "produce_guards", lambda *_, **__: ["True or True", "False"]):
        holds = symbols.holds(fakes)
    assert not holds([torch.randn(2, 3)])


def test_a_program_may_hold_a_number_that_its_trace_has_read() -> None:
    symbols = Symbols([torch.randn(4, 6), torch.tensor(3)])
    holds = symbols.holds(symbols.fakes())
    assert holds([torch.randn(5, 6), torch.tensor(3)])
    assert not holds([torch.randn(5, 6), torch.tensor(2)])


def test_the_same_symbols_are_made_again() -> None:
    symbols = Symbols([torch.randn(4, 6).mT, torch.randn(4, 9)[:, :6]])
    first, second = symbols.fakes(), symbols.fakes()
    assert [str(f.stride()) for f in first] == [str(f.stride()) for f in second]


def test_both_engines_are_run_on_one_capture() -> None:
    task = Task("both", "cpu", statements=3, dynamo_each=0)
    captured = []
    with patch("engines.capture", lambda *a, **k: captured.append(a) or capture(*a, **k)):
        seed = next(s for s in range(9) if not task.case(s).symbolic)
        outcome = run_seeds(task, [seed])
    assert outcome.findings == []
    assert outcome.notes["strategies"] > 0
    assert len(captured) == 1


def test_symbolic_cases_of_both_engines_are_two() -> None:
    task = Task("both", "cpu", dynamo_each=20)
    case = next(c for s in range(1, 60) if (c := task.case(s)).symbolic)
    (one, dvm), (other, plan) = task.engines_of(case)
    assert (one, other) == ("dvm", "plan")
    assert (dvm.symbolic, plan.symbolic) == (True, False)
    assert task.engines_of(task.case(20))[0][0] == "dynamo"


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


@pytest.mark.parametrize(
    ("stock", "ours", "as_stock"),
    [(1.0, 1.0, True), (1.0, 2.0, False), (0.0, 1.0, False), (None, 1.0, False)],
)
def test_what_stock_gets_wrong_in_the_same_way_is_told_apart(
    stock: float | None, ours: float, as_stock: bool
) -> None:
    """By how much both are off; None raises an error, which is another fault."""
    sizes = Argument("a0", ("torch.ones(3, dtype=torch.float64)",))
    case = Case(1, (sizes,), (Statement("v0 = -a0", "unary", ("v0",)),), ("v0",), frozenset(["v0"]))

    def compiled(off: float | None):
        def call(x: torch.Tensor) -> tuple[torch.Tensor]:
            if off is None:
                raise ValueError("no compiler")
            return (off - x,)

        return call

    with (
        patch("vtc.compile", lambda *_, **__: compiled(ours)),
        patch("torch.compile", lambda *_, **__: compiled(stock)),
    ):
        found = finding(Task("inductor", "cpu"), case, Counter())
    assert found.as_stock is as_stock
    assert "differs by" in found.what


def test_findings_of_one_kind_read_alike() -> None:
    assert kind_of("output 3 (v12) differs by 1.5") == kind_of("output 0 (v1) differs by 0.25")
    assert kind_of("output 3 (v12) differs by 1.5") != kind_of("output 3 has strides (1, 2)")


def test_outcomes_come_in_the_order_of_the_seeds_from_several_processes() -> None:
    task = Task("plan", "cpu", statements=2)
    with patch.dict(CHUNK, plan=2):
        outcomes = list(run_all(task, range(9), jobs=2))
        assert not list(run_all(task, range(9), jobs=2, until=0))
    assert [o.seeds for o in outcomes] == [2, 2, 2, 2, 1]
    assert run_seeds(task, range(9), until=0).seeds == 0
    alone = run_seeds(task, range(2))
    assert outcomes[0].kinds == alone.kinds
    assert outcomes[0].notes == alone.notes


def test_several_processes_ask_for_devices_in_a_way_that_lets_them_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process forked from one that counted devices otherwise could use none."""
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    work._processes()
    assert torch.cuda._nvml_based_avail()


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["plan", "dvm"])
def test_several_processes_use_the_device(engine: str) -> None:
    outcomes = list(run_all(Task(engine, "cuda", statements=2), range(9), jobs=2))
    assert sum((o.notes for o in outcomes), Counter())["not run"] < 9


def test_a_record_goes_on_and_tells_what_was_fixed(tmp_path: Path) -> None:
    path, task = tmp_path / "fuzz.json", Task("plan", "cpu", statements=2)
    record = Record(task, 5)
    record.outcome.add(run_seeds(task, range(5, 8)))
    record.outcome.findings.append(Finding(6, "plan", "what was wrong then"))
    record.fixed.append(Finding(5, "plan", "what was wrong before"))
    record.outcome.as_stock.append(Finding(7, "plan", "what stock got wrong", as_stock=True))
    record.write(path)
    (held,) = read_file(path).values()
    assert [f["seed"] for f in held["as_stock"]] == [7]
    record = Record.read(path, task, 5)
    assert record.outcome.seeds == 3
    record.again(jobs=1)
    record.write(path)
    (held,) = read_file(path).values()
    assert held["seeds"] == [5, 7]
    assert held["mismatches"] == []
    own = {"commit": commit(), "torch": torch.__version__}
    assert held["slices"] == [{"seeds": [5, 7], **own}]
    assert [f["seed"] for f in held["fixed"]] == [5, 6, 7]
    assert held["as_stock"] == []
    Record(task, 90).write(path)
    text = "plan on cpu: 3 graphs, 0 mismatches, 0 as stock TorchInductor, 3 fixed"
    assert totals(read_file(path)).startswith(text)


def test_a_seed_that_goes_wrong_again_is_fixed_no_more() -> None:
    record = Record(Task("plan", "cpu", statements=2), 0)
    record.outcome.seeds = 3
    record.fixed = [Finding(seed, "plan", "what was wrong then") for seed in (1, 2)]
    outcome = Outcome(1, findings=[Finding(2, "plan", "it is again")])
    with patch("records.run_all", return_value=[outcome]):
        record.again(jobs=1)
    assert [f.seed for f in record.fixed] == [1]
    assert [f.what for f in record.outcome.findings] == ["it is again"]


def record_of(first: int, last: int, commit: str | None = "a", wrong: int = 0) -> dict:
    """A record as a file holds it, under its key; old ones tell no commit."""
    held = {
        "seeds": [first, last],
        "graphs": 1 + last - first,
        "symbolic": 1,
        "statements": 9,
        "mismatches": [{"seed": first, "engine": "dvm", "what": "x", "details": ""}] * wrong,
        "fixed": [],
        "seconds": 2.5,
        "versions": {"python": "3.11.7", "torch": "2.14.1"},
        "notes": {"strategies": 3},
        "kinds": {"cat": 2},
    }
    if commit:
        held["slices"] = [{"seeds": [first, last], "commit": commit, "torch": "2.14.1"}]
    return {f"dvm on cpu from seed {first}": held}


def test_records_of_neighbouring_seeds_are_joined() -> None:
    files = [record_of(50, 79, "b", wrong=1), record_of(0, 49, None), record_of(80, 99, "b")]
    made = merged([*files, record_of(200, 209)])
    assert list(made) == ["dvm on cpu from seed 0", "dvm on cpu from seed 200"]
    held = made["dvm on cpu from seed 0"]
    assert held["seeds"] == [0, 99]
    assert held["graphs"] == 100
    assert held["seconds"] == 7.5
    assert held["kinds"] == {"cat": 6}
    assert [f["seed"] for f in held["mismatches"]] == [50]
    found = [(s["seeds"], s["commit"]) for s in held["slices"]]
    assert found == [([0, 49], "not known"), ([50, 99], "b")]


def test_of_two_records_the_one_with_all_seeds_counts() -> None:
    for files in ([record_of(0, 9), record_of(0, 99)], [record_of(0, 99), record_of(20, 29)]):
        assert [r["seeds"] for r in merged(files).values()] == [[0, 99]]
    (held,) = merged([record_of(0, 9, "old"), record_of(0, 9, "new")]).values()
    assert held["slices"][0]["commit"] == "new"
    with pytest.raises(ValueError, match="seeds in common"):
        merged([record_of(0, 9), record_of(5, 14)])


def test_arguments_share_storage_on_another_device() -> None:
    x = torch.randn(3, 4)
    values = [x, x, x[1:].t(), x.view(torch.int32), 3]
    made = moved(values, "meta")
    assert made[0] is made[1]
    assert len({t.untyped_storage()._cdata for t in made[:4]}) == 1
    assert made[2].stride() == (1, 4)
    assert made[2].storage_offset() == 4
    assert made[3].dtype == torch.int32
    assert made[4] == 3


def test_a_seed_that_cannot_be_drawn_is_a_finding() -> None:
    with patch.object(work, "generate", side_effect=[IndexError("no dimension"), generate(3)]):
        outcome = run_seeds(Task("plan", "cpu"), [8, 3])
    assert outcome.seeds == 2
    assert [(f.seed, f.what) for f in outcome.findings] == [
        (8, "drawing it: IndexError: no dimension")
    ]


def test_no_rows_are_drawn_of_a_table_that_has_none_in_a_world() -> None:
    drawn = 0
    for seed in range(100):
        draw = Draw(seed, worlds=2, special=False)
        draw.argument([(3, 4), (0, 4)], torch.float32)
        movement.gathers(draw)
        drawn += len(draw.statements)
    assert drawn


def test_a_value_of_other_dimensions_in_another_world_is_no_operand() -> None:
    draw = Draw(0, worlds=2, special=False)
    a = draw.argument([(3, 4), (3, 1)], torch.float32)
    (v,) = draw.emit("squeeze", f"{a}.squeeze()")
    (w,) = draw.emit("flatten", f"{a}.flatten(0, 1)")
    assert draw.values == [a, w]
    assert draw.finish().outputs == (v, w)


def test_a_scatter_in_the_strides_of_overlapping_elements_has_no_one_answer() -> None:
    assert overlaps(torch.zeros(51).as_strided((3, 22), (4, 1)))
    assert not overlaps(torch.zeros(3, 4)[:, ::2].t())


def test_an_operand_of_half_precision_leaves_no_one_answer() -> None:
    draw = Draw(0, worlds=1, special=False)
    a, b = (draw.argument([(3,)], dtype) for dtype in (torch.float32, torch.float16))
    (v,) = draw.emit("binary", f"torch.remainder({a}, {b}.abs() + 1)", rounds=True)
    (w,) = draw.emit("binary", f"torch.remainder({a}, {a}.abs() + 1)", rounds=True)
    assert v not in draw.exact
    assert w in draw.exact


def test_bits_of_values_that_are_rounded_in_place_have_no_one_answer() -> None:
    draw = Draw(0, worlds=1, special=False)
    a = draw.argument([(3,)], torch.float32)
    (v,) = draw.emit("view_dtype", f"{a}.view(torch.int32)")
    (w,) = draw.emit("scalar", f"{v} + 0")
    draw.update("update", f"{a}.sin_()", a, exact=False)
    (x,) = draw.emit("scalar", f"{v} + 0")
    assert w in draw.exact
    assert x not in draw.exact
    judge = Judge(draw.finish())
    args = judge.case.args()
    outputs = judge.case.function(*args)
    assert judge.fault(Run([o + (k == 1) for k, o in enumerate(outputs)], args), fused=True) is None
    assert judge.fault(Run([o + (k == 0) for k, o in enumerate(outputs)], args), fused=True)


def test_tensors_are_made_of_nothing_on_the_device() -> None:
    assert made_there("v0 = torch.arange(6, 0, -1) * 0.5", "cuda") == (
        "v0 = torch.arange(6, 0, -1, device='cuda') * 0.5"
    )
    assert made_there("v0 = torch.zeros_like(a0)", "cuda") == "v0 = torch.zeros_like(a0)"
    statement = Statement("v0 = torch.ones(3) * a0", "make", ("v0",))
    case = Case(0, (Argument("a0", ("torch.randn(3)",)),), (statement,), ("v0",))
    assert "device='cpu'" in on_device(case, "cpu").code


def test_what_does_not_run_on_a_device_is_left_out_with_what_reads_it() -> None:
    texts = ("torch.randn(2, 3)", "torch.randn(2, 6)")
    statements = (
        Statement("v0 = a0 + 1", "binary", ("v0",)),
        Statement("v1 = v0.view(2, 3)", "reshape", ("v1",)),  # not in the second world
        Statement("v2 = v1 * 2", "binary", ("v2",)),
        Statement("v2.zero_()", "update"),
        Statement("v3 = v0 * 3", "binary", ("v3",)),
    )
    outputs = ("v2", "v3")
    case = on_device(Case(0, (Argument("a0", texts),), statements, outputs), "cpu")
    assert [s.text[:2] for s in case.statements] == ["v0", "v3"]
    assert case.outputs == ("v3",)


def test_attention_that_would_fault_on_a_device_is_left_out() -> None:
    rows = "torch.randn(2, 3, 5, {})"
    texts = {"a0": rows.format(4), "a1": rows.format(4), "a2": rows.format(7) + "[..., 2:6]"}
    arguments = tuple(Argument(name, (text,)) for name, text in texts.items())
    call = "F.scaled_dot_product_attention(a0, a1, {})"
    statements = (
        Statement("v0 = " + call.format("a1"), "attention", ("v0",)),
        Statement("v1 = " + call.format("a2"), "attention", ("v1",)),
    )
    case = on_device(Case(0, arguments, statements, ("v0", "v1")), "cpu")
    assert case.outputs == ("v0",)
    x = torch.randn(2, 3, 5, 8)
    kept = [x, x[..., :4], x[..., 4:], x[..., 1:4]]
    assert all(map(aligned, kept))
    assert not any(map(aligned, (x[..., 2:6], torch.randn(61)[1:].view(1, 3, 5, 4))))


def test_a_case_that_eager_pytorch_loses_the_device_with_is_none() -> None:
    lost = torch.AcceleratorError("CUDA error: misaligned address")
    with patch.object(Task, "case", side_effect=lost):
        outcome = run_seeds(Task("dvm", "cuda"), [3, 4, 5])
    assert (outcome.findings, outcome.graphs, outcome.left) == ([], 0, [4, 5])
    assert outcome.notes[ENDED] == 1

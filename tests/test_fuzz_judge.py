"""What the fuzzer's judge finds wrong, and what it allows: rounding, and answers of eager PyTorch's
own that are as right."""

from __future__ import annotations

import sys
from collections import Counter
from math import inf, nan
from pathlib import Path
from unittest.mock import patch

import pytest
import sympy
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

sys.path.append(str(Path(__file__).parents[1] / "conformance" / "fuzz"))

import engines
from cases import Argument, Case, Statement
from judge import Judge, Run

INFINITE = torch.tensor([0.0, inf, -inf, 1.5] * 16)


def case_of(arguments: list[str], *lines: str) -> Case:
    own = tuple(Argument(f"a{k}", (text,)) for k, text in enumerate(arguments))
    made = [f"v{k}" for k in range(len(lines))]
    pairs = zip(made, lines, strict=True)
    statements = tuple(Statement(f"{name} = {code}", "binary", (name,)) for name, code in pairs)
    return Case(0, own, statements, (made[-1],))


def verdicts(case: Case, output: Tensor) -> list[str | None]:
    """What is wrong with an output of fused code, and of code that rounds as eager PyTorch."""
    judge = Judge(case)
    return [judge.fault(Run([output], case.args()), fused=fused) for fused in (True, False)]


def test_half_precision_may_be_kept_in_float32_in_front_of_a_step() -> None:
    arguments = ["torch.full((2,), 1.0002)", "torch.tensor([4e-4, 0.5])"]
    case = case_of(arguments, "a1.half()", "torch.floor_divide(a0, v0.abs() + 1)")
    assert torch.equal(case.function(*case.args())[0], torch.tensor([1.0, 0.0]))
    fused, plain = verdicts(case, torch.tensor([0.0, 0.0]))
    assert fused is None
    assert plain is not None
    assert None not in verdicts(case, torch.tensor([0.0, 3.0]))


@pytest.mark.parametrize("columns", [1, 64])
def test_products_of_bfloat16_may_honour_denormal_numbers_or_not(columns: int) -> None:
    """Whichever eager PyTorch does with that many columns."""
    tiny = "torch.full((64, 1), 3e-39, dtype=torch.bfloat16)"
    case = case_of([tiny, f"torch.full((1, {columns}), inf).bfloat16()"], "a0 @ a1")
    for value in (inf, nan):
        output = torch.full((64, columns), value, dtype=torch.bfloat16)
        assert verdicts(case, output)[0] is None
    assert None not in verdicts(case, torch.full((64, columns), 2.0).bfloat16())


def test_kernels_of_eager_pytorch_may_disagree_on_infinities() -> None:
    case = case_of(["torch.tensor([0.0, inf, -inf, 1.5] * 16)"], "a0.float()", "F.gelu(v0)")
    other = F.gelu(torch.stack([INFINITE] * 2, -1)[..., 0])
    assert verdicts(case, other)[0] is None
    assert None not in verdicts(case, torch.where(other == 0, 1, other))


@pytest.mark.parametrize("misshapen", [True, False])
def test_what_fails_by_a_wrong_shape_of_pytorchs_own_is_counted(misshapen: bool) -> None:
    case, notes = case_of(["torch.randn(3)"], "a0 + 1"), Counter[str]()
    failing = {"dvm": lambda *_: torch.zeros(2)[torch.tensor(5)]}
    with patch.dict(engines._RUN, failing), patch.object(Judge, "_misshapen", misshapen):
        if misshapen:
            engines.run(case, "dvm", "cpu", notes)
        else:
            with pytest.raises(IndexError):
                engines.run(case, "dvm", "cpu", notes)
    assert notes == ({"a shape of PyTorch's is wrong": 1} if misshapen else {})


def judged(code: str, change: float) -> tuple[str | None, str | None]:
    """What is wrong with an output in float32 that differs: in itself, and as generated code."""
    statements = (f"v0 = {code}", "v0"), ("v1 = v0.float() * 2", "v1")
    case = Case(
        0,
        (Argument("a0", ("torch.rand(8)",)),),
        tuple(Statement(text, "unary", (name,)) for text, name in statements),
        ("v1",),
    )
    judge = Judge(case)
    args = case.args()
    got = Run([case.function(*args)[0] * (1 + change)], args)
    return judge.fault(got), judge.fault(got, stock=True)


def test_generated_code_may_keep_what_eager_pytorch_rounds() -> None:
    plain, stock = judged("a0.bfloat16().exp()", 5e-3)
    assert plain is not None
    assert stock is None
    assert None not in judged("a0.exp()", 5e-3)


def test_an_index_that_is_one_number_of_a_tensor_has_shapes_too() -> None:
    arguments = (
        Argument("a0", ("torch.randn(3, 4)[:, :2]",)),
        Argument("a1", ("torch.randint(-3, 3, ())",)),
    )
    case = Case(0, arguments, (Statement("v0 = a0.neg()[a1]", "gather", ("v0",)),), ("v0",))
    assert Judge(case)._traced == [[1]]


def test_rounding_is_judged_where_a_number_that_is_read_picks_what_is_returned() -> None:
    arguments = Argument("a0", ("torch.rand(4, 8)",)), Argument("a1", ("torch.tensor(-2)",))
    lines = ("v0 = a0.bfloat16()[a1]", "v0"), ("v1 = v0.float().exp()", "v1")
    statements = tuple(Statement(text, "unary", (name,)) for text, name in lines)
    judge = Judge(Case(0, arguments, statements, ("v1",)))
    args = judge.case.args()
    got = Run([judge.case.function(*args)[0] * (1 + 5e-3)], args)
    assert judge.fault(got, fused=True) is None
    assert judge.fault(got) is not None


def test_a_wrong_shape_of_pytorchs_own_is_told_apart() -> None:
    argument = Argument("a0", ("torch.randn(3, 1)",))
    judge = Judge(
        Case(0, (argument,), (Statement("v0 = a0.norm(dim=0)", "norm", ("v0",)),), ("v0",))
    )
    assert not judge.misshapen
    with patch.object(Judge, "_shapes", return_value=[torch.empty(1, 1)]):
        assert judge.misshapen
    with patch.object(Judge, "_shapes", side_effect=RuntimeError("too few dimensions")):
        assert judge.misshapen
    unknown = GuardOnDataDependentSymNode(sympy.Symbol("u0") >= 0, "an index is not known")
    with patch.object(Judge, "_shapes", side_effect=unknown):
        assert not judge.misshapen


def test_products_of_bfloat16_may_take_denormal_numbers_for_zeros() -> None:
    a = Argument("a0", ("torch.tensor([[3e-39, 2.0]], dtype=torch.bfloat16)",))
    b = Argument("a1", ("torch.tensor([[inf], [1.0]], dtype=torch.bfloat16)",))
    case = Case(0, (a, b), (Statement("v0 = a0 @ a1", "matmul", ("v0",)),), ("v0",))
    judge, args = Judge(case), case.args(0)
    assert float(judge.want.outputs[0]) == inf
    nan, other = (torch.full((1, 1), x, dtype=torch.bfloat16) for x in (float("nan"), 2.0))
    assert judge.fault(Run([nan], args), fused=True) is None
    assert judge.fault(Run([nan], args)) is not None
    assert judge.fault(Run([other], args), fused=True) is not None


@pytest.mark.parametrize(
    ("argument", "lines", "allowed", "wrong"),
    [
        ("torch.full((3,), 0.3)", ["a0.expand(4, -1)", "v0.std(0, correction=0)"], 6e-8, 1e-4),
        ("torch.full((3,), 1.3).half()", ["a0 * 1", "v0 - a0"], 5e-4, 0.1),
        ("torch.zeros(3)", ["a0.sigmoid()", "F.threshold(v0, 0.5, 0.25)"], 0.25, 3.0),
    ],
)
def test_rounding_shows_where_it_is_all_that_is_left(
    argument: str, lines: list[str], allowed: float, wrong: float
) -> None:
    """The deviation of equal elements, a difference of equal values, either side of a step."""
    made = [f"v{k}" for k in range(len(lines))]
    statements = [
        Statement(f"{name} = {line}", "reduce", (name,))
        for name, line in zip(made, lines, strict=True)
    ]
    case = Case(0, (Argument("a0", (argument,)),), tuple(statements), (made[-1],))
    judge, args = Judge(case), case.args()
    (want,) = case.function(*args)
    assert judge.fault(Run([want + allowed], args), fused=True) is None
    assert judge.fault(Run([want + allowed], args)) is not None
    assert judge.fault(Run([want + wrong], args), fused=True) is not None


def test_what_is_infinite_in_one_element_leaves_the_others_to_be_judged() -> None:
    """2 ** 128 is no float32; a rounding below it is one."""
    argument = "torch.tensor([2.0 ** 64, 2.0, 3.0])"
    judge = Judge(case_of([argument], "a0 * 1", "v0.square()"))
    assert torch.isinf(judge.want.outputs[0]).tolist() == [True, False, False]
    finite = torch.finfo(torch.float32).max
    for first, second, allowed in [
        (finite, 4.0, True),
        (finite, 4.0 + 2e-6, True),
        (finite, 5.0, False),
        (finite, inf, False),
        (inf, nan, False),
    ]:
        output = torch.tensor([first, second, 9.0])
        assert (verdicts(judge.case, output)[0] is None) == allowed

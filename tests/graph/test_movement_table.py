"""The movement table as a whole: its page, registration, and what a Movement checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from graph.movement_checks import check, check_movement, traced
from vtc.errors import MovementRegistrationError
from vtc.graph.movement import (
    TABLE,
    Movement,
    Operand,
    entries,
    movement_of,
    register_movement,
    table_markdown,
)
from vtc.graph.rules import reshape_is_view
from vtc.index import IndexMap, axes

PAGE = Path(__file__).parents[2] / "docs" / "movement-table.md"


def test_page_is_up_to_date():
    """`python -m vtc.graph.movement > docs/movement-table.md` brings it up to date."""
    assert PAGE.read_text() == table_markdown()


def test_names_and_operators_are_unique():
    names = [e.name for e in TABLE]
    operators = [op for e in TABLE for op in (*e.aten, *e.parts)]
    assert len(set(names)) == len(names)
    assert len(set(operators)) == len(operators)
    assert all(e.directions in ("A", "B", "AB") for e in TABLE)


@torch.library.custom_op("vtc_movement_test::interleave", mutates_args=())
def interleave(x: Tensor, groups: int = 2) -> Tensor:
    return x.view(groups, -1).t().contiguous().view(-1)


def interleave_rule(result: Operand, x: Operand, groups: int) -> Movement:
    (i,) = axes(1)
    (size,) = x.shape
    each = size // groups
    load = IndexMap.single(result.shape, [(i % groups) * each + i // groups])
    store = IndexMap.single(x.shape, [(i % each) * groups + i // each])
    return Movement("Braid", result.shape, 1, load, (store,))


def test_registered_operator_is_movement():
    x = torch.arange(12.0)
    ((node, _),) = traced(interleave._opoverload, x, 3)
    assert movement_of(node) is None
    register_movement(interleave, interleave_rule, name="Braid")
    for args in ((x,), (x, 3)):
        (found,) = check(interleave._opoverload, *args)
        assert found is not None
        assert found.operator == "Braid"
    assert [e.directions for e in entries() if e.name == "Braid"] == ["AB"]
    assert "Braid" not in table_markdown()


@torch.library.custom_op("vtc_movement_test::update", mutates_args=("x",))
def update(x: Tensor) -> None:
    x.zero_()


@torch.library.custom_op("vtc_movement_test::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), x.clone()


@pytest.mark.parametrize(
    ("op", "options", "message"),
    [
        (torch.ops.aten.permute.default, {}, "in the movement table already"),
        (torch.ops.aten.sum, {}, "overloads"),
        (update, {}, "updates an argument"),
        (pair, {}, "exactly one tensor"),
        (torch.relu, {}, "no operator of torch.ops"),
        (torch.ops.aten.relu.default, {"directions": "C"}, "not A, B or AB"),
        (torch.ops.aten.relu.default, {"rule": "no function"}, "not callable"),
    ],
)
def test_registration_is_refused(op, options, message):
    rule = options.pop("rule", interleave_rule)
    with pytest.raises(MovementRegistrationError, match=message):
        register_movement(op, rule, name="Refused", **options)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": ()},
        {"inplace": 0},
        {"shape": (3,)},
        {"operands": (0, 1)},
        {"lookups": (0,), "operands": (0,)},
    ],
)
def test_inconsistent_movement_is_refused(fields):
    same = IndexMap.identity((2,))
    good = {"operator": "X", "shape": (2,), "sources": 1, "load": same, "store": (same,)}
    check_movement(Movement(**good), [torch.ones(2)], [], torch.ones(2))
    with pytest.raises(ValueError, match="X: "):
        Movement(**{**good, **fields})


@pytest.mark.parametrize(
    ("shape", "stride", "target", "viewable"),
    [
        ((4, 6), (6, 1), (24,), True),
        ((4, 6), (1, 4), (24,), False),
        ((4, 6), (1, 4), (2, 2, 6), True),
        ((4, 6), (12, 1), (4, 2, 3), True),
        ((4, 6), (12, 1), (24,), False),
        ((1, 6), (99, 1), (6,), True),
        ((3, 4), (0, 1), (3, 2, 2), True),
        ((3, 4), (0, 1), (12,), False),
        ((0, 4), (4, 1), (2, 0), True),
        ((), (), (1, 1), True),
    ],
)
def test_reshape_of_strides_is_view(shape, stride, target, viewable):
    assert reshape_is_view(Operand(shape, stride), target) is viewable
    x = torch.zeros(200).as_strided(shape, stride)
    assert (x.reshape(target)._base is not None) is viewable

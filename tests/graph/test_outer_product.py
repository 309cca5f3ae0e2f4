"""Matmuls with one element to add up, as multiplications."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from captures import program_of
from vtc.graph.outer_product import multiplied

aten = torch.ops.aten
SHAPES = {
    "rotary embedding": ((1, 8, 1), (1, 1, 5)),
    "matrices": ((6, 1), (1, 7)),
    "a matrix for each": ((3, 2, 4, 1), (1, 5)),
    "one position": ((1, 8, 1), (1, 1, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_outer_product_is_a_multiplication(name: str) -> None:
    x, y = (torch.randn(shape) for shape in SHAPES[name])
    program, inputs = program_of(lambda a, b: (a @ b).sin(), x, y)
    changed = multiplied(program)
    targets = {n.target for n in changed.nodes}
    assert aten.mul.Tensor in targets
    assert not targets & {aten.matmul.default, aten.mm.default, aten.bmm.default}
    (got,) = changed.graph_module(*inputs)
    torch.testing.assert_close(got, (x @ y).sin(), rtol=0, atol=0)


def test_other_products_stay() -> None:
    cases = [((4, 2), (2, 5)), ((4, 1), (1,)), ((1,), (1,)), ((0, 1), (1, 3))]
    for left, right in cases:
        x, y = torch.randn(left), torch.randn(right)
        program, _ = program_of(lambda a, b: a @ b, x, y)
        assert aten.mul.Tensor not in {n.target for n in multiplied(program).nodes}


def test_integers_stay() -> None:
    x: Tensor = torch.arange(4)[:, None]
    program, _ = program_of(lambda a, b: a @ b, x, x.T.contiguous())
    assert aten.mul.Tensor not in {n.target for n in multiplied(program).nodes}

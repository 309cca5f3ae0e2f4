"""What planning takes from an operator or a view: arithmetic, and whether elements lie densely."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch import fx

from vtc.graph.strides import is_dense
from vtc.kernels.operators import flops


@pytest.mark.parametrize(
    ("equation", "shapes", "multiplies"),
    [
        ("ij,jk->ik", ((2, 3), (3, 5)), 30),
        (",->", ((), ()), 1),
        ("ij, ij -> i", ((4, 3), (4, 3)), 12),
        ("i,j->ij", ((4,), (5,)), 20),
        ("b...i,...ij->b...j", ((2, 7, 3), (7, 3, 5)), 210),
        ("...ij,jk", ((6, 2, 3), (3, 5)), 180),
        ("ij,jk->ik", ((2, 1), (3, 5)), 30),
        ("ii->", ((4, 4),), 4),
    ],
)
def test_an_einsum_multiplies_once_for_each_value_of_its_indices(
    equation: str, shapes: tuple[tuple[int, ...], ...], multiplies: int
) -> None:
    graph = fx.Graph()
    operands = []
    for k, shape in enumerate(shapes):
        operands.append(graph.placeholder(f"x{k}"))
        operands[-1].meta["val"] = torch.empty(shape, device="meta")
    node = graph.call_function(torch.ops.aten.einsum.default, (equation, operands))
    assert flops(node) == 2 * multiplies


def test_elements_of_symbolic_sizes_lie_densely_or_not() -> None:
    s, t = sympy.symbols("s t", positive=True, integer=True)
    assert is_dense((3, s, t, 1), (s * t, 1, s, 7))
    assert is_dense((s, 3, t), (1, s * t, s))
    assert not is_dense((3, s, t), (s * t + 1, 1, s))
    assert not is_dense((s, s), (1, 1))
    assert not is_dense((s, t), (t, s))


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1), (5, 1)])
def test_elements_of_known_sizes_lie_densely_as_pytorch_says(shape: tuple[int, ...]) -> None:
    for x in (torch.empty(shape), torch.empty(*shape, 2)[..., 0], torch.empty(2, *shape)[0].mT):
        said = torch.ops.aten.is_non_overlapping_and_dense.default(x)
        assert is_dense(x.shape, x.stride()) is said

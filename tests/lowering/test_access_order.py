"""Inputs that are updated are read before, by whatever loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from compiling import compiled

pytestmark = pytest.mark.usefixtures("clean_dynamo")


def parts(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    both = x + y
    made = both * 2
    out.copy_(both[..., :1])
    y.copy_(y + 1)
    return made


def own_part(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    both = x.slice_scatter(y, 3, 1, 2)
    made = both * 2
    y.copy_(both[..., :1])
    return made


def rows(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    part = x.slice_scatter(y, 3, 1, 2)[..., 1:2].ceil()
    made = part[torch.tensor([1, 0, -2, -1])]
    y.mul_(part)
    return made


@pytest.mark.parametrize("function", [parts, own_part, rows])
@pytest.mark.parametrize("stock", [False, True])
def test_what_reads_an_input_reads_what_it_held_before_its_update(
    function: Callable[..., Any], stock: bool
) -> None:
    sizes = (2, 9, 2, 2), (2, 9, 2, 1), (2, 9, 2, 1)
    x, y, out = (torch.randn(s).to(memory_format=torch.channels_last) for s in sizes)
    args = [x, y, out.contiguous()]
    own, theirs = ([a.clone() for a in args] for _ in range(2))
    run = compiled(function, materialize="all" if stock else [])
    with torch.no_grad():
        got, want = run(*own), function(*theirs)
    torch.testing.assert_close([got, *own], [want, *theirs])


def test_an_argument_is_copied_into_another_before_it_is_updated() -> None:
    def function(x: Tensor, rows: Tensor, added: Tensor, out: Tensor) -> Tensor:
        out.copy_(x)
        x.index_add_(0, rows, added)
        return torch.cat([added.exp(), added @ added.mT], 1)

    args = [torch.randn(8, 4), torch.tensor([1, 5]), torch.randn(2, 4), torch.zeros(8, 4)]
    own, theirs = ([a.clone() for a in args] for _ in range(2))
    with torch.no_grad():
        got, want = compiled(function)(*own), function(*theirs)
    torch.testing.assert_close([got, *own], [want, *theirs])

"""Strides of operators that fakes compute in several steps, or in the order of their input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx

from vtc.graph.capture import capture
from vtc.graph.memory_format import misjudged
from vtc.graph.program import value_of

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "copysign": torch.copysign,
    "floor_divide": torch.floor_divide,
    "div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "xlogy": torch.xlogy,
    "heaviside": torch.heaviside,
    "logaddexp": torch.logaddexp,
    "logsigmoid": lambda a, b: F.logsigmoid(a),
    "nearest": lambda a, b: F.interpolate(a[0], scale_factor=2.0, mode="nearest") + b.sum(),
    "bilinear": lambda a, b: F.interpolate(a, scale_factor=2.0, mode="bilinear") + b.sum(),
}


@pytest.mark.parametrize("permutation", [(0, 1, 2, 3), (3, 1, 0, 2), (0, 3, 1, 2), (2, 0, 3, 1)])
@pytest.mark.parametrize("name", CALLS)
def test_views_of_a_result_have_the_strides_of_eager_pytorch(
    name: str, permutation: tuple[int, ...]
) -> None:
    """Two views of one result, whose strides nothing corrects behind the trace."""
    call = CALLS[name]

    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        made = call(a, b)
        return made[1:], made[:, None]

    shape = (3, 4, 2, 5)
    a = torch.randn([shape[k] for k in permutation]).permute(
        [permutation.index(k) for k in range(4)]
    )
    b = torch.randn(shape)
    program = capture(fx.symbolic_trace(f), [a, b])
    found = [value_of(node).stride() for node in program.outputs]
    assert found == [t.stride() for t in f(a, b)]


@pytest.mark.parametrize(("rounding", "expected"), [(None, False), ("floor", True)])
def test_a_division_is_run_once_more_only_where_it_rounds(
    rounding: str | None, expected: bool
) -> None:
    traced = fx.symbolic_trace(lambda a, b: torch.div(a, b, rounding_mode=rounding) / b)
    assert any(map(misjudged, traced.graph.nodes)) is expected

"""Updates of values that nobody else sees are written out of place; others are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from vtc.graph.capture import capture
from vtc.graph.functional import may_update
from vtc.graph.out_of_place import out_of_place

W = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))


def _conv(x: Tensor) -> Tensor:
    return F.conv2d(x, W)


def _summed(x: Tensor) -> Tensor:
    y = F.silu(_conv(x), inplace=True)
    y += 1.5
    return F.hardswish(y, True) * y


def _behind_norms(x: Tensor) -> Tensor:
    y = F.hardswish(F.layer_norm(_conv(x), (6, 6)), inplace=True)
    z = F.relu(F.group_norm(y, 2), inplace=True)
    return F.silu(F.linear(z, W.reshape(18, 6)), inplace=True)


def _both(x: Tensor) -> tuple[Tensor, Tensor]:
    y = _conv(x)
    return F.relu(y, inplace=True), y


def _read_before(x: Tensor) -> Tensor:
    y = _conv(x)
    z = F.hardtanh(y)
    return F.leaky_relu(y, 0.3, inplace=True) + z


def _with_view(x: Tensor) -> Tensor:
    y = _conv(x)
    row = y[0]
    F.relu(y, inplace=True)
    return row + y


def _of_input(x: Tensor) -> Tensor:
    return F.relu(x, inplace=True) + 1


def _of_view(x: Tensor) -> Tensor:
    y = _conv(x)
    F.relu(y[0], inplace=True)
    return y


def _widened(x: Tensor) -> Tensor:
    y = F.relu(_conv(x).half())
    y += x.sum()
    return y


PLAIN = {
    "summed": _summed, "behind norms": _behind_norms, "both": _both, "read before": _read_before,
}  # fmt: skip
KEPT = {"a view": _with_view, "an input": _of_input, "of a view": _of_view, "dtypes": _widened}


def _traced(function: Callable[..., Any]) -> tuple[fx.GraphModule, Any, Any]:
    """Dynamo's graph of the function, what the captured program gives, and what eager gives."""
    found: list[Any] = []
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))

    def backend(graph_module: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(graph_module)
        program = capture(graph_module, inputs)
        constants = program.constants
        return lambda *args: program.graph_module(*args, *constants)

    torch._dynamo.reset()
    with torch.no_grad():
        given = torch.compile(function, backend=backend, dynamic=False)(x.clone())
        return found[0], given, function(x.clone())


@pytest.mark.parametrize("name", PLAIN)
def test_updates_of_own_values_are_written_out_of_place(name: str) -> None:
    graph, found, expected = _traced(PLAIN[name])
    assert may_update(graph)
    assert not may_update(out_of_place(graph))
    assert may_update(graph)  # which stays as it was
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", KEPT)
def test_updates_that_others_see_are_kept(name: str) -> None:
    graph, found, expected = _traced(KEPT[name])
    assert may_update(out_of_place(graph))
    torch.testing.assert_close(found, expected)


def test_a_batch_norm_of_inference_is_no_update() -> None:
    norm = nn.BatchNorm2d(3).eval()
    norm.running_mean, norm.running_var = torch.randn(3), torch.rand(3) + 0.5
    graph, found, expected = _traced(lambda x: F.relu(norm(x), inplace=True))
    assert not may_update(out_of_place(graph))
    torch.testing.assert_close(found, expected)

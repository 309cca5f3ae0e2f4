"""What capture makes of graphs on CUDA. Fake tensors tell; there need be no device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from vtc.graph.capture import capture
from vtc.graph.program import Program, value_of

aten = torch.ops.aten
X = (2, 6, 5)


def _captured(
    function: Callable[..., Any],
    *shapes: tuple[int, ...],
    device: str,
    outputs: int = 1,
    **kwargs: Any,
) -> Program:
    """The program of a function on float tensors of a device, and on `kwargs`."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"a{k}") for k in range(len(shapes))]
    found = graph.call_function(function, tuple(inputs), kwargs)
    results = [graph.call_function(operator.getitem, (found, k)) for k in range(outputs)]
    graph.output(tuple(results))
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(shape, device=device) for shape in shapes]
    return capture(fx.GraphModule(torch.nn.Module(), graph), fakes)


def _zeroed(x: Tensor) -> tuple[Tensor, ...]:
    x[:, :2] = torch.tensor(0.0)
    return (x + 1,)


def _scaled(x: Tensor) -> tuple[Tensor, ...]:
    return (x * torch.tensor([0.5, 2.0, 1.0, 3.0, 4.0]).neg().to(device="meta"),)


def _added(x: Tensor) -> tuple[Tensor, ...]:
    return (x + torch.tensor(2.0).neg(),)


def _returned(x: Tensor) -> tuple[Tensor, ...]:
    literal = torch.tensor(2.0)
    return x + literal.neg(), literal.exp()


def _shuffled(x: Tensor, groups: int) -> tuple[Tensor]:
    return (F.channel_shuffle(x, groups),)


def _norm(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    return (F.batch_norm(x.mT, mean, variance, weight, bias),)


def _devices(program: Program) -> list[str]:
    passed = len(program.inputs) - len(program.constants)
    fakes = [value_of(n).device.type for n in program.inputs[passed:]]
    assert fakes == [c.device.type for c in program.constants]
    return fakes


@pytest.mark.parametrize("function", [_zeroed, _scaled, _added])
def test_a_literal_lies_on_the_device_that_reads_it(function: Callable[..., Any]) -> None:
    program = _captured(function, X, device="meta")
    assert _devices(program) == ["meta"]
    assert {value_of(n).device.type for n in program.nodes} == {"meta"}


def test_a_literal_stays_on_the_processor_where_the_graph_is() -> None:
    assert _devices(_captured(_added, X, device="cpu")) == ["cpu"]


def test_a_literal_of_which_something_is_returned_stays() -> None:
    program = _captured(_returned, X, device="meta", outputs=2)
    assert _devices(program) == ["cpu"]
    values = [value_of(out).device.type for out in program.outputs]
    assert values == ["meta", "cpu"]


@pytest.mark.parametrize(("groups", "view"), [(1, True), (6, True), (2, False)])
def test_a_channel_shuffle_that_moves_no_channel_is_a_view(groups: int, view: bool) -> None:
    program = _captured(_shuffled, X, device="cuda", groups=groups)
    assert (program.storages[0] == 0) is view
    assert (0 in program.aliases) is view


def test_a_norm_of_inference_is_no_librarys() -> None:
    """cuDNN's refuses inputs with gaps, as a plan may hand it."""
    program = _captured(_norm, X, *4 * [(5,)], device="cuda")
    assert aten._native_batch_norm_legit_no_training.default in {n.target for n in program.nodes}
    assert not program.updates

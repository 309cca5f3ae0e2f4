"""What is decided about CUDA graphs before one is captured; no device is needed."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from vtc.graph import program
from vtc.graph.program import Program
from vtc.lowering.timing import Held
from vtc.runtime.cuda_graph import capturable, warm_up

aten = torch.ops.aten
CUDA = torch.device("cuda")


def graph_of(calls: list[tuple], *devices: str) -> Program:
    """A program over vectors x0, x1, ... on `devices`; calls name their operands by strings."""
    graph, mode = fx.Graph(), FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[str, fx.Node] = {}
    with mode:
        for k, device in enumerate(devices):
            made[f"x{k}"] = graph.placeholder(f"x{k}")
            made[f"x{k}"].meta["val"] = torch.empty(4, device=device)
        for name, target, args, kwargs in calls:
            operands = [made.get(a, a) if isinstance(a, str) else a for a in args]
            made[name] = graph.call_function(target, tuple(operands), kwargs)
            values = [o.meta["val"] if isinstance(o, fx.Node) else o for o in operands]
            made[name].meta["val"] = target(*values, **kwargs)
    graph.output((made[calls[-1][0]],))
    return program.build(fx.GraphModule({}, graph), ())


def number(name: str) -> tuple:
    return (name, aten.scalar_tensor.default, (1.5,), {"device": torch.device("cpu")})


@pytest.mark.parametrize(
    "calls",
    [
        [number("n"), ("y", aten.copy.default, ("x0", "n"), {})],
        [number("n"), ("y", aten._to_copy.default, ("n",), {"device": CUDA})],
        [("y", aten._to_copy.default, ("x0",), {"device": torch.device("cpu")})],
        [
            ("r", aten.rand.default, ([4],), {"device": torch.device("cpu")}),
            ("y", aten.mul.Tensor, ("x0", 2), {}),
        ],
    ],
)
def test_a_graph_that_uses_the_cpu_is_not_captured(calls: list, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="vtc"):
        assert not capturable(graph_of(calls, "cuda"))
    assert "one by one" in caplog.text


@pytest.mark.parametrize(
    "calls",
    [
        [("y", aten.mul.Tensor, ("x0", 2), {})],
        [number("n"), ("y", aten.mul.Tensor, ("x0", "n"), {})],
        [number("n"), ("m", aten.gt.Scalar, ("x0", 0), {})]
        + [("y", aten.masked_fill.Tensor, ("x0", "m", "n"), {})],
    ],
)
def test_numbers_from_the_cpu_are_handed_to_kernels(calls: list) -> None:
    assert capturable(graph_of(calls, "cuda"))


def test_what_is_passed_is_on_one_cuda_device() -> None:
    calls = [("y", aten.mul.Tensor, ("x0", 2), {})]
    assert not capturable(graph_of(calls, "cpu"))
    assert not capturable(graph_of(calls, "cuda", "cpu"))
    assert not capturable(graph_of(calls, "cuda", "cuda:1"))


def test_each_warm_up_has_the_values_of_the_caller() -> None:
    """An index that a call leaves out of range would be read by the next."""
    index, table = torch.tensor([2, 0]), torch.randn(3)
    seen = []

    def run(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        seen.append(index.tolist())
        found = table[index]
        index.fill_(7)
        return found

    warm_up(run, [index, table], Held([index]))
    assert seen == [[2, 0], [2, 0]]
    assert index.tolist() == [2, 0]


def test_an_error_in_a_warm_up_leaves_the_values_of_the_caller() -> None:
    index = torch.tensor([1])

    def run(index: torch.Tensor) -> None:
        index.fill_(7)
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        warm_up(run, [index], Held([index]))
    assert index.tolist() == [1]

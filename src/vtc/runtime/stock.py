"""Stock TorchInductor: what `torch.compile` makes of a graph, and which graphs are left to it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor.compile_fx import compile_fx
from torch._subclasses import FakeTensor

from vtc import errors
from vtc.graph.capture import attribute_of, capture
from vtc.graph.program import Program, value_of
from vtc.lowering.access_order import access_order_kept
from vtc.lowering.decompositions import decomposed_alike
from vtc.lowering.guarded import or_eager
from vtc.lowering.settings import Compiled
from vtc.runtime.calls import apart, overlapping, sharing

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


class Unsuitable(Exception):  # noqa: N818 - a finding about a graph, not an error
    """The graph is not for vtc: `instead` is what runs."""

    def __init__(self, instead: Compiled) -> None:
        super().__init__("the graph is compiled otherwise")
        self.instead = instead


def compile_stock(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    freeze: bool = False,
    updated: Sequence[int] | None = None,
) -> Compiled:
    """What `torch.compile` does with the graph, in the trace that Dynamo has going; but random
    numbers are those of eager PyTorch, which also runs what Inductor cannot compile. `updated` are
    the numbers of the inputs that the graph updates, if they are known."""

    def compiled() -> Compiled:
        config = torch._inductor.config
        own = config.patch(freezing=freeze, fallback_random=True)
        with own, access_order_kept(), decomposed_alike():
            made: Compiled = compile_fx(graph_module, list(inputs))
        return made

    return or_eager(compiled, graph_module, updated)


def compile_stock_again(
    graph_module: fx.GraphModule, fakes: Sequence[Any], *, freeze: bool, updated: Sequence[int]
) -> Compiled:
    """The same after Dynamo's trace is over, for fake inputs."""
    with torch.no_grad(), tracing(TracingContext(detect_fake_mode(list(fakes)))):
        return compile_stock(graph_module, fakes, freeze=freeze, updated=updated)


def fall_back(
    graph_module: fx.GraphModule, inputs: Sequence[Any], what: str, reason: str
) -> Compiled:
    """Stock TorchInductor for the whole graph, with a warning."""
    _warn(what, reason, "stock TorchInductor")
    return compile_stock(graph_module, inputs)


def run_eagerly(graph_module: fx.GraphModule, what: str, reason: str) -> Compiled:
    """Eager PyTorch for the whole graph, with a warning."""
    _warn(what, reason, "eager PyTorch")
    return graph_module.forward


def refuse_gradients(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Raises Unsuitable for a graph that autograd records."""
    tensors = [*inputs, *graph_module.parameters(), *graph_module.buffers()]
    if torch.is_grad_enabled() and any(map(_requires_grad, tensors)):
        what = "a graph that records gradients"
        raise Unsuitable(fall_back(graph_module, inputs, what, "vtc compiles inference"))


def refuse_subclasses(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Raises Unsuitable for arguments that have operators of their own."""
    for value in inputs:
        if isinstance(value, torch.Tensor) and type(value) not in _PLAIN:
            what = f"a graph with an argument of {type(value).__name__}"
            _warn(what, "vtc compiles plain tensors", "eager PyTorch")
            raise Unsuitable(graph_module.forward)


def refuse_negated(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Raises Unsuitable for arguments and weights that PyTorch negates when they are read
    (`Tensor.is_neg`): kernels read their storage as it is, and so do TorchInductor's."""
    read = (attribute_of(graph_module, n) for n in graph_module.graph.find_nodes(op="get_attr"))
    for value in (*inputs, *read):
        if isinstance(value, torch.Tensor) and value.is_neg():
            _warn("the graph", "it reads a tensor that is negated lazily", "eager PyTorch")
            raise Unsuitable(graph_module.forward)


def separate(
    graph_module: fx.GraphModule, inputs: list[Any], program: Program
) -> tuple[list[Any], Program]:
    """Inputs that do not share storage with one that is updated, and the program over them.

    Functional capture gives each input a life of its own. The calls whose arguments do overlap are
    told apart at each call, and run eagerly. Raises Unsuitable where the inputs cannot be parted.
    """
    updated = [i for i, _ in program.updates]
    if not sharing([*inputs, *program.constants], updated):
        return inputs, program
    overlap = overlapping([*inputs, *program.constants], updated)
    if overlap:
        _warn("the graph", "arguments overlap and one of them is updated", "eager PyTorch")
    parted = apart(inputs)
    if program.symbolic or sharing([*parted, *program.constants], updated):
        if overlap:
            raise Unsuitable(graph_module.forward)
        reason = "arguments share storage and one of them is updated"
        raise Unsuitable(fall_back(graph_module, inputs, "the graph", reason))
    return parted, capture(graph_module, _fakes_of(parted, program))


def _fakes_of(inputs: Sequence[Any], program: Program) -> list[Any]:
    """Fake tensors like `inputs`, each in a storage of its own."""
    mode = detect_fake_mode([value_of(n) for n in program.inputs])
    with mode:
        return [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
            if isinstance(a, torch.Tensor)
            else a
            for a in inputs
        ]


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _warn(what: str, reason: str, instead: str) -> None:
    warnings.warn(errors.FallbackWarning(what, reason, instead), stacklevel=4)

"""The captured graph: functional, movement-preserving ATen, with its updated inputs listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from vtc.graph.movement import BoundMovement, is_movement_target, movement_of


@dataclass(frozen=True)
class InputView:
    """An output that is a view of an input: sizes and strides, and where it starts from where the
    input does, in elements."""

    input: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Program:
    """One inference graph as captured.

    `graph_module` is functional: it has no in-place operator. `updates` pairs the number of an
    updated input with the node whose value the program leaves in it. `constants` holds the live
    tensors of the last `len(constants)` inputs, which the caller does not pass (weights that
    Dynamo kept as attributes because they are to be frozen). `aliases` gives the outputs that eager
    PyTorch returns as views of an updated input.
    """

    graph_module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    updates: tuple[tuple[int, fx.Node], ...]
    outputs: tuple[Any, ...]
    constants: tuple[torch.Tensor, ...] = ()
    aliases: dict[int, InputView] = field(default_factory=dict)
    movements: dict[fx.Node, BoundMovement] = field(default_factory=dict)

    @cached_property
    def symbolic(self) -> bool:
        """True when a size of an input is a symbol, so that one graph serves several shapes."""
        return any(not isinstance(value_of(n), torch.Tensor) or has_symbol(n) for n in self.inputs)

    @property
    def nodes(self) -> list[fx.Node]:
        return [n for n in self.graph_module.graph.nodes if n.op == "call_function"]

    def __str__(self) -> str:
        code = str(self.graph_module.graph)
        names = ", ".join(f"{self.inputs[i].name} <- {value.name}" for i, value in self.updates)
        return f"{code}\nupdated inputs: {names or 'none'}"


def value_of(node: fx.Node) -> Any:
    """The fake value of a node: a FakeTensor (shape, dtype, strides, device), a SymInt, ..."""
    return node.meta.get("val")


def is_tensor(node: object) -> bool:
    return isinstance(node, fx.Node) and isinstance(value_of(node), torch.Tensor)


def is_parameter(node: fx.Node) -> bool:
    """Is an input a parameter or buffer of the model?"""
    return isinstance(value_of(node), torch.nn.Parameter) or (
        node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None
    )


def has_symbol(node: fx.Node) -> bool:
    """True when a size, stride or offset of the node's tensor is symbolic."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride()))


def build(
    graph_module: fx.GraphModule,
    updates: tuple[tuple[int, fx.Node], ...],
    constants: tuple[torch.Tensor, ...] = (),
    aliases: dict[int, InputView] | None = None,
) -> Program:
    """A Program over `graph_module`, with every movement operator found in the table."""
    graph = graph_module.graph
    inputs = tuple(n for n in graph.nodes if n.op == "placeholder")
    (output,) = (n for n in graph.nodes if n.op == "output")
    movements = {}
    for node in graph.nodes:
        if node.op == "call_function" and is_tensor(node) and not is_movement_target(node):
            movement = movement_of(node)
            if movement is not None:
                movements[node] = movement
    return Program(
        graph_module,
        inputs,
        updates,
        tuple(output.args[0]),
        constants,
        aliases or {},
        movements,
    )

"""The captured graph: functional, movement-preserving ATen, with its updated inputs listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from vtc.graph.movement import BoundMovement, is_movement_target, movement_of

# Views that read their source's elements as others: no movement.
_OTHER_VIEWS = {
    torch.ops.aten.view.dtype,
    torch.ops.aten.view_as_real.default,
    torch.ops.aten.view_as_complex.default,
}


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
    PyTorch returns as views of an input: of one that is updated, or of known sizes. `storages` says
    of each output tensor where its storage is: the number of the input that has it, or ~k, where
    output k is the first with that storage.
    """

    graph_module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    updates: tuple[tuple[int, fx.Node], ...]
    outputs: tuple[Any, ...]
    constants: tuple[torch.Tensor, ...] = ()
    aliases: dict[int, InputView] = field(default_factory=dict)
    storages: dict[int, int] = field(default_factory=dict)
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


def returned_tensors(program: Program) -> frozenset[fx.Node]:
    """Tensors that the caller gets, or a view of: they need storage of their own.

    What is a view of an input is made anew from the input.
    """
    found: set[fx.Node] = set()
    for k, out in enumerate(program.outputs):
        node = None if k in program.aliases else out
        while isinstance(node, fx.Node):
            found.add(node)
            bound = program.movements.get(node)
            if node.target in _OTHER_VIEWS:
                node = node.args[0]
            else:
                node = bound.sources[0] if bound is not None and bound.movement.view else None
    return frozenset(found)


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


def copied(program: Program) -> Program:
    """A program of its own graph, to rewrite: the other stays as it is. Nodes keep their names."""
    old = program.graph_module.graph
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(old, made)
    graph.output(result)
    for before, after in made.items():
        after.name = before.name
    module = fx.GraphModule(program.graph_module, graph)
    updates = tuple((number, made[node]) for number, node in program.updates)
    return build(module, updates, program.constants, program.aliases, program.storages)


def build(
    graph_module: fx.GraphModule,
    updates: tuple[tuple[int, fx.Node], ...],
    constants: tuple[torch.Tensor, ...] = (),
    aliases: dict[int, InputView] | None = None,
    storages: dict[int, int] | None = None,
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
        storages or {},
        movements,
    )

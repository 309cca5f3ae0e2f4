"""What an import builds: modules, and the names that their nodes know values by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto
from torch import Tensor, fx, nn

from vtc.graph.onnx.dtypes import ORDINARY_FLOATS


@dataclass
class Scope:
    """The names of one graph or function body, each with its value.

    A value is an fx node, a Host, a Tensor (a constant), or None (an empty optional). `bound` holds
    the attributes of the function whose body this is, `calls` the functions that led to it, and
    `prefix` what the names of its nodes begin with.
    """

    values: dict[str, Any]
    builder: Builder
    parent: Scope | None
    opsets: dict[str, int]
    bound: dict[str, AttributeProto] = field(default_factory=dict)
    calls: tuple[tuple[str, str, str], ...] = ()
    prefix: str = ""

    def find(self, name: str) -> tuple[Any, Builder]:
        """The value of a name in this graph or one around it, and the builder that it is of."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name], scope.builder
            scope = scope.parent
        raise KeyError(name)


@dataclass
class Builder:
    """One GraphModule being built.

    held: the node of each tensor that is a parameter or buffer. captured: the further inputs, by
    the names that they have in the graphs around. maybe_host: nodes whose values may be Hosts when
    the module runs. anchor: a node whose device new tensors get.
    """

    root: nn.Module = field(default_factory=nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)
    held: dict[int, tuple[Tensor, fx.Node]] = field(default_factory=dict)
    captured: dict[str, fx.Node] = field(default_factory=dict)
    maybe_host: set[fx.Node] = field(default_factory=set)
    anchor: fx.Node | None = None
    last_input: fx.Node | None = None

    def input(self, name: str) -> fx.Node:
        """A further argument. Its name is what Python code says, so it is made an identifier."""
        where = self.last_input if self.last_input is not None else self.graph._root
        with self.graph.inserting_after(where):
            made = self.graph.placeholder(identifier(name))
        # The graph has made its name legal and unique; the target goes into the code as it is.
        made.target = made.name
        self.last_input = made
        return made

    def attribute(self, value: Tensor | nn.Module, name: str) -> fx.Node:
        """A node for a tensor or module of the module, made once for each tensor."""
        if isinstance(value, Tensor) and id(value) in self.held:
            return self.held[id(value)][1]
        target = unused(self.root, identifier(name))
        if isinstance(value, nn.Module):
            self.root.add_module(target, value)
        elif value.dtype in ORDINARY_FLOATS:
            self.root.register_parameter(target, nn.Parameter(value, requires_grad=False))
        else:
            self.root.register_buffer(target, value)
        node = self.graph.get_attr(target)
        if isinstance(value, Tensor):
            self.held[id(value)] = (value, node)
        return node

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str, **kwargs: Any) -> Any:
        return self.graph.create_node(
            "call_function", fn, args, kwargs, identifier(name) if name else None
        )

    def module(self, class_name: str) -> fx.GraphModule:
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph, class_name)


def identifier(name: str) -> str:
    """A Python identifier that reads like `name`."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:80] or "value"
    return f"n{plain}" if plain[0].isdigit() or plain == "self" else plain


def unused(root: nn.Module, name: str) -> str:
    target, number = name, 0
    while hasattr(root, target) or hasattr(fx.GraphModule, target) or target == "meta":
        number += 1
        target = f"{name}_{number}"
    return target

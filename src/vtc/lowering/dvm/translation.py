"""The state of a translation: what the nodes of a captured graph are as tensor expressions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vtc.index import sizes
from vtc.lowering.dvm.graph import Graph
from vtc.lowering.dvm.nodes import Call, Node
from vtc.lowering.dvm.plan import CPU, SliceBounds
from vtc.lowering.dvm.rules import dtype_of, shape_of


@dataclass
class Translation:
    """What a program computes: `values` of its FX nodes, eager calls in order.

    known: size symbols whose values are told by inputs or earlier calls. fakes: the fake tensor of
    a node that an FX node gives. splits: calls that give sizes. bounds: those of slices that depend
    on values of sizes. rounded: half precision is rounded after every operator, as eager PyTorch
    does, not only where it is stored.
    """

    graph: Graph = field(default_factory=Graph)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    known: set[Any] = field(default_factory=set)
    fakes: dict[Node, torch.Tensor] = field(default_factory=dict)
    splits: set[Call] = field(default_factory=set)
    bounds: list[SliceBounds] = field(default_factory=list)
    rounded: bool = False
    device: torch.device = CPU

    def value(self, argument: Any) -> Any:
        """An argument of a call: Nodes, Weaks, Sizes and constants."""
        return fx.node.map_aggregate(argument, self._leaf)

    def _leaf(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument]
        if isinstance(argument, torch.SymInt):
            return sizes.as_size(argument)
        return argument


def conformed(own: Translation, found: Any, value: Any) -> Any:
    """The rule's nodes with the dtypes and shapes that PyTorch says."""
    if isinstance(found, tuple):
        return tuple(conformed(own, f, v) for f, v in zip(found, value, strict=True))
    if not isinstance(found, Node):
        return found
    shape = shape_of(value)
    if found.shape != shape:
        if len(found.shape) != len(shape) or any(
            a == 1 and b != 1 for a, b in zip(found.shape, shape, strict=True)
        ):
            found = own.graph.broadcast(found, shape)
        own.graph.hints.check_broadcast(found.shape, shape)
    return own.graph.cast(found, dtype_of(value.dtype))


def plain(value: Any) -> Any:
    """A number, a size of PyTorch's as one of ours."""
    return sizes.as_size(value) if isinstance(value, torch.SymInt) else value

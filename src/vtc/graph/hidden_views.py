"""Operators that return views of their argument, or update it, though their schemas do not say so:
functionalization would lose what is written through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

_LISTS = frozenset({aten.meshgrid.default, aten.meshgrid.indexing, aten.broadcast_tensors.default})
_SPLITS = {
    aten.unsafe_chunk.default: aten.chunk.default,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
_CALLS: dict[Any, Any] = {
    torch.unsafe_chunk: torch.chunk,
    torch.unsafe_split: torch.split,
    torch.unsafe_split_with_sizes: torch.split_with_sizes,
    "unsafe_chunk": "chunk",
    "unsafe_split": "split",
    "unsafe_split_with_sizes": "split_with_sizes",
}


def with_plain_splits(graph_module: fx.GraphModule) -> None:
    """Calls, in a graph of Dynamo's and in place, the operators that say that they give views.

    before: unsafe_split(x, 2)
    after:  split(x, 2)
    """
    graph = graph_module.graph
    found = [n for n in graph.nodes if n.op.startswith("call") and n.target in _CALLS]
    if not found:
        return
    for node in found:
        node.target = _CALLS[node.target]
    (end,) = graph.find_nodes(op="output")
    for node in end.all_input_nodes:
        if node.op != "placeholder":
            node.meta.pop("example_value", None)  # of Dynamo's run, in which they may be copies
    graph_module.recompile()


def hides_writes(func: Any, args: tuple[Any, ...]) -> bool:
    """Does the operator, taken apart, show that it has views for results, or updates arguments?"""
    if func is aten.instance_norm.default:
        _, _, _, mean, _, by_input, *_ = args
        return mean is not None and bool(by_input)
    return func in _LISTS


def viewed_instead(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[], Any] | None:
    """The view that an operator gives: of parts, or of all of its argument where a dropout drops
    nothing and a sum is to the size that there is."""
    if func in _SPLITS:
        return lambda: _SPLITS[func](*args, **kwargs)
    if func is aten.dropout.default and (not args[2] or args[1] == 0):
        return lambda: aten.alias.default(args[0])
    if func is aten.sum_to_size.default and _has_size(*args):
        return lambda: aten.alias.default(args[0])
    return None


def _has_size(x: torch.Tensor, size: Any) -> bool:
    return len(size) == x.dim() and all(map(statically_known_true, map(eq, x.shape, size)))

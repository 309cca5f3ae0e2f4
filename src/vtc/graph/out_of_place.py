"""In-place activations and sums of values that nobody else sees -> the same out of place.

    y = relu(x, inplace=True); f(x)   becomes   y = relu(x); f(y)

Networks of convolutions update what they have just computed. Where that is plain to see in Dynamo's
graph, the trace needs no functionalization.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx

# The position of their argument `inplace`.
_ACTIVATIONS = {
    F.celu: 2, F.elu: 2, F.hardsigmoid: 1, F.hardswish: 1, F.hardtanh: 3, F.leaky_relu: 2,
    F.mish: 1, F.relu: 1, F.relu6: 1, F.selu: 1, F.silu: 1,
}  # fmt: skip
_ARITHMETIC = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
# Their results are tensors of their own, never views of an operand.
_FRESH = {
    *_ACTIVATIONS, *_ARITHMETIC.values(), F.batch_norm, F.group_norm, F.layer_norm, F.linear,
    torch.cat, torch.conv1d, torch.conv2d, torch.conv3d,
}  # fmt: skip


def out_of_place(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph without such updates; the given one, unchanged, where it has none."""
    if not any(map(_is_update, graph_module.graph.nodes)):
        return graph_module
    found = copy.copy(graph_module)
    found.graph = fx.Graph(found)
    values: dict[fx.Node, fx.Node] = {}
    result = found.graph.graph_copy(graph_module.graph, values)
    found.graph.output(result)
    seen: set[fx.Node] = set()
    for node in found.graph.nodes:
        if _is_update(node) and _apart(node, seen):
            _replaced(node, seen)
        seen.add(node)
    return found


def _is_update(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return node.target in _ARITHMETIC or _in_place(node)


def _in_place(node: fx.Node) -> bool:
    position = _ACTIVATIONS.get(node.target)
    if position is None:
        return False
    given = node.args[position] if len(node.args) > position else node.kwargs.get("inplace")
    return given is True


def _apart(node: fx.Node, seen: set[fx.Node]) -> bool:
    """Is what the node updates a value of the graph's own that no other value shares memory with,
    and of the dtype that the operator gives out of place?"""
    updated = node.args[0]
    if not isinstance(updated, fx.Node) or not _fresh(updated):
        return False
    value = updated.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    if any(u in seen and not _fresh(u) for u in updated.users):
        return False
    return node.target in _ACTIVATIONS or _of_dtype(node.args[1], value.dtype)


def _fresh(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target not in _FRESH or _in_place(node):
        return False
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _of_dtype(operand: Any, dtype: torch.dtype) -> bool:
    if isinstance(operand, fx.Node):
        value = operand.meta.get("example_value")
        return isinstance(value, torch.Tensor) and value.dtype == dtype
    return isinstance(operand, int | float)


def _replaced(node: fx.Node, seen: set[fx.Node]) -> None:
    updated = node.args[0]
    assert isinstance(updated, fx.Node)
    if node.target in _ARITHMETIC:
        node.target = _ARITHMETIC[node.target]
    else:
        node.args = node.args[: _ACTIVATIONS[node.target]]
        node.kwargs = {k: v for k, v in node.kwargs.items() if k != "inplace"}
    updated.replace_all_uses_with(
        node, delete_user_cb=lambda user: user is not node and user not in seen
    )

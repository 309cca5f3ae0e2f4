"""Tensors that a model's code writes out, on the device where they are read.

`torch.tensor([0.5, 2.0])`, and the number in `x[:] = 0`, are made on a CPU, in a graph on another
device too. Such a constant is copied there once, when the graph is captured:

    before: fill(x, lift_fresh_copy(literal))      with x on the device, literal on the CPU
    after:  the same, with literal on the device

One that is returned, or computed with other values of the CPU, stays where it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

CPU = torch.device("cpu")


def placed(trace: fx.GraphModule, literals: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The literals, which are the trace's last inputs, those on the device of all other inputs
    that are read there alone; in place, the fake values of what is computed of them."""
    inputs = trace.graph.find_nodes(op="placeholder")
    passed, own = inputs[: len(inputs) - len(literals)], inputs[len(inputs) - len(literals) :]
    devices = {v.device for n in passed if isinstance(v := n.meta.get("val"), torch.Tensor)}
    if not literals or len(devices) != 1 or CPU in devices:
        return literals
    (device,) = devices
    moved = _movable(trace.graph, own)
    for node in trace.graph.nodes:
        if node in moved:
            node.meta["val"] = _revalued(node, device)
    if device.type == "cuda" and not torch.cuda.is_available():
        return literals  # the graph is looked at, and cannot run
    with unset_fake_temporarily():
        return tuple(
            literal.to(device) if node in moved else literal
            for node, literal in zip(own, literals, strict=True)
        )


def _movable(graph: fx.Graph, literals: list[fx.Node]) -> set[fx.Node]:
    """Values on the CPU that are computed of literals alone, and read on another device, or for
    such values."""
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        operands = node.all_input_nodes
        known = node in literals or (operands and moved.issuperset(operands))
        if known and _on_cpu(node) and "device" not in node.kwargs:
            moved.add(node)
    while stay := {n for n in moved if not _may_move(n, moved)}:
        moved -= stay
    return moved


def _may_move(node: fx.Node, moved: set[fx.Node]) -> bool:
    if not moved.issuperset(node.all_input_nodes):
        return False
    return all(user in moved or _elsewhere(user) for user in node.users)


def _on_cpu(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device == CPU


def _elsewhere(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device != CPU


def _revalued(node: fx.Node, device: torch.device) -> Any:
    """The fake value of a literal, or of what is computed of ones that have moved."""
    value = node.meta["val"]
    if node.op == "placeholder":
        with value.fake_mode:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device
            )
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with value.fake_mode:
        return node.target(*args, **kwargs)

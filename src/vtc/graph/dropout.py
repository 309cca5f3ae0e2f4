"""Dropout that drops nothing: eager PyTorch returns its argument, stock TorchInductor a copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx

_DROPOUTS = (F.dropout, torch.dropout, torch.dropout_)
_DEFAULTS = {F.dropout: (0.5, True)}


def without_idle_dropout(graph_module: fx.GraphModule) -> None:
    """Takes dropouts out of Dynamo's graph, in place, that return their argument.

    before: add(x, dropout(x, 0.5, training=False))
    after:  add(x, x)
    """
    graph, changed = graph_module.graph, False
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _DROPOUTS and _is_idle(node):
            (argument,) = node.all_input_nodes
            node.replace_all_uses_with(argument)
            graph.erase_node(node)
            changed = True
    if changed:
        graph_module.recompile()


def _is_idle(node: fx.Node) -> bool:
    if len(node.all_input_nodes) != 1:  # a probability or a mode that is computed
        return False
    p, training = _DEFAULTS.get(node.target, (None, None))
    given: list[Any] = list(node.args[1:3])
    p = given[0] if given else node.kwargs.get("p", p)
    name = "training" if node.target is F.dropout else "train"
    training = given[1] if len(given) > 1 else node.kwargs.get(name, training)
    return p == 0 or training is False

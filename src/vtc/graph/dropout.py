"""Dropout that drops nothing: eager PyTorch returns its argument, stock TorchInductor a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx
from torch.overrides import TorchFunctionMode

_DROPOUTS = (F.dropout, torch.dropout, torch.dropout_)
_DEFAULTS = {F.dropout: (0.5, True)}


def without_idle_dropout(graph_module: fx.GraphModule) -> None:
    """Takes dropouts out of Dynamo's graph, in place, that return their argument.

    before: add(x, dropout(x, 0.5, training=False))
    after:  add(x, x)
    """
    for node in stale_outputs(graph_module):
        del node.meta["example_value"]
    graph, changed = graph_module.graph, False
    for node in list(graph.nodes):
        if is_idle(node):
            (argument,) = node.all_input_nodes
            node.replace_all_uses_with(argument)
            graph.erase_node(node)
            changed = True
    if changed:
        graph_module.recompile()


def stale_outputs(graph_module: fx.GraphModule) -> list[fx.Node]:
    """The outputs that in Dynamo's run are copies, or views of one, that such dropouts make."""
    copies = {_storage(node) for node in graph_module.graph.nodes if is_idle(node)} - {None}
    (end,) = graph_module.graph.find_nodes(op="output")
    return [node for node in end.all_input_nodes if _storage(node) in copies]


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def is_idle(node: fx.Node) -> bool:
    """Is a call of Dynamo's a dropout that drops nothing?"""
    if node.op != "call_function" or node.target not in _DROPOUTS:
        return False
    if len(node.all_input_nodes) != 1:  # a probability or a mode that is computed
        return False
    return _drops_nothing(node.target, node.args, node.kwargs)


def _drops_nothing(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    p, training = _DEFAULTS.get(function, (None, None))
    given = args[1:3]
    p = given[0] if given else kwargs.get("p", p)
    name = "training" if function is F.dropout else "train"
    training = given[1] if len(given) > 1 else kwargs.get(name, training)
    return p == 0 or training is False


class IdleDropouts(TorchFunctionMode):
    """Dropouts that drop nothing return their argument on fakes, too. With sizes that are symbols
    they return a copy there."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS and _drops_nothing(func, args, kwargs):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)

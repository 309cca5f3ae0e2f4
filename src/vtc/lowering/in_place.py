"""Updates of inputs that an operator carries out in place, in the graph of a step.

A step's graph is functional, with a copy into each updated input at its end. Where all that reads
the input is one operator that has an in-place form, and the copy of its result, the form takes the
place of both.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from vtc.kernels import shift, sliding_attention, storing_attention
from vtc.kernels.operators import ANCHORS

aten = torch.ops.aten

FORMS: Mapping[Any, tuple[Any, Mapping[int, int]]] = {
    shift.OVERLOAD: (shift.IN_PLACE, {0: 0}),
    sliding_attention.OVERLOAD: (sliding_attention.IN_PLACE, {1: 1, 2: 2}),
    storing_attention.OVERLOAD: (storing_attention.IN_PLACE, {1: 1, 2: 2}),
}
"""Operator -> its in-place form, and which result that leaves in which argument. What else there is
of results the form returns."""


def in_place(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The module with in-place forms where they are the same; itself where there are none.

    before: new = vtc::shift(cache, x, dim); y = f(new); copy_(cache, new)
    after:  vtc::shift_(cache, x, dim); y = f(cache)
    """
    if not any(n.target in FORMS for n in graph_module.graph.nodes):
        return graph_module
    changed = fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    for node in list(changed.graph.nodes):
        if node.target in FORMS:
            _replace(node)
    changed.graph.lint()
    changed.recompile()
    return changed


def _replace(node: fx.Node) -> None:
    form, places = FORMS[node.target]
    results = {0: node}
    if isinstance(node.meta.get("val"), tuple | list):
        results = {n.args[1]: n for n in node.users if n.target is operator.getitem}
        if len(results) != len(node.users):
            return
    copies = {}
    for k, argument in places.items():
        found = _copy_back(results.get(k), node, node.args[argument])
        if found is None:
            return
        copies[k] = found
    with node.graph.inserting_before(node):
        call = node.graph.call_function(form, node.args, node.kwargs)
    call.meta = dict(node.meta)
    call.meta.pop("val", None)
    for k, result in results.items():
        if k in places:
            node.graph.erase_node(copies[k])
            result.replace_all_uses_with(node.args[places[k]])
        else:
            call.meta["val"] = result.meta.get("val")
            result.replace_all_uses_with(call)
        if result is not node:
            node.graph.erase_node(result)
    node.graph.erase_node(node)


def _copy_back(result: fx.Node | None, node: fx.Node, target: fx.Node) -> fx.Node | None:
    """The copy of `result` into `target`, where nothing but `node` reads what was there before."""
    if result is None or target.op != "placeholder":
        return None
    copies = [u for u in result.users if u.target is aten.copy_.default and u.args[0] is target]
    if len(copies) != 1 or set(target.users) != {node, copies[0]} or copies[0].users:
        return None
    return copies[0] if all(map(_reads, set(result.users) - {copies[0]})) else None


def _reads(user: fx.Node) -> bool:
    """Is what `user` makes no view of its operand, nor what is made of it?"""
    target = user.target
    if user.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if target in ANCHORS or torch.Tag.pointwise in target.tags:
        return True
    is_view = any(r.alias_info is not None for r in target._schema.returns)
    return is_view and all(map(_reads, user.users))

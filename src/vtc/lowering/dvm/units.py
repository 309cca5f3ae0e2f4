"""Sizes that are 1 because a dimension is broadcast.

Dynamo may trace a size as a symbol although it is 1 at the first call and an operator broadcasts
it. The graph then holds for that size only, and its shapes do not say so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from vtc.graph.program import Program, value_of
from vtc.lowering.dvm import rules_activation, rules_pointwise
from vtc.lowering.dvm.rules import RULES

aten = torch.ops.aten

_EXPANDING = {
    aten.expand.default,
    aten.expand_as.default,
    aten.broadcast_to.default,
    aten.baddbmm.default,
    aten.addmm.default,
    aten.copy.default,
}
_INDEXING = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten._unsafe_index_put.default,
}
_POINTWISE = {rules_pointwise.__name__, rules_activation.__name__}


def broadcasts_a_symbol(program: Program) -> bool:
    """Is a dimension broadcast whose size is a symbol?"""
    return any(True for node in program.nodes for _ in _broadcast(node))


def _broadcast(node: fx.Node) -> Iterator[torch.SymInt]:
    """The symbolic sizes of operands that are 1 where the node's result has another size."""
    result, target = value_of(node), node.target
    if target in _INDEXING:
        indices = [value_of(i).shape for i in node.args[1] if isinstance(i, fx.Node)]
        for shape, other in itertools.permutations(indices, 2):
            yield from _units(shape, other)
    if target is aten.scaled_dot_product_attention.default:
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if isinstance(mask, fx.Node):
            query, key = (value_of(n).shape for n in node.args[:2])
            yield from _units(value_of(mask).shape, (*query[:-1], key[-2]))
    behind = 2 if target is aten.matmul.default else 0
    rule = RULES.get(target)
    pointwise = rule is not None and rule.__module__ in _POINTWISE
    if not isinstance(result, torch.Tensor) or not (pointwise or behind or target in _EXPANDING):
        return
    for operand in node.all_input_nodes:
        value = value_of(operand)
        if isinstance(value, torch.Tensor):
            yield from _units(value.shape, result.shape, behind)


def _units(shape: Sequence[Any], whole: Sequence[Any], behind: int = 0) -> Iterator[torch.SymInt]:
    """The sizes of `shape` that are symbols and 1 where `whole` is not, but for `behind` last."""
    for d in range(-min(len(shape), len(whole)), -behind):
        if _is_unit(shape[d], whole[d]):
            yield shape[d]


def _is_unit(size: Any, whole: Any) -> bool:
    if not isinstance(size, torch.SymInt) or not size.node.has_hint():
        return False
    expression = whole.node.expr if isinstance(whole, torch.SymInt) else whole
    return bool(size.node.expr != expression) and size.node.hint == 1

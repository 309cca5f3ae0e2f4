"""Rules of adaptive pooling into equal windows, as a fold over dimensions of their own. Windows of
several lengths are a library's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtc.graph.rules import coordinates
from vtc.index import IndexMap, sizes
from vtc.lowering.dvm.nodes import Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, rule
from vtc.lowering.dvm.rules_pool import of_rank
from vtc.program.dtypes import DType

aten = torch.ops.aten


def _windows(own: Lowering, rank: int, x: Node) -> Node:
    """The elements of each window in dimensions behind those of the result."""
    outer = len(x.shape) - rank
    at = coordinates(len(x.shape) + rank)
    index: list[Any] = list(at[:outer])
    lengths = []
    for d in range(outer, len(x.shape)):
        length = sizes.exact_div(x.shape[d], own.shape[d]) if own.shape[d] != 0 else None
        if length is None or length == 0:
            raise Unsupported("windows of several lengths")
        lengths.append(length)
        index.append(at[d] * length + at[d + rank])
    return own.graph.move(IndexMap.single((*own.shape, *lengths), index), [x])


def _average(own: Lowering, rank: int, x: Node, size: Any) -> Node:
    if not x.dtype.is_float:
        raise Unsupported("averages of integers")
    windows = _windows(own, rank, own.graph.cast(x, x.dtype.compute))
    dims = list(range(len(x.shape), len(windows.shape)))
    total = own.graph.squeeze(own.graph.reduce("sum", windows, dims), dims)
    count = own.graph.const(sizes.product(windows.shape[d] for d in dims), total.dtype)
    return own.tagged(own.op("div", total, count))


def _largest(own: Lowering, rank: int, x: Node, size: Any) -> tuple[Node, Node]:
    """The largest elements and their places in the plane: the first of equal ones, but the last
    NaN, as PyTorch's loops find them."""
    graph, outer = own.graph, len(x.shape) - rank
    values = _windows(own, rank, x)
    dims = list(range(len(x.shape), len(values.shape)))
    best = graph.reduce("max", values, dims)

    def number(value: Any) -> Node:
        return graph.const(value, DType.I64)

    places = number(0)
    for k in range(rank):
        starts = own.op("mul", graph.iota(values.shape, outer + k), number(values.shape[dims[k]]))
        at = own.op("add", starts, graph.iota(values.shape, dims[k]))
        places = own.op("add", own.op("mul", places, number(x.shape[outer + k])), at)
    beyond = number(sizes.product(x.shape[outer:]))
    found = graph.reduce("min", own.op("select", own.op("eq", values, best), places, beyond), dims)
    if x.dtype.is_float:
        nans = own.op("select", own.op("isnan", values), places, number(-1))
        last = graph.reduce("max", nans, dims)
        found = own.op("select", own.op("lt", last, number(0)), found, last)
    return graph.squeeze(best, dims), graph.squeeze(found, dims)


_RULES: tuple[tuple[Any, Sequence[Any]], ...] = (
    (_average, (aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d)),
    (_largest, (aten.adaptive_max_pool1d, aten.adaptive_max_pool2d, aten.adaptive_max_pool3d)),
)
for _pool, _targets in _RULES:
    for _rank, _target in enumerate(_targets, 1):
        rule(_target.default)(of_rank(_rank, _pool))

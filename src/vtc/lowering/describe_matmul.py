"""Steps with matmuls of the same rows as descriptions: projections that share an input are one.

before: gate = linear(x, w1); up = linear(x, w2); return silu(gate) * up
after:  Matmul(left=x, parts=[Part(rights=[w1, w2], body=(silu of product 0, times product 1))])
before: return linear(x, w1), linear(x, w2)
after:  Matmul(left=x, parts=[Part(rights=[w1], ..), Part(rights=[w2], ..)])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import fx

from vtc.graph.program import value_of
from vtc.index import expr
from vtc.index.map import IndexMap
from vtc.kernels.matmul import Matmul, Part
from vtc.kernels.normalized import NORMALIZED, SQUARE_SUMS
from vtc.lowering.description import Describer, Product, RowSums, Undescribed
from vtc.lowering.dvm.nodes import Node
from vtc.program.dtypes import DType

aten = torch.ops.aten


class Call(NamedTuple):
    """The operands of a matmul: rows (..., k), the weight, is it (n, k) rather than (k, n), and
    what is added."""

    rows: fx.Node
    weight: fx.Node
    by_rows: bool
    bias: fx.Node | None


def call_of(node: fx.Node) -> Call | None:
    """A matmul of rows with one matrix; None for another operator."""
    if node.target is aten.linear.default:
        bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        return Call(node.args[0], node.args[1], True, bias)
    if node.target is aten.mm.default:
        return Call(node.args[0], node.args[1], False, None)
    if node.target is aten.addmm.default and not node.kwargs and len(node.args) == 3:
        bias = node.args[0]
        if value_of(bias).dim() == 1:
            return Call(node.args[1], node.args[2], False, bias)
    return None


class MatmulDescriber(Describer):
    """A step whose anchors all multiply the same rows. The domain of an epilogue is (m, n)."""

    def describe(self) -> Matmul:
        """Raises Undescribed, and what building index maps raises."""
        found = [call_of(node) for node in self.anchors]
        self.calls = [call for call in found if call is not None]
        if len(self.calls) < len(found) or len({call.rows for call in self.calls}) != 1:
            raise Undescribed("not matmuls of the same rows")
        rows = self.calls[0].rows
        self.lead = tuple(map(int, value_of(rows).shape[:-1]))
        self.m, k = math.prod(self.lead), int(value_of(rows).shape[-1])
        parts = [self._part(anchors, stores) for anchors, stores in self._groups()]
        dtype = value_of(rows).dtype
        return Matmul(
            batch=(),
            m=self.m,
            k=k,
            left=self._flat(k).compose({0: self.traced(rows)}).simplify(),
            parts=tuple(parts),
            tensors=self.tensors(),
            tf32=dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32,
        )

    def anchor(self, node: fx.Node, total: Node) -> Node:
        bias = self.calls[self.anchors.index(node)].bias
        return total if bias is None else self.over_channels(bias, total, len(total.shape) - 1)

    def store(self, value: fx.Node, number: int, shape: tuple[int, ...]) -> None:
        if value.target is not SQUARE_SUMS:
            super().store(value, number, shape)
            return
        source, width = value.args
        if tuple(value_of(source).shape) != shape:
            raise Undescribed("sums of another shape than the anchor's")
        root = self._value(self._expression(source), self.own)
        square = self.body.scalar("mul", root, root)
        place = self._flat(shape[-1] // width).renumber({0: number})
        self.body.store_sums(square, place, width)

    def _special(self, node: fx.Node) -> Node | None:
        """The scale of a norm, from the sums of squares of each row."""
        if node.target is not NORMALIZED:
            return None
        product, sums, count, eps = node.args
        groups = int(value_of(sums).shape[-1])
        index_map = self._flat(groups).compose({0: self.traced(sums)}).simplify()
        graph, shape = self.graph, tuple(map(int, value_of(node).shape))
        total = graph.node("input", shape, DType.F32, (), RowSums(index_map))
        mean = graph.scalar("div", total, graph.const(float(count), DType.F32))
        scale = graph.scalar("rsqrt", graph.scalar("add", mean, graph.const(eps, DType.F32)))
        return graph.scalar("mul", self._expression(product), scale)

    def position(self, product: Product) -> int:
        return self.members.index(product.number)

    def _flat(self, n: int) -> IndexMap:
        """(m, n) -> the index of a tensor (*lead, n)."""
        row, column = expr.axes(2)
        index, below = [], self.m
        for size in self.lead:
            below //= max(size, 1)
            index.append(row // below % size)
        return IndexMap.single((self.m, n), (*index, column)).simplify()

    def _right(self, call: Call) -> IndexMap:
        """The weight as a map over (k, n)."""
        shape = tuple(map(int, value_of(call.weight).shape))
        order = (1, 0) if call.by_rows else (0, 1)
        return IndexMap.permute(shape, order).compose({0: self.traced(call.weight)}).simplify()

    def _part(self, members: Sequence[int], stores: Iterable[tuple[fx.Node, int]]) -> Part:
        shapes = {tuple(map(int, value_of(self.anchors[a]).shape)) for a in members}
        if len(shapes) != 1:
            raise Undescribed("products of several widths in one result")
        (shape,) = shapes
        self.begin()
        self.members, self.own = list(members), self._flat(shape[-1])
        for value, number in stores:
            self.store(value, number, shape)
        rights = tuple(self._right(self.calls[a]) for a in members)
        return Part(shape[-1], rights, self.body.build())

    def _groups(self) -> list[tuple[list[int], list[tuple[fx.Node, int]]]]:
        """The numbers of the anchors that are computed point by point together, as results need
        them, and the stores of those results."""
        groups: list[tuple[set[int], list[tuple[fx.Node, int]]]] = []
        for value, number in self.stores():
            needed = self._needed(value)
            if not needed:
                raise Undescribed("a result without a product")
            stores = [(value, number)]
            for group in [g for g in groups if g[0] & needed]:
                groups.remove(group)
                needed, stores = needed | group[0], [*group[1], *stores]
            groups.append((needed, stores))
        return [(sorted(members), stores) for members, stores in groups]

    def _needed(self, value: fx.Node) -> set[int]:
        """The numbers of the anchors that a value is computed from."""
        found: set[int] = set()
        pending, seen = [value], {value}
        while pending:
            node = pending.pop()
            if node in self.anchors:
                found.add(self.anchors.index(node))
                continue
            fresh = [n for n in node.all_input_nodes if n not in seen]
            seen.update(fresh)
            pending += fresh
        return found

"""Steps of the schedule as descriptions that our own kernels are generated from: what is common.

A step's graph says what is computed: views of the arena as placeholders, movement operators that
lie between them and the anchors, the anchors, pointwise operators, and stores by `copy_`. Movement
becomes index maps, pointwise operators the epilogue; nothing else is known of a region here.

    before: cat = cat([a, b]); y = conv2d(cat, w); z = relu(y + bias); copy_(slice_of_base, z)
    after:  Convolution(source={a | b}, body=(product, load bias, add, max, store slice_of_base))
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vtc.graph.movement import is_movement_target, movement_of
from vtc.graph.program import is_tensor, value_of
from vtc.index import expr
from vtc.index.access import Layout
from vtc.index.map import IndexMap
from vtc.kernels.epilogue import Body, Tensor
from vtc.kernels.operators import ANCHORS
from vtc.lowering.dvm import translate
from vtc.lowering.dvm.graph import Graph
from vtc.lowering.dvm.nodes import Node
from vtc.lowering.dvm.rules import RULES, Lowering, dtype_of, shape_of
from vtc.lowering.schedule import Step
from vtc.program.scalars import SCALARS

aten = torch.ops.aten

assert translate.RULE_FILES, "the rules are registered by their files"


class Undescribed(Exception):  # noqa: N818 - an answer, not a failure
    """The step computes something that the description has no words for."""


@dataclass(frozen=True)
class Product:
    """The sum of products of the anchor with this number, where a body takes it from."""

    number: int


@dataclass(frozen=True)
class RowSums:
    """The sums of the rows of a matrix (rows, g), where a body takes them from."""

    index_map: IndexMap


class Describer(ABC):
    """Reads a step's graph. `own` is the map from the epilogue's domain to a result's index, and
    `body` the epilogue that is being written."""

    own: IndexMap

    def __init__(self, step: Step) -> None:
        self.nodes = list(step.graph.graph.nodes)
        self.placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.number = {n: k for k, n in enumerate(self.placeholders)}
        self.anchors = [n for n in self.nodes if n.target in ANCHORS]
        if not all(map(is_tensor, self.placeholders)):
            raise Undescribed("an operand that is no tensor")
        self.graph = Graph()
        self.made: dict[fx.Node, Node] = {}
        self.begin()

    def begin(self) -> None:
        """Start the body of an epilogue."""
        self.body = Body()
        self.values: dict[tuple[Node, IndexMap], int] = {}

    @abstractmethod
    def anchor(self, node: fx.Node, total: Node) -> Node:
        """The value of an anchor whose sum of products is `total`."""

    @functools.cached_property
    def computed(self) -> frozenset[fx.Node]:
        """The nodes that an anchor is part of."""
        found = set(self.anchors)
        for node in self.nodes:
            if node.op == "call_function" and found.intersection(node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    # Stores.

    def results(self) -> list[torch.Tensor]:
        """What the step returns: the last tensors of a call."""
        (output,) = (n for n in self.nodes if n.op == "output")
        return [value_of(value) for value in output.args[0]]

    def stores(self) -> Iterator[tuple[fx.Node, int]]:
        """Values, and the numbers of the tensors that they are stored into."""
        for node in self.nodes:
            if node.target is aten.copy_.default:
                yield node.args[1], self.number[node.args[0]]
        (output,) = (n for n in self.nodes if n.op == "output")
        for number, value in enumerate(output.args[0], len(self.placeholders)):
            if value.target is aten.copy_.default:
                raise Undescribed("a result that is stored as well")
            yield value, number

    def store(self, value: fx.Node, number: int, shape: tuple[int, ...]) -> None:
        """Write the store of a value of `shape`, an anchor's, into a tensor of the call. Parts of
        it that are moved only are stored beside what is computed."""
        for part, home in self.homes(value):
            if tuple(value_of(part).shape) != shape:
                raise Undescribed("a result of another shape than the anchor's")
            stored = self._value(self._expression(part), self.own)
            place = self.own.compose({0: home}).renumber({0: number})
            self.body.store(stored, place)

    def homes(self, value: fx.Node) -> list[tuple[fx.Node, IndexMap]]:
        """The tensors that a value is moved from, and where the elements of each go in it. What no
        anchor computes is taken whole."""
        bound = movement_of(value)
        if bound is None or is_movement_target(value) or value not in self.computed:
            return [(value, IndexMap.identity(tuple(value_of(value).shape)))]
        found = []
        for source, store in zip(bound.sources, bound.movement.store, strict=True):
            if store is None or bound.lookups:
                raise Undescribed(f"a result behind {value.target}")
            found += [(part, home.compose({0: store})) for part, home in self.homes(source)]
        return found

    # Operands.

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of a call: the operands, then what the step returns."""
        values = [*map(value_of, self.placeholders), *self.results()]
        return tuple(Tensor(dtype_of(v.dtype), Layout(v.shape, v.stride())) for v in values)

    def traced(self, node: fx.Node) -> IndexMap:
        """A tensor that is moved only, as a map whose sources are numbers of placeholders."""
        if node in self.number:
            return IndexMap.identity(tuple(value_of(node).shape), self.number[node])
        bound = movement_of(node)
        if bound is None or bound.movement.load is None or bound.lookups:
            raise Undescribed(f"an operand behind {node.target}")
        sources = {k: self.traced(s) for k, s in enumerate(bound.sources)}
        return bound.movement.load.compose(sources)

    # Arithmetic.

    def _expression(self, node: fx.Node) -> Node:
        if node not in self.made:
            self.made[node] = self._made(node)
        return self.made[node]

    def _made(self, node: fx.Node) -> Node:
        value = value_of(node)
        if not isinstance(value, torch.Tensor):
            raise Undescribed(f"a value of {node.target} that is no tensor")
        shape, dtype = shape_of(value), dtype_of(value.dtype)
        if node in self.number:
            return self.graph.node("input", shape, dtype, (), self.number[node])
        if node in self.anchors:
            product = Product(self.anchors.index(node))
            return self.anchor(node, self.graph.node("input", shape, dtype, (), product))
        bound = movement_of(node)
        if bound is not None:
            if bound.movement.load is None or bound.lookups:
                raise Undescribed(f"an operand behind {node.target}")
            sources = [self._expression(s) for s in bound.sources]
            return self.graph.move(bound.movement.load, sources)
        special = self._special(node)
        if special is not None:
            return self.graph.cast(special, dtype)
        target, args = _call(node)
        rule = RULES.get(target)
        if rule is None:
            raise Undescribed(f"{target} has no rule")
        args, kwargs = fx.map_arg((args, node.kwargs), self._expression)
        try:
            found = rule(Lowering(self.graph, value), *args, **kwargs)
        except TypeError as error:  # an argument that the rule does not know of
            raise Undescribed(str(error)) from error
        if not isinstance(found, Node):
            raise Undescribed(f"{node.target} has several results")
        return self.graph.cast(self.graph.broadcast(found, shape), dtype)

    def _special(self, node: fx.Node) -> Node | None:
        """The value of an operator that only some anchor's kernel has words for."""
        return None

    def over_channels(self, bias: fx.Node, total: Node, dim: int) -> Node:
        """`total` plus a vector over its dimension `dim`."""
        size, after = total.shape[dim], len(total.shape) - dim - 1
        vector = self.graph.reshape(self._expression(bias), (size, *[1] * after))
        return self.graph.scalar("add", total, self.graph.broadcast(vector, total.shape))

    def position(self, product: Product) -> int:
        """The number of a product in the body that is being written."""
        return product.number

    def _value(self, node: Node, index: IndexMap) -> int:
        """The number of the value of `node` at the coordinates that `index` gives."""
        key = (node, index)
        if key not in self.values:
            self.values[key] = self._written(node, index)
        return self.values[key]

    def _written(self, node: Node, index: IndexMap) -> int:
        body = self.body
        if node.op == "input" and isinstance(node.constant, Product):
            if index.simplify().pieces != self.own.pieces:
                raise Undescribed("the product is read in another order")
            return body.product(self.position(node.constant))
        if node.op == "input" and isinstance(node.constant, RowSums):
            if index.simplify().pieces != self.own.pieces:
                raise Undescribed("the rows are read in another order")
            return body.row_sum(node.constant.index_map)
        if node.op in ("input", "move"):
            return self._moved(node, index)
        if node.op == "const":
            return body.const(node.constant, node.dtype.compute)
        if node.op == "cast":
            source = node.operands[0]
            value = self._value(source, index)
            if source.dtype.compute is node.dtype and source.dtype is not node.dtype:
                return value  # it has that type in registers
            return body.cast(value, node.dtype)
        if node.op in SCALARS:
            operands = [self._value(o, _broadcast(o, node, index)) for o in node.operands]
            return body.scalar(node.op, *operands)
        raise Undescribed(f"{node.op} in an epilogue")

    def _moved(self, node: Node, index: IndexMap) -> int:
        if node.op == "input":
            return self.body.load(index.renumber({0: node.constant}), node.dtype.compute)
        load = node.constant.load
        try:
            total = index.compose({0: self._from_inputs(node)})
        except Undescribed:
            if node.constant.sources != 1:
                raise
            return self._value(node.operands[0], index.compose({0: load}).simplify())
        return self.body.load(total, node.dtype.compute)

    def _from_inputs(self, node: Node) -> IndexMap:
        """A moved node as a map whose sources are numbers of placeholders."""
        if node.op == "input" and isinstance(node.constant, int):
            return IndexMap.identity(node.shape, node.constant)
        if node.op != "move":
            raise Undescribed("computed values are moved")
        return node.constant.load.compose(
            {k: self._from_inputs(o) for k, o in enumerate(node.operands)}
        )


def _call(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The operator of a node with one result, and its arguments.

    before: getitem(_native_batch_norm_legit_no_training(x, w, b, mean, var, momentum, eps), 0)
    after:  batch_norm(x, w, b, mean, var, False, momentum, eps)
    """
    if node.target is not operator.getitem:
        return node.target, node.args
    several, number = node.args
    if several.target is not aten._native_batch_norm_legit_no_training.default or number != 0:
        raise Undescribed(f"a result of {several.target}")
    return aten.batch_norm.default, (*several.args[:5], False, *several.args[5:])


def _broadcast(operand: Node, node: Node, index: IndexMap) -> IndexMap:
    """The coordinates of an operand of `node`, whose own are `index`."""
    if operand.shape == node.shape:
        return index
    missing = len(node.shape) - len(operand.shape)
    axes = expr.axes(len(node.shape))[missing:]
    inner = [0 if size == 1 else axis for size, axis in zip(operand.shape, axes, strict=True)]
    return index.compose({0: IndexMap.single(node.shape, inner)}).simplify()

"""A step of the schedule as a description that our own kernels are generated from.

The step's graph says what is computed: views of the arena as placeholders, movement operators that
lie between them and the anchor, the anchor, pointwise operators, and stores by `copy_`. Movement
becomes index maps, pointwise operators the epilogue; nothing else is known of a region here.

    before: cat = cat([a, b]); y = conv2d(cat, w); z = relu(y + bias); copy_(slice_of_base, z)
    after:  Convolution(source={a | b}, body=(product, load bias, add, max, store slice_of_base))
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vtc.graph.movement import is_movement_target, movement_of
from vtc.graph.program import is_tensor, value_of
from vtc.index import expr
from vtc.index.access import Layout
from vtc.index.map import IndexMap
from vtc.index.sizes import NotRepresentable
from vtc.kernels.convolution import Convolution, Shape, Window
from vtc.kernels.epilogue import Body, Tensor
from vtc.kernels.operators import ANCHORS
from vtc.lowering.dvm import translate
from vtc.lowering.dvm.nodes import Graph, Node, Unsupported
from vtc.lowering.dvm.rules import RULES, Lowering, dtype_of, shape_of
from vtc.lowering.schedule import Step
from vtc.program.scalars import SCALARS

aten = torch.ops.aten

assert translate.RULE_FILES, "the rules are registered by their files"


class Undescribed(Exception):  # noqa: N818 - an answer, not a failure
    """The step computes something that the description has no words for."""


@dataclass(frozen=True, eq=False)
class Described:
    """A step's convolution over its operands, then over the results that a call allocates."""

    convolution: Convolution
    results: tuple[torch.Tensor, ...]


def described(step: Step) -> Described:
    """The description of a step with one 2-D convolution. Raises Undescribed."""
    try:
        return _Describer(step).describe()
    except (Unsupported, NotRepresentable, ValueError) as error:
        raise Undescribed(str(error)) from error


class _Describer:
    def __init__(self, step: Step) -> None:
        self.nodes = list(step.graph.graph.nodes)
        self.placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.number = {n: k for k, n in enumerate(self.placeholders)}
        anchors = [n for n in self.nodes if n.target in ANCHORS]
        if len(anchors) != 1 or anchors[0].target is not aten.conv2d.default:
            raise Undescribed("not one 2-D convolution")
        if not all(map(is_tensor, self.placeholders)) or value_of(anchors[0]).dim() != 4:
            raise Undescribed("an operand that is no tensor")
        self.anchor = anchors[0]
        self.graph = Graph()
        self.made: dict[fx.Node, Node] = {}
        self.body = Body()
        self.values: dict[tuple[Node, IndexMap], int] = {}
        self.product: int | None = None

    def describe(self) -> Described:
        arguments = _arguments(self.anchor)
        image, weight, bias, stride, padding, dilation, groups = arguments
        n, c, h, w = map(int, value_of(image).shape)
        height, width = map(int, value_of(weight).shape[2:])
        window = Window((height, width), stride, padding, dilation)
        output: Shape = (n, *window.outputs(h, w), int(value_of(weight).shape[0]))
        if weight not in self.number:
            raise Undescribed("a weight that is moved first")
        self.output, self.bias = output, bias
        own = IndexMap.single(output, [expr.axes(4)[d] for d in (0, 3, 1, 2)])
        self.own = own.simplify()
        results = self._stores()
        tensors = [_tensor(value_of(p)) for p in self.placeholders] + [_tensor(r) for r in results]
        source = IndexMap.single((n, h, w, c), [expr.axes(4)[d] for d in (0, 3, 1, 2)])
        dtype = value_of(weight).dtype
        found = Convolution(
            image=(n, h, w, c),
            source=source.compose({0: self._traced(image)}),
            weight=self.number[weight],
            channels=output[3],
            window=window,
            groups=groups,
            body=self.body.build(),
            tensors=tuple(tensors),
            tf32=dtype is torch.float32 and torch.backends.cudnn.allow_tf32,
        )
        return Described(found, tuple(results))

    # Stores.

    def _stores(self) -> list[torch.Tensor]:
        """Write the stores of the graph; the tensors that it returns."""
        for node in self.nodes:
            if node.target is aten.copy_.default:
                target, value = node.args[0], node.args[1]
                self._store(value, self.number[target])
        (output,) = (n for n in self.nodes if n.op == "output")
        results: list[torch.Tensor] = []
        for value in output.args[0]:
            if value.target is aten.copy_.default:
                raise Undescribed("a result that is stored as well")
            self._store(value, len(self.placeholders) + len(results))
            results.append(value_of(value))
        return results

    def _store(self, value: fx.Node, number: int) -> None:
        computed, home = self._home(value)
        if tuple(value_of(computed).shape) != tuple(value_of(self.anchor).shape):
            raise Undescribed("a result of another shape than the convolution's")
        stored = self._value(self._expression(computed), self.own)
        place = self.own.compose({0: home}).renumber({0: number})
        self.body.store(stored, place)

    def _home(self, value: fx.Node) -> tuple[fx.Node, IndexMap]:
        """The computed tensor that a value is moved from, and where its elements go in it."""
        bound = movement_of(value)
        if bound is None or is_movement_target(value):
            return value, IndexMap.identity(tuple(value_of(value).shape))
        if len(bound.sources) != 1 or bound.movement.store[0] is None:
            raise Undescribed(f"a result behind {value.target}")
        computed, home = self._home(bound.sources[0])
        return computed, home.compose({0: bound.movement.store[0]})

    # Operands.

    def _traced(self, node: fx.Node) -> IndexMap:
        """A tensor that is moved only, as a map whose sources are numbers of placeholders."""
        if node in self.number:
            return IndexMap.identity(tuple(value_of(node).shape), self.number[node])
        bound = movement_of(node)
        if bound is None or bound.movement.load is None or bound.lookups:
            raise Undescribed(f"an operand behind {node.target}")
        sources = {k: self._traced(s) for k, s in enumerate(bound.sources)}
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
        if node is self.anchor:
            return self._anchor(shape, dtype)
        bound = movement_of(node)
        if bound is not None:
            if bound.movement.load is None or bound.lookups:
                raise Undescribed(f"an operand behind {node.target}")
            sources = [self._expression(s) for s in bound.sources]
            return self.graph.move(bound.movement.load, sources)
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

    def _anchor(self, shape: Any, dtype: Any) -> Node:
        total = self.graph.node("input", shape, dtype, (), "product")
        if self.bias is None:
            return total
        bias = self.graph.reshape(self._expression(self.bias), (shape[1], 1, 1))
        return self.graph.scalar("add", total, self.graph.broadcast(bias, shape))

    def _value(self, node: Node, index: IndexMap) -> int:
        """The number of the value of `node` at the coordinates that `index` gives."""
        key = (node, index)
        if key not in self.values:
            self.values[key] = self._written(node, index)
        return self.values[key]

    def _written(self, node: Node, index: IndexMap) -> int:
        body = self.body
        if node.op == "input" and node.constant == "product":
            if index.simplify().pieces != self.own.pieces:
                raise Undescribed("the product is read in another order")
            if self.product is None:
                self.product = body.product()
            return self.product
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
        if node.op == "input" and node.constant != "product":
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


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """(image, weight, bias, stride, padding, dilation, groups) of a conv2d call."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    defaults: tuple[Any, ...] = (None, None, None, 1, 0, 1, 1)
    given = dict(zip(names, defaults, strict=True)) | dict(zip(names, node.args, strict=False))
    given |= node.kwargs
    for name in ("stride", "padding", "dilation"):
        given[name] = _pair(given[name])
    return tuple(given[name] for name in names)


def _pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])


def _broadcast(operand: Node, node: Node, index: IndexMap) -> IndexMap:
    """The coordinates of an operand of `node`, whose own are `index`."""
    if operand.shape == node.shape:
        return index
    missing = len(node.shape) - len(operand.shape)
    axes = expr.axes(len(node.shape))[missing:]
    inner = [0 if size == 1 else axis for size, axis in zip(operand.shape, axes, strict=True)]
    return index.compose({0: IndexMap.single(node.shape, inner)}).simplify()


def _tensor(value: torch.Tensor) -> Tensor:
    return Tensor(dtype_of(value.dtype), Layout(tuple(value.shape), tuple(value.stride())))

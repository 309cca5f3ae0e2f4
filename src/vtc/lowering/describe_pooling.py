"""Steps with one max pooling as descriptions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vtc.graph.program import value_of
from vtc.index import expr
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Window
from vtc.kernels.pooling import Pooling
from vtc.lowering.description import Describer, Undescribed
from vtc.lowering.dvm.nodes import Node
from vtc.lowering.schedule import Step

aten = torch.ops.aten

POOLINGS = frozenset({aten.max_pool2d.default})


class PoolingDescriber(Describer):
    """A step with one pooling. The domain of its epilogue is (n, oh, ow, c)."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.anchors = [n for n in self.nodes if n.target in POOLINGS]

    def describe(self) -> Pooling:
        """Raises Undescribed, and what building index maps raises."""
        if len(self.anchors) != 1 or value_of(self.anchors[0]).dim() != 4:
            raise Undescribed("not one pooling of a batch of images")
        (anchor,) = self.anchors
        image, size, stride, padding, dilation, ceil_mode = _arguments(anchor)
        n, c, h, w = map(int, value_of(image).shape)
        window = Window(size, stride, padding, dilation)
        output = (n, *window.outputs(h, w), c)
        if ceil_mode or output != tuple(value_of(anchor).shape[d] for d in (0, 2, 3, 1)):
            raise Undescribed("a pooling whose size is rounded up")
        order = [expr.axes(4)[d] for d in (0, 3, 1, 2)]
        self.own = IndexMap.single(output, order).simplify()
        for value, number in self.stores():
            self.store(value, number, tuple(value_of(anchor).shape))
        source = IndexMap.single((n, h, w, c), order).compose({0: self.traced(image)})
        body = self.body.build()
        return Pooling("max", (n, h, w, c), source, window, body, self.tensors())

    def anchor(self, node: fx.Node, total: Node) -> Node:
        return total


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """(image, size, stride, padding, dilation, ceil_mode) of a max_pool2d call."""
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    defaults: tuple[Any, ...] = (None, None, (), 0, 1, False)
    given = dict(zip(names, defaults, strict=True)) | dict(zip(names, node.args, strict=False))
    given |= node.kwargs
    given["stride"] = given["stride"] or given["kernel_size"]
    for name in ("kernel_size", "stride", "padding", "dilation"):
        value = given[name]
        values = [value] if isinstance(value, int) else list(value)
        given[name] = (values[0], values[-1])
    return tuple(given[name] for name in names)

"""Steps with one 2-D convolution as descriptions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vtc.graph.program import value_of
from vtc.index import expr
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, Shape, Window
from vtc.lowering.description import Describer, Undescribed
from vtc.lowering.dvm.nodes import Node

aten = torch.ops.aten


class ConvolutionDescriber(Describer):
    """A step with one 2-D convolution. The domain of its epilogue is (n, oh, ow, oc)."""

    def describe(self) -> Convolution:
        """Raises Undescribed, and what building index maps raises."""
        if len(self.anchors) != 1 or self.anchors[0].target is not aten.conv2d.default:
            raise Undescribed("not one 2-D convolution")
        (anchor,) = self.anchors
        if value_of(anchor).dim() != 4:
            raise Undescribed("an image without a batch")
        image, weight, self.bias, stride, padding, dilation, groups = _arguments(anchor)
        n, c, h, w = map(int, value_of(image).shape)
        height, width = map(int, value_of(weight).shape[2:])
        window = Window((height, width), stride, padding, dilation)
        output: Shape = (n, *window.outputs(h, w), int(value_of(weight).shape[0]))
        if weight not in self.number:
            raise Undescribed("a weight that is moved first")
        order = [expr.axes(4)[d] for d in (0, 3, 1, 2)]
        self.own = IndexMap.single(output, order).simplify()
        for value, number in self.stores():
            self.store(value, number, tuple(value_of(anchor).shape))
        dtype = value_of(weight).dtype
        return Convolution(
            image=(n, h, w, c),
            source=IndexMap.single((n, h, w, c), order).compose({0: self.traced(image)}),
            weight=self.number[weight],
            channels=output[3],
            window=window,
            groups=groups,
            body=self.body.build(),
            tensors=self.tensors(),
            tf32=dtype is torch.float32 and torch.backends.cudnn.allow_tf32,
        )

    def anchor(self, node: fx.Node, total: Node) -> Node:
        return total if self.bias is None else self.over_channels(self.bias, total, 1)


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

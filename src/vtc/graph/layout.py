"""Channels-last layout: a captured program rewritten so that its convolutions see NHWC.

    before: conv2d(x: NCHW) -> cat -> view [n, 2, c/2, h, w] -> transpose -> clone -> view -> conv2d
    after:  clone(x, channels_last), conv2d -> cat -> view -> transpose -> permute [n, h, w, ...]
            -> clone -> view [n, h, w, c] -> permute: every value between has a channel stride of 1

The program is run again on its fake values with convolutions in channels-last, and strides follow
from there: pointwise operators, pooling and concats keep the layout of what they read, views stay
views where the new strides allow it. What is inserted is movement (clone, permute, view), so that
planning may make it virtual. Shapes and values are unchanged; so are the strides of outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from vtc.graph import program
from vtc.graph.movement import is_movement_target
from vtc.graph.program import Program, is_tensor, value_of

aten = torch.ops.aten

CONVOLUTIONS = frozenset({aten.conv2d.default, aten.convolution.default})
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})

# Operators, beside pointwise and movement ones, whose image result is laid out as their operand is.
LAYOUT_KEEPING = frozenset(
    {
        aten._native_batch_norm_legit_no_training.default,
        aten.batch_norm.default,
        aten.dropout.default,
        aten.max_pool2d.default,
        aten.max_pool2d_with_indices.default,
        aten.avg_pool2d.default,
        aten.adaptive_avg_pool2d.default,
        aten.upsample_nearest2d.vec,
        aten.upsample_nearest2d.default,
        aten.upsample_bilinear2d.vec,
        aten.upsample_bilinear2d.default,
    }
)


def channels_last(captured: Program) -> Program:
    """The program with its images (what convolutions read and give) in channels-last strides.

    The values that nodes carry (`value_of`) have the strides that an eager run of the new graph
    gives, apart from those of dimensions of size 1. A program without 2-D convolutions, with
    symbolic sizes, or with an output that is neither dense nor laid out as before is returned as
    it is.
    """
    if captured.symbolic or not any(_is_convolution(n) for n in captured.nodes):
        return captured
    try:
        return _Rewrite(captured).run()
    except _Unrestorable:
        return captured


def is_channels_last(value: torch.Tensor) -> bool:
    """Is a 4-D tensor, or a slice of a larger one, stored pixel by pixel with adjacent channels?"""
    if value.dim() != 4 or (value.stride(1) != 1 and value.shape[2] * value.shape[3] != 1):
        return False
    step = 1
    for dim in (1, 3, 2, 0):
        if value.shape[dim] == 1:
            continue
        if value.stride(dim) < step:
            return False
        step = value.stride(dim) * value.shape[dim]
    return True


class _Rewrite:
    """One rewriting: the new graph, and the new node of each old one."""

    def __init__(self, captured: Program) -> None:
        self.program = captured
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.images = _images(captured)
        self.copies: dict[fx.Node, fx.Node] = {}
        tensors = (value_of(n) for n in captured.inputs)
        self.mode = next(v for v in tensors if isinstance(v, FakeTensor)).fake_mode

    def run(self) -> Program:
        """The new program. Raises _Unrestorable where an output cannot be given its strides."""
        with torch.no_grad(), self.mode:
            for node in self.program.graph_module.graph.nodes:
                if node.op == "output":
                    break
                self.made[node] = self._node(node)
            outputs = [self._output(out) for out in self.program.outputs]
            updates = [(i, self._output(value)) for i, value in self.program.updates]
        self.graph.output(tuple(outputs))
        kept = {value for _, value in updates}
        self.graph.eliminate_dead_code(
            lambda n: n in kept or n.op in ("placeholder", "output") or n.is_impure()
        )
        module = fx.GraphModule(self.program.graph_module, self.graph)
        own = self.program
        return program.build(module, tuple(updates), own.constants, own.aliases, own.storages)

    def _node(self, node: fx.Node) -> fx.Node:
        """The node of the new graph that computes what `node` of the old one does."""
        if node.op == "call_function":
            if _is_convolution(node):
                return self._convolution(node)
            if node.target in VIEWS:
                return self._view(node)
            if node.target is aten.clone.default and self._image(self.made[node.args[0]]):
                return self._copy_of_image(self.made[node.args[0]], node)
        made = self.graph.node_copy(node, lambda n: self.made[n])
        if node.op == "call_function":
            made.meta["val"] = _evaluate(made)
        return made

    def _convolution(self, node: fx.Node) -> fx.Node:
        image = self._as_image(self.made[node.args[0]], node)
        made = self.graph.node_copy(node, lambda n: self.made[n])
        made.args = (image, *made.args[1:])
        value = value_of(node)
        made.meta["val"] = torch.empty(
            value.shape,
            dtype=value.dtype,
            device=value.device,
            memory_format=torch.channels_last,
        )
        return made

    def _as_image(self, new: fx.Node, origin: fx.Node) -> fx.Node:
        """The node in channels-last: itself, or its one copy."""
        if is_channels_last(value_of(new)):
            return new
        if new not in self.copies:
            self.copies[new] = self._copy_of_image(new, origin)
        return self.copies[new]

    def _copy_of_image(self, new: fx.Node, origin: fx.Node) -> fx.Node:
        return self._call(
            origin, aten.clone.default, (new,), {"memory_format": torch.channels_last}
        )

    def _image(self, new: fx.Node) -> bool:
        value = value_of(new)
        return isinstance(value, torch.Tensor) and is_channels_last(value) and value.shape[1] > 1

    def _view(self, node: fx.Node) -> fx.Node:
        """A view, or where it now needs a copy, a copy in the layout that its readers want.

        before: view(clone(x: [n, c/g, g, h, w]), [n, c, h, w])
        after:  permute(view(clone(permute(x, [0, 3, 4, 1, 2])), [n, h, w, c]), [0, 3, 1, 2])
        """
        source, shape = self.made[node.args[0]], list(value_of(node).shape)
        if source.target is aten.clone.default and node in self.images:
            bare = source.args[0]
            order = _image_order(value_of(bare).shape, shape)
            if order is not None:
                return self._ordered_copy(node, bare, shape, order)
        if _can_view(value_of(source), shape):
            made = self.graph.node_copy(node, lambda n: self.made[n])
            made.meta["val"] = _evaluate(made)
            return made
        order = _image_order(value_of(source).shape, shape) if node in self.images else None
        if order is not None:
            return self._ordered_copy(node, source, shape, order)
        return self._call(node, aten.reshape.default, (source, shape))

    def _ordered_copy(
        self, node: fx.Node, source: fx.Node, shape: list[int], order: list[int]
    ) -> fx.Node:
        n, c, h, w = shape
        turned = self._call(node, aten.permute.default, (source, order))
        if not _can_view(value_of(turned), [n, h, w, c]):
            turned = self._call(
                node, aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}
            )
        pixels = self._call(node, aten.view.default, (turned, [n, h, w, c]))
        return self._call(node, aten.permute.default, (pixels, [0, 3, 1, 2]))

    def _output(self, old: Any) -> Any:
        """The new node of an output, with the strides it had. Raises _Unrestorable."""
        if not isinstance(old, fx.Node):
            return old
        new, wanted = self.made[old], value_of(old)
        if not is_tensor(old) or _same_strides(value_of(new), wanted):
            return new
        order = _dense_order(wanted)
        if order is None:
            raise _Unrestorable
        back = sorted(range(len(order)), key=order.__getitem__)
        turned = self._call(old, aten.permute.default, (new, order))
        copied = self._call(
            old, aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}
        )
        return self._call(old, aten.permute.default, (copied, back))

    def _call(
        self, origin: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any = None
    ) -> fx.Node:
        made = self.graph.call_function(target, args, kwargs or {})
        if "stack_trace" in origin.meta:
            made.meta["stack_trace"] = origin.meta["stack_trace"]
        made.meta["val"] = _evaluate(made)
        return made


class _Unrestorable(Exception):  # noqa: N818 - a signal inside this file
    """An output had strides with gaps, which a copy does not give."""


def _is_convolution(node: fx.Node) -> bool:
    return (
        node.target in CONVOLUTIONS
        and is_tensor(node)
        and value_of(node).dim() == 4
        and not (node.target is aten.convolution.default and node.args[6])
    )


def _images(captured: Program) -> set[fx.Node]:
    """Values that some convolution reads, directly or through operators that keep the layout."""
    found: set[fx.Node] = set()
    for node in reversed(captured.nodes):
        if node.op == "call_function" and any(
            (_is_convolution(user) and user.args[0] is node)
            or (user in found and _keeps_layout(user, captured))
            for user in node.users
        ):
            found.add(node)
    return found


def _keeps_layout(node: fx.Node, captured: Program) -> bool:
    if node in captured.movements or is_movement_target(node) or node.target in LAYOUT_KEEPING:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return True  # a getitem
    return torch.Tag.pointwise in node.target.tags


def _evaluate(made: fx.Node) -> Any:
    """The fake result of a node of the new graph."""
    assert callable(made.target)
    args, kwargs = fx.map_arg((made.args, made.kwargs), value_of)
    result = made.target(*args, **kwargs)
    first = args[0] if args else None
    if made.target not in LAYOUT_KEEPING or not isinstance(first, torch.Tensor):
        return result
    if not is_channels_last(first) or first.shape[1] == 1:
        return result
    return fx.node.map_aggregate(result, _as_channels_last)


def _as_channels_last(value: Any) -> Any:
    """What eager kernels give for an image in channels-last; some fake ones say contiguous."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or is_channels_last(value):
        return value
    return torch.empty_like(value, memory_format=torch.channels_last)


def _can_view(value: torch.Tensor, shape: Sequence[int]) -> bool:
    try:
        value.view(list(shape))
    except (RuntimeError, ValueError):  # real tensors raise one, fake ones the other
        return False
    return True


def _image_order(sizes: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """The order of dimensions that makes a reshape of `sizes` to [n, c, h, w] a channels-last one:
    those of n, those of h and w, those of c. None where a dimension spans two of these."""
    if len(shape) != 4:
        return None
    ends: list[int] = []
    total = 1
    wanted = [shape[0], shape[0] * shape[1]]
    for dim, size in enumerate(sizes):
        while len(ends) < 2 and total == wanted[len(ends)] and size != 1:
            ends.append(dim)
        total *= size
    if len(ends) < 2:
        return None
    first, second = ends
    rank = len(sizes)
    return [*range(first), *range(second, rank), *range(first, second)]


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors of one shape place their elements alike?"""
    return all(
        x == y for x, y, size in zip(a.stride(), b.stride(), a.shape, strict=True) if size != 1
    )


def _dense_order(value: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost in, where the elements lie without gaps; else None."""
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), value.shape[d] == 1, d))
    step = 1
    for dim in reversed(order):
        if value.shape[dim] != 1:
            if value.stride(dim) != step:
                return None
            step *= value.shape[dim]
    return order

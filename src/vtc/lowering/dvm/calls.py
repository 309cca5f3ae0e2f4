"""Operators that run as eager PyTorch between the programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from vtc import errors
from vtc.graph.program import value_of
from vtc.index import Size, sizes
from vtc.lowering.dvm.nodes import Call, Node, contiguous
from vtc.lowering.dvm.rules import dtype_of, shape_of
from vtc.lowering.dvm.translation import Translation, plain
from vtc.program.dtypes import DType

aten = torch.ops.aten

ATTENTION = aten.scaled_dot_product_attention.default
# What libraries run best on a device, between programs.
LIBRARY = {
    aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default,
    aten.linear.default, aten.addmm.default, aten.baddbmm.default, aten.addbmm.default,
    aten.addmv.default, aten.einsum.default, ATTENTION, aten.cumsum.default, aten.cumprod.default,
    aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
    aten.max_pool1d_with_indices.default, aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
}  # fmt: skip
# What they run best everywhere: a kernel looks up one element after another, and has no sums of
# what falls on one place. Adaptive pools are those whose windows have several lengths.
SCATTERED = {
    aten.embedding_bag.default, aten.embedding_bag.padding_idx,
    aten.index_add.default, aten.scatter_add.default,
    aten.upsample_linear1d.vec, aten.upsample_linear1d.default,
    aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default,
    aten.upsample_bicubic2d.vec, aten.upsample_bicubic2d.default,
    aten.upsample_trilinear3d.vec, aten.upsample_trilinear3d.default,
    aten.adaptive_avg_pool1d.default, aten.adaptive_max_pool1d.default,
    aten.adaptive_avg_pool2d.default, aten.adaptive_max_pool2d.default,
    aten.adaptive_avg_pool3d.default, aten.adaptive_max_pool3d.default,
}  # fmt: skip


def called(own: Translation, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
    """The operator as an eager call."""
    value = value_of(node)
    symbols = new_symbols(own, value)
    own.known |= {_sympy_symbol(value, part, d) for _, part, d in symbols}
    call = Call(target, args, kwargs, value, str(target), tuple(symbols))
    own.calls.append(call)
    if symbols or in_library(own, target):
        own.splits.add(call)
    several = isinstance(value, tuple | list)
    parts: list[Any] = []
    for part, leaf in enumerate(value) if several else ((None, value),):
        if isinstance(leaf, torch.Tensor):
            if DType.of(leaf.dtype) is None or leaf.device != own.device:
                raise errors.CaptureError(
                    str(target), f"the DVM has no {leaf.dtype} on {leaf.device}"
                )
            shape = shape_of(leaf)
            parts.append(
                own.graph.node(
                    "external", shape, dtype_of(leaf.dtype), call.tensors(), (call, part)
                )
            )
        else:
            parts.append(plain(leaf))
    own.graph.results[call] = tuple(p for p in parts if isinstance(p, Node))
    return tuple(parts) if several else parts[0]


def in_library(own: Translation, target: Any) -> bool:
    """Is the operator a library's on the device at hand?"""
    return target in SCATTERED or (own.device.type == "cuda" and target in LIBRARY)


def layouts(own: Translation, seen: Collection[Node]) -> dict[Node, tuple[Size, ...]]:
    """The strides of results of attention as the device's kernels leave them: heads lie side by
    side, as in most queries. Fakes are contiguous, so that putting heads side by side, which nearly
    always follows, would be a copy. Not of those whose strides are `seen`, in eager PyTorch's
    tensors that are returned or passed on."""
    found: dict[Node, tuple[Size, ...]] = {}
    for call in own.calls:
        if not in_library(own, call.target) or call.target is not ATTENTION:
            continue
        for node in own.graph.results[call]:
            if node not in seen and len(node.shape) == 4:
                batch, heads, rows, width = node.shape
                first, second, third, last = contiguous((batch, rows, heads, width))
                found[node] = first, third, second, last
    return found


def new_symbols(own: Translation, value: Any) -> list[tuple[str, int | None, int]]:
    """The symbols of sizes, or of numbers for them, that only the operator's result tells."""
    found: list[tuple[str, int | None, int]] = []
    several = isinstance(value, tuple | list)
    for part, leaf in enumerate(value) if several else ((None, value),):
        if isinstance(leaf, torch.Tensor):
            places: Sequence[Any] = [(d, s) for d, s in enumerate(leaf.shape)]
        elif isinstance(leaf, torch.SymInt | torch.SymFloat):
            places = [(-1, leaf)]
        else:
            continue
        for d, size in places:
            expression = _expression(size)
            if isinstance(expression, sympy.Symbol) and expression not in own.known:
                found.append((str(expression), part, d))
    return found


def _sympy_symbol(value: Any, part: int | None, d: int) -> Size:
    leaf = value if part is None else value[part]
    return _expression(leaf if d < 0 else leaf.shape[d])


def _expression(value: Any) -> Any:
    if isinstance(value, torch.SymFloat):
        return value.node.expr
    return sizes.as_size(value) if isinstance(value, torch.SymInt) else value

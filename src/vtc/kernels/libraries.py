"""Library kernels: which maps each accepts at its inputs and output, and how it is then called.

| kernel | reads through | stores into |
|---|---|---|
| matmul family | strided operands; grouped heads (batch index // g) | strided rows, without bias |
| attention | strided operands; grouped heads for keys and values | a tensor of its own |
| convolution | a strided operand (dense NHWC alone on a CPU) | a tensor of its own |

A map that a kernel does not accept is materialized before it: the copy that PyTorch makes today.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vtc.graph.program import value_of
from vtc.graph.strides import is_dense
from vtc.index import sizes
from vtc.index.expr import FloorDiv, coords
from vtc.index.map import IndexMap
from vtc.kernels.operators import ATTENTIONS, CONVOLUTIONS, MATMULS

aten = torch.ops.aten


@dataclass(frozen=True)
class Grouped:
    """A head dimension that repeats each head of the source `repeats` times in a row; with
    `swapped` the last two dimensions are read in the other order."""

    dim: int
    repeats: int
    swapped: bool = False


def grouped_heads(index_map: IndexMap) -> Grouped | None:
    """The map as `source[..., i // g, ...]` in one dimension and the identity in the others, but
    that the last two may be swapped.

    before: k.unsqueeze(2).expand(b, h, g, s, d).reshape(b, h * g, s, d)
    after:  Grouped(dim=1, repeats=g)
    """
    rank = len(index_map.shape)
    if len(index_map.pieces) != 1 or len(index_map.pieces[0].index) != rank:
        return None
    indices, sizes, axes = index_map.pieces[0].index, index_map.shape, coords(rank)

    def reads(dim: int, source: int) -> bool:
        """Is source dimension `source` read at coordinate `dim`? That of a unit dimension is 0."""
        return bool(indices[source] == (0 if sizes[dim] == 1 else axes[dim]))

    swapped = rank >= 3 and not reads(rank - 1, rank - 1)
    places = [*range(rank - 2), rank - 1, rank - 2] if swapped else list(range(rank))
    found = None
    for source, dim in enumerate(places):
        if reads(dim, source):
            continue
        repeats = _repeats(indices[source], axes[dim], sizes[dim])
        if found is not None or repeats is None:
            return None
        found = Grouped(dim, repeats, swapped)
    return found


def _repeats(index: Any, axis: Any, size: Any) -> int | None:
    """g where `index` is `axis // g`; the whole of a dimension where it is 0."""
    if index == 0 and isinstance(size, int):
        return size
    if isinstance(index, FloorDiv) and index.args[0] == axis and index.args[1].is_Integer:
        return int(index.args[1])
    return None


def accepts_load(node: fx.Node, operand: int, index_map: IndexMap, base: torch.Tensor) -> bool:
    """Does the library kernel of `node` read argument `operand` through `index_map` on `base`?"""
    view = index_map.strided(base.stride())
    if reads_vectors(node.target, base.device):
        stride, start = (base.stride(), 0) if view is None else (view.stride, view.offset)
        if not aligned_as(value_of(node.args[operand]), stride, base.storage_offset() + start):
            return False
    if node.target in CONVOLUTIONS:
        # oneDNN falls to its reference implementation on anything that is not dense.
        return view is not None and (base.device.type != "cpu" or is_dense(view.shape, view.stride))
    if view is not None:
        return True
    return grouped_operand(node, operand, index_map) is not None


VECTOR = 16
"""Bytes that PyTorch's kernels of attention on a CUDA device read at once."""


def reads_vectors(target: Any, device: torch.device) -> bool:
    """Does an operator call kernels that read vectors of 16 bytes, wherever an operand begins?
    PyTorch chooses among those of attention by sizes and by some of the strides, and not by
    addresses: one whose rows lie elsewhere is read past alignment (pytorch/pytorch#183484)."""
    return target is aten.scaled_dot_product_attention.default and device.type == "cuda"


def aligned_as(value: torch.Tensor, stride: Sequence[Any], offset: Any) -> bool:
    """Do the rows of a view of aligned memory begin at multiples of 16 bytes, if those of `value`,
    whose place it takes, do? PyTorch copies rows of another length first. Strides that hold
    symbols are taken for multiples."""
    size, row = value.element_size(), value.shape[-1]
    if isinstance(row, int) and row * size % VECTOR:
        return True
    rows = [d for d, n in enumerate(value.shape[:-1]) if not isinstance(n, int) or n != 1]
    mine = [offset, *(stride[d] for d in rows)]
    theirs = [value.storage_offset(), *(value.stride(d) for d in rows)]
    steps = zip(map(sizes.as_size, mine), map(sizes.as_size, theirs), strict=True)
    return all(not isinstance(m, int) or m * size % VECTOR == 0 or m == t for m, t in steps)


def grouped_operand(node: fx.Node, operand: int, index_map: IndexMap) -> Grouped | None:
    """The heads of argument `operand`, if the map repeats heads and the kernel can be called on
    them as they are (`grouped_call`)."""
    grouped = grouped_heads(index_map)
    if grouped is None or grouped.dim != len(index_map.shape) - 3:
        return None
    if node.target in ATTENTIONS:
        taken = operand in (1, 2) and not grouped.swapped
    else:
        taken = node.target is aten.matmul.default and operand == 1 and _groups_matmul(node)
    return grouped if taken else None


def _groups_matmul(node: fx.Node) -> bool:
    left = value_of(node.args[0])
    return bool(left.dim() == value_of(node.args[1]).dim() == value_of(node).dim())


def grouped_call(
    graph: fx.Graph,
    node: fx.Node,
    ungrouped: dict[int, fx.Node],
    repeats: int,
    value: Callable[[fx.Node], fx.Node],
) -> fx.Node | None:
    """Write the call of `node` into `graph`, on operands whose heads are not repeated.

    `ungrouped` maps an argument number to the tensor that the kernel reads in its place, each of
    whose heads serves `repeats` heads of the operand; `value` gives the other operands. None when
    the kernel cannot take these operands together.

    before: scaled_dot_product_attention(q, expand(k), expand(v), mask)
    after:  scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), vtc::attention alike

    before: matmul(x: [b, h*g, m, k], expand(y): [b, h*g, k, n])
    after:  view(matmul(view(x, [b, h, g*m, k]), y: [b, h, k, n]), [b, h*g, m, n])
    """
    if node.target in ATTENTIONS and set(ungrouped) == {1, 2}:
        args = [ungrouped.get(i) or fx.map_arg(a, value) for i, a in enumerate(node.args)]
        kwargs = {**fx.map_arg(node.kwargs, value), "enable_gqa": True}
        made = [graph.call_function(node.target, tuple(args), kwargs)]
    elif node.target is aten.matmul.default and set(ungrouped) == {1}:
        *batch, heads, rows, inner = value_of(node.args[0]).shape
        kept = heads // repeats
        left = graph.call_function(
            aten.reshape.default,
            (value(node.args[0]), [*batch, kept, repeats * rows, inner]),
        )
        product = graph.call_function(aten.matmul.default, (left, ungrouped[1]))
        result = graph.call_function(aten.reshape.default, (product, list(value_of(node).shape)))
        made = [left, product, result]
    else:
        return None
    for call in made:
        call.meta["stack_trace"] = node.meta.get("stack_trace")
        call.meta["repeats"] = repeats
    return made[-1]


TRANSPOSED_ROWS = 32
"""The most rows for which (weight @ rows.T).T is tried in the place of rows @ weight.T."""


def may_transpose(node: fx.Node) -> bool:
    """A linear operator of few float32 rows on a CPU, for which another call may be faster."""
    if node.target is not aten.linear.default:
        return False
    rows, weight = value_of(node.args[0]), value_of(node.args[1])
    return (
        rows.device.type == "cpu"
        and rows.dtype is weight.dtype is torch.float32
        and weight.dim() == 2
        and all(isinstance(size, int) for size in (*rows.shape, *weight.shape))
        # One row is a product of a matrix and a vector, which Inductor turns into a slower loop.
        and rows.shape[-1] < rows.numel() <= TRANSPOSED_ROWS * rows.shape[-1]
    )


def transposed_call(graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """Write a linear operator into `graph` with the weight as the left operand.

    before: linear(x: [..., k], w: [n, k], bias)
    after:  reshape(t(mm(w, t(reshape(x, [m, k])))), [..., n]) + bias
    """
    shape, inner = list(value_of(node).shape), value_of(node.args[0]).shape[-1]
    rows = graph.call_function(aten.reshape.default, (value(node.args[0]), [-1, inner]))
    columns = graph.call_function(aten.t.default, (rows,))
    product = graph.call_function(aten.mm.default, (value(node.args[1]), columns))
    back = graph.call_function(aten.t.default, (product,))
    made = [rows, columns, product, back]
    made.append(graph.call_function(aten.reshape.default, (back, shape)))
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    if bias is not None:
        made.append(graph.call_function(aten.add.Tensor, (made[-1], value(bias))))
    for call in made:
        call.meta["stack_trace"] = node.meta.get("stack_trace")
        call.meta["transposed"] = (rows, product)
    return made[-1]


def out_variant(node: fx.Node) -> Callable[..., None] | None:
    """The call that stores the result of `node` into a given view, or None.

    The callable takes the operator's tensor operands, then the view. A bias would be copied into
    the view first, so that linear and addmm keep a result of their own when they have one.
    """
    if node.target is aten.mm.default:
        return _mm_into
    if node.target is aten.bmm.default:
        return _bmm_into
    if node.target is aten.matmul.default and value_of(node.args[1]).dim() == 2:
        return _matmul_into
    if node.target is aten.linear.default and (len(node.args) < 3 or node.args[2] is None):
        return _linear_into
    return None


def accepts_store(node: fx.Node, shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Does the kernel of `node` write a view of this shape and stride without a copy?"""
    if out_variant(node) is None or node.target not in MATMULS or stride[-1] != 1:
        return False
    if 0 in shape or 0 in value_of(node.args[0]).shape:
        return False
    if node.target is aten.bmm.default:
        return stride[1] >= shape[2]
    rows = shape[-2] if len(shape) > 1 else 1  # a vector's product is a row
    for dim in range(len(shape) - 2, 0, -1):  # the leading dimensions must merge into rows
        if shape[dim - 1] != 1 and stride[dim - 1] != stride[dim] * shape[dim]:
            return False
    return rows == 1 or stride[-2] >= shape[-1]


def _mm_into(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(left, right, out=out)


def _bmm_into(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    torch.bmm(left, right, out=out)


def _matmul_into(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(left.reshape(-1, left.shape[-1]), right, out=out.view(-1, right.shape[-1]))


def _linear_into(left: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(left.reshape(-1, left.shape[-1]), weight.t(), out=out.view(-1, weight.shape[0]))

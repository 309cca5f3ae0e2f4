"""A convolution with its epilogue as the graph that cuDNN is asked for, as data.

Number 0 of the nodes is the convolution; the others are pointwise, one an instruction of the
epilogue. Equal recipes share one built graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vtc.index.access import Layout, accesses
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution
from vtc.kernels.epilogue import Tensor
from vtc.program.dtypes import DType
from vtc.program.tile import Instr

TYPES = {DType.F16: "HALF", DType.BF16: "BFLOAT16", DType.F32: "FLOAT"}

# Scalar operators and the nodes that compute them; constants are f32 tensors of one element.
UNARY = {
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "neg": "neg",
    "abs": "abs",
    "erf": "erf",
}
BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "maximum": "max",
    "minimum": "min",
}


class NotAcceptedError(ValueError):
    """What cuDNN's graph does not express."""


@dataclass(frozen=True)
class Placed:
    """A tensor of a graph: the argument of the call that holds it, its sizes and strides as (n, c,
    h, w), where it starts in the argument, in elements, and what divides its address, in bytes."""

    argument: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: DType
    alignment: int = 16


@dataclass(frozen=True)
class Node:
    """One pointwise node: an operator of `UNARY` or `BINARY`, "relu", "constant" or "load"."""

    op: str
    args: tuple[int, ...] = ()
    value: float | Placed | None = None


@dataclass(frozen=True)
class Recipe:
    """What a graph computes: the key under which it is built once.

    nodes: number 0 is the convolution. result: the node whose value is stored at `output`.
    """

    image: Placed
    weight: Placed
    output: Placed
    padding: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    nodes: tuple[Node, ...]
    result: int
    tf32: bool


def recipe(convolution: Convolution, alignments: Sequence[int]) -> Recipe:
    """The convolution as a graph. Raises NotAcceptedError.

    The image and what is stored must be strided views of one tensor each, the loads of the
    epilogue too; there is one store, of the last value. alignments: what divides the address of
    each tensor of the call, in bytes.
    """

    def aligned(placed: Placed) -> Placed:
        start = placed.offset * placed.dtype.itemsize
        return dataclasses.replace(
            placed, alignment=math.gcd(16, alignments[placed.argument], start)
        )

    if convolution.dtype not in TYPES:
        raise NotAcceptedError(f"convolutions of {convolution.dtype}")
    nodes: list[Node] = [Node("convolution")]
    numbers: list[int] = []
    stores: list[tuple[int, Placed]] = []
    for instr in convolution.body:
        numbers.append(_node(instr, numbers, nodes, stores, convolution))
    if len(stores) != 1:
        raise NotAcceptedError("several stores")
    ((result, output),) = stores
    image, weight = view_of_image(convolution), _weight(convolution)
    n, oh, ow, oc = convolution.output
    if output.size != (n, oc, oh, ow):
        raise NotAcceptedError("a store that does not write each pixel once")
    for placed in (image, weight, output):
        # Mixed layouts are taken and computed wrongly.
        if placed.size[1] > 1 and placed.stride[1] != 1:
            raise NotAcceptedError("channels that are not adjacent")
    return Recipe(
        image=aligned(image),
        weight=aligned(weight),
        output=aligned(output),
        padding=convolution.window.padding,
        stride=convolution.window.stride,
        dilation=convolution.window.dilation,
        nodes=tuple(
            dataclasses.replace(n, value=aligned(n.value)) if isinstance(n.value, Placed) else n
            for n in nodes
        ),
        result=result,
        tf32=convolution.tf32,
    )


def view_of_image(convolution: Convolution) -> Placed:
    """The image as a strided view of one tensor. Raises NotAcceptedError where it is none."""
    placed = _placed(convolution.source, convolution.tensors)
    n, h, w, c = convolution.image
    if placed.size != (n, c, h, w):
        raise NotAcceptedError("an image that repeats a pixel or channel")
    return placed


def _weight(convolution: Convolution) -> Placed:
    held = convolution.tensors[convolution.weight]
    order = (0, 2, 3, 1)
    shape, stride = _ints(held.layout.shape), _ints(held.layout.stride)
    return _nchw(
        convolution.weight,
        [shape[d] for d in order],
        [stride[d] for d in order],
        _ints((held.layout.offset,))[0],
        held.dtype,
    )


def _node(
    instr: Instr,
    numbers: Sequence[int],
    nodes: list[Node],
    stores: list[tuple[int, Placed]],
    convolution: Convolution,
) -> int:
    """The number of the node that computes an instruction."""
    args = tuple(numbers[a] for a in instr.args)
    if instr.op == "matmul":
        return 0
    if instr.op == "store":
        stores.append((args[0], _addressed(instr, convolution)))
        return args[0]
    if instr.op == "cast" and instr.constant is DType.F32:
        return args[0]
    if instr.op == "load" and not args:
        made = Node("load", (), _addressed(instr, convolution))
    elif instr.op == "const" and isinstance(instr.constant, int | float):
        made = Node("constant", (), float(instr.constant))
    elif instr.op == "maximum" and _is_zero(nodes[args[1]]):
        made = Node("relu", args[:1])
    elif instr.op in UNARY or instr.op in BINARY:
        made = Node(instr.op, args)
    else:
        raise NotAcceptedError(f"{instr.op} in an epilogue")
    nodes.append(made)
    return len(nodes) - 1


def _is_zero(node: Node) -> bool:
    return node.op == "constant" and node.value == 0.0


def _addressed(instr: Instr, convolution: Convolution) -> Placed:
    if isinstance(instr.constant, IndexMap):
        return _placed(instr.constant, convolution.tensors)
    access = instr.access
    if access is None or access.terms or access.mask:
        raise NotAcceptedError("an address under a mask or with a runtime part")
    dtype = convolution.tensors[access.buffer].dtype
    n, oh, ow, oc = convolution.output
    stride = _ints(access.stride)
    shape = [1 if s == 0 else size for s, size in zip(stride, (n, oh, ow, oc), strict=True)]
    return _nchw(access.buffer, shape, stride, _ints((access.offset,))[0], dtype)


def _placed(index_map: IndexMap, tensors: Sequence[Tensor]) -> Placed:
    """A virtual image as a strided view; dimensions that do not move have size 1."""
    sources = sorted(index_map.sources())
    if len(sources) != 1:
        raise NotAcceptedError("an image of several tensors")
    layouts: dict[int, Layout] = {sources[0]: tensors[sources[0]].layout}
    pieces = accesses(index_map, layouts)
    if len(pieces) != 1 or pieces[0].rest is not None or pieces[0].mask:
        raise NotAcceptedError("an image that is no strided view")
    (piece,) = pieces
    stride, shape = _ints(piece.stride), _ints(index_map.shape)
    dtype = tensors[sources[0]].dtype
    moving = [1 if s == 0 else size for s, size in zip(stride, shape, strict=True)]
    return _nchw(sources[0], moving, stride, _ints((piece.base,))[0], dtype)


def _nchw(
    argument: int, shape: Sequence[int], stride: Sequence[int], offset: int, dtype: DType
) -> Placed:
    if dtype not in TYPES:
        raise NotAcceptedError(f"tensors of {dtype}")
    steps = list(stride)
    # cuDNN wants a step for dimensions of one element too: that of a dense tensor.
    inner = 1
    for dim in (3, 2, 1, 0):
        if shape[dim] == 1:
            steps[dim] = inner
        inner = max(inner, steps[dim] * shape[dim])
    order = (0, 3, 1, 2)
    return Placed(
        argument, tuple(shape[d] for d in order), tuple(steps[d] for d in order), offset, dtype
    )


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(v, int) for v in values):
        raise NotAcceptedError("symbolic sizes")
    return tuple(values)

"""Rules of pooling: windows as shifted loads, one for each place in the window."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import Min

from vtc.graph.rules import coordinates
from vtc.index import Fill, IndexMap, Piece, Size, sizes
from vtc.lowering.dvm.nodes import Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, Rule, rule, static
from vtc.program.dtypes import DType

aten = torch.ops.aten

# A window of more places than this would be a kernel of too many loads.
LARGEST = 64


def _many(value: Any, rank: int, default: Any = None) -> list[int]:
    given = list(value) if isinstance(value, list | tuple) else [value]
    if not given:
        given = default
    given = [int(static(g)) for g in given]
    return given * rank if len(given) == 1 else given


def shifted(
    own: Lowering,
    x: Node,
    place: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    fill: float,
) -> Node:
    """The element at `place` of the window of each output, `fill` where it lies in the padding."""
    shape = own.shape
    rank = len(place)
    at = coordinates(len(shape))
    lower: list[Size] = [0] * len(shape)
    upper: list[Size] = list(shape)
    index: list[Any] = list(at)
    for k in range(rank):
        d = len(shape) - rank + k
        start = place[k] * dilation[k] - pad[k]
        index[d] = at[d] * stride[k] + start
        lower[d] = max(0, -(start // stride[k])) if start < 0 else 0
        reach = sizes.ceil_div(sizes.sub(x.shape[d], start), stride[k])
        upper[d] = _least(reach, shape[d])
    inside = Piece(lower, upper, 0, index)
    pieces = [inside]
    low: list[Size] = [0] * len(shape)
    high: list[Size] = list(shape)
    for d in range(len(shape) - rank, len(shape)):
        for first, last in ((low[d], lower[d]), (upper[d], high[d])):
            if first != last:
                box = (low.copy(), high.copy())
                box[0][d], box[1][d] = first, last
                pieces.append(Piece(*box, Fill(fill)))
        low[d], high[d] = lower[d], upper[d]
    return own.graph.move(IndexMap(shape, pieces), [x])


def _least(a: Size, b: Size) -> Size:
    if sizes.le(a, b):
        return a
    if sizes.le(b, a):
        return b
    return Min(sympy.sympify(a), sympy.sympify(b))


def _windows(
    own: Lowering,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    fill: float,
) -> list[Node]:
    places = list(itertools.product(*(range(k) for k in kernel)))
    if len(places) > LARGEST:
        raise Unsupported(f"a window of {len(places)} places")
    return [shifted(own, x, p, stride, pad, dilation, fill) for p in places]


def _of_rank(rank: int, pool: Rule) -> Rule:
    """The rule for inputs with a batch, of `rank` dimensions besides batch and channels."""

    def lower(own: Lowering, x: Node, *args: Any, **options: Any) -> Node:
        if len(x.shape) != rank + 2 or not x.dtype.is_float:
            raise Unsupported("pooling of integers or without a batch")
        found: Node = pool(own, x, *args, **options)
        return found

    return lower


def _max_pool(
    own: Lowering,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Node:
    rank = len(x.shape) - 2
    sides = _many(kernel, rank)
    parts = _windows(
        own, x, sides, _many(stride, rank, sides), _many(padding, rank), _many(dilation, rank),
        float("-inf"),
    )  # fmt: skip
    return functools.reduce(lambda a, b: own.op("maximum", a, b), parts)


def _avg_pool(
    own: Lowering,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: Any = None,
) -> Node:
    rank = len(x.shape) - 2
    sides, pad = _many(kernel, rank), _many(padding, rank)
    steps = _many(stride, rank, sides)
    wide = own.graph.cast(x, x.dtype.compute)
    parts = _windows(own, wide, sides, steps, pad, [1] * rank, 0.0)
    whole = functools.reduce(lambda a, b: own.op("add", a, b), parts)
    if divisor is None and (ceil_mode or (any(pad) and not count_include_pad)):
        lengths = [
            _length(own, x, d, side, step, margin, margin if count_include_pad else 0)
            for d, side, step, margin in zip(range(2, rank + 2), sides, steps, pad, strict=True)
        ]
        places = own.graph.cast(
            functools.reduce(lambda a, b: own.op("mul", a, b), lengths), wide.dtype
        )
    else:
        number = divisor if divisor is not None else functools.reduce(lambda a, b: a * b, sides)
        places = own.number(static(number), whole)
    return own.tagged(own.op("div", whole, places))


def _length(
    own: Lowering, x: Node, dim: int, side: int, stride: int, pad: int, margin: int
) -> Node:
    """How many places of each output's window lie within `margin` of x, along a dimension."""
    graph = own.graph

    def number(value: Size) -> Node:
        return graph.const(value, DType.I64)

    start = graph.iota(own.shape, dim)
    start = own.op("sub", own.op("mul", start, number(stride)), number(pad))
    end = own.op(
        "minimum", own.op("add", start, number(side)), number(sizes.add(x.shape[dim], margin))
    )
    return own.op("sub", end, own.op("maximum", start, number(-margin)))


def _adaptive_avg_pool(own: Lowering, x: Node, size: Any) -> Node:
    """To one element, which is the mean."""
    rank = len(x.shape) - 2
    if any(static(s) != 1 for s in _many(size, rank)):
        raise Unsupported("adaptive pooling to several elements")
    dims = list(range(2, len(x.shape)))
    wide = own.graph.cast(x, x.dtype.compute)
    total = own.graph.reduce("sum", wide, dims)
    length = own.graph.const(sizes.product(x.shape[d] for d in dims), wide.dtype)
    return own.tagged(own.op("div", total, length))


_POOLS: tuple[tuple[Rule, tuple[Any, ...]], ...] = (
    (_max_pool, (aten.max_pool1d, aten.max_pool2d, aten.max_pool3d)),
    (_avg_pool, (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)),
    (
        _adaptive_avg_pool,
        (aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d),
    ),
)
for _pool, _targets in _POOLS:
    for _rank, _target in enumerate(_targets, 1):
        rule(_target.default)(_of_rank(_rank, _pool))

"""Rules of pooling: windows as shifted loads, one for each place in the window."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
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

# A window of more places than this would be a kernel of too many loads: it is a fold.
LARGEST = 64


def many(value: Any, rank: int, default: Any = None) -> list[int]:
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
    return own.graph.move(_filled(shape, lower, upper, index, fill), [x])


def _filled(
    shape: Sequence[Size],
    lower: Sequence[Size],
    upper: Sequence[Size],
    index: Sequence[Any],
    fill: float,
) -> IndexMap:
    """The source at `index` in the box, `fill` in the rest of the shape."""
    pieces = [Piece(lower, upper, 0, index)]
    low: list[Size] = [0] * len(shape)
    high: list[Size] = list(shape)
    for d in range(len(shape)):
        for first, last in ((low[d], lower[d]), (upper[d], high[d])):
            if first != last:
                box = (low.copy(), high.copy())
                box[0][d], box[1][d] = first, last
                pieces.append(Piece(*box, Fill(fill)))
        low[d], high[d] = lower[d], upper[d]
    return IndexMap(shape, pieces)


def _least(a: Size, b: Size) -> Size:
    if sizes.le(a, b):
        return a
    if sizes.le(b, a):
        return b
    return Min(sympy.sympify(a), sympy.sympify(b))


@dataclass(frozen=True)
class Windows:
    """How windows of `sides` elements, `dilation` apart, lie on padded input."""

    sides: Sequence[int]
    stride: Sequence[int]
    pad: Sequence[int]
    dilation: Sequence[int]

    @staticmethod
    def of(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
        sides = many(kernel, rank)
        steps = many(stride, rank, sides)
        return Windows(sides, steps, many(padding, rank), many(dilation, rank))

    def folded(self, own: Lowering, name: str, operator: str, x: Node, fill: float) -> Node:
        """Each window of x folded: by a scalar operator, or over dimensions of its own where it has
        many elements."""
        if math.prod(self.sides) <= LARGEST:
            parts = self.parts(own, x, fill)
            return functools.reduce(lambda a, b: own.op(operator, a, b), parts)
        rank = len(self.sides)
        apart = self.apart(own, x, fill)
        dims = [len(apart.shape) - rank + k for k in range(rank)]
        return own.graph.squeeze(own.graph.reduce(name, apart, dims), dims)

    def parts(self, own: Lowering, x: Node, fill: float) -> list[Node]:
        """The elements at each place of the windows, `fill` where they lie in the padding."""
        places = itertools.product(*map(range, self.sides))
        return [shifted(own, x, p, self.stride, self.pad, self.dilation, fill) for p in places]

    def apart(self, own: Lowering, x: Node, fill: float) -> Node:
        """The windows in dimensions behind those of the result."""
        outer = len(own.shape) - len(self.sides)
        lower: list[Size] = [0] * len(x.shape)
        upper, whole = list(x.shape), list(x.shape)
        index: list[Any] = list(coordinates(len(x.shape)))
        for k, side in enumerate(self.sides):
            d = outer + k
            reach = sizes.mul(sizes.sub(own.shape[d], 1), self.stride[k])
            end = sizes.add(reach, (side - 1) * self.dilation[k] + 1)
            lower[d], upper[d] = self.pad[k], _least(sizes.add(x.shape[d], self.pad[k]), end)
            whole[d], index[d] = end, index[d] - self.pad[k]
        padded = own.graph.move(_filled(whole, lower, upper, index, fill), [x])
        shape = (*own.shape, *self.sides)
        at = coordinates(len(shape))
        taps = [
            at[outer + k] * self.stride[k] + at[len(own.shape) + k] * self.dilation[k]
            for k in range(len(self.sides))
        ]
        return own.graph.move(IndexMap.single(shape, [*at[:outer], *taps]), [padded])


def of_rank(rank: int, pool: Rule) -> Rule:
    """The rule for inputs of `rank` dimensions behind channels, and maybe a batch."""

    def lower(own: Lowering, x: Node, *args: Any, **options: Any) -> Any:
        if len(x.shape) not in (rank + 1, rank + 2) or x.dtype is DType.BOOL:
            raise Unsupported(f"pooling of {x.dtype}{list(x.shape)}")
        return pool(own, rank, x, *args, **options)

    return lower


def least(x: Node) -> float:
    """The value that no maximum of x's dtype is below."""
    return float("-inf") if x.dtype.is_float else torch.iinfo(x.dtype.torch_dtype).min


def _max_windows(
    rank: int,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,  # as the result's sizes say
) -> Windows:
    return Windows.of(rank, kernel, stride, padding, dilation)


def _max_pool(own: Lowering, rank: int, x: Node, *args: Any, **options: Any) -> Node:
    return _max_windows(rank, *args, **options).folded(own, "max", "maximum", x, least(x))


def _max_pool_with_places(
    own: Lowering, rank: int, x: Node, *args: Any, **options: Any
) -> tuple[Node, Node]:
    """The largest elements and their places in the plane: the first of equal ones, but the last
    NaN, as PyTorch's loops find them; where all are the least there is, the first one inside."""
    windows = _max_windows(rank, *args, **options)
    if math.prod(windows.sides) > LARGEST or "places" in own.graph.lacks:
        raise Unsupported(f"places in a window of {windows.sides}")
    graph, plane = own.graph, x.shape[-rank:]

    def number(value: Size) -> Node:
        return graph.const(value, DType.I64)

    corner, first = number(0), number(0)
    for k in range(rank):
        length = number(sizes.product(plane[k + 1 :]))
        steps = graph.iota(own.shape, len(own.shape) - rank + k)
        start = own.op(
            "sub", own.op("mul", steps, number(windows.stride[k])), number(windows.pad[k])
        )
        corner = own.op("add", corner, own.op("mul", start, length))
        if windows.pad[k]:
            by = number(windows.dilation[k])
            inside = own.op("sub", start, own.op("mul", own.op("floordiv", start, by), by))
            start = own.op("select", own.op("lt", start, number(0)), inside, start)
        first = own.op("add", first, own.op("mul", start, length))

    best: Node | None = None
    found = first
    places = itertools.product(*map(range, windows.sides))
    for place, part in zip(places, windows.parts(own, x, least(x)), strict=True):
        wins = own.op("gt", part, graph.const(least(x), x.dtype) if best is None else best)
        if x.dtype.is_float:
            wins = own.op("or", wins, own.op("isnan", part))
        at: Size = 0
        for k in range(rank):
            reach = place[k] * windows.dilation[k]
            at = sizes.add(at, sizes.mul(sizes.product(plane[k + 1 :]), reach))
        found = own.op("select", wins, own.op("add", corner, number(at)), found)
        best = part if best is None else own.op("select", wins, part, best)
    assert best is not None
    return best, found


def _avg_pool(
    own: Lowering,
    rank: int,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: Any = None,
) -> Node:
    if not x.dtype.is_float:
        raise Unsupported("averages of integers")
    windows = Windows.of(rank, kernel, stride, padding)
    sides, steps, pad = windows.sides, windows.stride, windows.pad
    wide = own.graph.cast(x, x.dtype.compute)
    whole = windows.folded(own, "sum", "add", wide, 0.0)
    if divisor is None and (ceil_mode or (any(pad) and not count_include_pad)):
        lengths = [
            _length(own, x, d, side, step, margin, margin if count_include_pad else 0)
            for d, side, step, margin in zip(range(-rank, 0), sides, steps, pad, strict=True)
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

    start = graph.iota(own.shape, dim % len(own.shape))
    start = own.op("sub", own.op("mul", start, number(stride)), number(pad))
    end = own.op(
        "minimum", own.op("add", start, number(side)), number(sizes.add(x.shape[dim], margin))
    )
    return own.op("sub", end, own.op("maximum", start, number(-margin)))


_POOLS: tuple[tuple[Rule, tuple[Any, ...]], ...] = (
    (_max_pool, (aten.max_pool1d, aten.max_pool2d, aten.max_pool3d)),
    (
        _max_pool_with_places,
        (
            aten.max_pool1d_with_indices,
            aten.max_pool2d_with_indices,
            aten.max_pool3d_with_indices,
        ),
    ),
    (_avg_pool, (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)),
)
for _pool, _targets in _POOLS:
    for _rank, _target in enumerate(_targets, 1):
        rule(_target.default)(of_rank(_rank, _pool))

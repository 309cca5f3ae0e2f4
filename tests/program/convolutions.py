"""Random convolutions for `program.generate`, and a bound of their error.

Windows over up to two dimensions of any stride, dilation and padding, that leave their input on
either side; plain, grouped and depthwise; channels out of several buffers of any layout; weights as
they lie, or in panels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from program.building import Kernel
from vtc.index.sizes import Size, floor_div
from vtc.program.dtypes import DType
from vtc.program.tile import Access, Convolution, Panel, Part, Window

FLOATS = (DType.F32, DType.F32, DType.F32, DType.F64, DType.BF16, DType.F16)


class Maker(Protocol):
    """What of the generator makes sizes, buffers and layouts."""

    rng: random.Random

    def extent(self, room: int) -> Size: ...

    def buffer(self, kind: str, dtype: DType, extent: Size) -> int: ...

    def layout(
        self, sizes: Sequence[Size], moving: Sequence[int], step: Size = 1
    ) -> tuple[Size, list[Size], Size]: ...


def convolution(made: Maker, name: str, channels: int) -> tuple[Kernel, int]:
    """A kernel that starts with a convolution, to which a group has at most `channels`, and the
    number of its value."""
    rng = made.rng
    dtype, kind = rng.choice(FLOATS), rng.choice(("plain", "plain", "grouped", "depthwise"))
    batch = [made.extent(3)] if rng.random() < 0.6 else []
    points = [made.extent(rng.choice((3, 8, 17))) for _ in range(rng.choice((1, 2, 2)))]
    groups = [made.extent(4)] if kind == "grouped" else []
    columns = made.extent(channels)
    sizes = (*batch, *points, *groups, columns)
    windows = tuple(_window(rng, d, n) for d, n in enumerate(points, len(batch)))
    if rng.random() < 0.1:
        windows = (*windows, _window(rng, None, 1))
    outer = [*range(len(batch)), *range(len(batch) + len(points), len(sizes) - 1)]
    panel = None if rng.random() < 0.5 else Panel(rng.choice((8, 16, 32, 32, 5)))
    parts = []
    for _ in range(1 if kind == "depthwise" else rng.choice((1, 1, 2, 3))):
        k = 1 if kind == "depthwise" else made.extent(9)
        left = _left(made, dtype, sizes, windows, k, outer, kind == "depthwise")
        parts.append(Part(left, _right(made, dtype, sizes, windows, k, outer, panel), k))
    kernel = Kernel(name, sizes)
    own = Convolution(windows, tuple(parts), dtype, panel)
    return kernel, kernel.emit("convolution", dtype=dtype.compute, constant=own)


def _window(rng: random.Random, dim: int | None, points: Size) -> Window:
    taps, dilation = rng.choice((1, 2, 3, 3, 5)), rng.choice((1, 2))
    stride = rng.choice((1, 1, 2, 3))
    pad = rng.choice((0, 0, 1, taps // 2, -1))
    extent = stride * points + rng.choice((0, 0, 1, 2))
    return Window(dim, taps, stride, dilation, pad, extent)


def _left(
    made: Maker,
    dtype: DType,
    sizes: Sequence[Size],
    windows: Sequence[Window],
    k: Size,
    outer: Sequence[int],
    depthwise: bool,
) -> Access:
    """An operand that moves in the outer dimensions, the windows' coordinates and the channel."""
    rank = len(sizes)
    whole = (*sizes, *(w.extent for w in windows), k)
    moving = [d for d in outer if made.rng.random() < 0.9]
    moving += [rank - 1] if depthwise else []
    moving += range(rank, len(whole))
    offset, strides, extent = made.layout(whole, moving)
    return Access(made.buffer("input", dtype, extent), offset, tuple(strides))


def _right(
    made: Maker,
    dtype: DType,
    sizes: Sequence[Size],
    windows: Sequence[Window],
    k: Size,
    outer: Sequence[int],
    panel: Panel | None,
) -> Access:
    """An operand that moves in groups, columns, taps and the channel. In panels the columns of one
    are innermost."""
    rank = len(sizes)
    whole = [*sizes, *(w.taps for w in windows), k]
    step: Size = 1
    if panel is not None:
        step = panel.width
        whole[rank - 1] = floor_div(sizes[-1] + panel.width - 1, panel.width)
    groups = [d for d in outer if d == rank - 2]
    offset, strides, extent = made.layout(whole, [*groups, *range(rank - 1, len(whole))], step)
    return Access(made.buffer("input", dtype, extent), offset, tuple(strides))


def depth(own: Convolution, value: Callable[[Size], int]) -> int:
    """How many products a point is the sum of."""
    found = sum(value(part.k) for part in own.parts)
    for window in own.windows:
        found *= value(window.taps)
    return found

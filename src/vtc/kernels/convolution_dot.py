"""Convolution as an implicit matmul on tensor cores: grouped, odd channel counts, virtual images.

A program makes a tile of pixels x output channels of one group. The contracted dimension is walked
tap by tap, and within a tap over blocks of channels; with few channels (an RGB stem) all taps and
channels are one dimension of which each block holds several taps. A concat along channels is walked
part by part, so that each load reads from one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vtc.index.access import Access, accesses
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, collapsed
from vtc.kernels.convolution_text import Kernel, Text, block, cover, divisor
from vtc.kernels.convolution_tiles import (
    DotTile,
    dot_grid,
    dot_tiles,
    is_flat,
    parts,
)
from vtc.kernels.io import Coordinate, Space
from vtc.kernels.text import Lines
from vtc.program.dtypes import DType


def dot_kernels(convolution: Convolution) -> list[Kernel]:
    """Kernels of several tile sizes; none for depthwise convolution."""
    if convolution.depthwise:
        return []
    flat = collapsed(convolution)
    return [dot_kernel(flat, tile) for tile in dot_tiles(flat)]


def dot_kernel(convolution: Convolution, tile: DotTile) -> Kernel:
    """The kernel of one tile size."""
    n, height, width, channels = convolution.output
    pixels, columns = n * height * width, channels // convolution.groups
    across = cover(columns, tile.channels)
    lines = Lines()
    text = Text(lines, convolution.tensors)
    shared = ", sums, counters" if tile.splits > 1 else ""
    lines.add("@triton.jit")
    with lines.block(f"def convolution({text.arguments}{shared}):"):
        lines.add("part = tl.program_id(0)")
        lines.add("group = tl.program_id(1)")
        lines.add(f"m0 = part // {across} * {tile.pixels}")
        lines.add(f"j0 = part % {across} * {tile.channels}")
        lines.add(f"m = m0 + tl.arange(0, {tile.pixels})")
        lines.add(f"j = j0 + tl.arange(0, {tile.channels})")
        lines.add(f"o0 = group * {columns} + j0")
        lines.add(f"o = group * {columns} + j")
        _print_pixels(lines, n, height, width)
        lines.add(f"total = tl.zeros(({tile.pixels}, {tile.channels}), tl.float32)")
        _print_sum(convolution, tile, text)
        multiple = _channel_multiple(convolution, tile)
        limit = channels if convolution.groups == 1 else None
        space = Space(
            (
                Coordinate("n[:, None]", (0,)),
                Coordinate("oh[:, None]", (0,)),
                _last_pixel_coordinate(convolution, tile),
                block("o", "o0", tile.channels, 1, multiple, limit),
            ),
            (str(tile.pixels), str(tile.channels)),
            (
                f"m[:, None] < {pixels}" if pixels % tile.pixels else None,
                f"j[None, :] < {columns}" if columns % tile.channels else None,
            ),
        )
        if tile.splits == 1:
            text.epilogue(convolution.body, space, convolution.output, "total")
        else:
            with _last_arrival(tile, lines):
                text.epilogue(convolution.body, space, convolution.output, "all")
    grid = dot_grid(convolution, tile)
    sums = math.prod(grid) * tile.pixels * tile.channels if tile.splits > 1 else 0
    return Kernel(f"dot {tile}", str(lines), grid, tile.warps, tile.stages, sums)


@contextmanager
def _last_arrival(tile: DotTile, lines: Lines) -> Iterator[None]:
    """Hand over `total`; what is written inside runs in the tile's last program, on `all`."""
    area = tile.pixels * tile.channels
    lines.add("slot = group * tl.num_programs(0) + part")
    rows, columns = f"tl.arange(0, {tile.pixels})", f"tl.arange(0, {tile.channels})"
    lines.add(f"lanes = {rows}[:, None] * {tile.channels} + {columns}[None, :]")
    lines.add(f"slots = sums + tl.cast(slot, tl.int64) * {tile.splits * area}")
    lines.add(f"tl.store(slots + tl.program_id(2) * {area} + lanes, total)")
    # All threads' stores come before the counter's release.
    lines.add("tl.debug_barrier()")
    lines.add("arrived = tl.atomic_add(counters + slot, 1, sem='acq_rel')")
    with lines.block(f"if arrived == {tile.splits - 1}:"):
        lines.add("tl.store(counters + slot, 0)")
        lines.add(f"all = tl.zeros(({tile.pixels}, {tile.channels}), tl.float32)")
        with lines.block(f"for split in tl.static_range({tile.splits}):"):
            lines.add(f"all += tl.load(slots + split * {area} + lanes, cache_modifier='.cg')")
        yield


def _print_pixels(lines: Lines, n: int, height: int, width: int) -> None:
    """n, oh and ow of each pixel of the tile."""
    if n * height == 1:
        lines.add("n = tl.zeros_like(m)")
        lines.add("oh = n")
        lines.add("ow = m")
        return
    lines.add(f"ow = m % {width}")
    lines.add(f"oh = m // {width} % {height}")
    lines.add(f"n = m // {height * width}")


def _last_pixel_coordinate(convolution: Convolution, tile: DotTile) -> Coordinate:
    n, height, _, _ = convolution.output
    if n * height == 1:
        return block("ow", "m0", tile.pixels, 0)
    return Coordinate("ow[:, None]", (0,))


def _channel_multiple(convolution: Convolution, tile: DotTile) -> int:
    columns = convolution.channels // convolution.groups
    if convolution.groups == 1:
        return divisor(tile.channels)
    return divisor(tile.channels, columns)


def _print_sum(convolution: Convolution, tile: DotTile, text: Text) -> None:
    """total: the sum of products of the tile."""
    window, lines = convolution.window, text.lines
    for axis, (name, output) in enumerate((("y0", "oh"), ("x0", "ow"))):
        stride, padding = window.stride[axis], window.padding[axis]
        plain = stride == 1 and padding == 0
        lines.add(f"{name} = {output}" if plain else f"{name} = {output} * {stride} - {padding}")
    if is_flat(convolution):
        _print_flat_sum(convolution, tile, text)
        return
    for part in parts(convolution):
        blocks = cover(part.high - part.low, tile.depth)
        taps = window.size[0] * window.size[1]
        with lines.block(_loop(tile, taps * blocks)):
            lines.add(f"tap = step // {blocks}" if blocks > 1 else "tap = step")
            lines.add(f"k0 = {part.low} + step % {blocks} * {tile.depth}")
            lines.add(f"k = k0 + tl.arange(0, {tile.depth})")
            lines.add(f"ky = tap // {window.size[1]}")
            lines.add(f"kx = tap % {window.size[1]}")
            lines.add(f"y = y0 + ky * {window.dilation[0]}")
            lines.add(f"x = x0 + kx * {window.dilation[1]}")
            places = _Contracted(
                taps=("ky", "kx"),
                y=Coordinate("y[:, None]", (0,)),
                x=_x_coordinate(convolution, tile),
                channel_dims=(1,),
                start="k0",
                inside=_inside(convolution, "y", "x"),
                live=f"k < {part.high}" if (part.high - part.low) % tile.depth else None,
                multiple=divisor(tile.depth, part.low),
            )
            _print_step(convolution, tile, text, part.pieces, places)


def _loop(tile: DotTile, steps: int) -> str:
    """The head of the loop over the steps of the contraction that are this program's."""
    if tile.splits == 1:
        return f"for step in range(0, {steps}):"
    share = cover(steps, tile.splits)
    first = f"tl.program_id(2) * {share}"
    last = f"{first} + {share}"
    if share * tile.splits != steps:
        last = f"tl.minimum({last}, {steps})"
    return f"for step in range({first}, {last}):"


def _x_coordinate(convolution: Convolution, tile: DotTile) -> Coordinate:
    n, height, _, _ = convolution.output
    if n * height == 1 and convolution.window.pointwise:
        return block("x", "m0", tile.pixels, 0)
    return Coordinate("x[:, None]", (0,))


def _inside(convolution: Convolution, y: str, x: str) -> list[str]:
    """Conditions that the tap lies in the image."""
    _, height, width, _ = convolution.image
    window, (oh, ow) = convolution.window, convolution.output[1:3]
    found = []
    for axis, (name, size, outputs) in enumerate(((y, height, oh), (x, width, ow))):
        reach = (outputs - 1) * window.stride[axis]
        last = reach + (window.size[axis] - 1) * window.dilation[axis] - window.padding[axis]
        if window.padding[axis]:
            found.append(f"({name} >= 0)")
        if last >= size:
            found.append(f"({name} < {size})")
    return found


def _print_flat_sum(convolution: Convolution, tile: DotTile, text: Text) -> None:
    """Taps and channels as one dimension: flat = (ky * KW + kx) * inner + channel."""
    window, inner, lines = convolution.window, convolution.inner, text.lines
    total = window.size[0] * window.size[1] * inner
    with lines.block(_loop(tile, cover(total, tile.depth))):
        lines.add(f"flat = step * {tile.depth} + tl.arange(0, {tile.depth})")
        lines.add(f"k = flat % {inner}")
        lines.add(f"kx = flat // {inner} % {window.size[1]}")
        lines.add(f"ky = flat // {inner * window.size[1]}")
        lines.add(f"y = y0[:, None] + (ky * {window.dilation[0]})[None, :]")
        lines.add(f"x = x0[:, None] + (kx * {window.dilation[1]})[None, :]")
        places = _Contracted(
            taps=("ky", "kx"),
            y=Coordinate("y", (0, 1)),
            x=Coordinate("x", (0, 1)),
            channel_dims=(1,),
            start=None,
            inside=_inside(convolution, "y", "x"),
            live=f"flat < {total}" if total % tile.depth else None,
            flat=True,
        )
        _print_step(convolution, tile, text, convolution.pieces, places)


def weight_pieces(convolution: Convolution) -> tuple[Access, ...]:
    """The access of the weight over (oc, ic, kh, kw)."""
    layout = convolution.tensors[convolution.weight].layout
    whole = IndexMap.identity(layout.shape, convolution.weight)
    return accesses(whole, {convolution.weight: layout})


@dataclass(frozen=True)
class _Contracted:
    """How the contracted dimension appears in the text of one step."""

    taps: tuple[str, str]
    y: Coordinate
    x: Coordinate
    channel_dims: tuple[int, ...]
    start: str | None
    inside: Sequence[str]
    live: str | None
    multiple: int = 1
    flat: bool = False


def _print_step(
    convolution: Convolution,
    tile: DotTile,
    text: Text,
    pieces: Sequence[Access],
    places: _Contracted,
) -> None:
    """total += pixels x depth of the image times depth x channels of the weights."""
    lines = text.lines
    n, height, width, channels = convolution.output
    pixels, columns = n * height * width, channels // convolution.groups
    inner = convolution.inner
    lines.add(f"c = group * {inner} + k" if convolution.groups > 1 else "c = k")
    start = f"(group * {inner} + {places.start})" if convolution.groups > 1 else places.start
    multiple = divisor(places.multiple, inner) if convolution.groups > 1 else places.multiple
    inside = [f"{i}[:, None]" if not places.flat else i for i in places.inside]
    rows = [*([f"(m[:, None] < {pixels})"] if pixels % tile.pixels else []), *inside]
    live = f"({places.live})[None, :]" if places.live else None
    image = Space(
        (
            Coordinate("n[:, None]", (0,)),
            places.y,
            places.x,
            Coordinate("c[None, :]", (1,), start, str(tile.depth), multiple),
        ),
        (str(tile.pixels), str(tile.depth)),
        (" & ".join(rows) or None, live),
    )
    left = text.padded(image, pieces, convolution.dtype)
    taps = tuple(
        Coordinate(f"{name}[:, None]", (0,)) if places.flat else Coordinate(name)
        for name in places.taps
    )
    right_space = Space(
        (
            block("o", "o0", tile.channels, 1, _channel_multiple(convolution, tile)),
            Coordinate("k[:, None]", (0,), places.start, str(tile.depth), places.multiple),
            *taps,
        ),
        (str(tile.depth), str(tile.channels)),
        (
            f"({places.live})[:, None]" if places.live else None,
            f"j[None, :] < {columns}" if columns % tile.channels else None,
        ),
    )
    printer = text.printer(right_space)
    right = printer.full(printer.load(weight_pieces(convolution), convolution.dtype))
    precision = "tf32" if convolution.tf32 else "ieee"
    kind = f", input_precision='{precision}'" if convolution.dtype is DType.F32 else ""
    lines.add(f"total = tl.dot({left}, {right.name}, total{kind})")

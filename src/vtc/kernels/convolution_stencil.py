"""Kernels that combine shifted reads of an image channel by channel: depthwise, pooling.

A program makes a band of `rows` output rows, `columns` wide, for `channels` channels. It walks over
the input rows that the band needs and reads each of them once a column tap; a row serves all
output rows that it is a tap of, so that stride 1 with rows = 4 and 5 x 5 taps reads 10 values an
output instead of 25. Sums are f32 in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vtc.index.access import Access
from vtc.kernels.convolution import Shape, Window
from vtc.kernels.convolution_text import Kernel, Text, block, cover, divisor, power_of_two
from vtc.kernels.epilogue import Tensor
from vtc.kernels.io import Coordinate, Space
from vtc.kernels.text import Lines, number_text
from vtc.program.dtypes import DType
from vtc.program.tile import Instr


@dataclass(frozen=True)
class Tile:
    """What one program makes, and with how many warps."""

    rows: int
    columns: int
    channels: int
    warps: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.channels}w{self.warps}"


@dataclass(frozen=True)
class Stencil:
    """A channel-wise window operation.

    pieces: accesses of the image. prepare: writes what the taps need (weights). combine: the new
    partial result from the old one, the value read (f32) and the tap's place in the window; other:
    what a tap outside the image reads; initial: the first partial result. finish: the name of the
    result, from the partial one and the number of the row.
    """

    image: Shape
    window: Window
    pieces: tuple[Access, ...]
    dtype: DType
    body: tuple[Instr, ...]
    tensors: tuple[Tensor, ...]
    prepare: Callable[[Text, Tile], None]
    combine: Callable[[str, str, int, int], str]
    other: float = 0.0
    initial: float = 0.0
    finish: Callable[[Lines, str, int], str] = lambda _lines, partial, _row: partial


def stencil_kernel(stencil: Stencil, tile: Tile, name: str) -> Kernel:
    """The kernel of one tile size; the first word of `name` is that of its function."""
    n, height, width, channels = stencil.image
    window = stencil.window
    out_height, out_width = window.outputs(height, width)
    across = cover(channels, tile.channels)
    along = cover(out_width, tile.columns)
    bands = cover(out_height, tile.rows)
    lines = Lines()
    text = Text(lines, stencil.tensors)
    output = (n, out_height, out_width, channels)
    lines.add("@triton.jit")
    with lines.block(f"def {name.split()[0]}({text.arguments}):"):
        lines.add("part = tl.program_id(0)")
        lines.add("n = tl.program_id(1)")
        lines.add(f"c0 = part % {across} * {tile.channels}")
        lines.add(f"w0 = part // {across} % {along} * {tile.columns}")
        lines.add(f"h0 = part // {across * along} * {tile.rows}")
        lines.add(f"c = c0 + tl.arange(0, {tile.channels})")
        lines.add(f"w = w0 + tl.arange(0, {tile.columns})")
        stencil.prepare(text, tile)
        _print_taps(stencil, tile, text)
        for row in range(tile.rows):
            lines.add(f"oh{row} = h0 + {row}")
            result = stencil.finish(lines, f"sum{row}", row)
            text.epilogue(stencil.body, _output_space(tile, row, output), output, result)
    return Kernel(name, str(lines), (across * along * bands, n), tile.warps)


def _print_taps(stencil: Stencil, tile: Tile, text: Text) -> None:
    """Partial results of all rows of the band."""
    lines = text.lines
    _, height, width, channels = stencil.image
    window = stencil.window
    for row in range(tile.rows):
        shape = f"({tile.columns}, {tile.channels})"
        initial = number_text(stencil.initial, DType.F32)
        lines.add(f"sum{row} = tl.full({shape}, {initial}, tl.float32)")
    for kx in range(window.size[1]):
        shift = kx * window.dilation[1] - window.padding[1]
        lines.add(f"x{kx} = w * {window.stride[1]} + {shift}")
        lines.add(f"inside{kx} = (x{kx} >= 0) & (x{kx} < {width})")
    lanes = f"c[None, :] < {channels}" if channels % tile.channels else None
    channel = block("c", "c0", tile.channels, 1, divisor(tile.channels))
    for offset, users in _input_rows(window, tile.rows).items():
        y = lines.bind("y", f"h0 * {window.stride[0]} + {offset - window.padding[0]}")
        alive = lines.bind("alive", f"({y} >= 0) & ({y} < {height})")
        for kx in range(window.size[1]):
            places = (Coordinate("n"), Coordinate(y), Coordinate(f"x{kx}[:, None]", (0,)), channel)
            space = Space(
                places,
                (str(tile.columns), str(tile.channels)),
                (f"{alive} & inside{kx}[:, None]", lanes),
            )
            block_name = text.padded(space, stencil.pieces, stencil.dtype, stencil.other)
            read = lines.bind("v", f"{block_name}.to(tl.float32)")
            for row, ky in users:
                lines.add(f"sum{row} = {stencil.combine(f'sum{row}', read, ky, kx)}")


def _input_rows(window: Window, rows: int) -> dict[int, list[tuple[int, int]]]:
    """Input rows of a band, from its first: which (output row, tap) each one serves."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in range(rows):
        for ky in range(window.size[0]):
            offset = row * window.stride[0] + ky * window.dilation[0]
            found.setdefault(offset, []).append((row, ky))
    return dict(sorted(found.items()))


def _output_space(tile: Tile, row: int, output: Shape) -> Space:
    _, out_height, out_width, channels = output
    places = (
        Coordinate("n"),
        Coordinate(f"oh{row}"),
        block("w", "w0", tile.columns, 0),
        block("c", "c0", tile.channels, 1, divisor(tile.channels)),
    )
    conditions = []
    if out_height % tile.rows:
        conditions.append(f"(oh{row} < {out_height})")
    if out_width % tile.columns:
        conditions.append(f"(w[:, None] < {out_width})")
    lanes = f"c[None, :] < {channels}" if channels % tile.channels else None
    return Space(
        places,
        (str(tile.columns), str(tile.channels)),
        (" & ".join(conditions) or None, lanes),
    )


def tiles(image: Shape, window: Window) -> list[Tile]:
    """Tile sizes worth trying: bands of several heights, four or eight values a thread."""
    _, height, width, channels = image
    out_height, out_width = window.outputs(height, width)
    wide = min(max(power_of_two(channels), 8), 64)
    found = []
    for rows in (1, 2, 4) if window.size[0] > 1 else (1,):
        if rows > out_height:
            continue
        for block_channels, columns, each in ((wide, 8, 4), (wide, 16, 8), (wide // 2, 32, 8)):
            columns = min(columns, power_of_two(out_width))
            warps = max(columns * block_channels // (32 * each), 1)
            found.append(Tile(rows, columns, block_channels, warps))
    return list(dict.fromkeys(found))

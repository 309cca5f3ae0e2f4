"""Depthwise convolution down a band of rows: every input row is read once a column tap.

A program walks down the image and keeps, of each output row that the current input rows are taps
of, its partial sums; with stride s and k taps these are Q = ceil(k / s) rows. Step t reads the s
rows t * s - padding + j. Row j is tap q * s + j of output row t - q. The oldest sums are then
complete: they are stored, and the others move on.

    for t in range(h0, h0 + rows + Q - 1):
        sum_q += row(t * s - padding + j) * weight[q * s + j]     for all q, j
        store(t - (Q - 1), sum_{Q-1});  sum_q = sum_{q-1};  sum_0 = 0

Where `depthwise` keeps all rows of a band in registers and reads rows + k - 1 of them for a band,
here a band may be long, and the code does not grow with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_text import Kernel, Text, block, cover, divisor, power_of_two
from vtc.kernels.depthwise_weights import load_weights
from vtc.kernels.io import Coordinate, Space
from vtc.kernels.text import Lines

MOST_TAPS = 9
"""Of a filter whose weights stay in registers, eight channels a thread."""


@dataclass(frozen=True)
class RollingTile:
    """Output rows, columns and channels of a program, warps, and steps of which the loads are under
    way at once (1: those of one step)."""

    rows: int
    columns: int
    channels: int
    warps: int
    stages: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.channels}w{self.warps}s{self.stages}"


def rolling_tiles(convolution: Convolution) -> list[RollingTile]:
    """Tiles worth trying, eight channels a thread; none for images of a few rows, dilated filters
    and large ones."""
    window = convolution.window
    _, height, width, channels = convolution.output
    area = window.size[0] * window.size[1]
    if window.dilation != (1, 1) or not 1 < area <= MOST_TAPS or height < 8:
        return []
    wide = min(max(power_of_two(channels), 8), 64)
    found = []
    for rows, values, stages in ((8, 1024, 1), (16, 1024, 1), (8, 1024, 3), (8, 512, 1)):
        columns = min(values // wide, power_of_two(width))
        warps = max(columns * wide // (32 * 8), 1)
        if rows <= height:
            found.append(RollingTile(rows, columns, wide, warps, stages))
    return list(dict.fromkeys(found))


def rolling_kernel(convolution: Convolution, tile: RollingTile) -> Kernel:
    """The kernel of one tile."""
    n, out_height, out_width, channels = convolution.output
    across, along = cover(channels, tile.channels), cover(out_width, tile.columns)
    bands = cover(out_height, tile.rows)
    kept = cover(convolution.window.size[0], convolution.window.stride[0])
    lines = Lines()
    text = Text(lines, convolution.tensors)
    lines.add("@triton.jit")
    with lines.block(f"def depthwise({text.arguments}):"):
        lines.add("part = tl.program_id(0)")
        lines.add("n = tl.program_id(1)")
        lines.add(f"c0 = part % {across} * {tile.channels}")
        lines.add(f"w0 = part // {across} % {along} * {tile.columns}")
        lines.add(f"h0 = part // {across * along} * {tile.rows}")
        lines.add(f"c = c0 + tl.arange(0, {tile.channels})")
        lines.add(f"w = w0 + tl.arange(0, {tile.columns})")
        load_weights(convolution, text, tile.channels)
        _print_columns(convolution, lines)
        zeros = f"tl.zeros(({tile.columns}, {tile.channels}), tl.float32)"
        for q in range(kept):
            lines.add(f"sum{q} = {zeros}")
        stages = f", num_stages={tile.stages}" if tile.stages > 1 else ""
        kind = "tl.range" if stages else "range"
        end = f"h0 + {tile.rows + kept - 1}"
        with lines.block(f"for t in {kind}(h0, {end}{stages}):"):
            _print_step(convolution, tile, text)
            lines.add(f"oh = t - {kept - 1}")
            space = _output_space(convolution, tile)
            text.epilogue(convolution.body, space, convolution.output, f"sum{kept - 1}")
            for q in reversed(range(1, kept)):
                lines.add(f"sum{q} = sum{q - 1}")
            lines.add(f"sum0 = {zeros}")
    return Kernel(f"depthwise rolling {tile}", str(lines), (across * along * bands, n), tile.warps)


def _print_columns(convolution: Convolution, lines: Lines) -> None:
    """The input columns of each column tap, and which of them are in the image."""
    window, width = convolution.window, convolution.image[2]
    for kx in range(window.size[1]):
        lines.add(f"x{kx} = w * {window.stride[1]} + {kx - window.padding[1]}")
        lines.add(f"inside{kx} = (x{kx} >= 0) & (x{kx} < {width})")


def _print_step(convolution: Convolution, tile: RollingTile, text: Text) -> None:
    """Add the rows of step t to the sums that they are taps of."""
    lines, window = text.lines, convolution.window
    _, height, _, channels = convolution.image
    (size, across), step = window.size, window.stride[0]
    lanes = f"c[None, :] < {channels}" if channels % tile.channels else None
    channel = block("c", "c0", tile.channels, 1, divisor(tile.channels))
    for j in range(min(step, size)):
        y = lines.bind("y", f"t * {step} + {j - window.padding[0]}")
        alive = lines.bind("alive", f"({y} >= 0) & ({y} < {height})")
        for kx in range(across):
            space = Space(
                (Coordinate("n"), Coordinate(y), Coordinate(f"x{kx}[:, None]", (0,)), channel),
                (str(tile.columns), str(tile.channels)),
                (f"{alive} & inside{kx}[:, None]", lanes),
            )
            values = text.padded(space, convolution.pieces, convolution.dtype)
            read = lines.bind("v", f"{values}.to(tl.float32)")
            for q, ky in enumerate(range(j, size, step)):
                lines.add(f"sum{q} += {read} * k{ky}_{kx}")


def _output_space(convolution: Convolution, tile: RollingTile) -> Space:
    _, height, width, channels = convolution.output
    last = f" & (oh < {height})" if height % tile.rows else ""
    columns = f" & (w[:, None] < {width})" if width % tile.columns else ""
    return Space(
        (
            Coordinate("n"),
            Coordinate("oh"),
            block("w", "w0", tile.columns, 0),
            block("c", "c0", tile.channels, 1, divisor(tile.channels)),
        ),
        (str(tile.columns), str(tile.channels)),
        (
            f"(oh >= h0){last}{columns}",
            f"c[None, :] < {channels}" if channels % tile.channels else None,
        ),
    )

"""How a convolution is cut for tensor cores: tile sizes, and parts of the contraction."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vtc.index.access import Access
from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_text import cover, power_of_two

FEW_CHANNELS = 16
"""Below this many channels a group, taps and channels are contracted as one dimension."""

PROCESSORS = 132
"""About as many programs keep a large GPU busy; more of them are not worth sharing a tile for."""


@dataclass(frozen=True)
class DotTile:
    """pixels x channels a program makes, values contracted a step, warps, pipeline stages.

    splits: programs that share a tile, each with a part of the contraction. The last one to arrive
    adds all partial sums in order, so that the result does not depend on who is last.
    """

    pixels: int
    channels: int
    depth: int
    warps: int
    stages: int
    splits: int = 1

    def __str__(self) -> str:
        split = f" split {self.splits}" if self.splits > 1 else ""
        return f"{self.pixels}x{self.channels}x{self.depth}w{self.warps}s{self.stages}{split}"


@dataclass(frozen=True)
class Part:
    """Channels [low, high) of the image, within a group, and the accesses that hold them."""

    low: int
    high: int
    pieces: tuple[Access, ...]


def dot_tiles(convolution: Convolution) -> list[DotTile]:
    """Tile sizes worth trying for the extents of the product."""
    n, height, width, channels = convolution.output
    pixels, columns = n * height * width, channels // convolution.groups
    inner = convolution.inner
    taps = convolution.window.size[0] * convolution.window.size[1]
    contracted = inner if inner >= FEW_CHANNELS else inner * taps
    depths = [d for d in (32, 64) if d <= power_of_two(max(contracted, 16))] or [16]
    if contracted <= 16:
        depths = [16]
    widest = min(max(power_of_two(columns), 16), 128)
    found = []
    for block_columns in sorted({widest, max(widest // 2, 16)}):
        for block_pixels in (32, 64, 128):
            if block_pixels > max(power_of_two(pixels), 32):
                continue
            for depth in depths:
                values = block_pixels * block_columns
                warps = 8 if values >= 128 * 128 else 4 if values >= 32 * 64 else 2
                steps = cover(contracted, depth) * (taps if inner >= FEW_CHANNELS else 1)
                stages = 1 if steps == 1 else 3 if steps < 8 else 4
                found.append(DotTile(block_pixels, block_columns, depth, warps, stages))
    # A long contraction wants the deep steps, a short one has no use for them.
    best = max(depths)
    whole = [t for t in found if t.depth == best or contracted % best]
    return [*whole, *_shared(convolution, [t for t in whole if t.depth == best])]


def _shared(convolution: Convolution, tiles: Sequence[DotTile]) -> list[DotTile]:
    """Tiles shared by several programs, where one program a tile would leave the device idle."""
    found: list[DotTile] = []
    for tile in tiles:
        programs, steps = math.prod(dot_grid(convolution, tile)), dot_steps(convolution, tile)
        found += [
            dataclasses.replace(tile, splits=splits)
            for splits in (2, 4, 8)
            if programs * splits <= 2 * PROCESSORS and steps >= 2 * splits
        ]
    return found


def dot_grid(convolution: Convolution, tile: DotTile) -> tuple[int, int, int]:
    """(tiles of pixels x channels, groups, splits)."""
    n, height, width, channels = convolution.output
    columns = cover(channels // convolution.groups, tile.channels)
    return cover(n * height * width, tile.pixels) * columns, convolution.groups, tile.splits


def dot_steps(convolution: Convolution, tile: DotTile) -> int:
    """Steps of the contraction; 1 where it is several loops, which programs cannot share."""
    taps = convolution.window.size[0] * convolution.window.size[1]
    if is_flat(convolution):
        return cover(taps * convolution.inner, tile.depth)
    found = parts(convolution)
    return taps * cover(found[0].high - found[0].low, tile.depth) if len(found) == 1 else 1


def is_flat(convolution: Convolution) -> bool:
    """Are taps and channels contracted as one dimension?"""
    return convolution.inner < FEW_CHANNELS and convolution.window.size != (1, 1)


def parts(convolution: Convolution) -> list[Part]:
    """The channels of a group by where they lie; one part where pieces do not split channels."""
    inner = convolution.inner
    pieces = convolution.pieces
    ranges = sorted({(p.lower[3], p.upper[3]) for p in pieces})
    disjoint = all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    if convolution.groups > 1 or len(ranges) < 2 or not disjoint:
        return [Part(0, inner, pieces)]
    return [
        Part(
            low, high, tuple(_within(p) for p in pieces if (p.lower[3], p.upper[3]) == (low, high))
        )
        for low, high in ranges
    ]


def _within(piece: Access) -> Access:
    """The piece, where the channel is known to lie in its box."""
    return dataclasses.replace(piece, mask=tuple(b for b in piece.mask if b.axis != 3))

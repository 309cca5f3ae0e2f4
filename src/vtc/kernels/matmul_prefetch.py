"""Weights that a tile of a matmul asks for ahead of its loop, while the kernel before still runs.

A block that started early may read nothing that this kernel could write. Constant weights it could
load at once, but a pipelined loop over k begins with the rows too: so the block asks for the lines
of its first steps in the second-level cache, waits, and finds them there.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtc.index.access import Access
from vtc.index.piece import Fill
from vtc.kernels.io import Coordinate, Pointers, Printer, Space
from vtc.kernels.matmul import Config, Matmul, Part
from vtc.kernels.text import Lines

LINE_BYTES = 64
"""What one request brings, by default."""


def is_plain(pieces: Sequence[Access]) -> bool:
    """Is an operand over (.., k, n) one tensor whose elements lie side by side along k?"""
    if len(pieces) != 1 or isinstance(pieces[0].source, Fill):
        return False
    (piece,) = pieces
    return not piece.mask and piece.rest is None and piece.stride[-2] == 1


def prefetch(
    lines: Lines,
    pointers: Pointers,
    outer: Sequence[Coordinate],
    matmul: Matmul,
    config: Config,
    part: Part,
    pieces: Sequence[Access],
) -> None:
    """Ask for the first steps of the tile's columns of one weight, `columns` in the text. Lanes
    beyond the weight ask for its last line again."""
    elements = LINE_BYTES // matmul.dtype.itemsize
    count = config.depth * config.stages // elements
    lanes = 1 << max(count - 1, 0).bit_length()
    first = "0"
    if config.splits > 1:
        share = -(-matmul.k // (config.depth * config.splits)) * config.depth
        first = f"split * {share}"
    k = lines.bind(
        "line", f"tl.minimum({first} + tl.arange(0, {lanes}) * {elements}, {matmul.k - 1})"
    )
    n = lines.bind("column", f"tl.minimum(columns, {part.n - 1})")
    at = (*outer, Coordinate(f"{k}[None, :]", (1,)), Coordinate(f"{n}[:, None]", (0,)))
    space = Space(at, (str(config.columns), str(lanes)), (None, None))
    Printer(lines, space, pointers).prefetch(pieces[0])

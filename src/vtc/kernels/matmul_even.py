"""Even shares: as many blocks as fill the device, each with an unbroken run of the steps of all
tiles (stream-K, Osama et al. 2023).

A block that ends a tile goes on with the next one in the same loop, whose loads are on their way by
then. A tile that several blocks share is added up by the last of them to come, in the order of its
steps, as `matmul_split` does: the result is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vtc.index import sizes
from vtc.kernels.matmul import Config, Matmul
from vtc.kernels.text import Lines

BARRIER = (
    "tl.inline_asm_elementwise('bar.sync 0; mov.b32 $0, 0;', '=r', [], dtype=tl.int32, "
    "is_pure=False, pack=1)"
)


def fits(matmul: Matmul, config: Config) -> bool:
    """One tile of rows, no batch, and a step for each block."""
    if sizes.product(matmul.batch) != 1 or config.splits > 1:
        return False
    if config.stream or not isinstance(matmul.m, int) or matmul.m > config.rows:
        return False
    return 0 < config.programs <= Share(matmul, config).total


class Share:
    """The text of a block's share: its steps, numbered tile by tile, from `first` to `last`."""

    def __init__(self, matmul: Matmul, config: Config) -> None:
        self.config, self.products = config, matmul.products
        self.steps = -(-matmul.k // config.depth)
        tiles = [-(-part.n // config.columns) for part in matmul.parts]
        self.before = [sum(tiles[:k]) for k in range(len(tiles) + 1)]
        """Tiles in front of each part, and of all."""
        self.total = self.before[-1] * self.steps

    @property
    def sharers(self) -> int:
        """The most blocks that share one tile."""
        least = max(1, self.total // self.config.programs)
        return min(self.config.programs, -(-(self.steps - 1) // least) + 1)

    def first_of(self, program: str) -> str:
        """The first step of a block."""
        return (
            f"({program} * {self.total // self._common} // {self.config.programs // self._common})"
        )

    @property
    def _common(self) -> int:
        return math.gcd(self.total, self.config.programs)

    def owner_of(self, step: str) -> str:
        """The block that a step belongs to."""
        programs, total = self.config.programs // self._common, self.total // self._common
        return f"((({step}) + 1) * {programs} - 1) // {total}"

    def begin(self, lines: Lines) -> None:
        lines.add("program = tl.program_id(0)")
        lines.add(f"first = {self.first_of('program')}")
        lines.add(f"last = {self.first_of('(program + 1)')}")

    def run_of(self, part: int) -> str:
        """The block's steps in a part of the matmul, as a range."""
        if len(self.before) == 2:
            return "range(first, last)"
        low, high = (self.before[k] * self.steps for k in (part, part + 1))
        return f"range(tl.maximum(first, {low}), tl.minimum(last, {high}))"

    def place(self, lines: Lines, part: int) -> None:
        """Where a step is, and whether it ends the block's part of a tile."""
        lines.add(f"tile = step // {self.steps}")
        lines.add(f"k0 = step % {self.steps} * {self.config.depth}")
        here = f"(tile - {self.before[part]})" if part else "tile"
        lines.add(f"n0 = {here} * {self.config.columns}")
        lines.add(f"ends = (step % {self.steps} == {self.steps - 1}) | (step == last - 1)")

    def joined(self, lines: Lines, shape: tuple[int, int], sums: Sequence[str]) -> list[str]:
        """The tile's totals, where `complete` is then true."""
        if self.sharers == 1:
            lines.add("complete = True")
            return list(sums)
        rows, columns = shape
        area = rows * columns
        each = self.products * area
        totals = [lines.name("total") for _ in sums]
        lines.add(f"begins = tile * {self.steps}")
        lines.add(f"past = begins + {self.steps}")
        lines.add("complete = (first <= begins) & (step == past - 1)")
        for total, name in zip(totals, sums, strict=True):
            lines.add(f"{total} = {name}")
        with lines.block("if not complete:"):
            lane = f"tl.arange(0, {rows})[:, None] * {columns} + tl.arange(0, {columns})[None, :]"
            lines.add(f"lanes = {lane}")
            lines.add(f"second = (tile > first // {self.steps}).to(tl.int32)")
            lines.add(f"slot = sums + tl.cast(program * 2 + second, tl.int64) * {each}")
            for number, name in enumerate(sums):
                lines.add(f"tl.store(slot + ({number * area} + lanes), {name})")
            # All threads' stores come before the counter's release. Triton's own barrier would keep
            # the loop from loading ahead.
            with lines.block("if not INTERPRETED:"):
                lines.add(BARRIER)
            lines.add(f"low = {self.owner_of('begins')}")
            lines.add(f"high = {self.owner_of('past - 1')}")
            lines.add("arrived = tl.atomic_add(counters + tile, 1, sem='acq_rel')")
            lines.add("complete = arrived == high - low")
            with lines.block("if complete:"):
                lines.add("tl.store(counters + tile, 0)")
                for number, total in enumerate(totals):
                    lines.add(f"{total} = tl.zeros(({rows}, {columns}), tl.float32)")
                    self._add(lines, total, number * area, each)
        return totals

    def _add(self, lines: Lines, total: str, offset: int, each: int) -> None:
        """The blocks' sums in the order of their steps: in a row, without a loop, which would keep
        the one around it from loading ahead."""
        for k in range(self.sharers):
            lines.add(f"other = low + {k}")
            lines.add(f"later = (tile > {self.first_of('other')} // {self.steps}).to(tl.int32)")
            lines.add(f"at = sums + tl.cast(other * 2 + later, tl.int64) * {each} + {offset}")
            # Past the first-level cache, which does not see what other multiprocessors wrote.
            load = "tl.load(at + lanes, mask=other <= high, other=0.0, cache_modifier='.cg')"
            lines.add(f"{total} += {load}")

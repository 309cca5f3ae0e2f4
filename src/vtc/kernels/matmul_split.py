"""A tile whose k is split: partial sums in scratch memory, added up by the block that comes last.

Every block of a tile stores its sums, then counts itself. The one that finds all others counted
adds the sums in the order of the splits, whoever wrote them when: the result is the same in every
run. It sets the counter back to zero for the next launch.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtc.kernels.matmul import Config
from vtc.kernels.text import Lines


def store_sums(
    lines: Lines,
    config: Config,
    products: int,
    shape: tuple[int, int],
    sums: Sequence[str],
    *,
    batched: bool,
) -> None:
    """Stores this block's sums and counts it; `arrived` is then how many came before.

    products: sums that a tile has room for; shape: that of a block of sums.
    """
    place = "(tl.program_id(2) * tl.num_programs(0) + tile)" if batched else "tile"
    rows, columns = shape
    area = rows * columns
    each = products * area
    lines.add(
        f"lanes = tl.arange(0, {rows})[:, None] * {columns} + tl.arange(0, {columns})[None, :]"
    )
    lines.add(f"slots = sums + tl.cast({place}, tl.int64) * {config.splits * each}")
    for number, name in enumerate(sums):
        lines.add(f"tl.store(slots + split * {each} + ({number * area} + lanes), {name})")
    # All threads' stores come before the counter's release.
    lines.add("tl.debug_barrier()")
    lines.add(f"counter = counters + {place}")
    lines.add("arrived = tl.atomic_add(counter, 1, sem='acq_rel')")


def add_sums(
    lines: Lines, config: Config, products: int, shape: tuple[int, int], count: int
) -> list[str]:
    """The names of the totals over all splits, computed by the tile's last block."""
    rows, columns = shape
    area = rows * columns
    lines.add("tl.store(counter, 0)")
    totals = [lines.name("total") for _ in range(count)]
    for number, name in enumerate(totals):
        lines.add(f"{name} = tl.zeros(({rows}, {columns}), tl.float32)")
        with lines.block(f"for s in tl.static_range({config.splits}):"):
            at = f"slots + (s * {products * area} + {number * area}) + lanes"
            # Past the first-level cache, which does not see what other multiprocessors wrote.
            lines.add(f"{name} += tl.load({at}, cache_modifier='.cg')")
    return totals

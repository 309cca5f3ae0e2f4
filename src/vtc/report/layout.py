"""A small layered layout for drawings of a few dozen nodes, top to bottom.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers by longest path, edges over several
layers cut by bends, fewer crossings by barycentres, then straight lines by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

ORDER_SWEEPS = 8
COLUMN_SWEEPS = 60  # a chain of n rows straightens in about n sweeps
BEND_WIDTH = 22.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Centres of the nodes, and for each link the points it passes, both ends included."""

    centres: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layered(
    widths: Sequence[float],
    links: Sequence[tuple[int, int]],
    *,
    node_height: float,
    column_gap: float,
    row_gap: float,
) -> Layout:
    """Place nodes 0..n-1 of these widths; a link (u, v) with u < v puts u above v.

    Units are those of the widths. Runs in O(links**2) a sweep: meant for up to about 100 nodes.
    """
    rows, chains, sizes = _rows(widths, links)
    pairs = [(a, b) for chain in chains for a, b in pairwise(chain)]
    rows = _uncross(rows, pairs)
    x = _columns(rows, pairs, sizes, column_gap)
    left = min(x[i] - sizes[i] / 2 for row in rows for i in row)
    right = max(x[i] + sizes[i] / 2 for row in rows for i in row)
    at: dict[int, Point] = {
        i: (x[i] - left, node_height / 2 + number * (node_height + row_gap))
        for number, row in enumerate(rows)
        for i in row
    }
    return Layout(
        centres=tuple(at[i] for i in range(len(widths))),
        paths=tuple(tuple(at[i] for i in chain) for chain in chains),
        width=right - left,
        height=len(rows) * (node_height + row_gap) - row_gap,
    )


def _rows(
    widths: Sequence[float], links: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]], list[float]]:
    """Rows of nodes and bends; each link as a chain through its bends; widths of both."""
    count = len(widths)
    row = [0] * count
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for u, v in links:
        above[v].append(u)
        below[u].append(v)
    for v in range(count):
        row[v] = max((row[u] + 1 for u in above[v]), default=0)
    for u in reversed(range(count)):  # a source sits right above its first reader
        if not above[u] and below[u]:
            row[u] = min(row[v] for v in below[u]) - 1
    rows: list[list[int]] = [[] for _ in range(max(row) + 1)]
    for v in range(count):
        rows[row[v]].append(v)
    sizes = list(widths)
    chains = []
    for u, v in links:
        chain = [u]
        for between in range(row[u] + 1, row[v]):
            chain.append(len(sizes))
            rows[between].append(len(sizes))
            sizes.append(BEND_WIDTH)
        chains.append([*chain, v])
    return rows, chains, sizes


def _neighbours(pairs: Sequence[tuple[int, int]]) -> tuple[dict[int, list[int]], ...]:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for u, v in pairs:
        above.setdefault(v, []).append(u)
        below.setdefault(u, []).append(v)
    return above, below


def _uncross(rows: list[list[int]], pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Orders each row by the mean place of its neighbours in the row before, down and up by turns;
    keeps the order with the fewest crossings."""
    above, below = _neighbours(pairs)
    best, fewest = [list(row) for row in rows], _crossings(rows, pairs)
    for sweep in range(ORDER_SWEEPS):
        if fewest == 0:
            break
        near, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for before, row in pairwise(order):
            place = {node: k for k, node in enumerate(before)}
            keys = {
                node: fmean(place[m] for m in near[node]) if near.get(node) else float(own)
                for own, node in enumerate(row)
            }
            row.sort(key=keys.__getitem__)
        crossings = _crossings(rows, pairs)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _crossings(rows: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> int:
    row_of = {node: r for r, row in enumerate(rows) for node in row}
    place = {node: k for row in rows for k, node in enumerate(row)}
    by_row: dict[int, list[Point]] = {}
    for u, v in pairs:
        by_row.setdefault(row_of[u], []).append((place[u], place[v]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0
        for ends in by_row.values()
        for k, a in enumerate(ends)
        for b in ends[:k]
    )


def _columns(
    rows: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]],
    sizes: Sequence[float],
    gap: float,
) -> dict[int, float]:
    """x of each node and bend: every sweep moves a row as near as its order allows to the mean of
    its neighbours."""
    above, below = _neighbours(pairs)
    x: dict[int, float] = {}
    for row in rows:
        x.update(zip(row, _spread([0.0] * len(row), [sizes[i] for i in row], gap), strict=True))
    for sweep in range(COLUMN_SWEEPS):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            near = [[*above.get(i, ()), *below.get(i, ())] for i in row]
            wished = [
                fmean(x[j] for j in js) if js else x[i] for i, js in zip(row, near, strict=True)
            ]
            x.update(zip(row, _spread(wished, [sizes[i] for i in row], gap), strict=True))
    return x


def _spread(wished: Sequence[float], sizes: Sequence[float], gap: float) -> list[float]:
    """Places nearest to `wished` in least squares that keep the order and do not overlap.

    With the least distances taken off it is isotonic regression: pool adjacent violators.
    """
    offset = [0.0]
    for a, b in pairwise(sizes):
        offset.append(offset[-1] + (a + b) / 2 + gap)
    pools: list[tuple[float, int]] = []
    for value, shift in zip(wished, offset, strict=False):
        mean, count = value - shift, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        pools.append((mean, count))
    levels = [mean for mean, count in pools for _ in range(count)]
    return [level + shift for level, shift in zip(levels, offset, strict=False)]

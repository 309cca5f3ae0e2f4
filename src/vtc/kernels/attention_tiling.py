"""How the attention kernels cut their work, and the tilings that are worth timing for a shape."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from torch import Tensor

DECODE_ROWS = 64
"""The most rows (query positions times heads of a group) that one decoding tile holds."""


@dataclass(frozen=True)
class Tiling:
    """How the kernels cut the work: rows and keys of a tile, splits of the keys, warps, stages.

    `splits` is 0 for the prefill kernel. `block_m` of the decoding kernel is a power of two that
    holds all rows. joined: 1 where the last split to arrive adds all of them up, 0 where a kernel
    of its own does.
    """

    block_m: int
    block_n: int
    splits: int
    warps: int
    stages: int
    joined: int = 0

    def __str__(self) -> str:
        kind = f"{self.splits} splits" if self.splits else "prefill"
        kind += " joined" if self.joined else ""
        tile = f"{self.block_m}x{self.block_n}"
        return f"{kind}, tiles of {tile}, {self.warps} warps, {self.stages} stages"


@dataclass(frozen=True)
class Shape:
    """Sizes that tiling depends on; `head_dim` is the larger of those of keys and values."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, keys: int | None = None) -> Shape:
        """`keys` is given for paged caches."""
        batch, heads, queries, dim = query.shape
        length = key.shape[2] if keys is None else keys
        return Shape(batch, heads, key.shape[1], queries, length, max(dim, value.shape[-1]))

    @property
    def rows(self) -> int:
        return self.queries * (self.heads // max(self.kv_heads, 1))


def candidates(shape: Shape, processors: int) -> tuple[Tiling, ...]:
    """Tilings that are worth timing, the likeliest first; `processors` is the device's count of
    streaming multiprocessors."""
    if shape.rows > DECODE_ROWS:
        return _prefill_candidates(shape)
    block_m = max(16, power_of_two(shape.rows))
    forms = [(32, 4, 3), (64, 4, 3), (64, 8, 3)]
    if shape.head_dim > 128:
        forms = [(32, 4, 3), (64, 4, 2)]
    pairs = max(1, shape.batch * shape.kv_heads)
    found: dict[Tiling, None] = {}
    # Programs of each processor; four with larger blocks do not fit, and come one after another.
    for programs, tried in ((2, forms), (4, forms[:1])):
        for block_n, warps, stages in tried:
            splits = max(1, min(programs * processors // pairs, -(-shape.keys // block_n), 128))
            found[Tiling(block_m, block_n, splits, warps, stages)] = None
    if 0.9 * processors <= pairs <= processors:
        # One program fills a processor, with as much on its way, and nothing is to be joined.
        found[Tiling(block_m, 128 if shape.head_dim <= 128 else 64, 1, 8, 3)] = None
    return tuple(found)


def _prefill_candidates(shape: Shape) -> tuple[Tiling, ...]:
    if shape.head_dim > 128:
        forms = [(128, 32, 8, 3), (64, 64, 8, 2)]
    else:
        forms = [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3)]
    return tuple(Tiling(m, n, 0, warps, stages) for m, n, warps, stages in forms)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()


def as_argument(tiling: Tiling) -> list[int]:
    """A Tiling as the operator's argument."""
    return list(astuple(tiling))

"""Tilings that are worth measuring for a matmul, most promising first."""

from __future__ import annotations

from dataclasses import replace

from vtc.index.access import accesses
from vtc.kernels.epilogue import width_of_sums
from vtc.kernels.matmul import Config, Launch, Matmul
from vtc.kernels.matmul_text import build, regrouped

# What a block may keep in shared memory on Hopper, and how many multiprocessors an H200 has.
SHARED_BYTES = 224 * 1024
PROCESSORS = 132
_MOST = 16

LIKELY = 8
"""As many of `candidates` can be compiled and timed for each matmul of a model."""


def launches(matmul: Matmul, rows: int | None = None) -> list[Launch]:
    """The candidate launches of a matmul; `rows` stands for a symbolic m."""
    return [build(matmul, config) for config in candidates(matmul, rows)]


def candidates(matmul: Matmul, rows: int | None = None) -> list[Config]:
    """The tilings to measure: at most about twenty."""
    m = matmul.m if isinstance(matmul.m, int) else (rows or 256)
    found: list[Config] = []
    if isinstance(matmul.m, int) and m <= 4:
        found += _streams(matmul, m)
    if m <= 64:
        found += _few_rows(matmul, m)[: 3 if found else None]
    else:
        found += _tiles(matmul, m)
    width = max(width_of_sums(part.body) for part in matmul.parts)
    found = [*dict.fromkeys(_whole_groups(c, width) for c in found)]
    groups = _groups(matmul)
    if groups == 1:
        return found
    deepest = max(16, _power_above(matmul.k // groups))
    whole = [replace(c, splits=1, groups=groups, depth=min(c.depth, deepest)) for c in found]
    return [*dict.fromkeys(whole)]


def _whole_groups(config: Config, width: int) -> Config:
    """The tiling with columns that `width` divides, and steps of k that are as much shorter."""
    if config.columns % width == 0:
        return config
    if not config.stream:
        return replace(config, columns=width)
    wider = max(1, width // config.columns)
    return replace(config, columns=width, depth=max(16, config.depth // wider))


def likely(matmul: Matmul) -> list[Config]:
    """The few of `candidates` that were among the fastest where all were measured
    (benchmarks/matmul.py): what compiling a whole model can afford."""
    return candidates(matmul)[:LIKELY]


def _groups(matmul: Matmul) -> int:
    """The order of k in which the left operand falls into the fewest pieces with long runs."""

    def cost(groups: int) -> tuple[int, int]:
        found = regrouped(matmul.left, len(matmul.batch) + 1, groups).simplify()
        layouts = {n: matmul.tensors[n].layout for n in found.sources()}
        pieces = accesses(found, layouts)
        scattered = any(p.rest is not None or p.stride[-1] > 1 for p in pieces if p.contiguity)
        return (len(pieces) + 8 * scattered, groups)

    if cost(1)[0] <= 4:
        return 1
    return min((g for g in range(1, 9) if matmul.k % g == 0), key=cost)


def _streams(matmul: Matmul, m: int) -> list[Config]:
    """Multiply-add: enough bytes in flight, by wide blocks or by a pipeline."""
    shapes = [
        (2, 4096, 8, 1), (4, 2048, 8, 1), (4, 1024, 4, 1), (8, 512, 4, 4), (16, 256, 4, 4),
        (8, 1024, 8, 3), (1, 4096, 4, 1), (2, 2048, 4, 1),
    ]  # fmt: skip
    found: list[Config] = []
    for columns, depth, warps, stages in shapes:
        # Accumulators and weights of one step must fit in registers.
        lanes = columns * depth * (m + 1) * matmul.products // (warps * 32)
        if lanes > 160 or depth >= 2 * matmul.k:
            continue
        found.append(Config(m, columns, depth, warps, stages, stream=True))
    if not found:
        depth = max(16, min(256, _power_above(matmul.k)))
        found.append(Config(m, 8, depth, 2, 1, stream=True))
    return found


def _few_rows(matmul: Matmul, m: int) -> list[Config]:
    """Tensor cores with rows padded to 16, 32 or 64 and k split until the device is full."""
    rows = max(16, _power_above(m))
    widest = max(16, _power_above(max(part.n for part in matmul.parts)))
    deepest = max(16, _power_above(matmul.k))
    found: list[Config] = []
    for columns, depth, stages, swapped in (
        (32, 128, 5, False), (64, 128, 4, False), (64, 64, 6, True), (64, 128, 5, True),
        (32, 256, 4, False), (128, 128, 4, True), (64, 256, 4, True), (16, 256, 5, False),
    ):  # fmt: skip
        columns, depth = min(columns, widest), min(depth, deepest)
        for splits in _splits(matmul, columns, depth):
            config = Config(rows, columns, depth, 4, stages, splits, swapped)
            config = _fitting(matmul, config)
            if config not in found:
                found.append(config)
    return found[:_MOST]


def _splits(matmul: Matmul, columns: int, depth: int) -> list[int]:
    """One split, and the power of two with which tiles come to one to two rounds of the device."""
    tiles = sum(-(-part.n // columns) for part in matmul.parts)
    steps = -(-matmul.k // depth)
    wanted = 1
    while tiles * wanted < PROCESSORS and wanted < steps and wanted < 16:
        wanted *= 2
    further = [wanted * 2] if tiles * wanted < 2 * PROCESSORS and wanted * 2 <= steps else []
    return [*dict.fromkeys([wanted, *further])]


def _tiles(matmul: Matmul, m: int) -> list[Config]:
    """Large tiles for large products, smaller ones where these do not fill the device."""
    widest = max(16, _power_above(max(part.n for part in matmul.parts)))
    deepest = max(16, _power_above(matmul.k))
    found: list[Config] = []
    for rows, columns, depth, warps, stages in (
        (128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (128, 64, 32, 4, 3), (128, 64, 64, 4, 4),
        (64, 128, 64, 4, 4), (128, 128, 64, 4, 4), (64, 64, 128, 4, 3), (64, 64, 64, 4, 4),
        (64, 32, 64, 4, 4), (32, 64, 64, 4, 4), (64, 64, 32, 2, 4), (32, 32, 64, 4, 3),
        (64, 256, 64, 4, 3), (64, 32, 128, 4, 4), (64, 128, 128, 4, 3), (256, 64, 64, 8, 3),
    ):  # fmt: skip
        columns, depth = min(columns, widest), min(depth, deepest)
        tiles = -(-m // rows) * sum(-(-part.n // columns) for part in matmul.parts)
        batch = 1
        for size in matmul.batch:
            batch *= size if isinstance(size, int) else 1
        if tiles * batch < PROCESSORS // 3 and rows * columns > 64 * 64:
            continue
        if rows * columns * matmul.products > 256 * 128:
            continue
        config = _fitting(matmul, Config(rows, columns, depth, warps, stages))
        if config not in found:
            found.append(config)
        splits = PROCESSORS // max(tiles * batch, 1)
        if splits > 1 and matmul.k >= 8 * depth:
            # A power of two, so that the shares are even.
            found.append(replace(config, splits=min(8, 1 << (splits.bit_length() - 1))))
    return found[:_MOST]


def _fitting(matmul: Matmul, config: Config) -> Config:
    """The config with as many stages as shared memory holds."""
    size = matmul.dtype.itemsize
    stage = (config.rows + matmul.products * config.columns) * config.depth * size
    stages = max(1, min(config.stages, SHARED_BYTES // stage))
    depth = config.depth
    while stage > SHARED_BYTES and depth > 16:
        depth, stage = depth // 2, stage // 2
    return replace(config, depth=depth, stages=stages)


def _power_above(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()

"""The Triton text of a matmul with a tiling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from vtc.index import sizes
from vtc.index.access import accesses
from vtc.index.expr import axes
from vtc.index.map import IndexMap
from vtc.index.sizes import Size
from vtc.kernels import epilogue
from vtc.kernels.io import Coordinate, Printer, Space, Value
from vtc.kernels.matmul import Config, Launch, Matmul, Part
from vtc.kernels.matmul_split import add_sums, store_sums
from vtc.kernels.text import Lines, size_text
from vtc.program.dtypes import DType

# More ranges of k than this are read under masks in one loop instead of in loops of their own.
_MOST_SEGMENTS = 8


def build(matmul: Matmul, config: Config) -> Launch:
    """The matmul's launch with a tiling. Raises ValueError for a tiling that does not fit it."""
    if config.stream and (not isinstance(matmul.m, int) or matmul.m > 8 or config.splits > 1):
        raise ValueError(f"{config} needs a number of rows up to 8, and no split")
    width = max(epilogue.width_of_sums(part.body) for part in matmul.parts)
    if config.columns % width:
        raise ValueError(f"{config} has not columns that {width} divides")
    if matmul.k % config.groups:
        raise ValueError(f"{config.groups} groups do not divide k = {matmul.k}")
    return Launch(matmul, config, _Writer(matmul, config).text())


def regrouped(index_map: IndexMap, axis: int, groups: int) -> IndexMap:
    """The map with its axis, the k of an operand, in the order 0, g, 2g, .., 1, g+1, .. ."""
    if groups == 1:
        return index_map
    index = list(axes(len(index_map.shape)))
    each = sizes.as_size(index_map.shape[axis]) // groups
    index[axis] = index[axis] % each * groups + index[axis] // each
    return IndexMap.single(index_map.shape, index).compose({0: index_map})


class _Writer:
    def __init__(self, matmul: Matmul, config: Config) -> None:
        self.matmul, self.config = matmul, config
        self.lines = Lines()
        self.names = {n: f"x{n}" for n in range(len(matmul.tensors))}
        self.pointers = epilogue.pointers(self.names, matmul.tensors)
        self.outer: list[Coordinate] = []
        rank = len(matmul.batch)
        self.left = regrouped(matmul.left, rank + 1, config.groups)
        self.parts = tuple(
            replace(p, rights=tuple(regrouped(r, rank, config.groups) for r in p.rights))
            for p in matmul.parts
        )

    def text(self) -> str:
        matmul = self.matmul
        scratch = ["sums", "counters"] if self.config.splits > 1 else []
        params = [f"p{k}" for k in range(matmul.params)]
        arguments = ", ".join([*self.names.values(), *scratch, *matmul.symbols, *params])
        with self.lines.block(f"def matmul({arguments}):"):
            self.lines.add("tile = tl.program_id(0)")
            if self.config.splits > 1:
                self.lines.add("split = tl.program_id(1)")
            self._batch()
            self._parts()
        return f"@triton.jit\n{self.lines}"

    def _batch(self) -> None:
        """The coordinates of the batch dimensions, scalars."""
        batch = self.matmul.batch
        if sizes.product(batch) == 1:
            self.outer = [Coordinate("0") for _ in batch]
            return
        self.lines.add("outer = tl.program_id(2)")
        found: list[Coordinate] = []
        for k in reversed(range(len(batch))):
            if k == 0:
                self.lines.add("i0 = outer")
            else:
                self.lines.add(f"i{k} = outer % {size_text(batch[k])}")
                self.lines.add(f"outer = outer // {size_text(batch[k])}")
            found.append(Coordinate(f"i{k}"))
        self.outer = found[::-1]

    def _parts(self) -> None:
        """One part after another, by ranges of the tile number."""
        rows = self._tiles(self.matmul.m)
        first: Size = 0
        parts = self.parts
        for number, part in enumerate(parts):
            last = sizes.add(first, sizes.mul(rows, self._columns(part)))
            if len(parts) == 1:
                where: Any = nullcontext()
            elif number == 0:
                where = self.lines.block(f"if tile < {size_text(last)}:")
            elif number < len(parts) - 1:
                where = self.lines.block(f"elif tile < {size_text(last)}:")
            else:
                where = self.lines.block("else:")
            with where:
                here = "tile" if first == 0 else f"(tile - {size_text(first)})"
                if self.config.stream:
                    self._stream(part, here)
                else:
                    self._tile(part, here)
            first = last

    def _columns(self, part: Part) -> int:
        return -(-part.n // self.config.columns)

    def _tiles(self, m: Size) -> Size:
        if self.config.stream:
            return 1
        return sizes.floor_div(sizes.add(m, self.config.rows - 1), self.config.rows)

    # Tensor cores.

    def _tile(self, part: Part, here: str) -> None:
        config, lines = self.config, self.lines
        self._place(part, here)
        lines.add(f"m0 = tile_m * {config.rows}")
        lines.add(f"n0 = tile_n * {config.columns}")
        lines.add(f"rows = m0 + tl.arange(0, {config.rows})")
        lines.add(f"columns = n0 + tl.arange(0, {config.columns})")
        shape = (config.rows, config.columns)
        if config.swapped:
            shape = (config.columns, config.rows)
        sums = [lines.name("sum") for _ in part.rights]
        for name in sums:
            lines.add(f"{name} = tl.zeros(({shape[0]}, {shape[1]}), tl.float32)")
        space = self._result_space(part)
        begun = self._begun(part, space)
        for low, high in self._segments(part):
            self._loop(part, sums, low, high)
        if config.splits == 1:
            self._epilogue(part, space, sums, begun)
            return
        batched = sizes.product(self.matmul.batch) != 1
        store_sums(lines, config, self.matmul.products, shape, sums, batched=batched)
        with lines.block(f"if arrived == {config.splits - 1}:"):
            totals = add_sums(lines, config, self.matmul.products, shape, len(sums))
            self._epilogue(part, space, totals, begun)

    def _place(self, part: Part, here: str) -> None:
        """The tile's row and column number, `group` tiles of rows at a time."""
        tiles, columns, group = self._tiles(self.matmul.m), self._columns(part), self.config.group
        lines = self.lines
        if tiles == 1:
            lines.add("tile_m = 0")
            lines.add(f"tile_n = {here}")
            return
        if columns == 1:
            lines.add(f"tile_m = {here}")
            lines.add("tile_n = 0")
            return
        width = group * columns
        lines.add(f"first = {here} // {width} * {group}")
        lines.add(f"height = tl.minimum({size_text(tiles)} - first, {group})")
        lines.add(f"tile_m = first + {here} % {width} % height")
        lines.add(f"tile_n = {here} % {width} // height")

    def _segments(self, part: Part) -> list[tuple[int, int]]:
        """Ranges of k in which every operand is one piece, where these are few."""
        k, rank = self.matmul.k, len(self.matmul.batch)
        cuts = {i * (k // self.config.groups) for i in range(self.config.groups)} | {k}
        for index_map, axis in [(self.left, rank + 1), *((r, rank) for r in part.rights)]:
            for piece in index_map.simplify().pieces:
                for end in (piece.lower[axis], piece.upper[axis]):
                    if isinstance(end, int):
                        cuts.add(end)
        ordered = sorted(cuts)
        whole = not self.config.cut or self.config.splits > 1
        if whole or len(ordered) - 1 > _MOST_SEGMENTS:
            return [(0, k)] if k else []
        return list(itertools.pairwise(ordered))

    def _loop(self, part: Part, sums: Sequence[str], low: int, high: int) -> None:
        """Adds the products over low <= k < high."""
        config, lines = self.config, self.lines
        extent = high - low
        step = config.depth
        if config.splits > 1:
            share = -(-extent // (step * config.splits)) * step
            even = share * config.splits == extent
            lines.add(f"k_first = split * {share}")
            past = f"k_first + {share}"
            lines.add(f"k_last = {past if even else f'tl.minimum({past}, {extent})'}")
            head = f"for k0 in range(k_first, k_last, {step}):"
        else:
            head = f"for k0 in range(0, {extent}, {step}):"
        with lines.block(head):
            lines.add(f"ks = k0 + tl.arange(0, {step})")
            left = self._operand(self._left(low, high), extent, "rows")
            for right, name in zip(part.rights, sums, strict=True):
                value = self._operand(self._right(right, low, high), extent, "columns", part)
                first, second = (value, left) if config.swapped else (left, value)
                precision = self._precision()
                lines.add(f"{name} = tl.dot({first.name}, {second.name}, {name}{precision})")

    def _precision(self) -> str:
        if self.matmul.dtype is not DType.F32:
            return ""
        return f", input_precision='{'tf32' if self.matmul.tf32 else 'ieee'}'"

    def _left(self, low: int, high: int) -> IndexMap:
        outer = [0] * len(self.matmul.batch)
        lower, upper = [*outer, 0, low], [*self.matmul.batch, self.matmul.m, high]
        return self.left.restrict(lower, upper)

    def _right(self, right: IndexMap, low: int, high: int) -> IndexMap:
        outer = [0] * len(self.matmul.batch)
        return right.restrict([*outer, low, 0], [*self.matmul.batch, high, right.shape[-1]])

    def _operand(
        self, index_map: IndexMap, extent: int, side: str, part: Part | None = None
    ) -> Value:
        """One tile of A (side "rows") or B ("columns"), k along the side that the dot wants."""
        config = self.config
        size = config.rows if part is None else config.columns
        total = self.matmul.m if part is None else part.n
        first = (side == "rows") != config.swapped
        own, ks = ("[:, None]", "[None, :]") if first else ("[None, :]", "[:, None]")
        own_dim, k_dim = (0, 1) if first else (1, 0)
        start = "m0" if side == "rows" else "n0"
        own_at = Coordinate(f"{side}{own}", (own_dim,), start, str(size), size)
        k_at = Coordinate(f"ks{ks}", (k_dim,), "k0", str(config.depth), config.depth)
        inner = (own_at, k_at) if part is None else (k_at, own_at)
        valid = [_valid(own_at.text, total, size), _valid(k_at.text, extent, config.depth)]
        shape = [str(size), str(config.depth)]
        if not first:
            valid, shape = valid[::-1], shape[::-1]
        space = Space((*self.outer, *inner), tuple(shape), tuple(valid))
        printer = Printer(self.lines, space, self.pointers)
        options = ""
        if part is not None and self._tiles(self.matmul.m) == 1:
            options = ", eviction_policy='evict_first'"
        pieces = accesses(index_map, self._layouts(index_map))
        value = printer.load(pieces, self.matmul.dtype, branch=False, options=options, outside=True)
        return printer.full(value)

    def _layouts(self, index_map: IndexMap) -> dict[int, Any]:
        return {n: self.matmul.tensors[n].layout for n in index_map.sources()}

    def _result_space(self, part: Part) -> Space:
        config = self.config
        sides = ["[:, None]", "[None, :]"]
        dims = [0, 1]
        if config.swapped:
            sides, dims = sides[::-1], dims[::-1]
        rows = Coordinate(f"rows{sides[0]}", (dims[0],), "m0", str(config.rows), config.rows)
        columns = Coordinate(
            f"columns{sides[1]}", (dims[1],), "n0", str(config.columns), config.columns
        )
        valid = [
            _valid(rows.text, self.matmul.m, config.rows),
            _valid(columns.text, part.n, config.columns),
        ]
        shape = [str(config.rows), str(config.columns)]
        if config.swapped:
            valid, shape = valid[::-1], shape[::-1]
        return Space((*self.outer, rows, columns), tuple(shape), tuple(valid))

    def _begun(self, part: Part, space: Space) -> dict[int, Value]:
        """What the epilogue reads ahead of the products."""
        printer = Printer(self.lines, space, self.pointers)
        return epilogue.begin(part.body, printer, self.matmul.tensors)

    def _epilogue(
        self, part: Part, space: Space, sums: Sequence[str], begun: dict[int, Value]
    ) -> None:
        domain = (*self.matmul.batch, self.matmul.m, part.n)
        printer = Printer(self.lines, space, self.pointers)
        epilogue.write(part.body, printer, domain, self.matmul.tensors, sums, begun)

    # Weights that pass by once.

    def _stream(self, part: Part, here: str) -> None:
        """Multiply-add over a block of columns x depth, added up at the end of k."""
        config, lines = self.config, self.lines
        m = self.matmul.m
        assert isinstance(m, int)
        along = self._along_k(part)
        lines.add(f"n0 = {here} * {config.columns}")
        lines.add(f"columns = n0 + tl.arange(0, {config.columns})")
        shape = (config.columns, config.depth) if along else (config.depth, config.columns)
        sums = [[lines.name("sum") for _ in part.rights] for _ in range(m)]
        for row in sums:
            for name in row:
                lines.add(f"{name} = tl.zeros(({shape[0]}, {shape[1]}), tl.float32)")
        column = Coordinate("columns", (0,), "n0", str(config.columns), config.columns)
        valid = _valid("columns", part.n, config.columns)
        spaces = []
        for r in range(m):
            at = (*self.outer, Coordinate(str(r)), column)
            spaces.append(Space(at, (str(config.columns),), (valid,)))
        begun = [self._begun(part, space) for space in spaces]
        for low, high in self._segments(part):
            self._stream_loop(part, sums, low, high, along)
        for r, row in enumerate(sums):
            totals = [lines.bind("total", f"tl.sum({name}, {int(along)})") for name in row]
            self._epilogue(part, spaces[r], totals, begun[r])

    def _along_k(self, part: Part) -> bool:
        """Are weights contiguous along k?"""
        pieces = accesses(part.rights[0], self._layouts(part.rights[0]))
        return all(p.stride[-2] == 1 or p.stride[-1] != 1 for p in pieces)

    def _stream_loop(
        self, part: Part, sums: Sequence[Sequence[str]], low: int, high: int, along: bool
    ) -> None:
        """Adds the products over low <= k < high."""
        lines, extent, step = self.lines, high - low, self.config.depth
        if extent <= step:
            lines.add("k0 = 0")
            self._stream_step(part, sums, low, high, along)
            return
        stages = f", num_stages={self.config.stages}" if self.config.stages > 1 else ""
        with lines.block(f"for k0 in tl.range(0, {extent}, {step}{stages}):"):
            self._stream_step(part, sums, low, high, along)

    def _stream_step(
        self, part: Part, sums: Sequence[Sequence[str]], low: int, high: int, along: bool
    ) -> None:
        """Adds the products of one block of k: weights first, then every row with them."""
        config, lines = self.config, self.lines
        extent, step = high - low, config.depth
        k_side, n_side = ("[None, :]", "[:, None]") if along else ("[:, None]", "[None, :]")
        k_dim, n_dim = (1, 0) if along else (0, 1)
        k_at = Coordinate(f"ks{k_side}", (k_dim,), "k0", str(step), step)
        n_at = Coordinate(f"columns{n_side}", (n_dim,), "n0", str(config.columns), config.columns)
        valid = [_valid(n_at.text, part.n, config.columns), _valid(k_at.text, extent, step)]
        shape = [str(config.columns), str(step)]
        if not along:
            valid, shape = valid[::-1], shape[::-1]
        lines.add(f"ks = k0 + tl.arange(0, {step})")
        space = Space((*self.outer, k_at, n_at), tuple(shape), tuple(valid))
        options = ", eviction_policy='evict_first'"
        weights = [
            self._f32(self._right(right, low, high), space, options) for right in part.rights
        ]
        left = self._left(low, high)
        for r, row in enumerate(sums):
            at = (*self.outer, Coordinate(str(r)), k_at)
            value = self._f32(left, Space(at, tuple(shape), tuple(valid)), "")
            for name, weight in zip(row, weights, strict=True):
                lines.add(f"{name} += {weight.name} * {value.name}")

    def _f32(self, index_map: IndexMap, space: Space, options: str) -> Value:
        """A block of an operand, in f32."""
        pieces = accesses(index_map, self._layouts(index_map))
        return Printer(self.lines, space, self.pointers).load(
            pieces,
            self.matmul.dtype,
            branch=False,
            cast=DType.F32,
            outside=True,
            options=options,
        )


def _valid(text: str, extent: Size, block: int) -> str | None:
    """The condition of lanes inside an extent; None where blocks divide it."""
    if isinstance(extent, int) and extent % block == 0:
        return None
    return f"{text} < {size_text(extent)}"

"""Functions with which a Triton kernel of a user's own reads and writes virtual tensors.

    load = loader(index_map, layouts, DType.F32)

    @triton.jit
    def kernel(x, out, load: tl.constexpr, M, N, BM: tl.constexpr, BN: tl.constexpr):
        rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
        columns = tl.arange(0, BN)[None, :]
        value = load(x, rows, columns, (rows < M) & (columns < N))

`x` is the tuple of the tensors behind the map: the sources by number, then the index tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from vtc.index.access import Access, Layout, accesses
from vtc.index.map import IndexMap
from vtc.kernels import jit
from vtc.kernels.io import Coordinate, Number, Pointers, Printer, Space, Value
from vtc.kernels.text import Lines
from vtc.program.dtypes import DType


def loader(
    index_map: IndexMap,
    layouts: Mapping[int, Layout],
    dtype: DType,
    *,
    lookups: Mapping[int, Layout] | None = None,
    other: Number = 0,
) -> Any:
    """A Triton function `load(tensors, i0, .., valid, symbols..)` of the virtual tensor's elements.

    The coordinates i0.. are integer blocks or scalars that broadcast to the shape of `valid`, the
    condition of the lanes to load; other lanes give `other`. Symbols of symbolic sizes follow in
    order of their names. Pass the function to a kernel as a `tl.constexpr` argument. dtype: that
    of the sources; layouts and lookups: how the sources and the index tensors lie in memory.
    """
    pieces = accesses(index_map, layouts)
    lines = Lines()
    with lines.block(f"def load({_parameters(index_map, pieces, layouts, 'valid')}):"):
        printer = _printer(lines, index_map, lookups or {})
        value = printer.load(pieces, dtype, other=other, branch=False)
        lines.add(f"return {value.name}")
    return jit.load(f"@triton.jit\n{lines}", "load")


def storer(index_map: IndexMap, layouts: Mapping[int, Layout], dtype: DType) -> Any:
    """A Triton function `store(tensors, i0, .., valid, value, symbols..)`.

    It writes `value`, a block of the virtual tensor at coordinates i0.., to where the map says that
    its elements live. Lanes that are not `valid`, and elements of fill pieces, are not written.
    """
    pieces = accesses(index_map, layouts)
    lines = Lines()
    with lines.block(f"def store({_parameters(index_map, pieces, layouts, 'valid, value')}):"):
        printer = _printer(lines, index_map, {})
        lines.add("value = tl.broadcast_to(value, valid.shape)")
        printer.store(pieces, Value("value", frozenset({0})), dtype)
    return jit.load(f"@triton.jit\n{lines}", "store")


def _parameters(
    index_map: IndexMap, pieces: tuple[Access, ...], layouts: Mapping[int, Layout], last: str
) -> str:
    names = [f"i{k}" for k in range(len(index_map.shape))]
    return ", ".join(["tensors", *names, last, *_symbols(index_map, layouts)])


def _symbols(index_map: IndexMap, layouts: Mapping[int, Layout]) -> list[str]:
    """The names of the size symbols that the text may use."""
    given = [*index_map.shape]
    for layout in layouts.values():
        given += [*layout.shape, *layout.stride, layout.offset]
    return sorted({str(s) for x in given if isinstance(x, sympy.Expr) for s in x.free_symbols})


def _printer(lines: Lines, index_map: IndexMap, lookups: Mapping[int, Layout]) -> Printer:
    """A printer for coordinates of any shape: all are broadcast to the shape of `valid`."""
    rank = len(index_map.shape)
    for k in range(rank):
        lines.add(f"i{k} = tl.broadcast_to(i{k}, valid.shape)")
    space = Space(
        tuple(Coordinate(f"i{k}", (0,)) for k in range(rank)),
        ("valid.numel",),
        ("valid",),
        whole="valid.shape",
    )
    sources = sorted(index_map.sources())
    indices = sorted(index_map.lookups())
    pointers = Pointers(
        {n: f"tensors[{k}]" for k, n in enumerate(sources)},
        {n: f"tensors[{len(sources) + k}]" for k, n in enumerate(indices)},
        lookups,
    )
    return Printer(lines, space, pointers)

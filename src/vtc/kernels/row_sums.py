"""Sums along the rows of a matmul's result, as Triton text: what a norm of the rows needs.

One kernel stores the sums of so many columns each (`store`), the next adds them up for each of its
rows (`load`, then `total`): the norm between the two is then no kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vtc.index.access import Layout, accesses
from vtc.index.map import IndexMap
from vtc.kernels.address import NONE, Coordinate, Space, Value
from vtc.kernels.io import Printer
from vtc.program.dtypes import DType


def load(printer: Printer, index_map: IndexMap, layouts: Mapping[int, Layout]) -> Value:
    """The block's rows of an f32 matrix (rows, g), whole: a block (rows, g) or (g, rows), as the
    printer's block has its rows, or (g,) for one row; zero where there is none."""
    *outer, row, _ = printer.space.coordinates
    count = int(index_map.shape[-1])
    size = 1 << max(count - 1, 0).bit_length()
    valid = None if size == count else "{} < " + str(count)
    if row.dims:
        (dim,) = row.dims
        side = "[:, None]" if dim else "[None, :]"
        text = f"tl.arange(0, {size}){side}"
        shape, checks = list(printer.space.shape), list(printer.space.valid)
        shape[1 - dim] = str(size)
        checks[1 - dim] = valid and valid.format(text)
        group = Coordinate(text, (1 - dim,), "0", str(size), size)
    else:
        text = f"tl.arange(0, {size})"
        shape, checks = [str(size)], [valid and valid.format(text)]
        group = Coordinate(text, (0,), "0", str(size), size)
    space = Space((*outer, row, group), tuple(shape), tuple(checks))
    inner = Printer(printer.lines, space, printer.pointers)
    pieces = accesses(index_map, dict(layouts))
    return inner.full(inner.load(pieces, DType.F32, branch=False, outside=True))


def total(printer: Printer, loaded: Value) -> Value:
    """The sum of each row of what `load` gave, along the rows of the printer's block."""
    row = printer.space.coordinates[-2]
    if not row.dims:
        return Value(printer.lines.bind("total", f"tl.sum({loaded.name}, 0)"), NONE)
    (dim,) = row.dims
    sums = printer.lines.bind("total", f"tl.sum({loaded.name}, {1 - dim})")
    side = "[None, :]" if dim else "[:, None]"
    return Value(printer.lines.bind("total", f"{sums}{side}"), frozenset({dim}))


def store(
    printer: Printer, value: Value, index_map: IndexMap, width: int, layouts: Mapping[int, Layout]
) -> None:
    """Stores the f32 sums of `width` columns each of a full block, through a map over (rows,
    columns / width). `width` divides the block's columns, and all columns: a group lies inside of
    the space or outside."""
    lines, space = printer.lines, printer.space
    *outer, row, column = space.coordinates
    (dim,) = column.dims
    groups = column.multiple // width
    shape = list(space.shape)
    split = [*shape[:dim], str(groups), str(width), *shape[dim + 1 :]]
    blocked = lines.bind("e", f"tl.reshape({value.name}, ({', '.join(split)}{_comma(split)}))")
    sums = lines.bind("e", f"tl.sum({blocked}, {dim + 1})")
    shape[dim] = str(groups)
    side = "" if len(shape) == 1 else "[None, :]" if dim else "[:, None]"
    start = f"({column.start}) // {width}"
    text = f"({start} + tl.arange(0, {groups}){side})"
    count = int(index_map.shape[-1])
    checks = list(space.valid)
    checks[dim] = None if space.valid[dim] is None else f"{text} < {count}"
    at = Coordinate(text, (dim,), start, str(groups), 1)
    inner_space = replace(
        space, coordinates=(*outer, row, at), shape=tuple(shape), valid=tuple(checks)
    )
    inner = Printer(lines, inner_space, printer.pointers)
    inner.store(accesses(index_map, dict(layouts)), Value(sums, inner.everything), DType.F32)


def _comma(shape: list[str]) -> str:
    return "," if len(shape) == 1 else ""

"""Programs written in words by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from vtc.program.dtypes import DType
from vtc.vm import isa
from vtc.vm.isa import COLUMN, FULL, ROW, SCALAR

KINDS = {"full": FULL, "row": ROW, "column": COLUMN, "scalar": SCALAR}
MASK = (1 << 64) - 1


def number(value: float) -> int:
    """The word of a float."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def dtype(name: str) -> int:
    return isa.TYPES.index(DType(name))


def access(
    buffer: int,
    *strides: int,
    offset: int = 0,
    terms: Sequence[tuple[int, str, str, int, int | None]] = (),
    masks: Sequence[tuple[int, int, int]] = (),
) -> list[int]:
    """The words of an access. terms: (register, dtype, kind, stride, size or None)."""
    words = [buffer | len(terms) << 16 | len(masks) << 24 | len(strides) << 40, offset, *strides]
    for register, kind_of, kind, stride, size in terms:
        checked = int(size is not None) << 24
        words += [register | dtype(kind_of) << 8 | KINDS[kind] << 16 | checked, stride, size or 0]
    for mask in masks:
        words += mask
    return words


def instr(name: str, *words: int, **fields: int | str) -> list[int]:
    """An instruction; types and kinds by name, everything else by number."""
    numbers = {}
    for field, value in fields.items():
        if isinstance(value, str):
            value = KINDS[value] if value in KINDS else dtype(value)
        numbers[field] = value
    return [isa.head(name, length=1 + len(words), **numbers), *(w & MASK for w in words)]


def kernel(
    dims: Sequence[tuple[int, int]],
    axes: tuple[int | None, int | None],
    registers: Sequence[int],
    body: Sequence[Sequence[int]],
    prologue: Sequence[Sequence[int]] = (),
    index: int = 0,
) -> list[int]:
    """A kernel. dims: (size, span) each. axes: of rows and columns. registers: bytes of each."""
    places, offset = [], 0
    for size in registers:
        places.append(offset | size << 32)
        offset += -(-size // 64) * 64
    before = [w for instruction in prologue for w in instruction] + instr("DONE")
    after = [w for instruction in body for w in instruction] + instr("DONE")
    row, column = (isa.NO_DIM if a is None else a for a in axes)
    start = 6 + 2 * len(dims) + len(registers) + len(before)
    head = isa.head("KERNEL", type=len(dims), dst=row, a=column, b=len(registers))
    sizes = [n for pair in dims for n in pair]
    return [head, index, start + len(after), start, 8, 64, *sizes, *places, *before, *after]


def loop(dim: int, step: int, *body: Sequence[int]) -> list[int]:
    """A LOOP with what it walks."""
    inside = [w for instruction in body for w in instruction]
    length = 3 + len(inside)
    return [*instr("LOOP", step, length + 2, dst=dim), *inside, *instr("ENDLOOP", length)]


def program(
    buffers: Sequence[tuple[str, int] | tuple[str, int, int]],
    *steps: Sequence[int],
    arena: int = 0,
    registers: int = 4096,
    params: int = 0,
) -> list[int]:
    """A program. buffers: (dtype, extent), and the byte in the arena of those that live there."""
    kernels = sum(isa.field(step[0], "op") == isa.BY_NAME["KERNEL"].number for step in steps)
    words = [isa.MAGIC, 0, arena, registers, len(buffers) | params << 16 | kernels << 32]
    for name, extent, *place in buffers:
        words += [dtype(name) | bool(place) << 8, extent, *(place or [0])]
    for step in steps:
        words += step
    words += instr("END")
    words[1] = len(words)
    return words

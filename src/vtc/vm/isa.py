"""The instruction set: one table, from which the C++ header and the documentation are generated.

A program is a row of 64-bit words:

    | word | contents |
    |---|---|
    | 0 | MAGIC |
    | 1 | number of words of the program |
    | 2 | bytes of the arena |
    | 3 | bytes of registers a thread needs |
    | 4 | buffers (16 bits), params (16), kernels (16), 1 if several threads pay (16) |
    | 5.. | 3 words a buffer: dtype (8), kind (8: 0 the caller's, 1 a temporary in the arena, 2 one
    |     | in a buffer of the caller's), the number of that buffer (16); extent in elements; byte
    |     | offset of a temporary |
    | .. | steps: KERNEL, BARRIER, BRANCH, JUMP, and END as the last word |

A *step* is run by all threads. A KERNEL divides its domain in tasks, which threads take in any
order: a BARRIER stands between kernels of which one needs the other's results.

A kernel has up to 8 dimensions. Dimension d has a `size` and a `span`: a task covers span elements
of it, so there are product(max(1, ceil(size / span))) tasks, numbered row-major. Two dimensions (or
one, or none) are the axes of tiles, `row` and `column`. The state of a task is a coordinate a
dimension, which starts at task * span, and the extents r and c of the tile at hand: of an axis that
is not looped over min(span, size - coordinate), of one that is min(step, end - coordinate), of an
absent one 1. LOOP walks a dimension through the span of the task.

A register holds a dense row-major array of elements of a *compute type* (f64 f32 i64 i32 bool). Its
kind says along which axes it varies: bit 0 rows, bit 1 columns; so full (3) is [r, c], row (1) is
[r, 1], column (2) is [1, c], scalar (0) is [1, 1]. An operand of a smaller kind is broadcast. The
registers of a kernel are listed in its head, so that its code may not touch anything else.

The head word of an instruction, least significant bits first (`LAYOUT`):

    | op 8 | type 4 | type2 4 | dst 8 | a 8 | b 8 | c 8 | kinds of dst a b c, 2 each | length 8 |

`length` counts the words of the instruction with its head; where it is 0 the word behind the head
does. `type` is the compute type of the
operands (and of the result, except where the table says otherwise).

An access in words: [buffer 16 | terms 8 | masks 8 | flags 8 | strides 8] [offset] [a stride a
kernel dimension; one more, of the contracted dimension, for operands of MATMUL and ATTENTION, and
one a window before it for the right operand of CONVOLUTION]
[3 words a term: register 8, type 8, kind 8, checked 8; stride; size] [3 words a mask: dimension;
low; high]. Its address for a point is offset + sum(stride * coordinate) + sum(stride * term) in
elements. A checked term counts from the end where it is negative, and raises IndexError outside
[-size, size); so does an address outside the extent that terms produced. Where a mask does not
hold, nothing is read, checked or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vtc.program.dtypes import DType
from vtc.program.scalars import REDUCTIONS, SCALARS

MAGIC = 0x31_4D_56_43_54_56  # "VTCVM1"
HEAD_WORDS = 5
BUFFER_WORDS = 3
BUFFER_KINDS = ("callers", "arena", "hosted")
MAX_DIMS = 8
NO_DIM = 255

TYPES: tuple[DType, ...] = tuple(DType)
"""Element types by their number in words."""

FOLDS: tuple[str, ...] = tuple(REDUCTIONS)
"""Reductions by their number in words."""

FULL, ROW, COLUMN, SCALAR = 3, 1, 2, 0

# Name of a field of a head word -> (lowest bit, bits).
LAYOUT: dict[str, tuple[int, int]] = {
    "op": (0, 8),
    "type": (8, 4),
    "type2": (12, 4),
    "dst": (16, 8),
    "a": (24, 8),
    "b": (32, 8),
    "c": (40, 8),
    "kind_dst": (48, 2),
    "kind_a": (50, 2),
    "kind_b": (52, 2),
    "kind_c": (54, 2),
    "length": (56, 8),
}

Family = Literal["step", "flow", "data", "scalar", "fold", "anchor"]


@dataclass(frozen=True)
class Op:
    """An instruction. `fields`: what it uses of the head word. `words`: what follows the head."""

    number: int
    name: str
    family: Family
    fields: tuple[str, ...]
    words: str
    meaning: str


# name, family, fields, words that follow, meaning
_ROWS: tuple[tuple[str, Family, str, str, str], ...] = (
    ("END", "step", "", "", "the program is over"),
    ("BARRIER", "step", "", "", "wait until every task of the kernels before is done"),
    (
        "BRANCH",
        "step",
        "",
        "buffer; target",
        "go on at word `target` of the program unless the bool at element 0 of `buffer` is true",
    ),
    ("JUMP", "step", "", "target", "go on at word `target` of the program"),
    (
        "KERNEL",
        "step",
        "type=dimensions type2=0 dst=row a=column b=registers",
        "number of the kernel in the module; words of the whole kernel; words from its head to its "
        "body; rows of a tile, at most; columns of a tile, at most; (size, span) a dimension; "
        "(byte offset 32, bytes 32) a register; prologue, DONE; body, DONE",
        "each thread runs the prologue with all coordinates 0, then the body for each of its tasks",
    ),
    ("DONE", "flow", "", "", "the end of a prologue or body"),
    (
        "LOOP",
        "flow",
        "dst=dimension",
        "step; words from here to behind its ENDLOOP",
        "for coordinate from the task's by `step` to the end of the task's span or the dimension",
    ),
    ("ENDLOOP", "flow", "", "words back to its LOOP", "the next pass of the innermost LOOP"),
    ("CONST", "data", "type dst kind_dst", "value", "dst = value: f64 bits for floats, else i64"),
    ("PARAM", "data", "type dst kind_dst", "number", "dst = runtime scalar, converted to `type`"),
    ("IOTA", "data", "type dst kind_dst", "dimension", "dst = coordinate along the dimension"),
    ("MOVE", "data", "type dst a kind_dst kind_a", "", "dst = a, broadcast to the kind of dst"),
    (
        "LOAD",
        "data",
        "type type2 dst a kind_dst kind_a",
        "1 if `a` is read, plus 2 if dst must be a copy; access",
        "dst = elements of memory type `type2`, as `type`; where masked off: a, or 0",
    ),
    (
        "STORE",
        "data",
        "type type2 a kind_dst kind_a",
        "1 if `a` is bound, plus 2 if the lines will not be read soon; access",
        "elements of memory type `type2` = a, converted; kind_dst is the kind of what is written",
    ),
    (
        "BIND",
        "data",
        "type dst kind_dst",
        "access",
        "an allowance to keep register dst in the memory that a later STORE of it names",
    ),
    (
        "CAST",
        "data",
        "type type2 dst a kind_dst kind_a",
        "",
        "dst = a (of `type`) converted to memory type `type2` and held in its compute type",
    ),
    (
        "REDUCE",
        "fold",
        "type dst a kind_dst kind_a",
        "fold; for argmax and argmin place strides, one a dimension",
        "dst = fold of a (full) over the axes that dst does not vary along",
    ),
    (
        "INIT",
        "fold",
        "type type2 dst b kind_dst",
        "fold",
        "dst, an accumulator of `type2`, = identity; for argmax and argmin b = -1 (i64): no place",
    ),
    (
        "ACCUM",
        "fold",
        "type type2 dst a b kind_dst kind_a",
        "fold; for argmax and argmin place strides, one a dimension",
        "dst, an accumulator of `type2`, = fold of dst and a; b = the place of the one that won",
    ),
    (
        "FINISH",
        "fold",
        "type type2 dst a b kind_dst",
        "fold",
        "dst (`type`; i64 for argmax and argmin) = result of accumulator a (places in b)",
    ),
    (
        "SCAN",
        "fold",
        "type type2 dst a b kind_dst kind_a kind_b",
        "fold; dimension",
        "dst = running fold of a along the dimension, going on from accumulator b (of `type2`), "
        "which is updated",
    ),
    (
        "SPILL",
        "fold",
        "type type2 a b kind_a",
        "fold; byte offset in the arena; bytes a task",
        "keep accumulator a (then its places b) at offset + task * bytes",
    ),
    (
        "MERGE",
        "fold",
        "type type2 dst b kind_dst",
        "fold; byte offset in the arena; bytes a task; tasks; group",
        "dst (places b) = fold, in order, of what `tasks` tasks in a row kept; the first is "
        "task // group * tasks",
    ),
    (
        "MATMUL",
        "anchor",
        "type type2 dst kind_dst",
        "k; width (32 bits) and depth (32) of the right operand's panels, or 0; access of the left "
        "operand; access of the right operand",
        "dst = sum over k of left * right, both of memory type `type2`. In panels, the right "
        "operand has its element of column n and row k at (n // width) * stride of the columns + "
        "(k // depth) * stride of k + (n % width) * depth + k % depth. Subnormal bf16 may be 0",
    ),
    (
        "ATTENTION",
        "anchor",
        "type dst kind_dst",
        "length; head_dim; scale (f64 bits); flags: 1 softcap, 2 causal, 4 window, 8 mask; softcap "
        "(f64 bits); shift; window; dimension of s (255: s is 0); accesses of query, key, value "
        "and, if flagged, mask",
        "dst = softmax(softcap(scale * q @ k^T) + mask) @ v; a row without a visible key is 0. The "
        "last stride of an access is that of t; query and key move along d by their stride of the "
        "column dimension",
    ),
    (
        "CONVOLUTION",
        "anchor",
        "type type2 dst a b kind_dst kind_a kind_b",
        "words of the instruction; digits (16 bits), windows (16), parts (16), width of the right "
        "operands' panels (16) or 0; 1 to multiply by a, plus 2 to add b (one value a column "
        "each); low; high (f64 bits); a digit: dimension "
        "(8), window + 1 or 0 (8); divisor; size; a window: taps; stride; dilation; pad; extent; "
        "a part: k; buffer of the left operand; offset; a stride a digit (0 for those of windows), "
        "a window, and of k; access of the right operand",
        "dst = min(max(sum * a + b, low), high), each step rounded; sum: over parts, taps and "
        "k of left * right, all of memory type `type2`. A digit is "
        "coordinate // divisor % size; tap t of a window reads coordinate stride * digit + "
        "dilation * t - pad of the left operand, and counts for nothing outside [0, extent). In "
        "panels column n of a right operand is at n // width * stride of the columns + n % width",
    ),
)

FIRST_SCALAR = 32
_SCALAR_FIELDS = ("type dst a kind_dst kind_a", "b kind_b", "c kind_c")


def _table() -> tuple[Op, ...]:
    ops = [
        Op(number, name, family, tuple(fields.split()), words, meaning)
        for number, (name, family, fields, words, meaning) in enumerate(_ROWS)
    ]
    for number, scalar in enumerate(SCALARS.values(), FIRST_SCALAR):
        fields = " ".join(_SCALAR_FIELDS[: scalar.arity]).split()
        meaning = f"dst = {scalar.meaning}"
        if scalar.result == "bool":
            meaning += " (a bool)"
        if scalar.name == "select":
            meaning += "; a is a bool, `type` is that of b and c"
        ops.append(Op(number, scalar.name, "scalar", tuple(fields), "", meaning))
    return tuple(ops)


OPS: tuple[Op, ...] = _table()
BY_NAME: dict[str, Op] = {op.name: op for op in OPS}
BY_NUMBER: dict[int, Op] = {op.number: op for op in OPS}


def accumulator_type(fold: str, dtype: DType) -> DType:
    """The type in which `fold` accumulates values of a compute type.

    f32 sums and products are carried in f64 between tiles, so that their error does not grow with
    the number of tiles.
    """
    return DType.F64 if dtype is DType.F32 and fold in ("sum", "prod") else dtype


def field(word: int, name: str) -> int:
    """A field of a head word."""
    low, bits = LAYOUT[name]
    return (word >> low) & ((1 << bits) - 1)


def head(op: str, **fields: int) -> int:
    """The head word of an instruction."""
    word = BY_NAME[op].number
    for name, value in fields.items():
        low, bits = LAYOUT[name]
        assert 0 <= value < 1 << bits, (op, name, value)
        word |= value << low
    return word


def header() -> str:
    """The C++ header of the instruction set."""
    lines = [
        "// Generated from src/vtc/vm/isa.py by `python -m vtc.vm.isa`; do not edit.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace vtc {",
        "",
        f"constexpr uint64_t kMagic = {MAGIC:#x};",
        f"constexpr int kHeadWords = {HEAD_WORDS};",
        f"constexpr int kBufferWords = {BUFFER_WORDS};",
        f"constexpr int kMaxDims = {MAX_DIMS};",
        f"constexpr int kNoDim = {NO_DIM};",
        f"constexpr int kFirstScalar = {FIRST_SCALAR};",
        "",
        "enum Type : uint8_t {",
        *(f"  T_{dtype.name} = {n}," for n, dtype in enumerate(TYPES)),
        "};",
        f"constexpr int kTypes = {len(TYPES)};",
        "",
        "enum BufferKind : uint8_t {",
        *(f"  BUFFER_{name.upper()} = {n}," for n, name in enumerate(BUFFER_KINDS)),
        "};",
        "",
        "enum Fold : uint8_t {",
        *(f"  FOLD_{name.upper()} = {n}," for n, name in enumerate(FOLDS)),
        "};",
        f"constexpr int kFolds = {len(FOLDS)};",
        "",
        "enum Op : uint8_t {",
        *(f"  OP_{op.name.upper()} = {op.number}," for op in OPS),
        "};",
        f"constexpr int kOps = {OPS[-1].number + 1};",
        "",
        "// Fields of a head word: lowest bit and mask.",
    ]
    for name, (low, bits) in LAYOUT.items():
        camel = "".join(part.capitalize() for part in name.split("_"))
        lines.append(f"constexpr int k{camel}Shift = {low};")
        lines.append(f"constexpr uint64_t k{camel}Mask = {(1 << bits) - 1:#x};")
    lines += ["", "}  // namespace vtc", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("native").joinpath("isa.h").write_text(header())

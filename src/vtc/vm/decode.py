"""Words of a program as what they say: the reader that the disassembler and the reference
interpreter share. The layout is that of `isa.py`; a valid program is taken for granted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vtc.program.dtypes import DType
from vtc.vm.isa import (
    BUFFER_KINDS,
    BUFFER_WORDS,
    BY_NUMBER,
    HEAD_WORDS,
    NO_DIM,
    TYPES,
    Op,
    field,
)


def length_at(words: Sequence[int], at: int) -> int:
    """The words of the instruction at word `at`."""
    return field(int(words[at]), "length") or int(words[at + 1])


def signed(word: int) -> int:
    """A word as the signed integer that it holds."""
    return word - (1 << 64) if word >> 63 else word


@dataclass(frozen=True)
class BufferWords:
    """A buffer. kind: of `isa.BUFFER_KINDS`. host: of a hosted temporary, the number of the buffer
    that it is in. offset: of a temporary, in bytes."""

    dtype: DType
    kind: str
    host: int
    extent: int
    offset: int

    @property
    def bytes(self) -> int:
        return self.extent * self.dtype.itemsize


def buffers(words: Sequence[int]) -> list[BufferWords]:
    """The buffers of a program."""
    found = []
    for number in range(int(words[4]) & 0xFFFF):
        at = HEAD_WORDS + number * BUFFER_WORDS
        packed, extent, offset = (int(w) for w in words[at : at + BUFFER_WORDS])
        kind = BUFFER_KINDS[packed >> 8 & 0xFF]
        found.append(BufferWords(TYPES[packed & 0xFF], kind, packed >> 16 & 0xFFFF, extent, offset))
    return found


@dataclass(frozen=True)
class TermWords:
    """A decoded term of an access."""

    register: int
    dtype: DType
    kind: int
    stride: int
    size: int | None


@dataclass(frozen=True)
class AccessWords:
    """A decoded access. masks: (dimension, low, high)."""

    buffer: int
    offset: int
    strides: tuple[int, ...]
    terms: tuple[TermWords, ...]
    masks: tuple[tuple[int, int, int], ...]


def access(words: Sequence[int], at: int) -> tuple[AccessWords, int]:
    """The access at word `at`, and the word behind it."""
    packed = int(words[at])
    buffer, terms, masks = packed & 0xFFFF, packed >> 16 & 0xFF, packed >> 24 & 0xFF
    strides = packed >> 40 & 0xFF
    numbers = [signed(int(w)) for w in words[at + 1 : at + 2 + strides + 3 * (terms + masks)]]
    offset, rest = numbers[0], numbers[1:]
    found = tuple(_term(rest[i : i + 3]) for i in range(strides, strides + 3 * terms, 3))
    first = strides + 3 * terms
    bounds = tuple((rest[i], rest[i + 1], rest[i + 2]) for i in range(first, first + 3 * masks, 3))
    return AccessWords(buffer, offset, tuple(rest[:strides]), found, bounds), at + 1 + len(numbers)


@dataclass(frozen=True)
class DigitWords:
    """A decoded digit of a CONVOLUTION: coordinate // divisor % size."""

    dim: int
    window: int | None
    divisor: int
    size: int


@dataclass(frozen=True)
class WindowWords:
    """A decoded window of a CONVOLUTION."""

    taps: int
    stride: int
    dilation: int
    pad: int
    extent: int


@dataclass(frozen=True)
class PartWords:
    """A decoded part of a CONVOLUTION; `left` has a stride a digit, a window, and of k."""

    k: int
    left: AccessWords
    right: AccessWords


@dataclass(frozen=True)
class ConvolutionWords:
    """A decoded CONVOLUTION."""

    digits: tuple[DigitWords, ...]
    windows: tuple[WindowWords, ...]
    parts: tuple[PartWords, ...]
    width: int
    scaled: bool
    shifted: bool
    low: float
    high: float


def convolution(words: Sequence[int], at: int) -> ConvolutionWords:
    """The CONVOLUTION whose head is word `at`."""
    packed, flags = int(words[at + 2]), int(words[at + 3])
    low, high = struct.unpack("<dd", struct.pack("<QQ", *(int(w) for w in words[at + 4 : at + 6])))
    counts = [packed >> shift & 0xFFFF for shift in (0, 16, 32)]
    at += 6
    digits = []
    for _ in range(counts[0]):
        own, divisor, size = (int(w) for w in words[at : at + 3])
        window = own >> 8 & 0xFF
        digits.append(DigitWords(own & 0xFF, window - 1 if window else None, divisor, size))
        at += 3
    windows = []
    for _ in range(counts[1]):
        windows.append(WindowWords(*(signed(int(w)) for w in words[at : at + 5])))
        at += 5
    parts = []
    for _ in range(counts[2]):
        count = 1 + counts[0] + counts[1] + 1
        k, buffer, *left = (signed(int(w)) for w in words[at : at + 2 + count])
        right, at = access(words, at + 2 + count)
        parts.append(PartWords(k, AccessWords(buffer, left[0], tuple(left[1:]), (), ()), right))
    return ConvolutionWords(
        tuple(digits), tuple(windows), tuple(parts), packed >> 48,
        bool(flags & 1), bool(flags & 2), low, high,
    )  # fmt: skip


def _term(numbers: Sequence[int]) -> TermWords:
    packed, stride, size = numbers
    checked = packed >> 24 & 0xFF
    dtype = TYPES[packed >> 8 & 0xFF]
    return TermWords(packed & 0xFF, dtype, packed >> 16 & 0xFF, stride, size if checked else None)


@dataclass(frozen=True)
class KernelWords:
    """A decoded KERNEL head. Positions are words of the program; `end` is behind the kernel."""

    number: int
    row: int | None
    column: int | None
    rows: int
    columns: int
    sizes: tuple[int, ...]
    spans: tuple[int, ...]
    registers: tuple[tuple[int, int], ...]
    prologue: int
    body: int
    end: int


def kernel(words: Sequence[int], at: int) -> KernelWords:
    """The kernel whose head is word `at`."""
    word = int(words[at])
    dims, registers = field(word, "type"), field(word, "b")
    number, length, body, rows, columns = (int(w) for w in words[at + 1 : at + 6])
    pairs = [int(w) for w in words[at + 6 : at + 6 + 2 * dims + registers]]
    row, column = field(word, "dst"), field(word, "a")
    return KernelWords(
        number,
        None if row == NO_DIM else row,
        None if column == NO_DIM else column,
        rows,
        columns,
        tuple(pairs[0 : 2 * dims : 2]),
        tuple(pairs[1 : 2 * dims : 2]),
        tuple((p & 0xFFFFFFFF, p >> 32) for p in pairs[2 * dims :]),
        at + 6 + 2 * dims + registers,
        at + body,
        at + length,
    )


def instructions(words: Sequence[int], at: int) -> Iterator[tuple[int, Op]]:
    """(position, instruction) of a prologue or body from word `at` to its DONE."""
    while True:
        op = BY_NUMBER[field(int(words[at]), "op")]
        yield at, op
        if op.name == "DONE":
            return
        at += length_at(words, at)

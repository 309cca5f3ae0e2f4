"""What the reference interpreter knows of the tile at hand: coordinates, registers, memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vtc.program.dtypes import DType
from vtc.vm import decode, isa
from vtc.vm.decode import AccessWords, KernelWords


@dataclass
class Program:
    """A program while it runs: a flat tensor for each buffer, and what tasks kept with SPILL."""

    words: list[int]
    params: list[float]
    memory: list[torch.Tensor] = field(default_factory=list)
    # By byte in the arena: accumulators, and the places of argmax and argmin.
    kept: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)


@dataclass
class Loop:
    """A LOOP that is being walked; its head is word `at`."""

    dim: int
    step: int
    at: int


@dataclass
class Tile:
    """A thread in one kernel. `first` and `end` delimit the task, `coordinate` the tile at hand;
    `at` is the word of the instruction at hand."""

    machine: Program
    kernel: KernelWords
    registers: torch.Tensor = field(init=False)
    task: int = 0
    first: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    coordinate: list[int] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        self.registers = torch.full((self.machine.words[3],), 0xA5, dtype=torch.uint8)

    def fault(self, reason: str) -> ValueError:
        op = isa.BY_NUMBER[isa.field(self.machine.words[self.at], "op")]
        return ValueError(f"kernel {self.kernel.number}, word {self.at} {op.name}: {reason}")

    def word(self, number: int) -> int:
        """The word `number` behind the head, signed."""
        return decode.signed(self.machine.words[self.at + 1 + number])

    def number(self, at: int) -> float:
        """A word that holds a float."""
        bits = self.machine.words[self.at + 1 + at]
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value

    def extent(self, axis: int | None) -> int:
        """Elements of the tile along an axis."""
        if axis is None:
            return 1
        left = self.end[axis] - self.coordinate[axis]
        steps = [loop.step for loop in self.loops if loop.dim == axis]
        return max(0, min([left, *steps]))

    def shape(self, kind: int) -> tuple[int, int]:
        rows = self.extent(self.kernel.row) if kind & isa.ROW else 1
        columns = self.extent(self.kernel.column) if kind & isa.COLUMN else 1
        return rows, columns

    def register(self, number: int, dtype: DType, kind: int) -> torch.Tensor:
        """The memory of a register, as the array of this tile."""
        if number >= len(self.kernel.registers):
            raise self.fault(f"there is no register {number}")
        offset, room = self.kernel.registers[number]
        rows, columns = self.shape(kind)
        size = rows * columns * dtype.itemsize
        if size > room or offset + room > self.registers.numel():
            raise self.fault(f"register {number} holds {room} of {size} bytes")
        return self.registers[offset : offset + size].view(dtype.torch_dtype).reshape(rows, columns)

    def type(self, word: int, name: str = "type") -> DType:
        return isa.TYPES[isa.field(word, name)]

    def read(self, word: int, name: str, dtype: DType | None = None) -> torch.Tensor:
        """The value of an operand; its own memory may be written afterwards."""
        dtype = self.type(word) if dtype is None else dtype
        kind = isa.field(word, f"kind_{name}")
        return self.register(isa.field(word, name), dtype, kind).clone()

    def write(self, word: int, value: torch.Tensor, dtype: DType | None = None) -> None:
        """Stores the value to the register `dst`, broadcast to its kind."""
        dtype = self.type(word) if dtype is None else dtype
        kind = isa.field(word, "kind_dst")
        target = self.register(isa.field(word, "dst"), dtype, kind)
        target.copy_(value.expand(target.shape))

    def coordinates(self, dim: int, kind: int) -> torch.Tensor:
        """The coordinate along a dimension at the points of a tile of a kind."""
        start = torch.tensor(self.coordinate[dim]).reshape(1, 1)
        if dim == self.kernel.row and kind & isa.ROW:
            return start + torch.arange(self.extent(dim)).reshape(-1, 1)
        if dim == self.kernel.column and kind & isa.COLUMN:
            return start + torch.arange(self.extent(dim)).reshape(1, -1)
        return start

    # Memory.

    def address(
        self, access: AccessWords, points: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(address, mask) at points, given as a coordinate tensor for each stride."""
        mask = torch.tensor(True)
        for dim, low, high in access.masks:
            mask = mask & (points[dim] >= low) & (points[dim] < high)
        index = torch.tensor(access.offset)
        for stride, point in zip(access.strides, points, strict=True):
            index = index + stride * point
        for term in access.terms:
            value = self.register(term.register, term.dtype, term.kind).to(torch.int64)
            value = value.reshape(*value.shape, *(1,) * (points[0].dim() - 2 if points else 0))
            if term.size is not None:
                outside = ((value < -term.size) | (value >= term.size)) & mask
                if bool(outside.any()):
                    wrong = int(value.expand(outside.shape)[outside][0])
                    raise IndexError(
                        f"kernel number {self.kernel.number}: index {wrong} is out of bounds for a "
                        f"dimension of size {term.size}"
                    )
                value = torch.where(value < 0, value + term.size, value)
            index = index + term.stride * value
        index, mask = torch.broadcast_tensors(index, mask)
        extent = self.machine.memory[access.buffer].numel()
        outside = mask & ((index < 0) | (index >= extent))
        if bool(outside.any()):
            reason = f"element {int(index[outside][0])} of a buffer of {extent}"
            if access.terms:
                raise IndexError(f"kernel number {self.kernel.number}: index to {reason}")
            raise self.fault(reason)
        return index, mask

    def gather(
        self, access: AccessWords, points: Sequence[torch.Tensor], other: torch.Tensor
    ) -> torch.Tensor:
        """The elements at points; `other` where masked off."""
        index, mask = self.address(access, points)
        index, mask, result = torch.broadcast_tensors(index, mask, other)
        result = result.clone()
        result[mask] = self.machine.memory[access.buffer][index[mask]].to(other.dtype)
        return result

    def points(self, kind: int) -> list[torch.Tensor]:
        return [self.coordinates(d, kind) for d in range(len(self.kernel.sizes))]

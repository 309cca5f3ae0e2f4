"""What the generated convolution and pooling kernels have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vtc.index.access import Access
from vtc.kernels import epilogue, jit
from vtc.kernels.convolution import Launch, Shape
from vtc.kernels.epilogue import Tensor
from vtc.kernels.io import Coordinate, Printer, Space
from vtc.kernels.text import Lines, number_text
from vtc.program.dtypes import DType
from vtc.program.tile import Instr


@dataclass(frozen=True)
class Kernel:
    """Generated text (a function whose arguments are the tensors), grid and options.

    partial_sums: f32 elements of scratch memory that programs sharing a tile hand to each other,
    given with a counter a tile as the last arguments; 0 where no tile is shared.
    """

    name: str
    source: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int = 3
    partial_sums: int = 0

    @property
    def function(self) -> Any:
        """The Triton function."""
        named = re.search(r"^def (\w+)\(", self.source, re.MULTILINE)
        assert named is not None
        return jit.load(self.source, named[1])

    def launch(self) -> Launch:
        """The kernel as something to call."""
        function, scratch = self.function, Scratch(self.partial_sums, self.grid[0] * self.grid[1])

        def run(tensors: Sequence[torch.Tensor]) -> None:
            more = scratch.of(tensors[0].device) if self.partial_sums else ()
            options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
            function[self.grid](*tensors, *more, **options)

        return Launch(self.name, run)


class Scratch:
    """Partial sums, and a counter a tile that every launch leaves at zero: for each device and
    stream, made at the first call there and kept."""

    def __init__(self, elements: int, tiles: int) -> None:
        self.elements, self.tiles = elements, tiles
        self.held: dict[tuple[torch.device, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(partial sums, counters) for the current stream."""
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = (device, stream)
        if key not in self.held:
            self.held[key] = (
                torch.empty(self.elements, dtype=torch.float32, device=device),
                torch.zeros(self.tiles, dtype=torch.int32, device=device),
            )
        return self.held[key]


@dataclass(frozen=True)
class Text:
    """A kernel under construction: its lines, and the tensors that it is called with."""

    lines: Lines
    tensors: tuple[Tensor, ...]

    @property
    def arguments(self) -> str:
        """The parameters: a pointer a tensor."""
        return ", ".join(self._names.values())

    @property
    def _names(self) -> dict[int, str]:
        return {k: f"t{k}" for k in range(len(self.tensors))}

    def printer(self, space: Space) -> Printer:
        """Loads and stores of one block."""
        return Printer(self.lines, space, epilogue.pointers(self._names, self.tensors))

    def padded(
        self, space: Space, pieces: Sequence[Access], dtype: DType, other: float = 0.0
    ) -> str:
        """The name of a block of a virtual image; lanes that are not valid hold `other`."""
        printer = self.printer(space)
        value = printer.load(pieces, dtype, other=other, branch=False)
        missing = [text for dim, text in enumerate(space.valid) if text and dim not in value.dims]
        if not missing:
            return printer.full(value).name
        # The address does not vary along such a dimension, so the load was not masked along it.
        condition = " & ".join(f"({text})" for text in missing)
        block_shape = f"({', '.join(space.shape)})"
        chosen = f"tl.where({condition}, {value.name}, {number_text(other, dtype)})"
        return self.lines.bind("v", f"tl.broadcast_to({chosen}, {block_shape})")

    def epilogue(self, body: Sequence[Instr], space: Space, output: Shape, result: str) -> None:
        """The body on the block of results named `result`."""
        epilogue.write(body, self.printer(space), output, self.tensors, [result])


def block(
    text: str,
    start: str | None,
    length: int,
    dim: int,
    multiple: int = 1,
    limit: int | None = None,
) -> Coordinate:
    """A coordinate that counts up along one of two block dimensions, to a limit."""
    lanes = f"{text}[:, None]" if dim == 0 else f"{text}[None, :]"
    return Coordinate(lanes, (dim,), start, str(length), multiple, limit)


def divisor(*numbers: int) -> int:
    """A power of two that divides all numbers, at most 64."""
    common = math.gcd(64, *numbers)
    return common & -common


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def cover(size: int, block_size: int) -> int:
    """How many blocks cover a size."""
    return -(-size // block_size)

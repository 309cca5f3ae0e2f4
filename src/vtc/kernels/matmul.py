"""Matmuls that read and write through index maps: description, launches.

    C_p[.., m, n] = sum_k A[.., m, k] * B_p[.., k, n]      for each product p of a part
    epilogue of the part: loads, scalar operators, stores at (.., m, n), in f32

A, B and everything that the epilogue addresses are virtual tensors. One launch computes several
*parts*, which share A: query, key and value projections are three parts whose weights stay where
they are. A part may have several *products* over the same points: a gated unit is one part with
the products gate and up; a rotary embedding is one whose products are the two halves of the head.
A 1x1 convolution in NHWC is a matmul of n*h*w rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy
import torch

from vtc.index import sizes
from vtc.index.map import IndexMap
from vtc.index.sizes import Size
from vtc.kernels import epilogue, jit
from vtc.kernels.epilogue import Tensor
from vtc.program.dtypes import DType
from vtc.program.tile import Instr


@dataclass(frozen=True)
class Part:
    """Columns of results: `n` of them, from products with `rights` (maps over (*batch, k, n)), and
    the epilogue `body` over the domain (*batch, m, n)."""

    n: int
    rights: tuple[IndexMap, ...]
    body: tuple[Instr, ...]


@dataclass(frozen=True)
class Matmul:
    """A family member: sizes, operands, epilogues.

    left: a map over (*batch, m, k). Source and lookup numbers of all maps, and buffers of plain
    accesses, are positions in `tensors`, the arguments of a call. Sizes of batch and m may be
    symbolic; k and n are numbers. tf32: may f32 operands be rounded to TF32 (as
    `torch.backends.cuda.matmul.allow_tf32` says)? params: number of runtime scalars.
    """

    batch: tuple[Size, ...]
    m: Size
    k: int
    left: IndexMap
    parts: tuple[Part, ...]
    tensors: tuple[Tensor, ...]
    tf32: bool = False
    params: int = 0

    def __post_init__(self) -> None:
        _expect("left", self.left, (*self.batch, self.m, self.k))
        for part in self.parts:
            reason = epilogue.unsupported(part.body)
            if reason is not None:
                raise ValueError(reason)
            for right in part.rights:
                _expect("right", right, (*self.batch, self.k, part.n))

    @cached_property
    def dtype(self) -> DType:
        """The element type of the operands."""
        maps = [self.left, *(right for part in self.parts for right in part.rights)]
        found = {self.tensors[n].dtype for index_map in maps for n in index_map.sources()}
        if len(found) != 1:
            raise ValueError(f"operands of a matmul have one dtype, not {sorted(map(str, found))}")
        return found.pop()

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The names of the size symbols, sorted."""
        given: list[Size] = [*self.batch, self.m]
        for tensor in self.tensors:
            layout = tensor.layout
            given += [*layout.shape, *layout.stride, layout.offset]
        found = {str(s) for x in given if isinstance(x, sympy.Expr) for s in x.free_symbols}
        return tuple(sorted(found))

    @property
    def products(self) -> int:
        """The largest number of products of a part."""
        return max(len(part.rights) for part in self.parts)


def _expect(role: str, index_map: IndexMap, shape: Sequence[Size]) -> None:
    expected = tuple(sizes.as_size(s) for s in shape)
    if index_map.shape != expected:
        raise ValueError(f"the {role} operand has shape {index_map.shape}, not {expected}")


@dataclass(frozen=True)
class Config:
    """How a matmul is tiled.

    stream: multiply-add of a few rows with weights that pass by once, without tensor cores (m at
    most 8, a number); `rows` is then m. swapped: the product is computed transposed, so that
    columns fill the long side of the tensor cores' instruction when there are few rows. splits:
    blocks that share one tile's k; the last to arrive adds the others' sums in order. group: tiles
    of rows that are computed together, for the caches. cut: the loop over k is cut where the pieces
    of an operand meet, so that every load has one source; otherwise the pieces of a step are read
    under masks (the sums are then those of an operand in one piece, bit for bit). groups: k is
    added up in the order 0, g, 2g, .., 1, g+1, ..: channels that a shuffle of g groups interleaved
    are read in runs again. It divides k.
    """

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3
    splits: int = 1
    swapped: bool = False
    stream: bool = False
    group: int = 8
    cut: bool = True
    groups: int = 1

    def __str__(self) -> str:
        kind = "stream" if self.stream else "swapped" if self.swapped else "tile"
        split = f" split {self.splits}" if self.splits > 1 else ""
        size = f"{self.rows}x{self.columns}x{self.depth}"
        whole = "" if self.cut else " uncut"
        whole += f" groups {self.groups}" if self.groups > 1 else ""
        return f"{kind} {size}{split}{whole} warps {self.warps} stages {self.stages}"


@dataclass(eq=False)
class Launch:
    """A matmul with a tiling: called with the tensors, it computes on the current stream.

    Nothing waits for the device, so that a call can be captured in a CUDA graph. Partial sums of a
    split k live in scratch memory that is kept for each device and stream: graphs captured from one
    stream must not be replayed at the same time.
    """

    matmul: Matmul
    config: Config
    source: str
    _scratch: dict[tuple[torch.device, int, int], tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def kernel(self) -> Any:
        """The Triton function."""
        return jit.load(self.source, "matmul")

    @property
    def options(self) -> dict[str, Any]:
        """Triton's launch options."""
        return {"num_warps": self.config.warps, "num_stages": self.config.stages}

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        symbols: Mapping[str, int] | None = None,
        params: Sequence[float] = (),
    ) -> None:
        """Computes into the tensors that the epilogues store to.

        tensors: one for each of the description's; symbols: values of size symbols.
        """
        if len(tensors) != len(self.matmul.tensors):
            raise ValueError(f"{len(tensors)} tensors for {len(self.matmul.tensors)}")
        values = [(symbols or {})[name] for name in self.matmul.symbols]
        grid = self.grid(dict(zip(self.matmul.symbols, values, strict=True)))
        if 0 in grid:
            return
        scratch = self._scratch_of(tensors[0].device, grid) if self.config.splits > 1 else ()
        self.kernel[grid](
            *tensors,
            *scratch,
            *values,
            *params,
            **self.options,
        )

    def compile(self, symbols: Mapping[str, int] | None = None) -> None:
        """Compiles for the current CUDA device, into Triton's cache, without running anything.

        The tensors of later calls are taken to begin at multiples of 16 bytes; sizes are like
        `symbols`. A process pool can so prepare what another process will measure.
        """
        dtypes = [t.dtype.torch_dtype for t in self.matmul.tensors]
        scratch = [torch.float32, torch.int32] if self.config.splits > 1 else []
        values = [(symbols or {})[name] for name in self.matmul.symbols]
        self.kernel.warmup(
            *dtypes,
            *scratch,
            *values,
            *[0.0] * self.matmul.params,
            grid=(1,),
            **self.options,
        )

    def grid(self, symbols: Mapping[str, int]) -> tuple[int, int, int]:
        """(tiles of all parts, splits, batch)."""
        number = _evaluator(symbols)
        m, batch = number(self.matmul.m), number(sizes.product(self.matmul.batch))
        config = self.config
        rows = 1 if config.stream else -(-m // config.rows)
        columns = sum(-(-part.n // config.columns) for part in self.matmul.parts)
        return rows * columns * (m > 0), config.splits, batch

    def _scratch_of(
        self, device: torch.device, grid: tuple[int, int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Partial sums, and a counter a tile that every launch leaves at zero."""
        config = self.config
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        # Sizes are powers of two: few, and each is kept, since a captured graph may use it.
        tiles = 1 << (grid[0] * grid[2] - 1).bit_length()
        key = (device, stream, tiles)
        if key not in self._scratch:
            area = config.rows * config.columns * self.matmul.products
            self._scratch[key] = (
                torch.empty(tiles * config.splits * area, dtype=torch.float32, device=device),
                torch.zeros(tiles, dtype=torch.int32, device=device),
            )
        return self._scratch[key]


def _evaluator(symbols: Mapping[str, int]) -> Callable[[Size], int]:
    def number(size: Size) -> int:
        if isinstance(size, int):
            return size
        return int(size.subs({s: symbols[str(s)] for s in size.free_symbols}))

    return number

"""The meaning of a module, written in torch: slow and plain, for tests and for other interpreters.

Values are tensors that broadcast over the kernel's domain. Sums, products and contractions of f32
are folded in f64 and rounded once, so that what is compared with them has one error, its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from vtc.index.sizes import Size
from vtc.program.dtypes import DType
from vtc.program.module import Buffer, Module, Step
from vtc.program.scalars import REDUCTIONS, SCALARS
from vtc.program.sizes import size_value
from vtc.program.tile import (
    Access,
    Attention,
    Contraction,
    Convolution,
    Instr,
    TileKernel,
    operands,
)
from vtc.program.verify import ProgramError


def evaluate(
    module: Module,
    sizes: Mapping[str, int],
    tensors: Sequence[torch.Tensor | None],
    params: Sequence[float] = (),
) -> None:
    """Runs the module on one tensor a buffer (None for temporaries); stores happen in place.

    sizes: a value for each symbol. A tensor is the memory from its first element on, whatever its
    shape. Raises IndexError where an index given at run time is out of range (PyTorch's rule), and
    ProgramError where the module reads or writes outside of its buffers, stores two points to one
    address, or depends on the order of points.
    """
    pairs = zip(module.buffers, tensors, strict=True)
    memory = [_memory(b, size_value(b.extent, sizes), tensor) for b, tensor in pairs]
    _steps(module, module.steps, _Environment(module, dict(sizes), memory, tuple(params)))


@dataclass(frozen=True)
class _Environment:
    module: Module
    sizes: dict[str, int]
    memory: list[torch.Tensor]
    params: tuple[float, ...]


def _memory(buffer: Buffer, extent: int, tensor: torch.Tensor | None) -> torch.Tensor:
    """The buffer's elements as a flat tensor."""
    dtype = buffer.dtype.torch_dtype
    if buffer.kind == "temporary":
        # Not zeros: what is read before it is stored should show.
        rest = True if dtype is torch.bool else float("nan") if buffer.dtype.is_float else 85
        return torch.full((extent,), rest, dtype=dtype)
    if tensor is None or tensor.dtype is not dtype:
        found = "nothing" if tensor is None else str(tensor.dtype)
        raise ProgramError(None, None, f"buffer {buffer.name} of {dtype} is given {found}")
    offset = tensor.storage_offset()
    room = tensor.untyped_storage().nbytes() // tensor.itemsize - offset
    if room < extent:
        raise ProgramError(None, None, f"buffer {buffer.name} has {room} of {extent} elements")
    return torch.as_strided(tensor, (extent,), (1,), offset)


def _steps(module: Module, steps: Sequence[Step], own: _Environment) -> None:
    for step in steps:
        if isinstance(step, TileKernel):
            sizes = tuple(size_value(s, own.sizes) for s in step.sizes)
            _Run(own, step, sizes).run()
        else:
            taken = step.then if bool(own.memory[step.predicate][0]) else step.otherwise
            _steps(module, taken, own)


@dataclass
class _Address:
    """Element numbers and where they are wanted, both broadcasting over the points."""

    index: torch.Tensor
    mask: torch.Tensor | None

    def at(self, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(numbers of the wanted points, their addresses) in a space of `shape`, row-major."""
        index = self.index.expand(shape).reshape(-1)
        points = torch.arange(index.numel())
        if self.mask is None:
            return points, index
        wanted = self.mask.expand(shape).reshape(-1)
        return points[wanted], index[wanted]


@dataclass
class _Run:
    """One kernel at known sizes."""

    own: _Environment
    kernel: TileKernel
    sizes: tuple[int, ...]
    number: int = 0
    values: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_reduced = self.kernel.is_reduced()
        self.empty = 0 in self.sizes

    def run(self) -> None:
        if 0 in (n for d, n in enumerate(self.sizes) if d not in self.kernel.reduced):
            return
        wanted = _wanted(self.kernel)
        for number, instr in enumerate(self.kernel.body):
            self.number = number
            if number not in wanted:
                self.skip()
            elif instr.op == "store":
                self.store(instr)
                self.values.append(torch.empty(0))
            else:
                self.values.append(self.value(instr))
        self.check_order()

    def skip(self) -> None:
        """Passes over a value that no store needs: nothing is loaded for it."""
        self.values.append(torch.empty(0))

    def space(self, number: int) -> list[int]:
        """The points of an access: those of the domain, or of its dimensions that stay."""
        reduced = self.is_reduced[number]
        return [1 if reduced and d in self.kernel.reduced else n for d, n in enumerate(self.sizes)]

    def fail(self, reason: str) -> ProgramError:
        place = f"%{self.number} {self.kernel.body[self.number].op}"
        return ProgramError(self.kernel.name, place, reason)

    def value(self, instr: Instr) -> torch.Tensor:
        dtype, constant = instr.dtype.torch_dtype, instr.constant
        args = [self.values[a] for a in instr.args]
        if instr.op in SCALARS:
            return SCALARS[instr.op].evaluate(*args)
        if instr.op == "load":
            return self.load(instr, args)
        if instr.op == "const":
            plain = isinstance(constant, bool | float)
            number = constant if plain else size_value(constant, self.own.sizes)
            return self.scalar(number, dtype)
        if instr.op == "param":
            given = self.own.params[constant]
            return self.scalar(given if instr.dtype.is_float else int(given), dtype)
        if instr.op == "iota":
            return self.coordinate(constant, len(self.sizes), self.sizes[constant])
        if instr.op == "cast":
            return cast_to(args[0], constant)
        if instr.op == "reduce":
            return self.reduce(args[0], constant, instr.dtype)
        if instr.op == "scan":
            full = args[0].expand(self.sizes)
            return full if self.empty else _scan(full, constant, min(self.kernel.reduced))
        if instr.op == "matmul":
            return self.matmul(constant).to(dtype)
        if instr.op == "convolution":
            return self.convolution(constant).to(dtype)
        return self.attention(constant).to(dtype)

    def scalar(self, number: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(number, dtype=dtype).reshape((1,) * len(self.sizes))

    def coordinate(self, dim: int, rank: int, size: int) -> torch.Tensor:
        shape = [1] * rank
        shape[dim] = size
        return torch.arange(size).reshape(shape)

    # Memory.

    def address(self, access: Access, sizes: Sequence[int] | None = None) -> _Address:
        """The address at each point of the domain, or of `sizes` (an anchor's operands)."""
        sizes = self.sizes if sizes is None else sizes
        rank = len(sizes)
        own = [self.coordinate(d, rank, n) for d, n in enumerate(sizes)]
        mask: torch.Tensor | None = None
        for bound in access.mask:
            at, (low, high) = own[bound.dim], map(self.size, (bound.low, bound.high))
            holds = (at >= low) & (at < high)
            mask = holds if mask is None else mask & holds
        index = torch.full((1,) * rank, self.size(access.offset))
        for coordinate, stride in zip(own, map(self.size, access.stride), strict=True):
            if stride:
                index = index + stride * coordinate
        for term in access.terms:
            value = self.values[term.value].to(torch.int64)
            if value.dim() < rank:
                value = value.unsqueeze(-1)
            if term.size is not None:
                value = self.wrapped(value, self.size(term.size), mask, sizes)
            index = index + self.size(term.stride) * value
        return _Address(index, mask)

    def size(self, size: Size) -> int:
        return size_value(size, self.own.sizes)

    def wrapped(
        self, value: torch.Tensor, size: int, mask: torch.Tensor | None, sizes: Sequence[int]
    ) -> torch.Tensor:
        """The index counted from the front. Raises IndexError for one that is out of range."""
        outside = (value < -size) | (value >= size)
        if mask is not None:
            outside = outside & mask
        if 0 not in sizes and bool(outside.any()):
            wrong = value.expand(outside.shape)[outside][0]
            raise IndexError(
                f"kernel {self.kernel.name}: index {int(wrong)} is out of bounds for a dimension "
                f"of size {size}"
            )
        return torch.where(value < 0, value + size, value)

    def gather(self, buffer: int, address: _Address, other: torch.Tensor) -> torch.Tensor:
        """The elements of a buffer; `other` where the mask does not hold."""
        memory = self.own.memory[buffer]
        if address.mask is None:
            self.check_range(buffer, address.index.reshape(-1))
            return memory[address.index.reshape(-1)].reshape(address.index.shape).to(other.dtype)
        index, mask, result = torch.broadcast_tensors(address.index, address.mask, other)
        self.check_range(buffer, index[mask])
        result = result.clone()
        result[mask] = memory[index[mask]].to(other.dtype)
        return result

    def check_range(self, buffer: int, index: torch.Tensor) -> None:
        extent = self.own.memory[buffer].numel()
        outside = index[(index < 0) | (index >= extent)]
        if outside.numel():
            name = self.own.module.buffers[buffer].name
            raise self.fail(f"element {int(outside[0])} of {name}, which has {extent}")

    def load(self, instr: Instr, args: list[torch.Tensor]) -> torch.Tensor:
        access = cast(Access, instr.access)
        other = args[0] if args else self.scalar(0, instr.dtype.torch_dtype)
        if self.empty and not self.is_reduced[self.number]:
            # No point of the domain asks for it.
            return torch.zeros(self.sizes, dtype=other.dtype)
        return self.gather(access.buffer, self.address(access), other)

    def store(self, instr: Instr) -> None:
        access = cast(Access, instr.access)
        space = self.space(self.number)
        if 0 in space:
            return
        points, index = self.address(access).at(space)
        self.check_range(access.buffer, index)
        if not access.terms and index.unique().numel() != index.numel():
            raise self.fail("two points store to one address")
        memory = self.own.memory[access.buffer]
        value = self.values[instr.args[0]].expand(space).reshape(-1)[points]
        memory[index] = value.to(memory.dtype)

    def check_order(self) -> None:
        """What the kernel loads is stored by no other point, and not before."""
        wanted = _wanted(self.kernel)
        body = enumerate(self.kernel.body)
        accesses = [(n, i.op, i.access) for n, i in body if i.access and n in wanted]
        for number, op, access in accesses:
            self.number = number
            if op != "store" or 0 in self.space(self.number):
                continue
            loads = [(n, a) for n, o, a in accesses if o == "load" and a.buffer == access.buffer]
            if not loads:
                continue
            owner = torch.full((self.own.memory[access.buffer].numel(),), -1)
            points, index = self.address(access).at(self.space(self.number))
            owner[index] = points
            for earlier, loaded in loads:
                space = self.space(earlier) if self.empty else list(self.sizes)
                if 0 in space:
                    continue
                readers, addresses = self.address(loaded).at(space)
                found = owner[addresses]
                allowed = earlier < number and space == self.space(number)
                if bool(((found >= 0) & ~((found == readers) & allowed)).any()):
                    raise self.fail(f"it stores what another point loads as %{earlier}")

    # Folds and anchors.

    def reduce(self, value: torch.Tensor, name: str, dtype: DType) -> torch.Tensor:
        dims = sorted(self.kernel.reduced)
        full = value.expand(self.sizes)
        kept = [1 if d in self.kernel.reduced else n for d, n in enumerate(self.sizes)]
        if self.empty:
            operand = self.kernel.body[self.kernel.body[self.number].args[0]].dtype
            return torch.full(kept, REDUCTIONS[name].identity(operand), dtype=dtype.torch_dtype)
        outer = [d for d in range(len(self.sizes)) if d not in self.kernel.reduced]
        rows = full.permute(*outer, *dims).reshape(*(self.sizes[d] for d in outer), -1)
        return _fold(rows, name).to(dtype.torch_dtype).reshape(kept)

    def matmul(self, product: Contraction) -> torch.Tensor:
        """The sum over k of left * right, in f64."""
        k, rank = self.size(product.k), len(self.sizes)
        sizes = (*self.sizes, k)
        zero = torch.zeros((1,) * (rank + 1), dtype=torch.float64)
        if 0 in sizes:
            return torch.zeros(self.sizes, dtype=torch.float64)
        operands: list[object] = []
        moving: set[int] = set()
        for access in (product.left, product.right):
            value = self.gather(access.buffer, self.address(access, sizes), zero)
            value = value.expand(*value.shape[:-1], k)
            dims = [d for d in range(rank) if value.shape[d] != 1]
            moving |= set(dims)
            operands += [value.reshape([value.shape[d] for d in (*dims, rank)]), [*dims, rank]]
        result = torch.einsum(*operands, sorted(moving))
        return result.reshape([n if d in moving else 1 for d, n in enumerate(self.sizes)])

    def convolution(self, own: Convolution) -> torch.Tensor:
        """The sum over parts, taps and channels, in f64."""
        total = torch.zeros(self.sizes, dtype=torch.float64)
        taps = [self.size(w.taps) for w in own.windows]
        rank = len(self.sizes)
        if 0 in self.sizes:
            return total
        for tap in itertools.product(*(range(n) for n in taps)):
            at, inside = self.windowed(own, tap)
            for part in own.parts:
                k = self.size(part.k)
                sizes = (*self.sizes, *(1 for _ in taps), k)
                zero = torch.zeros((1,) * len(sizes), dtype=torch.float64)
                left = self.address(part.left, sizes)
                strides = part.left.stride[rank:-1]
                for stride, coordinate in zip(strides, at, strict=True):
                    shape = (*coordinate.shape, *(1 for _ in taps), 1)
                    moved = self.size(stride) * coordinate.reshape(shape)
                    left = _Address(left.index + moved, None)
                mask = inside.reshape(*inside.shape, *(1 for _ in taps), 1)
                right = self.address(part.right, sizes)
                shift = sum(
                    self.size(s) * t for s, t in zip(part.right.stride[rank:-1], tap, strict=True)
                )
                index = right.index + shift
                if own.panel is not None:
                    column = self.coordinate(rank - 1, len(sizes), self.sizes[-1])
                    panel, place = column // own.panel.width, column % own.panel.width
                    index = index + (panel - column) * self.size(part.right.stride[rank - 1])
                    index = index + place
                right = _Address(index, None)
                x = self.gather(part.left.buffer, _Address(left.index, mask), zero)
                w = self.gather(part.right.buffer, right, zero)
                # What a window does not reach counts for nothing, whatever the weight.
                product = torch.where(mask, x * w, zero).expand(sizes).sum(-1)
                total = total + product.reshape(self.sizes)
        return total

    def windowed(
        self, own: Convolution, place: Sequence[int]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The input coordinates of one tap, and at which points they are inside."""
        rank = len(self.sizes)
        inside = torch.ones((1,) * rank, dtype=torch.bool)
        found = []
        for window, tap in zip(own.windows, place, strict=True):
            point = torch.zeros((1,) * rank, dtype=torch.int64)
            if window.dim is not None:
                point = self.coordinate(window.dim, rank, self.sizes[window.dim])
            shift = self.size(window.dilation) * tap - self.size(window.pad)
            at = self.size(window.stride) * point + shift
            inside = inside & (at >= 0) & (at < self.size(window.extent))
            found.append(at)
        return found, inside

    def attention(self, own: Attention) -> torch.Tensor:
        """softmax(scale * q @ k^T + mask) @ v in f64; 0 for a query that sees no key."""
        length, head = self.size(own.length), self.size(own.head_dim)
        outer, rows, columns = self.sizes[:-2], self.sizes[-2], self.sizes[-1]
        query = self.operand(own.query, (*outer, rows, head, 1))[..., 0]
        key = self.operand(own.key, (*outer, 1, head, length))[..., 0, :, :]
        value = self.operand(own.value, (*outer, 1, columns, length))[..., 0, :, :]
        scale = head**-0.5 if own.scale is None else own.scale
        scores = (query @ key) * scale
        if own.softcap is not None:
            scores = own.softcap * torch.tanh(scores / own.softcap)
        if own.mask is not None:
            sizes = (*outer, rows, 1, length)
            mask = self.operand(own.mask, sizes)[..., 0, :]
            if self.own.module.buffers[own.mask.buffer].dtype is DType.BOOL:
                mask = torch.where(mask != 0, 0.0, float("-inf"))
            scores = scores + mask
        if own.causal:
            last = torch.arange(rows)[:, None] + self.size(own.shift)
            keys = torch.arange(length)
            seen = keys <= last
            if own.window is not None:
                seen = seen & (keys > last - self.size(own.window))
            scores = scores.masked_fill(~seen, float("-inf"))
        if length == 0:
            return torch.zeros(self.sizes, dtype=torch.float64)
        blind = (scores == float("-inf")).all(-1, keepdim=True)
        weights = torch.softmax(scores, -1).masked_fill(blind, 0.0)
        return weights @ value.transpose(-1, -2)

    def operand(self, access: Access, sizes: Sequence[int]) -> torch.Tensor:
        """An operand of attention in f64, at every point of `sizes`."""
        zero = torch.zeros((1,) * len(sizes), dtype=torch.float64)
        return self.gather(access.buffer, self.address(access, sizes), zero).expand(*sizes)


def _wanted(kernel: TileKernel) -> set[int]:
    """The stores, and the values that they need."""
    wanted: set[int] = set()
    for number in range(len(kernel.body) - 1, -1, -1):
        instr = kernel.body[number]
        if instr.op == "store" or number in wanted:
            parts = [instr.access, *operands(instr.constant)]
            terms = [t.value for a in parts if a is not None for t in a.terms]
            wanted |= {number, *instr.args, *terms}
    return wanted


def cast_to(value: torch.Tensor, target: DType) -> torch.Tensor:
    """A value of a compute type converted to `target`, in its compute type.

    From a float to an integer: towards zero; what does not fit, NaN too, is the lowest integer of
    the compute type, of which a narrow target keeps the low bits. This is what x86 does.
    """
    compute = target.compute.torch_dtype
    if target is DType.BOOL:
        return value != 0
    if target.is_integer and value.is_floating_point():
        lowest = torch.iinfo(compute).min
        whole = value.to(torch.float64).trunc()
        fits = (whole >= lowest) & (whole < -float(lowest))
        integer = torch.where(fits, whole, 0).to(compute)
        value = torch.where(fits, integer, lowest)
    if target in (DType.F16, DType.BF16):
        value = value.to(torch.float32)
    return value.to(target.torch_dtype).to(compute)


def _fold(rows: torch.Tensor, name: str) -> torch.Tensor:
    """The reduction of the last dimension, which is not empty."""
    wide = torch.float64 if rows.is_floating_point() else rows.dtype
    if name == "sum":
        return rows.sum(-1, dtype=wide)
    if name == "prod":
        return rows.prod(-1, dtype=wide)
    plain = {"max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all}
    if name in plain:
        return plain[name](rows, -1)
    return (torch.argmax if name == "argmax" else torch.argmin)(rows, -1)


def _scan(value: torch.Tensor, name: str, dim: int) -> torch.Tensor:
    """The running fold along a dimension."""
    wide = torch.float64 if value.is_floating_point() else value.dtype
    if name == "sum":
        return value.cumsum(dim, dtype=wide).to(value.dtype)
    if name == "prod":
        return value.cumprod(dim, dtype=wide).to(value.dtype)
    return (torch.cummax if name == "max" else torch.cummin)(value, dim).values

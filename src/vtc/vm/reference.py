"""The definition of the bytecode: an interpreter that does what the table of `isa` says, slowly.

One thread runs all tasks in order. Registers are bytes at the places that the kernel's head gives
them, so that an encoder that lets two live values share memory shows here as well. Sums, products
and contractions of f32 are folded in f64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, SupportsInt

import torch

from vtc.program.dtypes import DType
from vtc.program.evaluate import cast_to
from vtc.program.scalars import REDUCTIONS, SCALARS
from vtc.vm import decode, isa
from vtc.vm.decode import AccessWords, BufferWords
from vtc.vm.reference_tile import Loop, Program, Tile


def run(
    words: Iterable[SupportsInt],
    buffers: Sequence[torch.Tensor | None],
    params: Sequence[float] = (),
) -> None:
    """Runs a program; stores happen in place.

    words: as `Encoded.words`. buffers: a tensor for each of the caller's buffers, taken as memory
    from its first element on; None for temporaries. Raises IndexError where an index given
    at run time is out of range, ValueError for words that are no program or that leave a buffer or
    register.
    """
    program = [int(w) for w in words]
    if len(program) < isa.HEAD_WORDS or program[0] != isa.MAGIC or program[1] != len(program):
        raise ValueError("these words are no program")
    _Machine(program, list(params)).run(buffers)


class _Machine(Program):
    """The steps of a program."""

    def run(self, buffers: Sequence[torch.Tensor | None]) -> None:
        # Neither arena nor registers start as zeros: what is read before it is written shows.
        arena = torch.full((self.words[2],), 0xA5, dtype=torch.uint8)
        own = decode.buffers(self.words)
        given = [
            _given(n, b, buffers[n]) if b.kind == "callers" else None for n, b in enumerate(own)
        ]
        for buffer, tensor in zip(own, given, strict=True):
            if tensor is None:
                host = given[buffer.host] if buffer.kind == "hosted" else None
                room = arena if host is None else host.view(torch.uint8)
                tensor = room[buffer.offset : buffer.offset + buffer.bytes].fill_(0xA5)
                tensor = tensor.view(buffer.dtype.torch_dtype)
            self.memory.append(tensor)
        at = isa.HEAD_WORDS + len(own) * isa.BUFFER_WORDS
        while at >= 0:
            at = self.step(at)

    def step(self, at: int) -> int:
        """Runs the step at word `at`; gives the next one, -1 behind the last."""
        name = isa.BY_NUMBER[isa.field(self.words[at], "op")].name
        if name == "END":
            return -1
        if name == "BARRIER":
            return at + 1
        if name == "JUMP":
            return self.words[at + 1]
        if name == "BRANCH":
            taken = bool(self.memory[self.words[at + 1]][0])
            return at + 3 if taken else self.words[at + 2]
        if name != "KERNEL":
            raise ValueError(f"word {at}: {name} is no step")
        kernel = decode.kernel(self.words, at)
        _Kernel(self, kernel).run()
        return kernel.end


def _given(number: int, buffer: BufferWords, tensor: torch.Tensor | None) -> torch.Tensor:
    """A buffer of the caller's as memory."""
    dtype = buffer.dtype.torch_dtype
    if tensor is None or tensor.dtype is not dtype:
        raise ValueError(f"buffer {number} of {dtype} is not given")
    return torch.as_strided(tensor, (buffer.extent,), (1,), tensor.storage_offset())


class _Kernel(Tile):
    """Every instruction, by the name of its operator in small letters."""

    def run(self) -> None:
        sizes, spans = self.kernel.sizes, self.kernel.spans
        counts = [max(1, -(-n // span)) for n, span in zip(sizes, spans, strict=True)]
        self.first = [0] * len(sizes)
        self.end = [min(n, span) for n, span in zip(sizes, spans, strict=True)]
        self.interpret(self.kernel.prologue)
        places = torch.cartesian_prod(*(torch.arange(n) for n in counts)) if counts else None
        tasks = [[]] if places is None else places.reshape(-1, len(counts)).tolist()
        for self.task, place in enumerate(tasks):
            self.first = [p * span for p, span in zip(place, spans, strict=True)]
            self.end = [
                min(n, f + span) for n, f, span in zip(sizes, self.first, spans, strict=True)
            ]
            self.interpret(self.kernel.body)

    def interpret(self, at: int) -> None:
        self.coordinate = list(self.first)
        self.loops = []
        while True:
            word = self.machine.words[at]
            op = isa.BY_NUMBER[isa.field(word, "op")]
            self.at = at
            if op.name == "DONE":
                return
            if op.name == "LOOP":
                at = self.loop(at, word)
            elif op.name == "ENDLOOP":
                at = self.endloop(at)
            else:
                if op.family == "scalar":
                    self.scalar(op.name, word)
                else:
                    _INSTRUCTIONS[op.name](self, word)
                at += decode.length_at(self.machine.words, at)

    def loop(self, at: int, word: int) -> int:
        dim, step = isa.field(word, "dst"), self.word(0)
        behind = at + self.word(1)
        if self.first[dim] >= self.end[dim]:
            return behind
        self.coordinate[dim] = self.first[dim]
        self.loops.append(Loop(dim, step, at))
        return at + isa.field(word, "length")

    def endloop(self, at: int) -> int:
        loop = self.loops[-1]
        word = self.machine.words[at]
        if at - self.word(0) != loop.at:
            raise self.fault("it ends another loop")
        self.coordinate[loop.dim] += loop.step
        if self.coordinate[loop.dim] < self.end[loop.dim]:
            return loop.at + isa.field(self.machine.words[loop.at], "length")
        self.coordinate[loop.dim] = self.first[loop.dim]
        self.loops.pop()
        return at + isa.field(word, "length")

    # Memory.

    def load(self, word: int) -> None:
        access, _ = decode.access(self.machine.words, self.at + 2)
        zero = torch.zeros(1, 1, dtype=self.type(word).torch_dtype)
        other = self.read(word, "a") if self.word(0) & 1 else zero
        self.write(word, self.gather(access, self.points(isa.field(word, "kind_dst")), other))

    def store(self, word: int) -> None:
        access, _ = decode.access(self.machine.words, self.at + 2)
        kind = isa.field(word, "kind_dst")
        shape = self.shape(kind)
        index, mask = (t.expand(shape) for t in self.address(access, self.points(kind)))
        memory = self.machine.memory[access.buffer]
        memory[index[mask]] = self.read(word, "a").expand(shape)[mask].to(memory.dtype)

    # Values.

    def scalar(self, name: str, word: int) -> None:
        row = SCALARS[name]
        types = [self.type(word)] * row.arity
        if name == "select":
            types[0] = DType.BOOL
        args = [self.read(word, *own) for own in zip("abc", types, strict=False)]
        result = DType.BOOL if row.result == "bool" else self.type(word)
        self.write(word, row.evaluate(*args), result)

    def const(self, word: int) -> None:
        dtype = self.type(word)
        value = self.number(0) if dtype.is_float else self.word(0)
        self.write(word, torch.tensor(value, dtype=dtype.torch_dtype).reshape(1, 1))

    def param(self, word: int) -> None:
        dtype = self.type(word)
        value = self.machine.params[self.word(0)]
        number = value if dtype.is_float else int(value)
        self.write(word, torch.tensor(number, dtype=dtype.torch_dtype).reshape(1, 1))

    def iota(self, word: int) -> None:
        self.write(word, self.coordinates(self.word(0), isa.field(word, "kind_dst")))

    def move(self, word: int) -> None:
        self.write(word, self.read(word, "a"))

    def bind(self, word: int) -> None:
        """An allowance; this interpreter keeps every register in its own memory."""

    def cast(self, word: int) -> None:
        target = self.type(word, "type2")
        self.write(word, cast_to(self.read(word, "a"), target), target.compute)

    # Folds.

    def folded(self, word: int) -> str:
        return isa.FOLDS[self.word(0)]

    def place(self, kind: int) -> torch.Tensor:
        """The place of each point, by the place strides behind the fold."""
        place = torch.tensor(0)
        for dim, point in enumerate(self.points(kind)):
            place = place + self.word(1 + dim) * point
        return place.expand(self.shape(kind))

    def reduce(self, word: int) -> None:
        name, kind = self.folded(word), isa.field(word, "kind_dst")
        value = self.read(word, "a")
        places = self.place(isa.field(word, "kind_a")) if name.startswith("arg") else None
        total, where = _fold(name, value, places, self.axes(word))
        if where is None:
            self.write(word, total)
        else:
            self.write(word, where.clamp(min=0).expand(self.shape(kind)), DType.I64)

    def axes(self, word: int) -> list[int]:
        """The axes along which operand a varies and the result does not."""
        folded = isa.field(word, "kind_a") & ~isa.field(word, "kind_dst")
        return [axis for axis, bit in enumerate((isa.ROW, isa.COLUMN)) if folded & bit]

    def places(self, word: int) -> torch.Tensor:
        return self.register(isa.field(word, "b"), DType.I64, isa.field(word, "kind_dst"))

    def init(self, word: int) -> None:
        name = self.folded(word)
        dtype = self.type(word, "type2")
        if name.startswith("arg"):
            # No place yet: anything beats it.
            self.places(word).fill_(-1)
            identity: float | int | bool = 0
        else:
            identity = REDUCTIONS[name].identity(dtype)
        self.write(word, torch.tensor(identity, dtype=dtype.torch_dtype).reshape(1, 1), dtype)

    def accum(self, word: int) -> None:
        name, dtype = self.folded(word), self.type(word, "type2")
        kind = isa.field(word, "kind_dst")
        value = self.read(word, "a").to(dtype.torch_dtype)
        arg = name.startswith("arg")
        places = self.place(isa.field(word, "kind_a")) if arg else None
        total, where = _fold(name, value, places, self.axes(word))
        before = self.register(isa.field(word, "dst"), dtype, kind).clone()
        known = self.places(word).clone() if arg else None
        total, where = _join(name, (before, known), (total, where))
        self.write(word, total, dtype)
        if where is not None:
            self.places(word).copy_(where)

    def finish(self, word: int) -> None:
        dtype, kind = self.type(word), isa.field(word, "kind_dst")
        if isa.FOLDS[self.word(0)].startswith("arg"):
            self.write(word, self.places(word).clamp(min=0), DType.I64)
            return
        held = self.register(isa.field(word, "a"), self.type(word, "type2"), kind).clone()
        self.write(word, held.to(dtype.torch_dtype))

    def scan(self, word: int) -> None:
        name, dim, wide = self.folded(word), self.word(1), self.type(word, "type2")
        value = self.read(word, "a").to(wide.torch_dtype)
        value = value.expand(self.shape(isa.field(word, "kind_dst")))
        before = self.read(word, "b", wide)
        axes = (self.kernel.row, self.kernel.column)
        if dim in axes:
            axis = axes.index(dim)
            running = _running(name, torch.cat([before.expand_as(value.narrow(axis, 0, 1)), value],
                                               axis), axis)  # fmt: skip
            running = running.narrow(axis, 1, value.shape[axis])
            last = running.narrow(axis, value.shape[axis] - 1, 1)
        else:
            running, _ = _join(name, (before, None), (value, None))
            last = running
        self.write(word, running.to(self.type(word).torch_dtype))
        kind = isa.field(word, "kind_b")
        self.register(isa.field(word, "b"), wide, kind).copy_(last)

    def spill(self, word: int) -> None:
        dtype, kind = self.type(word, "type2"), isa.field(word, "kind_a")
        held = self.register(isa.field(word, "a"), dtype, kind).clone()
        places = None
        if self.folded(word).startswith("arg"):
            places = self.register(isa.field(word, "b"), DType.I64, kind).clone()
        self.machine.kept[self.word(1) + self.task * self.word(2)] = held, places

    def merge(self, word: int) -> None:
        name, dtype = self.folded(word), self.type(word, "type2")
        offset, size, tasks, group = (self.word(n) for n in (1, 2, 3, 4))
        first = self.task // group * tasks
        total, places = self.machine.kept[offset + first * size]
        for task in range(first + 1, first + tasks):
            total, places = _join(name, (total, places), self.machine.kept[offset + task * size])
        self.write(word, total, dtype)
        if places is not None:
            self.places(word).copy_(places)

    # Anchors. Their points have further axes behind those of the tile.

    def matmul(self, word: int) -> None:
        depth = self.word(0)
        left, at = decode.access(self.machine.words, self.at + 3)
        right, _ = decode.access(self.machine.words, at)
        kind = isa.field(word, "kind_dst")
        points = [p.unsqueeze(-1) for p in self.points(kind)]
        points.append(torch.arange(depth).reshape(1, 1, -1))
        zero = torch.zeros(1, 1, 1, dtype=torch.float64)
        own = self.gather(left, points, zero)
        if self.word(1):
            right, points = self.panels(right, points)
        product = own * self.gather(right, points, zero)
        self.write(word, product.expand(*product.shape[:2], depth).sum(-1))

    def panels(
        self, right: AccessWords, points: list[torch.Tensor]
    ) -> tuple[AccessWords, list[torch.Tensor]]:
        """An access of panels as a plain one: the inside of a panel is a dimension of its own."""
        width, depth = self.word(1) & 0xFFFFFFFF, self.word(1) >> 32
        *outer, k = points
        inside = k % depth
        column = self.kernel.column
        if column is not None:
            inside = inside + outer[column] % width * depth
            outer[column] = outer[column] // width
        return replace(right, strides=(*right.strides, 1)), [*outer, k // depth, inside]

    def convolution(self, word: int) -> None:
        own = decode.convolution(self.machine.words, self.at)
        kind = isa.field(word, "kind_dst")
        points = self.points(kind)
        digits = [points[d.dim] // d.divisor % d.size for d in own.digits]
        start = [torch.zeros(1, 1, dtype=torch.int64)] * len(own.windows)
        for digit, value in zip(own.digits, digits, strict=True):
            if digit.window is not None:
                start[digit.window] = value
        total = torch.zeros(self.shape(kind), dtype=torch.float64)
        for taps in itertools.product(*(range(w.taps) for w in own.windows)):
            at = [
                w.stride * point + w.dilation * tap - w.pad
                for w, point, tap in zip(own.windows, start, taps, strict=True)
            ]
            inside = torch.ones(1, 1, 1, dtype=torch.bool)
            for w, q in zip(own.windows, at, strict=True):
                inside = inside & ((q >= 0) & (q < w.extent)).unsqueeze(-1)
            for part in own.parts:
                k = torch.arange(part.k).reshape(1, 1, -1)
                left = self.windowed(part.left, [*digits, *at], k, inside)
                fixed = [torch.full((1, 1, 1), tap) for tap in taps]
                zero = torch.zeros(1, 1, 1, dtype=torch.float64)
                access, at_right = part.right, [*(p.unsqueeze(-1) for p in points), *fixed, k]
                if own.width and self.kernel.column is not None:
                    column = at_right[self.kernel.column]
                    access = replace(access, strides=(*access.strides, 1))
                    at_right[self.kernel.column] = column // own.width
                    at_right.append(column % own.width)
                right = self.gather(access, at_right, zero)
                product = torch.where(inside, left * right, zero).expand(*total.shape, part.k)
                total = total + product.sum(-1)
        found = total.to(self.type(word).torch_dtype)
        found = found * self.read(word, "a") if own.scaled else found
        found = found + self.read(word, "b") if own.shifted else found
        low, high = (torch.tensor(x, dtype=found.dtype) for x in (own.low, own.high))
        self.write(word, torch.minimum(torch.maximum(found, low), high))

    def windowed(
        self, left: AccessWords, at: Sequence[torch.Tensor], k: torch.Tensor, inside: torch.Tensor
    ) -> torch.Tensor:
        """The elements of a left operand at digits and input coordinates, 0 where not `inside`."""
        zero = torch.zeros(1, 1, 1, dtype=torch.float64)
        points = [*(p.unsqueeze(-1) for p in at), k]
        index = sum((s * p for s, p in zip(left.strides, points, strict=True)),
                    torch.tensor(left.offset))  # fmt: skip
        index, mask, result = torch.broadcast_tensors(index, inside, zero)
        memory = self.machine.memory[left.buffer]
        outside = mask & ((index < 0) | (index >= memory.numel()))
        if bool(outside.any()):
            raise self.fault(f"element {int(index[outside][0])} of a buffer of {memory.numel()}")
        result = result.clone()
        result[mask] = memory[index[mask]].to(result.dtype)
        return result

    def attention(self, word: int) -> None:
        length, head, flags, softcap = self.word(0), self.word(1), self.word(3), self.number(4)
        query, at = decode.access(self.machine.words, self.at + 9)
        key, at = decode.access(self.machine.words, at)
        value, at = decode.access(self.machine.words, at)
        # Points are [row, column, key]; of queries and keys, columns are the positions in a head.
        rows = [p.unsqueeze(-1) for p in self.points(isa.ROW)]
        depth, keys = torch.arange(head).reshape(1, -1, 1), torch.arange(length).reshape(1, 1, -1)
        along = [depth if d == self.kernel.column else p for d, p in enumerate(rows)]
        zero = torch.zeros(1, 1, 1, dtype=torch.float64)
        shape = (self.extent(self.kernel.row), head, length)
        q, k = (self.gather(a, [*along, keys], zero).expand(shape) for a in (query, key))
        scores = (q * k).sum(1) * self.number(2)
        if flags & 1:
            scores = softcap * torch.tanh(scores / softcap)
        if flags & 8:
            access, _ = decode.access(self.machine.words, at)
            scores = scores + self.masked(access, [*rows, keys])
        if flags & 2:
            scores = scores.masked_fill(~self.seen(flags), float("-inf"))
        blind = (scores == float("-inf")).all(-1, keepdim=True)
        weights = torch.softmax(scores, -1).masked_fill(blind, 0.0)
        points = [p.unsqueeze(-1) for p in self.points(isa.FULL)]
        v = self.gather(value, [*points, keys], zero)
        result = weights.unsqueeze(1) * v.expand(shape[0], self.extent(self.kernel.column), length)
        self.write(word, result.sum(-1))

    def masked(self, access: AccessWords, points: list[torch.Tensor]) -> torch.Tensor:
        """What attention's mask adds to the scores [row, key]."""
        zero = torch.zeros(1, 1, 1, dtype=torch.float64)
        mask = self.gather(access, points, zero)[:, 0]
        if self.machine.memory[access.buffer].dtype is torch.bool:
            return torch.where(mask != 0, 0.0, float("-inf"))
        return mask

    def seen(self, flags: int) -> torch.Tensor:
        """Which keys causal attention sees, [row, key]."""
        keys, dim = torch.arange(self.word(0)), self.word(7)
        position = torch.zeros(1, 1) if dim == isa.NO_DIM else self.coordinates(dim, isa.ROW)
        last = position + self.word(5)
        seen = keys <= last
        return seen & (keys > last - self.word(6)) if flags & 4 else seen


_INSTRUCTIONS: dict[str, Callable[[_Kernel, int], None]] = {
    op.name: getattr(_Kernel, op.name.lower())
    for op in isa.OPS
    if op.family in ("data", "fold", "anchor")
}

_Held = tuple[torch.Tensor, torch.Tensor | None]


def _fold(
    name: str, value: torch.Tensor, places: torch.Tensor | None, axes: Sequence[int]
) -> _Held:
    """The fold of a tile along axes that stay as size 1, with the places of what won."""
    if places is None:
        for axis in axes:
            value = _fold_axis(name, value, axis)
        return value, None
    held: _Held = value, places
    for axis in axes:
        # In order, so that of equals the first place wins.
        parts = zip(held[0].split(1, axis), places.split(1, axis), strict=True)
        held = next(parts)
        for part in parts:
            held = _join(name, held, part)
        places = held[1] if held[1] is not None else places
    return held


def _fold_axis(name: str, value: torch.Tensor, axis: int) -> torch.Tensor:
    if name in ("sum", "prod"):
        wide = torch.float64 if value.is_floating_point() else value.dtype
        total = getattr(torch, name)(value, axis, keepdim=True, dtype=wide)
        return total.to(value.dtype)
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all
    }  # fmt: skip
    return functions[name](value, axis, keepdim=True)


def _join(name: str, a: _Held, b: _Held) -> _Held:
    """The fold of two values, elementwise."""
    if a[1] is None or b[1] is None:
        functions: dict[str, Callable[..., torch.Tensor]] = {
            "sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum,
            "any": torch.logical_or, "all": torch.logical_and,
        }  # fmt: skip
        return functions[name](a[0], b[0]), None
    (x, i), (y, j) = (a[0], a[1]), (b[0], b[1])
    better = y > x if name == "argmax" else y < x
    # NaN beats every number; of two NaNs or two equals the first place wins.
    wins = (better | (y.isnan() & ~x.isnan())) & ~(x.isnan() & ~y.isnan())
    equal = (x == y) | (x.isnan() & y.isnan())
    taken = (j >= 0) & ((i < 0) | wins | (equal & (j < i)))
    return torch.where(taken, y, x), torch.where(taken, j, i)


def _running(name: str, value: torch.Tensor, axis: int) -> torch.Tensor:
    """The running fold along an axis."""
    if name in ("sum", "prod"):
        cumulative: Any = torch.cumsum if name == "sum" else torch.cumprod
        running: torch.Tensor = cumulative(value, axis, dtype=value.dtype)
        return running
    return (torch.cummax if name == "max" else torch.cummin)(value, axis).values

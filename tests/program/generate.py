"""Random tile programs with the tensors to run them on: a seed gives one case, always the same.

Every module is well formed and stays inside of its buffers at any sizes; a few index tensors hold
an index that is out of range, which is an IndexError. What is random are the domains (sizes
symbolic, 0 and 1 included), layouts (permuted, padded, reversed, broadcast), masks, lookups,
dtypes, operators, folds, anchors, and how kernels hang together through temporaries, branches and
runtime scalars.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
import torch

from program import convolutions
from program.building import Kernel
from program.panels import fill_panels
from vtc.index.sizes import Size, floor_div
from vtc.program.dtypes import DType
from vtc.program.module import Branch, Buffer, Module, Step
from vtc.program.scalars import REDUCTIONS, SCALARS
from vtc.program.sizes import size_value
from vtc.program.tile import Access, Attention, Bound, Panel, Term
from vtc.program.verify import verify

EXTENTS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 100, 129, 300, 1031)
MAX_POINTS = 6000
LARGE_EXTENTS = (1, 3, 17, 64, 300, 1031, 4097, 70001, 131072)
LARGE_POINTS = 300_000
MAX_REACH = 1100  # of a lookup, whose buffer is as many times larger
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, -3e-45, 1e-38, 3e38, 1e10, -1e-20)
FLOATS = (DType.F32, DType.F32, DType.F64, DType.BF16, DType.F16)
OTHERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL)


@dataclass(frozen=True)
class Case:
    """A module, its sizes, a tensor for each buffer (None for temporaries) and runtime scalars."""

    seed: int
    module: Module
    sizes: dict[str, int]
    tensors: list[torch.Tensor | None]
    params: tuple[float, ...]


def generate(seed: int, large: bool = False) -> Case:
    """The case of a seed. A large one has domains that threads share, and split reductions."""
    made = _Generator(random.Random(seed), seed)
    if large:
        made.extents, made.room, made.reach = LARGE_EXTENTS, LARGE_POINTS, 8
    return made.case()


@dataclass
class _Dense:
    """A buffer that a kernel filled over a domain; its layout is that of the domain, contiguous."""

    buffer: int
    sizes: tuple[Size, ...]


@dataclass
class _Generator:
    rng: random.Random
    seed: int
    sizes: dict[str, int] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    highest: dict[int, int] = field(default_factory=dict)  # of an index buffer: its dimension
    permuted: set[int] = field(default_factory=set)  # index buffers that hold a permutation
    dense: list[_Dense] = field(default_factory=list)
    stored: list[_Dense] = field(default_factory=list)  # by the kernel at hand
    params: list[float] = field(default_factory=list)
    packs: list[tuple[Access, Panel, Access, tuple[Size, ...]]] = field(default_factory=list)
    special: bool = False
    extents: tuple[int, ...] = EXTENTS
    room: int = MAX_POINTS
    reach: int = MAX_REACH

    def case(self) -> Case:
        rng = self.rng
        self.special = rng.random() < 0.4
        for n in range(rng.randint(0, 3)):
            self.sizes[f"s{n}"] = rng.choice(self.extents)
        self.params = [
            rng.choice((0.0, 1.0, -2.5, 3.0, 7.0, 100.0)) for _ in range(rng.randint(0, 2))
        ]
        steps = [step for n in range(rng.randint(1, 4)) for step in self.steps(n)]
        module = Module(tuple(self.sizes), tuple(self.buffers), tuple(steps), len(self.params))
        verify(module)
        tensors = [self.tensor(n, b) for n, b in enumerate(self.buffers)]
        for packed, panel, right, sizes in self.packs:
            fill_panels(tensors, packed, panel, right, sizes, self.value)
        return Case(self.seed, module, self.sizes, tensors, tuple(self.params))

    def steps(self, number: int) -> list[Step]:
        rng = self.rng
        if rng.random() < 0.08:
            return self.branch(number)
        # Drawn apart, so that programs without convolutions stay what they were.
        if random.Random(self.seed * 1000 + 500 + number).random() < 0.07:
            return self.kept(self.convolution(f"k{number}"))
        kinds = (self.pointwise, self.folds, self.scan, self.matmul, self.attention)
        kind = rng.choices(kinds, (40, 30, 8, 12, 10))[0]
        return self.kept(kind(f"k{number}"))

    def kept(self, kernel: Kernel) -> list[Step]:
        """The kernel, whose dense results may be read from now on."""
        self.dense += self.stored
        self.stored = []
        return [kernel.done()]

    # Sizes, buffers and tensors.

    def value(self, size: Size) -> int:
        return size_value(size, self.sizes)

    def extent(self, room: int) -> Size:
        """A size of at most `room`."""
        rng = self.rng
        known = [s for s, n in self.sizes.items() if n <= room]
        if known and rng.random() < 0.5:
            symbol = sympy.Symbol(rng.choice(known), integer=True, positive=True)
            choices: list[Size] = [symbol, symbol, symbol + 1, 2 * symbol]
            chosen = rng.choice(choices)
            return chosen if self.value(chosen) <= room else symbol
        return rng.choice([n for n in self.extents if n <= room])

    def domain(self, least: int = 0, most: int = 4) -> tuple[Size, ...]:
        room, sizes = self.room, []
        for _ in range(self.rng.randint(least, most)):
            size = self.extent(room)
            sizes.append(size)
            room //= max(1, self.value(size))
        self.rng.shuffle(sizes)
        return tuple(sizes)

    def buffer(self, kind: str, dtype: DType, extent: Size) -> int:
        number = len(self.buffers)
        letter = {"input": "x", "output": "y", "temporary": "t"}[kind]
        self.buffers.append(Buffer(f"{letter}{number}", kind, dtype, extent))  # type: ignore[arg-type]
        return number

    def tensor(self, number: int, buffer: Buffer) -> torch.Tensor | None:
        if buffer.kind == "temporary":
            return None
        count, dtype = self.value(buffer.extent), buffer.dtype.torch_dtype
        source = torch.Generator().manual_seed(self.seed * 1000 + number)
        if number in self.highest:
            high = self.highest[number]
            found = torch.randint(-high, high, (count,), generator=source).to(dtype)
            if count and self.rng.random() < 0.03:
                found[self.rng.randrange(count)] = self.rng.choice((high, -high - 1, 2**31 - 1))
            return found
        if number in self.permuted:
            return torch.randperm(count, generator=source) - count * self.rng.randint(0, 1)
        if buffer.dtype is DType.BOOL:
            return torch.rand(count, generator=source) < 0.5
        if buffer.dtype.is_float:
            values = torch.randn(count, generator=source, dtype=torch.float64)
            values *= self.rng.choice((1.0, 1.0, 1.0, 10.0, 0.01))
            if self.special:
                for at in self.rng.sample(range(count), count // 20):
                    values[at] = self.rng.choice(SPECIAL)
            return values.to(dtype)
        info = torch.iinfo(dtype)
        small = torch.randint(max(-9, info.min), 10, (count,), generator=source).to(dtype)
        if self.special:
            for at in self.rng.sample(range(count), count // 20):
                small[at] = self.rng.choice((info.min, info.max, info.max // 3))
        return small

    def dtype(self) -> DType:
        return self.rng.choice(FLOATS) if self.rng.random() < 0.7 else self.rng.choice(OTHERS)

    # Accesses.

    def layout(
        self, sizes: Sequence[Size], moving: Sequence[int], step: Size = 1
    ) -> tuple[Size, list[Size], Size]:
        """(offset, strides, extent) of a layout of its own for the dimensions in `moving`."""
        rng = self.rng
        order = list(moving)
        if rng.random() < 0.4:
            rng.shuffle(order)
        pads = [rng.choice((0, 0, 0, 1, 3)) for _ in order]
        reverse = {d for d in order if rng.random() < 0.08}
        strides: list[Size] = [0] * len(sizes)
        offset: Size = rng.choice((0, 0, 0, 1, 5))
        first = offset
        for d, pad in zip(reversed(order), pads, strict=True):
            strides[d] = step
            if d in reverse:
                offset = offset + step * (sizes[d] - 1)
                strides[d] = -step
            step = step * (sizes[d] + pad)
        return _size(offset), [_size(s) for s in strides], _size(first + step)

    def load(self, k: Kernel, dtype: DType | None = None) -> int:
        """A load of something that may be read: a temporary of this domain, or a new input."""
        rng = self.rng
        same = [d for d in self.dense if d.sizes == k.sizes]
        if same and dtype is None and rng.random() < 0.6:
            found = rng.choice(same)
            own = self.buffers[found.buffer].dtype
            return k.load(found.buffer, *contiguous(k.sizes), dtype=own)
        dtype = self.dtype() if dtype is None else dtype
        moving = [d for d in range(len(k.sizes)) if rng.random() < 0.75]
        sizes, masks, terms = list(k.sizes), [], []
        low = {}
        for d in moving:
            if rng.random() < 0.12:
                # Elements low .. high of the domain, which need not lie inside of it.
                low[d], sizes[d] = rng.randint(-2, 4), rng.randint(1, 9)
                masks.append(Bound(d, low[d], low[d] + sizes[d]))
        index = self.index(k) if rng.random() < 0.15 else None
        if index is not None and self.value(index[2]) > self.reach:
            index = None
        step: Size = 1
        if index is not None and rng.random() < 0.5:
            terms.append(Term(index[0], 1, index[1]))
            step = index[2]
            index = None
        offset, strides, extent = self.layout(sizes, moving, step)
        if index is not None:
            terms.append(Term(index[0], extent, index[1]))
            extent = _size(extent * index[2])
        for d, start in low.items():
            offset = _size(offset - start * strides[d])
        other = None
        if masks and rng.random() < 0.6:
            other = self.pick(k, dtype.compute)
        number = self.buffer("input", dtype, extent)
        return k.load(number, *strides, offset=offset, dtype=dtype, other=other,
                      terms=tuple(terms), mask=tuple(masks))  # fmt: skip

    def index(self, k: Kernel) -> tuple[int, Size | None, Size] | None:
        """(value, size of a checked term, elements that it may reach)."""
        rng = self.rng
        if not k.sizes or rng.random() < 0.6:
            high = rng.choice((1, 3, 8))
            moving = [d for d in range(len(k.sizes)) if rng.random() < 0.5]
            offset, strides, extent = self.layout(k.sizes, moving)
            dtype = rng.choice((DType.I64, DType.I32))
            number = self.buffer("input", dtype, extent)
            self.highest[number] = high
            return k.load(number, *strides, offset=offset, dtype=dtype), high, high
        dim, by = rng.randrange(len(k.sizes)), rng.choice((1, 2, 3, 5))
        operator = rng.choice(("floordiv", "fmod"))
        value = k.op(operator, k.iota(dim), k.const(by, DType.I64))
        reach = by if operator == "fmod" else k.sizes[dim] + 1
        return value, None, reach

    def store(self, k: Kernel, value: int) -> None:
        """A store of a value: to an output of any layout, or to a dense buffer to be read again."""
        rng = self.rng
        reduced = k.done().is_reduced()[value]
        kept = [d for d in range(len(k.sizes)) if not (reduced and d in k.reduced)]
        dtype = self.storable(k.body[value].dtype)
        if not reduced and rng.random() < 0.5:
            kind = rng.choice(("temporary", "output"))
            number = self.buffer(kind, dtype, _product(k.sizes))
            k.store(number, value, *contiguous(k.sizes))
            self.stored.append(_Dense(number, k.sizes))
            return
        offset, strides, extent = self.layout(k.sizes, kept)
        if kept and rng.random() < 0.1:
            # Rows go to places that a permutation gives.
            d = rng.choice(kept)
            places = self.buffer("input", DType.I64, k.sizes[d])
            self.permuted.add(places)
            index = k.load(places, *(int(n == d) for n in range(len(k.sizes))), dtype=DType.I64)
            term = Term(index, abs_size(strides[d]), k.sizes[d])
            if strides[d] != term.stride:
                offset = _size(offset + strides[d] * (k.sizes[d] - 1))
            strides[d] = 0
            number = self.buffer("output", dtype, extent)
            k.store(number, value, *strides, offset=offset, terms=(term,))
            return
        mask: tuple[Bound, ...] = ()
        if kept and rng.random() < 0.1:
            low = rng.randint(-1, 3)
            mask = (Bound(rng.choice(kept), low, low + rng.randint(0, 6)),)
        k.store(self.buffer("output", dtype, extent), value, *strides, offset=offset, mask=mask)

    def storable(self, compute: DType) -> DType:
        return self.rng.choice([d for d in DType if d.compute is compute])

    # Values.

    def values(self, k: Kernel) -> list[int]:
        return [n for n, i in enumerate(k.body) if i.op != "store"]

    def pick(self, k: Kernel, dtype: DType) -> int:
        """A value of a compute type: one that is there, a cast of one, or a constant."""
        rng = self.rng
        known = self.values(k)
        fitting = [n for n in known if k.body[n].dtype is dtype]
        chance = rng.random()
        if fitting and chance < 0.75:
            return rng.choice(fitting[-4:])
        if known and chance < 0.9:
            return k.cast(rng.choice(known[-4:]), self.storable(dtype))
        if self.params and chance < 0.95 and dtype is not DType.BOOL:
            return k.param(rng.randrange(len(self.params)), dtype)
        return self.const(k, dtype)

    def const(self, k: Kernel, dtype: DType) -> int:
        rng = self.rng
        if dtype is DType.BOOL:
            return k.const(rng.random() < 0.5, dtype)
        if self.sizes and rng.random() < 0.2:
            return k.const(
                sympy.Symbol(rng.choice(list(self.sizes)), integer=True, positive=True), dtype
            )
        return k.const(rng.choice((0.5, 1.0, -1.5, 2.0, 0.1, 3.0)) if dtype.is_float
                       else rng.randint(-3, 9), dtype)  # fmt: skip

    def operate(self, k: Kernel) -> int:
        """A random operator on random operands."""
        rng = self.rng
        row = SCALARS[rng.choice(list(SCALARS))]
        known = [k.body[n].dtype for n in self.values(k)[-4:]]
        fitting = [d for d in known if d in row.dtypes]
        dtype = rng.choice(fitting or row.dtypes)
        args = [self.pick(k, dtype) for _ in range(row.arity)]
        if row.name == "select":
            args[0] = self.pick(k, DType.BOOL)
        if row.name in ("shl", "shr"):
            args[1] = k.const(rng.randrange(8 * dtype.itemsize), dtype)
        return k.op(row.name, *args)

    def chain(self, k: Kernel, length: int) -> int:
        """Loads, coordinates and operators, and the number of the last value."""
        value = self.load(k)
        for _ in range(length):
            chance = self.rng.random()
            if chance < 0.2:
                value = self.load(k)
            elif chance < 0.25 and k.sizes:
                value = k.iota(self.rng.randrange(len(k.sizes)))
            else:
                value = self.operate(k)
        return value

    # Kernels.

    def pointwise(self, name: str) -> Kernel:
        k = Kernel(name, self.familiar() or self.domain())
        if self.rng.random() < 0.1:
            self.update(k)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self.store(k, self.chain(k, self.rng.randint(0, 8)))
        return k

    def update(self, k: Kernel) -> None:
        """Changes an input in place."""
        dtype = self.dtype()
        offset, strides, extent = self.layout(k.sizes, range(len(k.sizes)))
        number = self.buffer("input", dtype, extent)
        k.load(number, *strides, offset=offset, dtype=dtype)
        k.store(number, self.pick(k, dtype.compute), *strides, offset=offset)

    def familiar(self) -> tuple[Size, ...] | None:
        """The domain of an earlier kernel, so that its results can be read."""
        if self.dense and self.rng.random() < 0.7:
            return self.rng.choice(self.dense).sizes
        return None

    def reduced(self, sizes: Sequence[Size]) -> tuple[int, ...]:
        rng = self.rng
        if rng.random() < 0.5:
            return (len(sizes) - 1,)
        return tuple(sorted(rng.sample(range(len(sizes)), rng.randint(1, len(sizes)))))

    def folds(self, name: str) -> Kernel:
        """Up to three reductions with what goes before and behind, as norms and softmax have."""
        rng = self.rng
        sizes = self.familiar() or self.domain(1)
        k = Kernel(name, sizes or (5,))
        k.reduced = self.reduced(k.sizes)
        for _ in range(rng.randint(1, 3)):
            value = self.chain(k, rng.randint(0, 3))
            dtype = k.body[value].dtype
            folds = [r.name for r in REDUCTIONS.values() if dtype in r.dtypes]
            fold = k.reduce(rng.choice(folds), value)
            if rng.random() < 0.5:
                self.store(k, fold)
            if rng.random() < 0.6:
                self.store(k, self.chain(k, rng.randint(0, 3)))
        if not any(i.op == "store" for i in k.body):
            self.store(k, fold)
        return k

    def scan(self, name: str) -> Kernel:
        sizes = self.familiar() or self.domain(1)
        k = Kernel(name, sizes or (5,))
        k.reduced = (self.rng.randrange(len(k.sizes)),)
        value = self.chain(k, self.rng.randint(0, 3))
        if k.body[value].dtype is DType.BOOL:
            value = k.cast(value, DType.I64)
        self.store(k, k.scan(self.rng.choice(("sum", "prod", "max", "min")), value))
        if self.rng.random() < 0.4:
            self.store(k, self.chain(k, 2))
        return k

    def operand(self, dtype: DType, sizes: Sequence[Size], moving: Sequence[int]) -> Access:
        offset, strides, extent = self.layout(sizes, moving)
        return Access(self.buffer("input", dtype, extent), offset, tuple(strides))

    def matmul(self, name: str) -> Kernel:
        rng = self.rng
        batch = [self.extent(6) for _ in range(rng.choice((0, 0, 1, 2)))]
        rows, columns = self.extent(70), self.extent(70)
        sizes = (*batch, rows, columns)
        depth, rank = self.extent(rng.choice((9, 130))), len(sizes)
        dtype = rng.choice(FLOATS)
        shared = [d for d in range(len(batch)) if rng.random() < 0.8]
        own = [d for d in range(len(batch)) if rng.random() < 0.8]
        left = self.operand(dtype, (*sizes, depth), [*shared, rank - 2, rank])
        right = self.operand(dtype, (*sizes, depth), [*own, rank - 1, rank])
        k = Kernel(name, sizes)
        packed, panel = self.packed(right, (*sizes, depth), own, dtype)
        value = k.matmul(left, right, depth, dtype, packed, panel)
        if rng.random() < 0.6:
            value = self.chain(k, rng.randint(1, 4))
        self.store(k, value)
        return k

    def packed(
        self, right: Access, sizes: Sequence[Size], own: Sequence[int], dtype: DType
    ) -> tuple[Access | None, Panel | None]:
        """The right operand of a product once more, in panels. `own`: outer dimensions it has."""
        rng = random.Random(self.seed * 1000 + len(self.buffers))
        if dtype is DType.F64 or rng.random() < 0.5:
            return None, None
        panel = Panel(rng.choice((8, 16, 32, 32, 5)), rng.choice((1, 1, 2)))
        *outer, _, columns, depth = sizes
        groups = floor_div(depth + panel.depth - 1, panel.depth)
        row_step = panel.width * panel.depth
        panels = floor_div(columns + panel.width - 1, panel.width)
        strides: list[Size] = [0] * len(sizes)
        strides[-1], strides[-2] = row_step, groups * row_step
        extent = panels * strides[-2]
        for d in reversed(own):
            strides[d] = extent
            extent = extent * outer[d]
        number = self.buffer("input", dtype, extent)
        packed = Access(number, 0, tuple(strides))
        self.packs.append((packed, panel, right, tuple(sizes)))
        return packed, panel

    def convolution(self, name: str) -> Kernel:
        k, value = convolutions.convolution(self, name, 130 if self.rng.random() < 0.3 else 40)
        if self.rng.random() < 0.5:
            value = self.chain(k, self.rng.randint(1, 4))
        self.store(k, value)
        return k

    def attention(self, name: str) -> Kernel:
        rng = self.rng
        heads = [rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 1, 2)))]
        rows, columns = self.extent(20), rng.choice((1, 4, 8, 16, 20))
        head = columns if rng.random() < 0.8 else rng.choice((1, 4, 12))
        length, dtype = self.extent(70), rng.choice(FLOATS)
        outer = list(range(len(heads)))
        s, d, t = len(heads), len(heads) + 1, len(heads) + 2
        grouped = [n for n in outer if rng.random() < 0.7]
        query = self.operand(dtype, (*heads, rows, head, length), [*outer, s, d])
        key = self.operand(dtype, (*heads, rows, head, length), [*grouped, d, t])
        value = self.operand(dtype, (*heads, rows, columns, length), [*grouped, d, t])
        mask = None
        if rng.random() < 0.3:
            kind = rng.choice((DType.BOOL, dtype))
            mask = self.operand(kind, (*heads, rows, columns, length), [s, t])
        causal = rng.random() < 0.4
        own = Attention(
            query, key, value, mask, length, head, rng.choice((None, 0.3)),
            softcap=rng.choice((None, None, 2.0)), causal=causal,
            shift=rng.choice((0, 0, 2, -1)) if causal else 0,
            window=rng.choice((None, 3, 17)) if causal else None,
        )  # fmt: skip
        k = Kernel(name, (*heads, rows, columns))
        value_number = k.attention(own, dtype)
        if rng.random() < 0.3:
            value_number = self.chain(k, 2)
        self.store(k, value_number)
        return k

    def branch(self, number: int) -> list[Step]:
        """One of two kernels, by the flag that a kernel before them stores."""
        rng = self.rng
        flag = self.buffer("temporary", DType.BOOL, 1)
        source = self.buffer("input", DType.F32, 1)
        decide = Kernel(f"k{number}_if", ())
        decide.store(flag, decide.op("gt", decide.load(source), decide.const(0.0)))
        sizes, dtype = self.domain(), self.dtype()
        result = self.buffer(rng.choice(("temporary", "output")), dtype, _product(sizes))
        arms = []
        for arm in ("then", "else"):
            k = Kernel(f"k{number}_{arm}", sizes)
            self.chain(k, rng.randint(0, 3))
            k.store(result, self.pick(k, dtype.compute), *contiguous(sizes))
            arms.append((k.done(),))
        self.dense.append(_Dense(result, sizes))
        return [decide.done(), Branch(flag, *arms)]


def abs_size(stride: Size) -> Size:
    """A stride without its sign; those of layouts have one sign for all sizes."""
    positive = (
        stride if isinstance(stride, int) else stride.subs(dict.fromkeys(stride.free_symbols, 1))
    )
    return _size(-stride) if positive < 0 else stride


def contiguous(sizes: Sequence[Size]) -> list[Size]:
    """Row-major strides."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(sizes):
        strides.append(step)
        step = _size(step * size)
    return strides[::-1]


def _product(sizes: Sequence[Size]) -> Size:
    return _size(math.prod(sizes, start=sympy.Integer(1)))


def _size(value: Size) -> Size:
    return int(value) if isinstance(value, int | sympy.Integer) else value

"""Epilogues: the instructions of a tile program, as Triton text on a block of results.

An anchor's kernel (matmul, convolution, attention) computes a block of its product in registers;
the epilogue reads what else is wanted at those points, computes in f32, and stores to one or more
virtual tensors. Instructions are those of `program.tile`; an access may also be an index map:

| op | here |
|---|---|
| matmul | `constant` = number of the product |
| load, store | at `access`, or through the IndexMap over the domain in `constant` |
| row_sum | the f32 sum over the columns of the matrix (rows, g) that is mapped in `constant` |
| store_sums | f32 sums of `width` columns each; a map over (rows, columns / width): `Sums` |

Other reductions, and scans, have no text here: they need more than a block.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from vtc.index.access import Access, Bound, Layout, accesses
from vtc.index.map import IndexMap
from vtc.index.sizes import Size
from vtc.kernels import interleave, row_sums
from vtc.kernels.io import NONE, Pointers, Printer, Value
from vtc.kernels.text import number_text, size_text, type_text
from vtc.program import tile
from vtc.program.dtypes import DType
from vtc.program.scalars import SCALARS
from vtc.program.tile import Instr


@dataclass(frozen=True)
class Tensor:
    """A tensor of a call: element type, and where element (0, ..) and the others lie, in elements
    from the address that is passed."""

    dtype: DType
    layout: Layout


@dataclass(frozen=True)
class Sums:
    """Where the sums of `width` columns each are stored: a map over (rows, columns / width)."""

    index_map: IndexMap
    width: int


class Body:
    """Builds the instructions of an epilogue; every method returns the number of its value."""

    def __init__(self) -> None:
        self.instructions: list[Instr] = []

    def _add(self, instruction: Instr) -> int:
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def product(self, number: int = 0) -> int:
        """The f32 value of a product."""
        return self._add(Instr("matmul", constant=number))

    def load(self, index_map: IndexMap, dtype: DType = DType.F32) -> int:
        """The element of a virtual tensor; sources are numbers of tensors of the call."""
        return self._add(Instr("load", dtype=dtype, constant=index_map))

    def const(self, value: Any, dtype: DType = DType.F32) -> int:
        """A number, or a size."""
        return self._add(Instr("const", dtype=dtype, constant=value))

    def scalar(self, op: str, *args: int) -> int:
        """A scalar operator of `program.scalars` on earlier values."""
        row = SCALARS[op]
        dtype = DType.BOOL if row.result == "bool" else self.instructions[args[-1]].dtype
        return self._add(Instr(op, args, dtype))

    def cast(self, value: int, dtype: DType) -> int:
        """Rounded to a type as PyTorch does, then held in its compute type."""
        return self._add(Instr("cast", (value,), dtype.compute, constant=dtype))

    def store(self, value: int, index_map: IndexMap) -> int:
        """Writes element i of a virtual tensor to where the map says it lives."""
        return self._add(Instr("store", (value,), constant=index_map))

    def row_sum(self, index_map: IndexMap) -> int:
        """The f32 sum of each row of an f32 matrix (rows, g)."""
        return self._add(Instr("row_sum", constant=index_map))

    def store_sums(self, value: int, index_map: IndexMap, width: int) -> int:
        """Writes the f32 sums of `width` columns each, which divides those of a block."""
        return self._add(Instr("store_sums", (value,), constant=Sums(index_map, width)))

    def build(self) -> tuple[Instr, ...]:
        """The instructions."""
        return tuple(self.instructions)


def unsupported(body: Sequence[Instr]) -> str | None:
    """Why a body has no text, or None."""
    for instruction in body:
        if instruction.op in _FORMS:
            continue
        row = SCALARS.get(instruction.op)
        if row is None or row.triton is None:
            return f"{instruction.op} has no Triton text in an epilogue"
    return None


def width_of_sums(body: Sequence[Instr]) -> int:
    """What divides the columns of a block that the body runs on."""
    return max((i.constant.width for i in body if i.op == "store_sums"), default=1)


def tensors_of(body: Sequence[Instr], op: str) -> frozenset[int]:
    """The numbers of the tensors that instructions `op` ("load" or "store") address."""
    found: set[int] = set()
    for instruction in body:
        if instruction.op != op:
            continue
        if isinstance(instruction.constant, IndexMap):
            found |= instruction.constant.sources()
        else:
            assert instruction.access is not None
            found.add(instruction.access.buffer)
    return frozenset(found)


def write(
    body: Sequence[Instr],
    printer: Printer,
    domain: Sequence[Size],
    tensors: Sequence[Tensor],
    products: Sequence[str],
    begun: Mapping[int, Value] | None = None,
) -> None:
    """Writes the body for the printer's block, whose coordinates are those of the domain.

    products: names of the blocks of f32 results. begun: what `begin` gave for this block. The
    printer's pointers name every tensor by its number in `tensors`. Raises ValueError for an
    instruction that has no text.
    """
    reason = unsupported(body)
    if reason is not None:
        raise ValueError(reason)
    _Writer(printer, tuple(domain), tensors, products, begun or {}).write(body)


def begin(body: Sequence[Instr], printer: Printer, tensors: Sequence[Tensor]) -> dict[int, Value]:
    """Loads what the body adds up in rows, ahead of the products: they take their time while the
    first operands come. By the number of the instruction."""
    found = {}
    for number, instruction in enumerate(body):
        if instruction.op == "row_sum":
            index_map = instruction.constant
            layouts = {n: tensors[n].layout for n in index_map.sources()}
            found[number] = row_sums.load(printer, index_map, layouts)
    return found


def pointers(names: Mapping[int, str], tensors: Sequence[Tensor]) -> Pointers:
    """Pointers for maps whose sources and lookups are both numbers of tensors of the call."""
    return Pointers(names, names, {n: t.layout for n, t in enumerate(tensors)})


class _Writer:
    def __init__(
        self,
        printer: Printer,
        domain: tuple[Size, ...],
        tensors: Sequence[Tensor],
        products: Sequence[str],
        begun: Mapping[int, Value],
    ) -> None:
        self.printer, self.domain = printer, domain
        self.tensors, self.products, self.begun = tensors, products, begun
        self.values: list[Value] = []
        self.everything = frozenset(range(len(printer.space.shape)))

    def write(self, body: Sequence[Instr]) -> None:
        pairs = self._pairs(body)
        paired = {k for pair in pairs.values() for k in pair}
        for number, instruction in enumerate(body):
            if number in pairs:
                self._store_both(*(body[k] for k in pairs[number]))
            if number in paired:
                self.values.append(Value("", NONE))
                continue
            form = _FORMS.get(instruction.op, _Writer._scalar)
            self.values.append(form(self, instruction))

    def _pairs(self, body: Sequence[Instr]) -> dict[int, tuple[int, int]]:
        """Stores whose elements alternate in a tensor that nothing is loaded from."""
        loaded = tensors_of(body, "load")
        found: dict[int, Access] = {}
        for number, instruction in enumerate(body):
            if instruction.op == "store" and isinstance(instruction.constant, IndexMap):
                pieces, *_ = self._addressed(instruction)
                if len(pieces) == 1 and pieces[0].source not in loaded:
                    found[number] = pieces[0]
        pairs = interleave.pairs(found)
        return pairs if pairs and self._widened else {}

    @functools.cached_property
    def _widened(self) -> Printer | None:
        """Of blocks with two lanes for each one along the last dimension."""
        printer = self.printer
        space = interleave.widened(printer.space, printer.lines)
        if space is None:
            return None
        wide, checked = printer.wide, printer.checked
        return Printer(printer.lines, space, printer.pointers, wide=wide, checked=checked)

    def _store_both(self, even: Instr, odd: Instr) -> None:
        """Two stores whose elements alternate."""
        (piece,), dtype, _ = self._addressed(even)
        names = []
        for instruction in (even, odd):
            value = self.values[instruction.args[0]]
            cast = self._bind(f"tl.cast({value.name}, {type_text(dtype)})", value.dims)
            names.append(self.printer.full(cast).name)
        both = self._bind(f"tl.interleave({', '.join(names)})", self.everything)
        assert self._widened is not None
        self._widened.store((interleave.joined(piece),), both, dtype)

    def _bind(self, text: str, dims: frozenset[int]) -> Value:
        return Value(self.printer.lines.bind("e", text), dims)

    def _product(self, instruction: Instr) -> Value:
        return Value(self.products[instruction.constant], self.everything)

    def _load(self, instruction: Instr) -> Value:
        pieces, dtype, offsets = self._addressed(instruction)
        compute = instruction.dtype
        value = self.printer.load(pieces, dtype, cast=compute, offsets=offsets)
        if not instruction.args or not pieces[0].mask:
            return value
        other = self.values[instruction.args[0]]
        inside = self.printer.inside(pieces[0])
        text = f"tl.where({inside.name}, {value.name}, {other.name})"
        return self._bind(text, inside.dims | value.dims | other.dims)

    def _store(self, instruction: Instr) -> Value:
        pieces, dtype, offsets = self._addressed(instruction)
        value = self.values[instruction.args[0]]
        if not value.dims:
            name = self.printer.lines.bind("e", f"tl.cast({value.name}, {type_text(dtype)})")
            value = Value(name, NONE)
        self.printer.store(pieces, value, dtype, offsets=offsets)
        return Value("", NONE)

    def _row_sum(self, instruction: Instr) -> Value:
        begun = self.begun.get(len(self.values))
        if begun is None:
            layouts = {n: self.tensors[n].layout for n in instruction.constant.sources()}
            begun = row_sums.load(self.printer, instruction.constant, layouts)
        return row_sums.total(self.printer, begun)

    def _store_sums(self, instruction: Instr) -> Value:
        sums: Sums = instruction.constant
        layouts = {n: self.tensors[n].layout for n in sums.index_map.sources()}
        value = self.printer.full(self.values[instruction.args[0]])
        row_sums.store(self.printer, value, sums.index_map, sums.width, layouts)
        return Value("", NONE)

    def _addressed(self, instruction: Instr) -> tuple[tuple[Access, ...], DType, list[Value]]:
        """The pieces of a load or store, the type in memory, and the runtime part of addresses."""
        index_map = instruction.constant
        if isinstance(index_map, IndexMap):
            layouts = {n: self.tensors[n].layout for n in index_map.sources()}
            sources = sorted(index_map.sources())
            dtype = self.tensors[sources[0]].dtype if sources else instruction.dtype
            return accesses(index_map, layouts), dtype, []
        access = instruction.access
        assert access is not None
        piece = plain_access(access, self.domain)
        return (piece,), self.tensors[access.buffer].dtype, [self._term(t) for t in access.terms]

    def _term(self, term: tile.Term) -> Value:
        """A runtime part of an address, in 64 bits."""
        value = self.values[term.value]
        text = f"tl.cast({value.name}, tl.int64)"
        if term.size is not None:
            name = self.printer.lines.bind("index", text)
            text = f"tl.where({name} < 0, {name} + {size_text(term.size)}, {name})"
        return self._bind(f"{text} * {size_text(term.stride)}", value.dims)

    def _const(self, instruction: Instr) -> Value:
        number = instruction.constant
        if isinstance(number, sympy.Expr):
            return self._bind(f"tl.cast({size_text(number)}, {type_text(instruction.dtype)})", NONE)
        return self._bind(number_text(number, instruction.dtype), NONE)

    def _param(self, instruction: Instr) -> Value:
        # A Python float may arrive in any width.
        return self._bind(f"tl.cast(p{instruction.constant}, {type_text(instruction.dtype)})", NONE)

    def _iota(self, instruction: Instr) -> Value:
        at = self.printer.space.coordinates[instruction.constant]
        return self._bind(f"tl.cast({at.text}, tl.int64)", frozenset(at.dims))

    def _cast(self, instruction: Instr) -> Value:
        value = self.values[instruction.args[0]]
        target: DType = instruction.constant
        text = f"tl.cast({value.name}, {type_text(target)})"
        if target.compute is not target:
            text = f"tl.cast({text}, {type_text(target.compute)})"
        return self._bind(text, value.dims)

    def _scalar(self, instruction: Instr) -> Value:
        row = SCALARS[instruction.op]
        assert row.triton is not None
        arguments = [self.values[a] for a in instruction.args]
        text = row.triton.format(*(a.name for a in arguments))
        return self._bind(text, NONE.union(*(a.dims for a in arguments)))


_FORMS = {
    "matmul": _Writer._product,
    "load": _Writer._load,
    "store": _Writer._store,
    "const": _Writer._const,
    "param": _Writer._param,
    "iota": _Writer._iota,
    "cast": _Writer._cast,
    "row_sum": _Writer._row_sum,
    "store_sums": _Writer._store_sums,
}


def plain_access(access: tile.Access, domain: Sequence[Size]) -> Access:
    """A strided access of a tile program in the normal form of index maps, without its terms."""
    mask = tuple(
        Bound(b.dim, None if b.low == 0 else b.low, None if b.high == domain[b.dim] else b.high)
        for b in access.mask
    )
    lower: list[Size] = [0] * len(domain)
    upper = list(domain)
    for bound in access.mask:
        lower[bound.dim], upper[bound.dim] = bound.low, bound.high
    stride = tuple(access.stride[: len(domain)])
    return Access(
        tuple(lower), tuple(upper), mask, access.buffer, access.offset, stride, None, (), None
    )

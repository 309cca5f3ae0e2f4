"""The instructions of a kernel's body: numbers, masks and addresses as values of a tile program.

What keeps a body from being written is raised: Needs, Split, Cut and Indirect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vtc.index import Affine, Size, affine, sizes, substitution
from vtc.index.affine import Atom, Div, Look, Rem
from vtc.lowering.dvm.domain import Domain, Index, coordinate_number
from vtc.lowering.dvm.memory import Home
from vtc.lowering.dvm.nodes import Node
from vtc.program.dtypes import DType
from vtc.program.tile import Access, Bound, Instr, Term, operands, with_operands
from vtc.vm.isa import MAX_DIMS

# Lookups of a movement operator are numbered from 0; a value of the body that is an index, from
# here.
VALUES = 1 << 40

Mask = tuple[Bound, ...]


class Needs(Exception):  # noqa: N818 - a finding about a kernel, not an error
    """`node` must lie in memory before the kernel can be written."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class Split(Exception):  # noqa: N818 - a finding about a kernel, not an error
    """The kernel's dimension `dim` is to be two: factor * q + r."""

    def __init__(self, dim: int, factor: Size) -> None:
        super().__init__(dim, factor)
        self.dim, self.factor = dim, factor


class Cut(Exception):  # noqa: N818 - a finding about a kernel, not an error
    """The kernel is to be several, for parts of its dimension `dim`: points start + step * j, for
    j < count, of each (start, step, count)."""

    def __init__(self, dim: int, parts: Sequence[tuple[int, int, Size]]) -> None:
        super().__init__(dim, parts)
        self.dim, self.parts = dim, tuple(parts)


class Indirect(Exception):  # noqa: N818 - a finding about an access, not an error
    """An address that is not affine, where it has to be."""


@dataclass
class Instructions:
    """The instructions of one kernel, and what is known of its coordinates."""

    domain: Domain
    instrs: list[Instr] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)
    # Of indices counted from the front: the index as it was given, and the size it has to fit.
    counted: dict[int, tuple[int, Size]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bounds = self.domain.bounds
        self.reduced = self.domain.reduced

    def add(
        self,
        op: str,
        args: tuple[int, ...],
        dtype: DType,
        access: Access | None = None,
        constant: Any = None,
    ) -> int:
        """The number of the instruction's value; an equal one is not written twice."""
        kind = (type(constant), repr(constant)) if isinstance(constant, float) else constant
        key = (op, args, dtype, access, type(constant), kind)
        found = self.known.get(key)
        if found is None or op == "store":
            found = len(self.instrs)
            self.instrs.append(Instr(op, args, dtype, access, constant))
            self.known[key] = found
        return found

    # Numbers.

    def integer(self, form: Affine) -> int:
        """The value, i64, of a quasi-affine expression of the coordinates."""
        result: int | None = None
        for atom, coefficient in form.terms.items():
            value = self._atom(atom)
            if coefficient != 1:
                factor = self.add("const", (), DType.I64, constant=coefficient)
                value = self.add("mul", (value, factor), DType.I64)
            result = value if result is None else self.add("add", (result, value), DType.I64)
        if result is None or form.const != 0:
            constant = self.add("const", (), DType.I64, constant=form.const)
            result = constant if result is None else self.add("add", (result, constant), DType.I64)
        return result

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, int):
            return self.add("iota", (), DType.I64, constant=atom)
        if isinstance(atom, Look):
            return atom.tensor - VALUES
        value = self.integer(atom.arg)
        by = self.add("const", (), DType.I64, constant=atom.by)
        if isinstance(atom, Div):
            return self.add("floordiv", (value, by), DType.I64)
        low, _ = affine.interval(atom.arg, self.bounds)
        if low is not None and sizes.nonnegative(low):
            return self.add("fmod", (value, by), DType.I64)
        whole = self.add("floordiv", (value, by), DType.I64)
        return self.add("sub", (value, self.add("mul", (whole, by), DType.I64)), DType.I64)

    def wrapped(self, value: int, size: Size) -> Affine:
        zero = self.add("const", (), DType.I64, constant=0)
        length = self.add("const", (), DType.I64, constant=size)
        negative = self.add("lt", (value, zero), DType.BOOL)
        turned = self.add("add", (value, length), DType.I64)
        made = self.add("select", (negative, turned, value), DType.I64)
        self.counted[made] = (value, size)
        return look(made)

    # Masks.

    def chosen(self, mask: Mask, value: int, other: int | None, dtype: DType) -> int:
        """`value` where the mask holds, else `other`."""
        if other is None or not mask:
            return value
        condition: int | None = None
        for bound in mask:
            at = self.add("iota", (), DType.I64, constant=bound.dim)
            for sign, limit, idle in (
                ("ge", bound.low, bound.low == 0),
                ("lt", bound.high, bound.high == self.domain.sizes[bound.dim]),
            ):
                if idle:
                    continue
                end = self.add("const", (), DType.I64, constant=limit)
                holds = self.add(sign, (at, end), DType.BOOL)
                both = (condition, holds)
                condition = holds if condition is None else self.add("and", both, DType.BOOL)  # type: ignore[arg-type]
        if condition is None:
            return value
        return self.add("select", (condition, value, other), dtype.compute)

    # Addresses.

    def store(self, home: Home, shape: Sequence[Size], index: Index, value: int) -> None:
        self.add("store", (value,), DType.F32, self.access(home, shape, index))

    def access(
        self, home: Home, shape: Sequence[Size], index: Index, extra: Sequence[Size] = ()
    ) -> Access:
        """The address of element `index` of a tensor of `shape`. An anchor's operands have more
        coordinates, of the sizes `extra`: windows, and the contracted one."""
        bounds = (*self.bounds, *((0, sizes.sub(size, 1)) for size in extra))
        total = affine.constant(home.offset)
        terms: list[Term] = []
        for form, size, stride in zip(index, shape, home.stride, strict=True):
            if affine.lookups(form):
                counted = (self.counted.get(n - VALUES) for n in affine.lookups(form))
                terms += [Term(index, 0, length) for index, length in filter(None, counted)]
                found = bare_look(form)
                value = self.integer(form) if found is None else found
                terms.append(Term(value, stride, size))
            else:
                total = affine.add(total, affine.scale(form, stride))
        total = substitution.simplify(affine.recombine(total, bounds), bounds)
        for atom, stride in total.terms.items():
            if isinstance(atom, int):
                continue
            self.try_split(atom)
            if extra:
                raise Indirect
            terms.append(Term(self.integer(Affine(0, {atom: 1})), stride))
        strides = tuple(total.terms.get(d, 0) for d in range(len(bounds)))
        return Access(home.buffer, total.const, strides, tuple(terms))

    def try_split(self, atom: Atom) -> None:
        """Raises Split where that makes the division go away and the kernel has room for one more
        dimension."""
        if not isinstance(atom, Div | Rem) or len(self.domain.sizes) >= MAX_DIMS:
            return
        for inner in atom.arg.terms:
            self.try_split(inner) if not isinstance(inner, int) else None
        number = coordinate_number(atom.arg)
        if number is None or number >= len(self.domain.sizes) or number in self.domain.locked:
            return
        count = sizes.exact_div(self.domain.sizes[number], atom.by)
        if count is not None and count != 1:
            raise Split(number, atom.by)


def look(value: int) -> Affine:
    """A value of the body as an index expression."""
    return Affine(0, {Look(VALUES + value, ()): 1})


def bare_look(form: Affine) -> int | None:
    """The value that a form is, if it is one and nothing else."""
    if form.const == 0 and len(form.terms) == 1:
        ((atom, coefficient),) = form.terms.items()
        if isinstance(atom, Look) and coefficient == 1 and atom.tensor >= VALUES:
            return atom.tensor - VALUES
    return None


def alive(body: Sequence[Instr]) -> tuple[Instr, ...]:
    """The instructions that a store needs, renumbered."""
    needed: set[int] = set()
    pending = [n for n, i in enumerate(body) if i.op == "store"]
    while pending:
        number = pending.pop()
        if number not in needed:
            needed.add(number)
            pending += [*body[number].args, *_term_values(body[number])]
    if len(needed) == len(body):
        return tuple(body)
    places = {old: new for new, old in enumerate(sorted(needed))}

    def moved(access: Access) -> Access:
        terms = tuple(replace(t, value=places[t.value]) for t in access.terms)
        return replace(access, terms=terms)

    result = []
    for number in sorted(needed):
        instr = body[number]
        args = tuple(places[a] for a in instr.args)
        access = None if instr.access is None else moved(instr.access)
        constant = with_operands(instr.constant, moved)
        result.append(Instr(instr.op, args, instr.dtype, access, constant))
    return tuple(result)


def _term_values(instr: Instr) -> list[int]:
    accesses = [instr.access, *operands(instr.constant)]
    return [t.value for a in accesses if a is not None for t in a.terms]

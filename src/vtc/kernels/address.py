"""Addresses and masks of an access, as Triton text.

An access (`index.access`) gives every point of a box an address: constant + stride * coordinate +
divisions, remainders and runtime lookups. Here it becomes a pointer expression for a block of
coordinates, and the conditions under which a lane may use it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from vtc.index import affine, sizes
from vtc.index.access import Access, Layout
from vtc.index.affine import Affine, Div, Look, Rem
from vtc.index.piece import Fill
from vtc.index.sizes import Size
from vtc.kernels.text import Lines, size_text

Dims: TypeAlias = frozenset[int]
Number: TypeAlias = float | int | bool
NONE: Dims = frozenset()
_NARROW = 2**31 - 1
_WIDEST_HINT = 16  # elements: more than one access moves


@dataclass(frozen=True)
class Coordinate:
    """What one coordinate of the iteration space is inside a kernel.

    text: a Triton integer expression, a scalar or one that broadcasts to the block's shape, such as
    "rows[:, None]"; dims: the block dimensions along which it varies. start and length: where the
    coordinate counts up by one along its one dimension, its first value (a scalar expression) and
    the number of values; multiple: a number that divides every start; limit: the coordinate of the
    first lane that is no point of the space, where that is known.
    """

    text: str
    dims: tuple[int, ...] = ()
    start: str | None = None
    length: str | None = None
    multiple: int = 1
    limit: int | None = None


@dataclass(frozen=True)
class Space:
    """A block of the iteration space.

    shape: its extents as text, () for a scalar; valid: for each block dimension the condition under
    which a lane is a point of the space, None where all are. whole: the shape as one expression,
    where its extents have no text of their own.
    """

    coordinates: tuple[Coordinate, ...]
    shape: tuple[str, ...]
    valid: tuple[str | None, ...]
    whole: str | None = None


@dataclass(frozen=True)
class Value:
    """A value in a kernel: its name, and the block dimensions along which it varies."""

    name: str
    dims: Dims


@dataclass(frozen=True)
class Pointers:
    """Kernel arguments of the tensors behind a map: names by source and by lookup number, and how
    the runtime index tensors are laid out."""

    sources: Mapping[int, str]
    lookups: Mapping[int, str] = field(default_factory=dict)
    layouts: Mapping[int, Layout] = field(default_factory=dict)


@dataclass(frozen=True)
class Term:
    """A part of an address or a condition."""

    text: str
    dims: Dims


class Addresses:
    """Writes pointers and masks of one block into `lines`.

    wide: 64-bit offsets always (True), never (False), or where the numbers ask for them (None;
    symbolic sizes do). checked: runtime indices out of range stop the kernel with
    `tl.device_assert`; otherwise they must be in range.
    """

    def __init__(
        self,
        lines: Lines,
        space: Space,
        pointers: Pointers,
        *,
        wide: bool | None = None,
        checked: bool = False,
    ) -> None:
        self.lines, self.space, self.pointers = lines, space, pointers
        self.wide, self.checked = wide, checked
        self.everything: Dims = frozenset(range(len(space.shape)))

    def bounds(self, piece: Access) -> list[Term]:
        """The conditions of the piece's box."""
        terms: list[Term] = []
        for bound in piece.mask:
            at = self.space.coordinates[bound.axis]
            dims = frozenset(at.dims)
            if bound.low is not None:
                terms.append(Term(f"({grouped(at.text)} >= {size_text(bound.low)})", dims))
            if bound.high is not None:
                terms.append(Term(f"({grouped(at.text)} < {size_text(bound.high)})", dims))
        return terms

    def valid(self, dims: Dims) -> list[Term]:
        """The conditions of points of the space, along some of the block's dimensions."""
        return [
            Term(f"({text})", frozenset({d}))
            for d, text in enumerate(self.space.valid)
            if d in dims and text is not None
        ]

    @staticmethod
    def joined(terms: Sequence[Term]) -> Term | None:
        """All of the conditions; None if there are none."""
        unique = {t.text: t for t in terms}
        if not unique:
            return None
        return Term(" & ".join(unique), NONE.union(*(t.dims for t in unique.values())))

    @staticmethod
    def mask_text(mask: Term | None) -> str:
        """The argument of a load or store."""
        return "" if mask is None else f", mask={mask.text}"

    def shape(self) -> str:
        """The block's shape as text."""
        if self.space.whole is not None:
            return self.space.whole
        inner = ", ".join(self.space.shape)
        return f"({inner},)" if len(self.space.shape) == 1 else f"({inner})"

    def spread(self, pointer: Term, dims: Dims) -> str:
        """The pointer with a lane for each one that `dims` tells apart."""
        if dims <= pointer.dims:
            return pointer.text
        if dims | pointer.dims == self.everything:
            return f"tl.broadcast_to({pointer.text}, {self.shape()})"
        shape = [
            size if d in dims | pointer.dims else "1" for d, size in enumerate(self.space.shape)
        ]
        inner = ", ".join(shape)
        return f"tl.broadcast_to({pointer.text}, ({inner}{',' if len(shape) == 1 else ''}))"

    def pointer(self, piece: Access, offsets: Sequence[Value]) -> Term:
        """The pointer of each lane; offsets are added to the address."""
        assert not isinstance(piece.source, Fill)
        name = self.pointers.sources[piece.source]
        wide = self._is_wide(piece)
        terms = [
            self._scaled(self._coordinate(k, wide), stride)
            for k, stride in enumerate(piece.stride)
            if stride != 0
        ]
        if piece.rest is not None:
            bounds = [(low, sizes.sub(high, 1)) for low, high in piece.box]
            rest = self._sum(piece.rest, bounds, wide)
            terms.extend(rest)
        terms.extend(Term(value.name, value.dims) for value in offsets)
        base = [] if piece.base == 0 else [Term(size_text(piece.base), NONE)]
        return self._address(name, [*base, *terms], self._hint(piece))

    def _address(self, name: str, terms: Sequence[Term], hint: int) -> Term:
        """pointer + scalar part + block part; with a hint the whole offset is one expression."""
        dims = NONE.union(*(t.dims for t in terms))
        scalar = [t.text for t in terms if not t.dims]
        block = [t.text for t in terms if t.dims]
        if hint > 1 and block:
            shape = ["1"] * len(self.space.shape)
            shape[max(dims)] = str(hint)
            sizes_text = f"[{', '.join(shape)}]"
            offset = self.lines.bind("at", " + ".join([*scalar, *block]))
            text = f"tl.max_contiguous(tl.multiple_of({offset}, {sizes_text}), {sizes_text})"
            return Term(f"{name} + {text}", dims)
        parts = [name]
        if scalar:
            parts.append(f"({' + '.join(scalar)})" if len(scalar) > 1 else scalar[0])
        if block:
            parts.append(f"({' + '.join(block)})" if scalar else " + ".join(block))
        return Term(" + ".join(parts), dims)

    def _coordinate(self, k: int, wide: bool) -> Term:
        at = self.space.coordinates[k]
        text = f"tl.cast({at.text}, tl.int64)" if wide else at.text
        return Term(text, frozenset(at.dims))

    @staticmethod
    def _scaled(term: Term, factor: Size) -> Term:
        if factor == 1:
            return term
        return Term(f"{grouped(term.text)} * {size_text(factor)}", term.dims)

    def _sum(self, a: Affine, bounds: affine.Bounds, wide: bool) -> list[Term]:
        """The summands of an expression."""
        terms = [
            self._scaled(
                self._coordinate(atom, wide)
                if isinstance(atom, int)
                else self._atom(atom, bounds, wide),
                factor,
            )
            for atom, factor in a.terms.items()
        ]
        if a.const != 0 or not terms:
            terms.append(Term(size_text(a.const), NONE))
        return terms

    def _atom(self, atom: Div | Rem | Look, bounds: affine.Bounds, wide: bool) -> Term:
        if isinstance(atom, Look):
            return self._lookup(atom, bounds, wide)
        wrapped = _wrapped(atom)
        if wrapped is not None:
            return self._wrap(self._lookup(wrapped, bounds, wide), atom.by)
        # Triton divides towards zero, expressions to minus infinity: make the dividend positive.
        low, _ = affine.interval(atom.arg, bounds)
        by = atom.by
        shift: Size = 0
        if low is None or not sizes.nonnegative(low):
            if not isinstance(low, int) or not isinstance(by, int):
                return self._floored(atom, bounds, wide)
            shift = -(low // by)
        arg = affine.add(atom.arg, affine.constant(sizes.mul(shift, by)))
        parts = self._sum(arg, bounds, wide)
        dims = NONE.union(*(t.dims for t in parts))
        inner = grouped(" + ".join(t.text for t in parts))
        if isinstance(atom, Rem):
            return Term(f"({inner} % {size_text(by)})", dims)
        back = f" - {shift}" if shift != 0 else ""
        return Term(f"({inner} // {size_text(by)}{back})", dims)

    def _floored(self, atom: Div | Rem, bounds: affine.Bounds, wide: bool) -> Term:
        """Division to minus infinity where the sign of the dividend is not known."""
        parts = self._sum(atom.arg, bounds, wide)
        dims = NONE.union(*(t.dims for t in parts))
        value = self.lines.bind("x", " + ".join(t.text for t in parts))
        by = size_text(atom.by)
        positive = f"((({value} % {by}) + {by}) % {by})"
        if isinstance(atom, Rem):
            return Term(positive, dims)
        return Term(f"(({value} - {positive}) // {by})", dims)

    def _lookup(self, atom: Look, bounds: affine.Bounds, wide: bool) -> Term:
        """The loaded value of a runtime index."""
        layout = self.pointers.layouts[atom.tensor]
        offset = affine.constant(layout.offset)
        for arg, stride in zip(atom.args, layout.stride, strict=True):
            offset = affine.add(offset, affine.scale(arg, stride))
        terms = self._sum(offset, bounds, wide)
        pointer = self._address(self.pointers.lookups[atom.tensor], terms, 1)
        mask = self.joined(self.valid(pointer.dims))
        # Lanes outside a piece's box read a neighbouring piece's index, or an address clamped here.
        guard = self._within(atom, layout, bounds)
        mask = self.joined([*([mask] if mask else []), *guard])
        dims = pointer.dims | (mask.dims if mask else NONE)
        target = self.spread(pointer, dims)
        other = ", other=0" if mask else ""
        load = f"tl.load({target}{self.mask_text(mask)}{other})"
        kind = "tl.int64" if wide else "tl.int32"
        return Term(self.lines.bind("index", f"{load}.to({kind})"), dims)

    def _within(self, atom: Look, layout: Layout, bounds: affine.Bounds) -> list[Term]:
        """Conditions that keep the index tensor's address inside it for lanes outside the box."""
        terms: list[Term] = []
        for k in sorted(NONE.union(*(affine.coordinates(a) for a in atom.args))):
            low, high = bounds[k]
            at = self.space.coordinates[k]
            dims = frozenset(at.dims)
            if low is not None and low != 0:
                terms.append(Term(f"({grouped(at.text)} >= {size_text(low)})", dims))
            if high is not None:
                past = size_text(sizes.add(high, 1))
                terms.append(Term(f"({grouped(at.text)} < {past})", dims))
        return terms

    def _wrap(self, value: Term, size: Size) -> Term:
        """A runtime index that counts from the end where it is negative."""
        extent = size_text(size)
        text = f"tl.where({value.text} < 0, {value.text} + {extent}, {value.text})"
        name = self.lines.bind("index", text)
        if self.checked:
            self.lines.add(
                f"tl.device_assert(({name} >= 0) & ({name} < {extent}), 'index out of range')"
            )
        return Term(name, value.dims)

    def _is_wide(self, piece: Access) -> bool:
        if self.wide is not None:
            return self.wide
        bounds = [(low, sizes.sub(high, 1)) for low, high in piece.box]
        return not _fits(piece.offset, bounds)

    def _hint(self, piece: Access) -> int:
        """Elements that are known to be adjacent and aligned where Triton cannot see it itself:
        the address holds a division or a lookup."""
        if piece.rest is None or piece.contiguity is None or not self.space.coordinates:
            return 1
        at = self.space.coordinates[-1]
        if at.start is None or at.dims != (len(self.space.shape) - 1,):
            return 1
        known = [piece.contiguity.run, piece.contiguity.alignment, at.multiple, _WIDEST_HINT]
        row = sizes.sub(piece.upper[-1], piece.lower[-1])
        known += [sizes.integer_content(row), sizes.integer_content(piece.lower[-1])]
        common = math.gcd(*known)
        return common & -common


def _wrapped(atom: Div | Rem) -> Look | None:
    """The lookup of `lookup % size`, the wrap of an index that may be negative."""
    if isinstance(atom, Rem) and atom.arg.const == 0 and len(atom.arg.terms) == 1:
        ((inner, factor),) = atom.arg.terms.items()
        if isinstance(inner, Look) and factor == 1:
            return inner
    return None


def _fits(a: Affine, bounds: affine.Bounds) -> bool:
    """Are the expression and all its parts known to fit 32-bit integers?"""
    low, high = affine.interval(a, bounds)
    if not isinstance(low, int) or not isinstance(high, int):
        return False
    if max(abs(low), abs(high)) > _NARROW:
        return False
    for atom in a.terms:
        if isinstance(atom, Look):
            if not all(_fits(x, bounds) for x in atom.args):
                return False
        elif isinstance(atom, Div | Rem) and _wrapped(atom) is None and not _fits(atom.arg, bounds):
            return False
    return True


def grouped(text: str) -> str:
    """Text that can be a factor."""
    return text if re.fullmatch(r"\w+(\[[^\]]*\])?", text) else f"({text})"

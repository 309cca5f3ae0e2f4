"""Loads and stores through index maps, as Triton text.

A kernel's first and last stage read and write *virtual tensors*: an index map says which physical
element each coordinate is. `Printer` writes these two stages for a block of coordinates; what lies
between does not know of maps. Offsets are folded: sizes and strides that are known are numbers in
the text, coordinates that do not move the address do not appear. `virtual.py` wraps the text in
functions that a Triton kernel of a user's own can call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vtc.index.access import Access
from vtc.index.piece import Fill
from vtc.kernels.address import (
    NONE,
    Addresses,
    Coordinate,
    Dims,
    Number,
    Pointers,
    Space,
    Value,
)
from vtc.kernels.text import number_text, size_text, type_text
from vtc.program.dtypes import DType

__all__ = ["NONE", "Coordinate", "Dims", "Number", "Pointers", "Printer", "Space", "Value"]


class Printer(Addresses):
    """Writes the loads and stores of one block; see `Addresses` for its arguments."""

    def load(
        self,
        pieces: Sequence[Access],
        dtype: DType,
        *,
        other: Number = 0,
        branch: bool = True,
        options: str = "",
        cast: DType | None = None,
        offsets: Sequence[Value] = (),
        outside: bool = False,
    ) -> Value:
        """The elements of a virtual tensor at the block's coordinates.

        dtype: that of the virtual tensor in memory; cast: what it is converted to. `other` is the
        value of lanes outside the space or outside all pieces; with `outside` also of lanes along a
        dimension in which the address does not move (they are loaded otherwise). branch: several
        pieces become a scalar branch, so that a block that lies in one piece makes one load;
        otherwise every piece is loaded under its own mask (a software-pipelined loop must not
        branch). options: further arguments of `tl.load`, such as
        ", eviction_policy='evict_first'". offsets: values to add to the address of an access of
        one piece.
        """
        real = [p for p in pieces if not isinstance(p.source, Fill)]
        if len(pieces) == 1 and real:
            value = self._load_one(pieces[0], dtype, other, options, offsets)
        elif branch and len(pieces) > 1 and self._exclusive(pieces):
            value = self._load_branches(pieces, dtype, other, options, exact=True)
        elif branch and len(real) > 1 and all(self._inside(p) is not None for p in pieces):
            value = self._load_branches(pieces, dtype, other, options, exact=False)
        else:
            value = self._load_masked(pieces, dtype, other, options)
        if outside:
            value = self._cleared(value, dtype, other)
        if cast is None or cast is dtype:
            return value
        return Value(self.lines.bind("v", f"{value.name}.to({type_text(cast)})"), value.dims)

    def _cleared(self, value: Value, dtype: DType, other: Number) -> Value:
        """The value with `other` outside the space, along every dimension."""
        missing = self.joined(self.valid(self.everything - value.dims))
        if missing is None:
            return value
        text = f"tl.where({missing.text}, {value.name}, {number_text(other, dtype)})"
        return Value(self.lines.bind("v", text), value.dims | missing.dims)

    def store(
        self,
        pieces: Sequence[Access],
        value: Value,
        dtype: DType,
        *,
        options: str = "",
        offsets: Sequence[Value] = (),
    ) -> None:
        """Writes a block of a virtual tensor: element i of it to the address that `pieces` give.

        Elements of fill pieces have no home and are not written. dtype: that of the memory.
        """
        name = self.lines.bind("v", f"{value.name}.to({type_text(dtype)})")
        for piece in pieces:
            if isinstance(piece.source, Fill):
                continue
            pointer = self.pointer(piece, offsets)
            bounds = self.bounds(piece)
            scalar = [t.text for t in bounds if not t.dims]
            lanes = [t for t in bounds if t.dims]
            mask = self.joined([*self.valid(self.everything), *lanes])
            target = self.spread(pointer, self.everything)
            line = f"tl.store({target}, {name}{self.mask_text(mask)}{options})"
            if scalar:
                with self.lines.block(f"if {' and '.join(scalar)}:"):
                    self.lines.add(line)
            else:
                self.lines.add(line)

    def inside(self, piece: Access) -> Value:
        """The condition under which a point lies in the piece's box."""
        condition = self.joined(self.bounds(piece))
        if condition is None:
            return Value("True", NONE)
        return Value(self.lines.bind("inside", condition.text), condition.dims)

    def full(self, value: Value) -> Value:
        """The value broadcast to the whole block."""
        if value.dims == self.everything:
            return value
        name = self.lines.bind("v", f"tl.broadcast_to({value.name}, {self.shape()})")
        return Value(name, self.everything)

    # Pieces.

    def _load_one(
        self,
        piece: Access,
        dtype: DType,
        other: Number,
        options: str,
        offsets: Sequence[Value] = (),
    ) -> Value:
        pointer = self.pointer(piece, offsets)
        bounds = self.bounds(piece)
        dims = pointer.dims.union(*(t.dims for t in bounds))
        mask = self.joined([*self.valid(dims), *bounds])
        target = self.spread(pointer, dims)
        if mask is None:
            return Value(self.lines.bind("v", f"tl.load({target}{options})"), dims)
        fill = number_text(other, dtype)
        text = f"tl.load({target}{self.mask_text(mask)}, other={fill}{options})"
        return Value(self.lines.bind("v", text), dims)

    def _load_masked(
        self, pieces: Sequence[Access], dtype: DType, other: Number, options: str
    ) -> Value:
        """Every piece under its own mask, joined by selections."""
        fills = [(p, p.source.value) for p in pieces if isinstance(p.source, Fill)]
        real = [p for p in pieces if not isinstance(p.source, Fill)]
        same = all(value == other for _, value in fills)
        if len(real) == 1 and same:
            return self._load_one(real[0], dtype, other, options)
        value: Value | None = None
        for piece in real:
            loaded = self._load_one(piece, dtype, other, options)
            value = loaded if value is None else self._select(piece, loaded, value)
        if value is None:
            value = self._constant(other, dtype)
        for piece, fill in fills:
            value = self._select(piece, Value(number_text(fill, dtype), NONE), value)
        outside = self.joined(self.valid(self.everything))
        if same or outside is None:
            return value
        text = f"tl.where({outside.text}, {value.name}, {number_text(other, dtype)})"
        return Value(self.lines.bind("v", text), value.dims | outside.dims)

    def _select(self, piece: Access, inside: Value, outside: Value) -> Value:
        condition = self.joined(self.bounds(piece))
        text = "True" if condition is None else condition.text
        dims = inside.dims | outside.dims | (NONE if condition is None else condition.dims)
        text = f"tl.where({text}, {inside.name}, {outside.name})"
        return Value(self.lines.bind("v", text), dims)

    def _constant(self, number: Number, dtype: DType) -> Value:
        text = f"tl.full({self.shape()}, {number_text(number, dtype)}, {type_text(dtype)})"
        return Value(self.lines.bind("v", text), self.everything)

    def _load_branches(
        self,
        pieces: Sequence[Access],
        dtype: DType,
        other: Number,
        options: str,
        *,
        exact: bool,
    ) -> Value:
        """A scalar branch a piece; a last one for blocks that lie in several, if there can be."""
        name = self.lines.name("piece")
        covered = exact and self._covering(pieces)
        for number, piece in enumerate(pieces):
            condition = self._inside(piece)
            last = covered and number == len(pieces) - 1
            head = "else:" if last else f"{'elif' if number else 'if'} {condition}:"
            with self.lines.block(head):
                if isinstance(piece.source, Fill):
                    value = self._constant(piece.source.value, dtype)
                else:
                    value = self._load_one(self._unbounded(piece), dtype, other, options)
                self.lines.add(f"{name} = {self._in_shape(value)}")
        if not covered:
            with self.lines.block("else:"):
                if exact:
                    value = self._constant(other, dtype)
                else:
                    value = self._load_masked(pieces, dtype, other, options)
                self.lines.add(f"{name} = {self._in_shape(value)}")
        return Value(name, self.everything)

    def _covering(self, pieces: Sequence[Access]) -> bool:
        """Do pieces that differ in one scalar coordinate cover its whole range?"""
        axes = {b.axis for p in pieces for b in p.mask}
        if len(axes) != 1 or any(not p.mask for p in pieces):
            return False
        ordered = [p.mask[0] for p in pieces]
        ends = {b.high for b in ordered} == {b.low for b in ordered}
        return ends and sum(b.low is None for b in ordered) == 1

    def _unbounded(self, piece: Access) -> Access:
        """The piece, inside a branch that has established its bounds."""
        return replace(piece, mask=())

    def _exclusive(self, pieces: Sequence[Access]) -> bool:
        """Do only scalar coordinates decide which piece a block lies in?"""
        coordinates = self.space.coordinates
        return all(not coordinates[b.axis].dims for p in pieces for b in p.mask)

    def _inside(self, piece: Access) -> str | None:
        """The scalar condition that the whole block lies in the piece's box; None if unknown."""
        parts: list[str] = []
        for bound in piece.mask:
            at = self.space.coordinates[bound.axis]
            first = at.text if not at.dims else at.start
            if first is None:
                return None
            if bound.low is not None:
                parts.append(f"({first} >= {size_text(bound.low)})")
            if bound.high is not None:
                high = size_text(bound.high)
                past = f"{first} < {high}" if not at.dims else f"{first} + {at.length} <= {high}"
                parts.append(f"({past})")
        return " and ".join(parts) or "True"

    def _in_shape(self, value: Value) -> str:
        """The value as text, broadcast to the block so that all branches agree in type."""
        if len(value.dims) == len(self.space.shape):
            return value.name
        return f"tl.broadcast_to({value.name}, {self.shape()})"

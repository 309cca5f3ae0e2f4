"""What a movement rule is made of: `Movement`, `Operand`, `Entry`, and what rules share.

Sizes are Python ints or sympy expressions (a model with dynamic shapes). A rule compares symbolic
sizes with `same`, which is true only where it holds for every value of the symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch._ops import OpOverload

from vtc.index import Fill, IndexMap, Piece, Size, axes, sizes
from vtc.index.affine import Affine, Look, as_affine

Shape = tuple[Size, ...]
Index = Affine | Size
"""An index expression: of output coordinates, or constant."""


@dataclass(frozen=True)
class Movement:
    """What one movement operator does, by index maps.

    `operator` is the name of the table entry and `shape` the shape of the output. `sources` is the
    number of tensor operands whose elements are moved.

    `load` (direction A) maps an output index to (source number, index in it). It is None where it
    cannot be written as boxes: a scatter through a runtime index.

    `store` (direction B) has one map a source, from an index of the source to one of the output
    (which is source 0 of that map). A partial map covers the elements that reach the output. None:
    an element of the source may have several homes, or its home cannot be written.

    `inplace` is for scatters: the number of the source whose other elements pass through unchanged.
    `store[inplace]` is None, as the output is a newer version of the same storage. A scatter writes
    an element twice when runtime indices repeat, and then eager PyTorch leaves either value.

    `lookups` gives, in the numbering of `Lookup`, the positions among the operator's tensor
    operands of runtime index tensors, and `operands` the positions of the sources. Positions count
    tensors in the order of the arguments, lists of tensors flattened and absent ones skipped.

    `view` is True when eager PyTorch returns a view of the source, for these strides, and copies
    nothing.
    """

    operator: str
    shape: Shape
    sources: int
    load: IndexMap | None
    store: tuple[IndexMap | None, ...]
    inplace: int | None = None
    lookups: tuple[int, ...] = ()
    view: bool = False
    operands: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(sizes.as_size, self.shape)))
        if not self.operands:
            free = (i for i in range(self.sources + len(self.lookups)) if i not in self.lookups)
            object.__setattr__(self, "operands", tuple(free)[: self.sources])
        if len(self.operands) != self.sources or set(self.operands) & set(self.lookups):
            raise ValueError(f"{self.operator}: {self.sources} sources but {self.operands=}")
        if len(self.store) != self.sources:
            raise ValueError(f"{self.operator}: needs one store map (or None) for each source")
        if self.inplace is not None and self.store[self.inplace] is not None:
            raise ValueError(f"{self.operator}: the updated source has no store map")
        if self.load is not None and self.load.shape != self.shape:
            raise ValueError(f"{self.operator}: load has shape {self.load.shape}, not {self.shape}")


@dataclass(frozen=True)
class Operand:
    """A tensor as a rule sees it: shape, strides and offset in elements, and the dtype.

    `stride` None means contiguous and `dtype` None unknown, as for an ONNX tensor.
    """

    shape: Shape
    stride: Shape | None = None
    offset: Size = 0
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def strides(self) -> Shape:
        return contiguous_strides(self.shape) if self.stride is None else self.stride


Rule = Callable[..., Movement | None]
"""An ATen rule: `rule(result, *args, **kwargs)` with the operator's arguments as its schema orders
them, defaults filled in and tensors replaced by `Operand`. `result` is the output's Operand. None:
with these arguments the operator is not a movement operator, or its map cannot be written."""


@dataclass(frozen=True)
class Entry:
    """One row of the movement table.

    `rule` is the pure function from shapes and attributes to a Movement. `aten` binds ATen
    overloads to rules on captured arguments, and `parts` does so for overloads that return several
    tensors: their rules also get the keyword `part`, the number of the output.
    """

    name: str
    onnx: tuple[str, ...]
    directions: str
    summary: str
    rule: Callable[..., Any]
    aten: Mapping[OpOverload, Rule] = field(default_factory=dict)
    parts: Mapping[OpOverload, Rule] = field(default_factory=dict)


def copying(rule: Rule) -> Rule:
    """The rule of an operator's `_copy` variant: the same maps, and never a view."""

    def copied(result: Operand, *args: Any, **kwargs: Any) -> Movement | None:
        movement = rule(result, *args, **kwargs)
        return None if movement is None else replace(movement, view=False)

    return copied


# Sizes.


def same(a: Size, b: Size) -> bool:
    """True when the sizes are equal for every value of their symbols."""
    return bool(sizes.sub(a, b) == 0)


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def contiguous_strides(shape: Sequence[Size]) -> Shape:
    """Row-major strides. A size of 0 counts as 1, as in PyTorch."""
    steps = (1 if s == 0 else s for s in reversed(shape[1:]))
    return tuple(accumulate(steps, sizes.mul, initial=1))[: len(shape)][::-1]


def same_layout(shape: Sequence[Size], a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether strides `a` and `b` place every element alike; unit dimensions do not matter."""
    return 0 in shape or all(s == 1 or same(x, y) for s, x, y in zip(shape, a, b, strict=True))


def max_zero(value: Size) -> Size | None:
    """max(value, 0), None where that depends on the symbols."""
    if sizes.nonnegative(value):
        return value
    return 0 if sizes.le(value, 0) else None


def overlapping(operand: Operand) -> bool:
    """Whether two elements share a place in the storage. Symbolic strides: whether one is 0."""
    pairs = [(t, s) for s, t in zip(operand.shape, operand.strides, strict=True) if s != 1]
    if 0 in operand.shape:
        return False
    if not all(isinstance(n, int) for pair in pairs for n in pair):
        return any(t == 0 for t, _ in pairs)
    reach = 0
    for stride, size in sorted(pairs):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative dimension number as one in [0, rank); 0 for a scalar."""
    return axis % rank if rank else 0


# Maps.


def coordinates(rank: int) -> tuple[Affine, ...]:
    """The output coordinates, on which `+ - * // %` build index expressions."""
    return axes(rank)


def lookup(number: int, at: Sequence[Index]) -> Affine:
    """Element `at` of runtime index tensor `number`; as a whole index, a negative one wraps."""
    return Affine(0, {Look(number, tuple(map(as_affine, at))): 1})


def box(
    lower: Sequence[Size], upper: Sequence[Size], index: Sequence[Index], source: int = 0
) -> Piece:
    return Piece(lower, upper, source, index)


def filled(lower: Sequence[Size], upper: Sequence[Size], value: float | int | bool) -> Piece:
    return Piece(lower, upper, Fill(value))


def mapped(shape: Sequence[Size], pieces: Iterable[Piece]) -> IndexMap:
    """The map of disjoint pieces, in normal form."""
    return IndexMap(shape, tuple(pieces)).simplify()


def whole(shape: Sequence[Size], index: Sequence[Index], source: int = 0) -> IndexMap:
    """The map with one expression for all of `shape`."""
    return IndexMap.single(shape, index, source).simplify()


def broadcast_index(shape: Sequence[Size], index: Sequence[Index]) -> tuple[Index, ...]:
    """The index, in a tensor of `shape` broadcast to the rank of `index`, of `index`."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if s == 1 else i for s, i in zip(shape, own, strict=True))


def reshape_is_view(operand: Operand, target: Sequence[Size]) -> bool:
    """Whether `operand` can be viewed with another shape (ATen/TensorUtils.cpp, computeStride).

    Where sizes or strides are symbolic, the answer is yes only if it is so for all their values.
    """
    shape, stride = operand.shape, operand.strides
    if 0 in shape or not shape:
        return True
    left = len(target) - 1
    base = stride[-1]
    ours: Size = 1
    for d in reversed(range(len(shape))):
        ours = sizes.mul(ours, shape[d])
        joined = d > 0 and (shape[d - 1] == 1 or same(stride[d - 1], sizes.mul(ours, base)))
        if joined:
            continue
        theirs: Size = 1
        while left >= 0 and (target[left] == 1 or not same(theirs, ours)):
            theirs = sizes.mul(theirs, target[left])
            left -= 1
        if not same(theirs, ours):
            return False
        base, ours = stride[d - 1], 1
    return left < 0

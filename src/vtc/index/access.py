"""The normal form of an access: what a code generator prints to read or write through a map.

One ``Access`` per piece of a map, with the strides of the physical tensors put in. Triton text,
view-loads of tile programs and offset tables of CPU kernels are printers of this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtc.index import affine, sizes
from vtc.index.affine import Affine, Atom, wrapped_lookup
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import Size
from vtc.index.strided import Contiguity, offset_of, piece_contiguity

if TYPE_CHECKING:
    from vtc.index.map import IndexMap


@dataclass(frozen=True, init=False)
class Layout:
    """A physical tensor: shape, and stride and offset in elements."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size

    def __init__(self, shape: Sequence[Any], stride: Sequence[Any], offset: Any = 0) -> None:
        object.__setattr__(self, "shape", tuple(sizes.as_size(s) for s in shape))
        object.__setattr__(self, "stride", tuple(sizes.as_size(s) for s in stride))
        object.__setattr__(self, "offset", sizes.as_size(offset))


@dataclass(frozen=True)
class Bound:
    """A condition of a mask: low <= coordinate ``axis`` < high; None where the shape implies it."""

    axis: int
    low: Size | None
    high: Size | None


@dataclass(frozen=True)
class Access:
    """Elements of one box: a fill, or address base + sum(stride[k] * i_k) + rest in one source.

    Addresses are in elements from the storage's address 0 as the source's Layout counts them;
    coordinates are those of the whole output, not of the box. ``rest`` holds floor divisions,
    modulos and runtime lookups (constant 0, no bare coordinate) and is None for a plain strided
    access. Lookup values count from the end where negative: every ``lookup % size`` is that wrap.
    ``mask`` is what the box demands beyond the shape. ``contiguity`` is None for a fill.
    """

    lower: tuple[Size, ...]
    upper: tuple[Size, ...]
    mask: tuple[Bound, ...]
    source: int | Fill
    base: Size
    stride: tuple[Size, ...]
    rest: Affine | None
    lookups: tuple[int, ...]
    contiguity: Contiguity | None

    @property
    def offset(self) -> Affine:
        """The whole address expression."""
        terms: dict[Atom, Size] = {k: s for k, s in enumerate(self.stride) if s != 0}
        direct = Affine(self.base, terms)
        return direct if self.rest is None else affine.add(direct, self.rest)

    def __str__(self) -> str:
        box = ", ".join(f"i{k} in {a}:{b}" for k, (a, b) in enumerate(self.box))
        if isinstance(self.source, Fill):
            return f"[{box}] = {self.source.value}"
        text = f"[{box}] = source{self.source} + {affine.text(self.offset)}"
        if self.contiguity is None:
            return text
        return f"{text}  run {self.contiguity.run} align {self.contiguity.alignment}"

    @property
    def box(self) -> tuple[tuple[Size, Size], ...]:
        """(lower, upper) of each coordinate."""
        return tuple(zip(self.lower, self.upper, strict=True))


def accesses(index_map: IndexMap, layouts: Mapping[int, Layout]) -> tuple[Access, ...]:
    """The accesses of a map whose source k is laid out as ``layouts[k]``, in order of pieces."""
    simple = index_map.simplify()
    return tuple(_access(p, simple.shape, layouts) for p in simple.pieces)


def _access(piece: Piece, shape: Sequence[Size], layouts: Mapping[int, Layout]) -> Access:
    mask = tuple(
        Bound(k, None if low == 0 else low, None if high == size else high)
        for k, (low, high, size) in enumerate(zip(piece.lower, piece.upper, shape, strict=True))
        if low != 0 or high != size
    )
    rank = len(shape)
    if isinstance(piece.source, Fill):
        return Access(piece.lower, piece.upper, mask, piece.source, 0, (0,) * rank, None, (), None)
    layout = layouts[piece.source]
    explicit = piece.with_index(
        [wrapped_lookup(a, size) for a, size in zip(piece.forms, layout.shape, strict=True)]
    )
    offset = affine.add(offset_of(explicit, layout.stride), affine.constant(layout.offset))
    rest: dict[Atom, Size] = {t: c for t, c in offset.terms.items() if not isinstance(t, int)}
    return Access(
        lower=piece.lower,
        upper=piece.upper,
        mask=mask,
        source=piece.source,
        base=offset.const,
        stride=tuple(offset.terms.get(k, 0) for k in range(rank)),
        rest=Affine(0, rest) if rest else None,
        lookups=tuple(sorted(affine.lookups(offset))),
        contiguity=piece_contiguity(explicit, shape, layout.stride),
    )

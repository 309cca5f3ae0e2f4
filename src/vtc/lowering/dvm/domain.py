"""The iteration space of a kernel, and which fold or anchor it is made for.

A root (the node that a kernel stores) is walked from its own coordinates. The first fold that fits
gives the space its reduced dimensions; with none, the first anchor does; with neither the space is
the root's shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from vtc.graph.rules import same
from vtc.index import Affine, Size, affine, sizes, substitution
from vtc.lowering.dvm.nodes import PHYSICAL, ConvolutionSpec, Fold, Move, Node
from vtc.program.tile import ANCHORS
from vtc.vm.isa import MAX_DIMS

Index = tuple[Affine, ...]
ZERO = affine.constant(0)


@dataclass(frozen=True)
class Domain:
    """Sizes of the space, and where the root, the folds and the anchor are in it.

    root: the root's index. folds: (coordinate, size) of each folded dimension, in order. anchor and
    anchor_index: the product, attention or convolution, and which of its elements a point is.
    locked: dimensions that must stay whole.
    """

    sizes: tuple[Size, ...]
    root: Index
    folds: tuple[tuple[Affine, Size], ...] = ()
    anchor: Node | None = None
    anchor_index: Index = ()
    locked: frozenset[int] = frozenset()

    @property
    def bounds(self) -> affine.Bounds:
        return tuple((0, sizes.sub(s, 1)) for s in self.sizes)

    @property
    def reduced(self) -> frozenset[int]:
        return frozenset(d for form, _ in self.folds for d in affine.coordinates(form))

    def split(self, dim: int, factor: Size) -> Domain:
        """Dimension `dim` as two: factor * q + r."""
        count = sizes.exact_div(self.sizes[dim], factor)
        assert count is not None
        whole = (*self.sizes[:dim], count, factor, *self.sizes[dim + 1 :])
        value = affine.add(affine.scale(affine.coordinate(dim), factor), affine.coordinate(dim + 1))
        values = [
            value if d == dim else affine.coordinate(d if d < dim else d + 1)
            for d in range(len(self.sizes))
        ]
        locked = frozenset(d if d < dim else d + 1 for d in self.locked)
        return replace(self._moved(whole, values), locked=locked)

    def part(self, dim: int, start: int, step: int, count: Size) -> Domain:
        """The points start + step * j of dimension `dim`, for j < count."""
        whole = (*self.sizes[:dim], count, *self.sizes[dim + 1 :])
        values = [affine.coordinate(d) for d in range(len(self.sizes))]
        values[dim] = affine.add(affine.scale(values[dim], step), affine.constant(start))
        return self._moved(whole, values)

    def flattened(self, count: int) -> Domain:
        """The first `count` dimensions as one, row-major."""
        outer, rest = self.sizes[:count], self.sizes[count:]
        whole = (sizes.product(outer), *rest)
        bounds = tuple((0, sizes.sub(s, 1)) for s in whole)
        values = []
        for d, size in enumerate(outer):
            inner = sizes.product(outer[d + 1 :])
            counted = affine.floor_div(affine.coordinate(0), inner, bounds)
            values.append(affine.modulo(counted, size, bounds))
        values += [affine.coordinate(d) for d in range(1, len(whole))]
        return self._moved(whole, values)

    def _moved(self, whole: tuple[Size, ...], values: Sequence[Affine]) -> Domain:
        """The space of other sizes in whose coordinates the old ones are `values`."""
        bounds = tuple((0, sizes.sub(s, 1)) for s in whole)

        def moved(form: Affine) -> Affine:
            return substitution.substitute(form, values, bounds)

        return replace(
            self,
            sizes=whole,
            root=tuple(map(moved, self.root)),
            folds=tuple((moved(form), size) for form, size in self.folds),
            anchor_index=tuple(map(moved, self.anchor_index)),
        )


def coordinates_of(index: Sequence[Affine]) -> frozenset[int]:
    """The coordinates that an index depends on."""
    return _coordinates_of(tuple(index))


# The values of a chain are all asked for at few indices.
@functools.lru_cache(maxsize=1 << 12)
def _coordinates_of(index: Index) -> frozenset[int]:
    return frozenset().union(*(affine.coordinates(a) for a in index))


def coordinate_number(form: Affine) -> int | None:
    """k where the form is coordinate k alone."""
    if form.const == 0 and len(form.terms) == 1:
        ((atom, coefficient),) = form.terms.items()
        if isinstance(atom, int) and coefficient == 1:
            return atom
    return None


def broadcast_index(shape: Sequence[Size], index: Index) -> Index:
    """The index, in an operand of `shape`, of element `index` of what it broadcasts to."""
    own = index[len(index) - len(shape) :]
    return tuple(ZERO if s == 1 else i for s, i in zip(shape, own, strict=True))


def pointwise(
    shape: Sequence[Size], lower: Sequence[Size] = (), order: Sequence[int] | None = None
) -> Domain:
    """One point for each element of a box of `shape` that starts at `lower`, its dimensions in
    `order`; unit dimensions are left out, and of more than a kernel has the outermost are one."""
    domain = _points(shape, order)
    if lower:
        index = zip(domain.root, map(affine.constant, lower), strict=True)
        domain = replace(domain, root=tuple(affine.add(i, low) for i, low in index))
    more = len(domain.sizes) - MAX_DIMS
    return domain if more <= 0 else domain.flattened(more + 1)


def _points(shape: Sequence[Size], order: Sequence[int] | None = None) -> Domain:
    """One point for each element, a coordinate for each dimension that is not of size 1."""
    kept = [d for d in order or range(len(shape)) if shape[d] != 1]
    places = {d: affine.coordinate(n) for n, d in enumerate(kept)}
    index = tuple(places.get(d, ZERO) for d in range(len(shape)))
    return Domain(tuple(shape[d] for d in kept) or (1,), index)


def choose(
    root: Node, stored: Callable[[Node], bool], order: Sequence[int] | None = None
) -> Domain:
    """The space of the kernel that stores `root`; `stored` tells what is only loaded, `order` how
    the root's dimensions lie in memory."""
    shape = root.shape
    own = tuple(ZERO if s == 1 else affine.coordinate(d) for d, s in enumerate(shape))
    found = list(_leaders(root, own, stored, set()))
    for node, index in found:
        if node.op in ("reduce", "scan"):
            domain = _for_fold(root, node, index)
            if domain is not None:
                return domain
    for node, index in found:
        if node.op in ANCHORS:
            domain = _for_anchor(root, node, index)
            if domain is not None:
                return domain
    return pointwise(shape, order=order)


def _leaders(
    root: Node, own: Index, stored: Callable[[Node], bool], seen: set[tuple[Node, Index]]
) -> Iterator[tuple[Node, Index]]:
    """The folds and anchors that the root computes, each with the index at which it is asked."""
    bounds = tuple((0, sizes.sub(s, 1)) for s in root.shape)
    pending = [(root, own)]
    while pending:
        node, index = pending.pop()
        if (node, index) in seen or node.op in PHYSICAL or (node is not root and stored(node)):
            continue
        seen.add((node, index))
        if node.op in ANCHORS:
            yield node, index
        elif node.op in ("reduce", "scan"):
            yield node, index
            # A fold over a fold: softmax's sum reads its maximum.
            if node.op == "scan":
                pending.append((node.operands[0], index))
        elif node.op == "move":
            moved: Move = node.constant
            pieces = moved.load.pieces
            if len(pieces) == 1 and not pieces[0].lookups() and isinstance(pieces[0].source, int):
                forms = tuple(substitution.substitute(f, index, bounds) for f in pieces[0].forms)
                pending.append((node.operands[pieces[0].source], forms))
        else:
            pending += [(o, broadcast_index(o.shape, index)) for o in reversed(node.operands)]


def _for_fold(root: Node, node: Node, index: Index) -> Domain | None:
    """The space in which `node`, asked at `index` of the root's coordinates, can be folded."""
    fold: Fold = node.constant
    operand = node.operands[0]
    lengths = [operand.shape[d] for d in fold.dims]
    if node.op == "scan":
        along = coordinate_number(index[fold.dims[0]])
        others = [i for d, i in enumerate(index) if d != fold.dims[0]]
        if along is None or along in coordinates_of(others):
            return None
        domain = _points(root.shape)
        place = coordinate_number(domain.root[along])
        if place is None or coordinates_of(index) != _moving(root):
            return None
        return replace(domain, folds=((affine.coordinate(place), lengths[0]),))
    kept = [i for d, i in enumerate(index) if d not in fold.dims]
    used = coordinates_of(kept)
    free = [d for d in sorted(_moving(root)) if d not in used]
    if not free:
        return _appended(root, node, index)
    fits = len(free) == len(lengths) and all(
        same(root.shape[d], n) for d, n in zip(free, lengths, strict=True)
    )
    if not fits:
        return None
    domain = _points(root.shape)
    return replace(
        domain, folds=tuple((domain.root[d], n) for d, n in zip(free, lengths, strict=True))
    )


def _moving(root: Node) -> set[int]:
    return {d for d, s in enumerate(root.shape) if s != 1}


def _appended(root: Node, node: Node, index: Index) -> Domain:
    """The root's space with the folded dimensions added, in the operand's order where it shows."""
    fold: Fold = node.constant
    operand = node.operands[0]
    order: list[tuple[str, int]] = []
    for d in range(len(operand.shape)):
        if d in fold.dims:
            order.append(("fold", d))
        else:
            place = coordinate_number(index[d])
            if place is not None and ("root", place) not in order:
                order.append(("root", place))
    order[:0] = [("root", d) for d in sorted(_moving(root)) if ("root", d) not in order]
    apart = _runs(order) > MAX_DIMS
    if apart:
        order.sort(key=lambda key: (key[0] == "fold", key[1]))
    places = {key: affine.coordinate(n) for n, key in enumerate(order)}
    own = tuple(places.get(("root", d), ZERO) for d in range(len(root.shape)))
    lengths = tuple(operand.shape[d] if kind == "fold" else root.shape[d] for kind, d in order)
    folds = tuple((places["fold", d], operand.shape[d]) for d in fold.dims)
    domain = Domain(lengths, own, folds)
    return domain.flattened(len(order) - len(folds)) if apart else domain


def _runs(order: Sequence[tuple[str, int]]) -> int:
    """How many dimensions are left where neighbours of one kind become one, as they do in a kernel
    on a tensor that lies row by row."""
    return sum(
        1 for one, other in zip(order, [("", 0), *order], strict=False) if one[0] != other[0]
    )


def _for_anchor(root: Node, node: Node, index: Index) -> Domain | None:
    """The root's space with the anchor's column (and attention's row) as its last dimensions."""
    fixed = 2 if node.op == "attention" else 1
    slides = _slides(node)
    if sizes.lt(sizes.product(node.shape), sizes.product(root.shape)):
        return None  # elements would be computed several times (upsampling)
    if not all(_slides_alone(node, index, d) for d in slides):
        return None
    last: list[int] = []
    unit: list[int] = []
    columns = _columns(root, node, index)
    for place in range(-fixed, 0):
        number = columns if place == -1 else coordinate_number(index[place])
        if number is not None:
            last.append(number)
        elif node.shape[place] == 1:
            unit.append(place)
        else:
            return None
    others = index[: len(index) - fixed]
    if (
        len(set(last)) < len(last)
        or coordinates_of(others) & set(last)
        or coordinates_of(index) != _moving(root)
    ):
        return None
    order: list[int | None] = [d for d in sorted(_moving(root)) if d not in last]
    if node.op == "matmul" and node.shape[-2] == 1:
        order.append(None)
    order += [
        None if place in unit else columns if place == -1 else coordinate_number(index[place])
        for place in range(-fixed, 0)
    ]
    places = {d: affine.coordinate(n) for n, d in enumerate(order) if d is not None}
    values = [places.get(d, ZERO) for d in range(len(root.shape))]
    whole = tuple(1 if d is None else root.shape[d] for d in order)
    bounds = tuple((0, sizes.sub(s, 1)) for s in whole)
    at = tuple(substitution.substitute(i, values, bounds) for i in index)
    domain = Domain(
        whole,
        tuple(values),
        anchor=node,
        anchor_index=at,
        locked=frozenset(range(len(whole) - fixed, len(whole)))
        | coordinates_of([at[d] for d in slides]),
    )
    return _grouped(domain, node) if node.op == "convolution" else domain


def sliding(spec: ConvolutionSpec, weight: Node) -> tuple[int, ...]:
    """The spatial dimensions, from 0, along which a convolution has a window; along the others it
    reads every element, or one at each stride."""
    taps = weight.shape[2:]
    return tuple(d for d, pad in enumerate(spec.padding) if not (pad == 0 and taps[d] == 1))


def _slides(node: Node) -> tuple[int, ...]:
    """The dimensions of an anchor's result that windows slide along."""
    if node.op != "convolution":
        return ()
    return tuple(d + 1 for d in sliding(node.constant, node.operands[1]))


def _slides_alone(node: Node, index: Index, d: int) -> bool:
    """Does a coordinate count the windows along dimension d, and nothing else (as where a diagonal
    is asked for)?"""
    others = coordinates_of([form for k, form in enumerate(index) if k != d])
    number = coordinate_number(index[d])
    return number not in others if number is not None else node.shape[d] == 1


def _grouped(domain: Domain, node: Node) -> Domain:
    """The space of a convolution with groups, its column as groups and columns of a group."""
    spec: ConvolutionSpec = node.constant
    each = sizes.exact_div(node.shape[-1], spec.groups)
    assert each is not None
    if spec.groups == 1 or each == 1:
        return domain
    return domain.split(len(domain.sizes) - 1, each)


# A product's columns may be several dimensions of the root (heads and their width) where the last
# is wide enough to be a tile's.
NARROWEST = 16


def _columns(root: Node, node: Node, index: Index) -> int | None:
    """The root's dimension that counts the anchor's columns one by one."""
    number = coordinate_number(index[-1])
    if number is not None or node.op != "matmul":
        return number
    form = index[-1]
    ones = [t for t, c in form.terms.items() if isinstance(t, int) and c == 1]
    plain = form.const == 0 and all(isinstance(t, int) for t in form.terms)
    if not plain or len(ones) != 1:
        return None
    width = root.shape[ones[0]]
    return ones[0] if isinstance(width, int) and width >= NARROWEST else None

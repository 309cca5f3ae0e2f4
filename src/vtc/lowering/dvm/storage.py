"""How the dimensions of a stored value lie in memory.

Convolutions read and write channels last. What is computed from one is stored in its order, however
its shape is written: the transpositions between the user's layout and the kernels' are then index
maps, and only what the caller sees is stored in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vtc.index import Size, affine, sizes
from vtc.lowering.dvm.nodes import Move, Node

Order = tuple[int, ...]


class Orders:
    """The order of dimensions, from the outermost, of values that have a preferred one."""

    def __init__(self, given: Callable[[Node], Order | None]) -> None:
        """`given`: of what has a place already."""
        self.given = given
        self.known: dict[Node, Order | None] = {}

    def __call__(self, node: Node) -> Order | None:
        """None: as the shape is written."""
        pending = [node]
        while pending:
            at = pending[-1]
            if at in self.known:
                pending.pop()
                continue
            missing = [] if at.op == "convolution" else [
                o for o in _looked_at(at) if o not in self.known
            ]  # fmt: skip
            if missing:
                pending += missing
            else:
                self.known[at] = self._order(at)
                pending.pop()
        return self.known[node]

    def _order(self, node: Node) -> Order | None:
        found = self.given(node)
        if found is not None:
            return found
        if node.op == "convolution":
            return tuple(range(len(node.shape)))
        if node.op == "move":
            return _moved(node, [self.known[o] for o in _looked_at(node)])
        same = [o for o in _looked_at(node) if len(o.shape) == len(node.shape)]
        orders = [self.known[o] for o in same if self.known[o] is not None]
        return orders[0] if orders else None

    def strides(self, node: Node) -> tuple[Size, ...]:
        """Dense strides of the node's shape in its order."""
        return strides_in(node.shape, self(node) or range(len(node.shape)))


def strides_in(shape: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """Dense strides, in elements, of dimensions that lie in `order`."""
    found: list[Size] = [0] * len(shape)
    step: Size = 1
    for d in reversed(order):
        found[d] = step
        step = sizes.mul(step, 1 if shape[d] == 0 else shape[d])
    return tuple(found)


def without_gaps(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[Size, ...] | None:
    """Dense strides in the order of some that may have gaps, or repeat elements, as PyTorch's
    kernels lay out a result (ATen, `infer_dense_strides`). None where symbols leave it open."""
    pairs = list(zip(shape, stride, strict=True))
    if not all(isinstance(n, int) and isinstance(s, int) for n, s in pairs):
        return None
    inner = list(reversed(range(len(pairs))))
    for last in range(1, len(inner)):
        at = last
        for other in range(last - 1, -1, -1):
            found = _outside(pairs[inner[other]], pairs[inner[at]])
            if found is False:
                break
            if found:
                inner[other], inner[at] = inner[at], inner[other]
                at = other
    return strides_in(shape, inner[::-1])


def _outside(one: tuple[Size, Size], other: tuple[Size, Size]) -> bool | None:
    """Does a dimension (size, stride) lie outside of another? None: nothing tells."""
    (size, step), (size2, step2) = one, other
    if step == 0 or step2 == 0:
        return None
    if step == step2:
        return True if size > size2 else None
    return bool(step > step2)


def channels_last(stride: Sequence[Size]) -> Order | None:
    """The order of a tensor whose second dimension is contiguous, None for others."""
    rank = len(stride)
    if rank < 3 or stride[1] != 1 or stride[-1] == 1:
        return None
    return (0, *range(2, rank), 1)


def _looked_at(node: Node) -> tuple[Node, ...]:
    """The operands that an order may come from."""
    if node.op in ("matmul", "attention", "input", "external", "arm", "const", "iota"):
        return ()
    if node.op == "move":
        move: Move = node.constant
        return node.operands[: move.sources]
    if node.op == "scatter":
        return node.operands[:1]
    return node.operands


def _moved(node: Node, orders: Sequence[Order | None]) -> Order | None:
    """The order of a movement's result: dimensions as those of the source that they move in."""
    move: Move = node.constant
    for piece in move.load.pieces:
        order = orders[piece.source] if isinstance(piece.source, int) else None
        if order is None:
            continue
        places: dict[int, int] = {}
        for dim, form in enumerate(piece.forms):
            for d in affine.coordinates(form):
                places.setdefault(d, order.index(dim))
        rank = len(node.shape)
        # A dimension that moves in none is broadcast: it goes where it stands, in front.
        return tuple(sorted(range(rank), key=lambda d: (places.get(d, -1), d)))
    return None

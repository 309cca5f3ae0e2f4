"""Matmul and attention: their operands as plain accesses."""

from __future__ import annotations

from vtc.index import Affine, Fill, Size, affine, sizes, substitution
from vtc.lowering.dvm.body import Body, Home, Indirect, Needs
from vtc.lowering.dvm.domain import Index, broadcast_index
from vtc.lowering.dvm.nodes import AttentionSpec, Move, Node, contiguous
from vtc.program.tile import Access, Attention, Contraction, Panel


def write_anchor(body: Body, node: Node, index: Index, planned: Planned) -> int:
    """The value of a matmul or attention at the point that it is made for.

    `planned` gives the home that a node is going to have. Raises Needs for an operand that is not
    in memory, or not at addresses that are affine.
    """
    if node.op == "matmul":
        return _matmul(body, node, index, planned)
    return _attention(body, node, index, planned)


class Planned:
    """Where a node will be that is not in memory yet: at its home, or at one of its own.

    panels: for right operands of products the node that holds them packed.
    """

    def __init__(self, homes: dict[Node, Home], panels: dict[Node, tuple[Node, Panel]]) -> None:
        self.homes, self.panels = homes, panels

    def __call__(self, node: Node) -> Home:
        return self.homes.get(node) or Home(-1, 0, contiguous(node.shape))


def _matmul(body: Body, node: Node, index: Index, planned: Planned) -> int:
    left, right = node.operands
    inner = affine.coordinate(len(body.domain.sizes))
    outer = index[:-2]
    k = left.shape[-1]
    at_left = (*broadcast_index(left.shape[:-2], outer), index[-2], inner)
    at_right = (*broadcast_index(right.shape[:-2], outer), inner, index[-1])
    packed, panel = _packed(body, right, (*outer, index[-1]), planned)
    product = Contraction(
        left=_operand(body, left, at_left, k, planned),
        right=_operand(body, right, at_right, k, planned),
        k=k,
        dtype=left.dtype,
        packed=packed,
        panel=panel,
    )
    return body.add("matmul", (), node.dtype.compute, constant=product)


def _packed(
    body: Body, right: Node, index: Index, planned: Planned
) -> tuple[Access | None, Panel | None]:
    """The access of the right operand's panels at (outer, column), if there are such and columns
    that a tile starts with start a panel."""
    if right not in planned.panels:
        return None, None
    node, panel = planned.panels[right]
    home = planned.homes[node]
    rank = len(body.domain.sizes)
    *outer_step, panel_step, row_step, _, _ = home.stride
    stride: list[Size] = [0] * rank
    offset: Size = home.offset
    outer = broadcast_index(node.shape[:-4], index[:-1])
    for form, step in zip((*outer, index[-1]), (*outer_step, panel_step), strict=True):
        column = form is index[-1]
        for d, factor in (*form.terms.items(), (None, form.const)):
            if not isinstance(factor, int) or not (d is None or isinstance(d, int)):
                return None, None
            if column and not (d == rank - 1 and factor == 1):
                if factor % panel.width:
                    return None, None
                factor //= panel.width
            if d is None:
                offset = sizes.add(offset, sizes.mul(factor, step))
            else:
                stride[d] = sizes.add(stride[d], sizes.mul(factor, step))
    return Access(home.buffer, offset, (*stride, row_step)), panel


def _attention(body: Body, node: Node, index: Index, planned: Planned) -> int:
    query, key, value, *masks = node.operands
    spec: AttentionSpec = node.constant
    rank = len(body.domain.sizes)
    column, inner = affine.coordinate(rank - 1), affine.coordinate(rank)
    outer, row = index[:-2], index[-2]
    length = key.shape[-2]

    def access(tensor: Node, at: Index) -> Access:
        return _operand(body, tensor, at, length, planned)

    mask = None
    if masks:
        (own,) = masks
        at = broadcast_index(own.shape, (*outer, row, inner))
        mask = access(own, at)
    made = Attention(
        query=access(query, (*broadcast_index(query.shape[:-2], outer), row, column)),
        key=access(key, (*broadcast_index(key.shape[:-2], outer), inner, column)),
        value=access(value, (*broadcast_index(value.shape[:-2], outer), inner, column)),
        mask=mask,
        length=length,
        head_dim=query.shape[-1],
        scale=spec.scale,
        causal=spec.causal,
    )
    return body.add("attention", (), node.dtype.compute, constant=made)


def _operand(body: Body, top: Node, index: Index, extra: Size, planned: Planned) -> Access:
    """The access of an operand, movement in front of it followed to what is in memory."""
    bounds = (*body.bounds, (0, sizes.sub(extra, 1)))
    node, at = top, index
    while True:
        home = body.homes(node)
        if home is not None:
            return _affine(body, home, node, at, extra, top)
        step = _through(node, at, bounds)
        if step is None:
            # Where it will be, is it at affine addresses? If not, the operand itself is stored.
            _affine(body, planned(node), node, at, extra, top)
            raise Needs(node)
        body.seen.add(node)
        node, at = step


def _affine(body: Body, home: Home, node: Node, at: Index, extra: Size, top: Node) -> Access:
    try:
        return body.access(home, node.shape, at, extra=extra)
    except Indirect:
        raise Needs(top) from None


def _through(
    node: Node, index: Index, bounds: affine.Bounds
) -> tuple[Node, tuple[Affine, ...]] | None:
    """The source of a movement without cases or lookups, and the index there."""
    if node.op != "move":
        return None
    move: Move = node.constant
    pieces = move.load.pieces
    if len(pieces) != 1 or isinstance(pieces[0].source, Fill) or pieces[0].lookups():
        return None
    forms = tuple(substitution.substitute(f, index, bounds) for f in pieces[0].forms)
    return node.operands[pieces[0].source], forms

"""Products, attention and convolutions: their operands as plain accesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vtc.index import Affine, Fill, Size, affine, sizes, substitution
from vtc.lowering.dvm.body import Body
from vtc.lowering.dvm.channels import Planned, channel_runs
from vtc.lowering.dvm.domain import ZERO, Index, broadcast_index, coordinate_number, sliding
from vtc.lowering.dvm.instructions import Cut, Indirect, Needs
from vtc.lowering.dvm.memory import Home
from vtc.lowering.dvm.nodes import AttentionSpec, ConvolutionSpec, Move, Node
from vtc.program.tile import Access, Attention, Contraction, Convolution, Panel, Part, Window


def write_anchor(body: Body, node: Node, index: Index, planned: Planned) -> int:
    """The value of an anchor at the point that it is made for.

    `planned` gives the home that a node is going to have. Raises Needs for an operand that is not
    in memory, or not at addresses that are affine.
    """
    if node.op == "matmul":
        return _matmul(body, node, index, planned)
    if node.op == "attention":
        return _attention(body, node, index, planned)
    return _convolution(body, node, index, planned)


def _matmul(body: Body, node: Node, index: Index, planned: Planned) -> int:
    left, right = node.operands
    inner = affine.coordinate(len(body.domain.sizes))
    outer = index[:-2]
    k = left.shape[-1]
    at_left = (*broadcast_index(left.shape[:-2], outer), index[-2], inner)
    at_right = (*broadcast_index(right.shape[:-2], outer), inner, index[-1])
    packed, panel = _packed(body, right, (*outer, index[-1]), planned)
    product = Contraction(
        left=_operand(body, left, at_left, (k,), planned),
        right=_operand(body, right, at_right, (k,), planned),
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
        return _operand(body, tensor, at, (length,), planned)

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


def _convolution(body: Body, node: Node, index: Index, planned: Planned) -> int:
    x, weight = node.operands
    spec: ConvolutionSpec = node.constant
    rank = len(body.domain.sizes)
    slides = sliding(spec, weight)
    windows: list[Window] = []
    places: list[Affine] = []
    taps: list[Affine] = [affine.constant(0)] * len(spec.stride)
    for d, stride in enumerate(spec.stride):
        if d not in slides:
            places.append(affine.scale(index[d + 1], stride))
            continue
        taps[d] = affine.coordinate(rank + len(windows))
        places.append(taps[d])
        dim = coordinate_number(index[d + 1])
        windows.append(
            Window(dim, weight.shape[d + 2], stride, spec.dilation[d], spec.padding[d],
                   x.shape[d + 1])
        )  # fmt: skip
    depth = weight.shape[1]
    each = sizes.exact_div(weight.shape[0], spec.groups)
    assert each is not None
    channel = affine.coordinate(rank + len(windows))
    group = affine.floor_div(index[-1], each, body.bounds) if spec.groups != 1 else ZERO
    column = rank - 1
    depthwise = each == 1 and spec.groups != 1 and body.domain.sizes[column] != 1
    # The only place of a dimension is 0, in which a run of the groups' channels has no second term.
    place_in_group = ZERO if depthwise and depth == 1 else channel
    at = (index[0], *places, affine.add(affine.scale(group, depth), place_in_group))
    extra = (*(w.extent for w in windows), depth)
    place = column if depthwise else rank + len(windows)
    runs = channel_runs(body, x, at, extra, place, planned)
    if depthwise:
        if len(runs) > 1:
            raise Cut(column, [(run.start, run.step, run.count) for run in runs])
        runs = [replace(runs[0], count=depth)]
    panel = _panel(weight, spec.groups, each, planned)
    parts = []
    for run in runs:
        own = affine.add(affine.scale(channel, run.step), affine.constant(run.start))
        extra = (*(w.taps for w in windows), run.count)
        at_right = (index[-1], own, *taps)
        right = (
            _tap_panels(body, weight, at_right, extra, planned)
            if panel is not None
            else _operand(body, weight, at_right, extra, planned)
        )
        parts.append(Part(run.access, right, run.count))
    made = Convolution(tuple(windows), tuple(parts), x.dtype, None if each == 1 else panel)
    return body.add("convolution", (), node.dtype.compute, constant=made)


def _panel(weight: Node, groups: int, each: Size, planned: Planned) -> Panel | None:
    """How a weight is packed, if it is, for this number of groups, of `each` columns; one of a
    column is laid out in panels of one."""
    if weight not in planned.panels:
        return None
    held, panel = planned.panels[weight]
    fits = panel.width == 1 if each == 1 else panel.width > 1 and held.shape[0] == groups
    return panel if fits else None


def _tap_panels(
    body: Body, weight: Node, index: Index, extra: Sequence[Size], planned: Planned
) -> Access:
    """The panels of a convolution's weight as `prepack` lays them out."""
    node, panel = planned.panels[weight]
    column, channel, *taps = index
    home = planned.homes[node]
    if panel.width == 1:
        return body.access(home, node.shape, (*taps, channel, column), extra)
    last = len(body.domain.sizes) - 1
    each = body.domain.sizes[last]
    group = affine.floor_div(column, each, body.bounds)
    # Of the column only the panel counts, whose stride stands for it.
    at = (group, affine.coordinate(last), *taps, channel, ZERO)
    shape = (node.shape[0], each, *node.shape[2:])
    return body.access(home, shape, at, extra)


def _operand(
    body: Body, top: Node, index: Index, extra: Sequence[Size], planned: Planned
) -> Access:
    """The access of an operand, movement in front of it followed to what is in memory."""
    bounds = (*body.bounds, *((0, sizes.sub(size, 1)) for size in extra))
    node, at = top, index
    while True:
        home = body.homes(node)
        if home is not None:
            return _affine(body, home, node, at, extra, top)
        step = through(node, at, bounds)
        if step is None:
            # Where it will be, is it at affine addresses? If not, the operand itself is stored.
            _affine(body, planned(node), node, at, extra, top)
            raise Needs(node)
        body.seen.add(node)
        node, at = step


def _affine(
    body: Body, home: Home, node: Node, at: Index, extra: Sequence[Size], top: Node
) -> Access:
    try:
        return body.access(home, node.shape, at, extra)
    except Indirect:
        raise Needs(top) from None


def through(
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

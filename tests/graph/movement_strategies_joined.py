"""Random arguments for the operators that join, repeat, pad and roll."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from graph.movement_strategies import (
    ARGUMENTS,
    arange,
    arguments_of,
    boolean,
    dim,
    integer,
    shape,
    some,
    tensor,
)

__all__ = ["ARGUMENTS"]

aten = torch.ops.aten


# Joins.


def _parts(draw, low=1):
    """Tensors that agree but in one dimension, and that dimension."""
    made = [some(draw, low)]
    d = dim(draw, made[0])
    size = list(made[0].shape)
    for number in range(integer(draw, 0, 3)):
        size[d] = integer(draw, 0, 4)
        made.append(tensor(draw, size, 1000 * (number + 1)))
    return made, d


@arguments_of(aten.cat.default, aten.concat.default, aten.concatenate.default)
def _(draw):
    parts, d = _parts(draw)
    if len(parts) > 1 and boolean(draw):
        parts[integer(draw, 1, len(parts) - 1)] = torch.empty(0)
    return parts, d


@arguments_of(aten.stack.default)
def _(draw):
    first = some(draw, 0, 4)
    parts = [first, *(tensor(draw, first.shape, 1000 * k) for k in range(1, integer(draw, 1, 4)))]
    return parts, integer(draw, -first.dim() - 1, first.dim())


@arguments_of(aten.hstack.default, aten.vstack.default, aten.row_stack.default)
def _(draw):
    size = shape(draw, 0, 3)
    return ([tensor(draw, size, 1000 * k) for k in range(integer(draw, 1, 3))],)


@arguments_of(aten.dstack.default, aten.column_stack.default)
def _(draw):
    size = shape(draw, 0, 4)
    return ([tensor(draw, size, 1000 * k) for k in range(integer(draw, 1, 3))],)


def _expanded(draw):
    x = some(draw, 0, 4)
    added = [integer(draw, 0, 3) for _ in range(integer(draw, 0, 5 - x.dim()))]
    grown = [integer(draw, 0, 3) if s == 1 else s for s in x.shape]
    return x, added + grown


@arguments_of(aten.expand.default, aten.broadcast_to.default, aten.expand_copy.default)
def _(draw):
    x, target = _expanded(draw)
    minus = [-1 if boolean(draw) else s for s in target[len(target) - x.dim() :]]
    kept = [
        s if m == -1 and s != n else m
        for m, s, n in zip(minus, target[len(target) - x.dim() :], x.shape, strict=True)
    ]
    return x, target[: len(target) - x.dim()] + kept


@arguments_of(aten.expand_as.default)
def _(draw):
    x, target = _expanded(draw)
    return x, torch.empty(target)


@arguments_of(aten.repeat.default)
def _(draw):
    x = some(draw, 0, 4)
    return x, [integer(draw, 0, 3) for _ in range(integer(draw, x.dim(), 5))]


@arguments_of(aten.tile.default)
def _(draw):
    x = some(draw, 0, 4)
    return x, [integer(draw, 0, 3) for _ in range(integer(draw, 0, 5))]


@arguments_of(aten.repeat_interleave.self_int)
def _(draw):
    x = some(draw)
    return x, integer(draw, 0, 3), None if boolean(draw) else dim(draw, x)


@arguments_of(aten.meshgrid.default)
def _(draw):
    return ([arange((integer(draw, 1, 4),), 10 * k) for k in range(integer(draw, 1, 4))],)


@arguments_of(aten.meshgrid.indexing)
def _(draw):
    parts = [arange((integer(draw, 1, 4),), 10 * k) for k in range(integer(draw, 1, 4))]
    return (parts,), {"indexing": draw(st.sampled_from(("ij", "xy")))}


# Pad and roll.


def _crops(draw, x, count):
    """Amounts for the last `count` dimensions, not cropping below nothing."""
    pads = []
    for d in range(1, count + 1):
        size = x.shape[-d]
        low = integer(draw, -size, 3)
        pads += [low, integer(draw, -size - min(low, 0), 3)]
    return pads


@arguments_of(aten.constant_pad_nd.default)
def _(draw):
    x = some(draw)
    return x, _crops(draw, x, integer(draw, 0, x.dim())), integer(draw, -3, 3)


@arguments_of(aten.pad.default)
def _(draw):
    if boolean(draw):
        x = some(draw)
        value = draw(st.sampled_from((None, 0.0, 2.5)))
        return x, _crops(draw, x, integer(draw, 1, x.dim())), "constant", value
    mode = draw(st.sampled_from(("reflect", "replicate", "circular")))
    x, pads = _bordered(draw, integer(draw, 1, 3), mode)
    return x, pads, mode


def _bordered(draw, count, mode):
    x = tensor(draw, [integer(draw, 1, 3), integer(draw, 1, 3), *shape(draw, count, count, 1)])
    pads = []
    for d in range(1, count + 1):
        size = x.shape[-d]
        most = {"reflect": size - 1, "replicate": 3, "circular": size}[mode]
        pads += [integer(draw, 0, most), integer(draw, 0, most)]
    if mode != "circular":
        # Cropping is allowed as long as something stays.
        pads[0] = integer(draw, 1 - x.shape[-1], pads[0]) if pads[1] == 0 else pads[0]
    return x, pads


def _padding(op, count, mode):
    arguments_of(op)(lambda draw: _bordered(draw, count, mode))


_padding(aten.reflection_pad1d.default, 1, "reflect")
_padding(aten.reflection_pad2d.default, 2, "reflect")
_padding(aten.reflection_pad3d.default, 3, "reflect")
_padding(aten.replication_pad1d.default, 1, "replicate")
_padding(aten.replication_pad2d.default, 2, "replicate")
_padding(aten.replication_pad3d.default, 3, "replicate")
_padding(aten._pad_circular.default, 2, "circular")


@arguments_of(aten.roll.default)
def _(draw):
    x = some(draw)
    if boolean(draw):
        return x, [integer(draw, -7, 7)]
    chosen = draw(st.lists(st.sampled_from(range(x.dim())), min_size=1, max_size=3))
    return x, [integer(draw, -7, 7) for _ in chosen], chosen

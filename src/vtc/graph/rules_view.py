"""Movement that only renames dimensions: reshapes, permutations, and copies that keep the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from vtc.graph.rules import (
    Entry,
    Movement,
    Operand,
    Shape,
    axis_of,
    broadcast_index,
    contiguous_strides,
    coordinates,
    copying,
    reshape_is_view,
    same_layout,
    same_shape,
    whole,
)
from vtc.index import IndexMap, Size, sizes

aten = torch.ops.aten


# Identity. Every element keeps its index, so both directions hold: a consumer may read the
# source instead, and a producer may write the copy at once.
def identity_movement(shape: Shape, view: bool = False) -> Movement:
    same = IndexMap.identity(shape)
    return Movement("Identity", tuple(shape), 1, same, (same,), view=view)


def _copied(result: Operand, x: Operand, *_: Any, **__: Any) -> Movement:
    return identity_movement(x.shape)


def _aliased(result: Operand, x: Operand, *_: Any, **__: Any) -> Movement:
    return identity_movement(x.shape, view=True)


def _contiguous(result: Operand, x: Operand, *, memory_format: torch.memory_format) -> Movement:
    # `contiguous` returns its input where that has the wanted layout already.
    return identity_movement(x.shape, view=same_layout(x.shape, x.strides, result.strides))


def _type_as(result: Operand, x: Operand, other: Operand) -> Movement:
    # With another dtype it is compute, like every conversion; with the same it returns its input.
    return identity_movement(x.shape, view=True)


def _dropout(result: Operand, x: Operand, p: float, train: bool) -> Movement | None:
    # At inference dropout returns its input.
    return None if train and p != 0 else identity_movement(x.shape, view=True)


def _copy(result: Operand, x: Operand, source: Operand, non_blocking: bool) -> Movement:
    # Only the second operand is moved; the first gives shape, dtype and strides. A broadcasting
    # copy is an Expand: elements with several homes cannot be stored.
    moved = whole(x.shape, broadcast_index(source.shape, coordinates(x.rank)))
    back = IndexMap.identity(x.shape) if same_shape(x.shape, source.shape) else None
    return Movement("Identity", x.shape, 1, moved, (back,), operands=(1,))


# Reshape. Row-major order is kept, so each element has one home in either direction.
def reshape(shape: Sequence[Size], target: Sequence[Size], view: bool = True) -> Movement:
    """ONNX Reshape and `view`, with -1 resolved already (see `reshape_target`)."""
    load, back = IndexMap.reshape(shape, target), IndexMap.reshape(target, shape)
    return Movement("Reshape", tuple(target), 1, load, (back,), view=view)


def reshape_target(shape: Sequence[Size], target: Sequence[Size], allowzero: int = 0) -> Shape:
    """The output shape of ONNX Reshape: 0 keeps a size (unless `allowzero`), -1 infers one."""
    kept = [shape[d] if s == 0 and not allowzero else s for d, s in enumerate(target)]
    known = sizes.product(s for s in kept if s != -1)
    inferred = sizes.floor_div(sizes.product(shape), known) if known != 0 else 0
    return tuple(inferred if s == -1 else s for s in kept)


def _viewed(result: Operand, x: Operand, *_: Any, **__: Any) -> Movement:
    return reshape(x.shape, result.shape)


def _reshaped(result: Operand, x: Operand, *_: Any, **__: Any) -> Movement:
    return reshape(x.shape, result.shape, view=reshape_is_view(x, result.shape))


def _ravel(result: Operand, x: Operand) -> Movement:
    # `ravel` is contiguous().view(-1): it copies what is not contiguous even if it could be viewed.
    kept = same_layout(x.shape, x.strides, contiguous_strides(x.shape))
    return reshape(x.shape, result.shape, view=kept)


# Flatten, Squeeze and Unsqueeze are reshapes with a rule for the output shape; directions as there.
def flatten(shape: Sequence[Size], axis: int = 1) -> Movement:
    """ONNX Flatten: two dimensions, those before `axis` and those from it on."""
    axis = axis + len(shape) if axis < 0 else axis
    moved = reshape(shape, (sizes.product(shape[:axis]), sizes.product(shape[axis:])))
    return replace(moved, operator="Flatten")


def _flatten(result: Operand, x: Operand, start_dim: int, end_dim: int) -> Movement:
    return replace(_reshaped(result, x), operator="Flatten")


def squeeze(shape: Sequence[Size], axes: Sequence[int] | None = None) -> Movement:
    """ONNX Squeeze: drop `axes`, or every unit dimension."""
    drop = {axis_of(a, len(shape)) for a in axes} if axes is not None else None
    kept = tuple(s for d, s in enumerate(shape) if not (s == 1 if drop is None else d in drop))
    return replace(reshape(shape, kept), operator="Squeeze")


def _squeeze(result: Operand, x: Operand, *_: Any) -> Movement:
    return replace(reshape(x.shape, result.shape), operator="Squeeze")


def unsqueeze(shape: Sequence[Size], axes: Sequence[int]) -> Movement:
    """ONNX Unsqueeze: unit dimensions at `axes` of the output."""
    rank = len(shape) + len(axes)
    unit = {axis_of(a, rank) for a in axes}
    rest = iter(shape)
    target = tuple(1 if d in unit else next(rest) for d in range(rank))
    return replace(reshape(shape, target), operator="Unsqueeze")


def _unsqueeze(result: Operand, x: Operand, dim: int) -> Movement:
    return replace(reshape(x.shape, result.shape), operator="Unsqueeze")


# Transpose. A permutation of the coordinates is its own kind of inverse.
def transpose(shape: Sequence[Size], perm: Sequence[int] | None = None) -> Movement:
    """ONNX Transpose and `permute`: output dimension j is input dimension `perm[j]`."""
    rank = len(shape)
    order = [axis_of(p, rank) for p in perm] if perm is not None else list(range(rank))[::-1]
    load = IndexMap.permute(shape, order)
    back = IndexMap.permute(load.shape, [order.index(d) for d in range(rank)])
    return Movement("Transpose", load.shape, 1, load, (back,), view=True)


def _permute(result: Operand, x: Operand, dims: Sequence[int]) -> Movement:
    return transpose(x.shape, dims)


def _swap(result: Operand, x: Operand, first: int = -2, second: int = -1) -> Movement:
    order = list(range(x.rank))
    a, b = axis_of(first, x.rank), axis_of(second, x.rank)
    if x.rank:
        order[a], order[b] = order[b], order[a]
    return transpose(x.shape, order)


def _reversed(result: Operand, x: Operand) -> Movement:
    return transpose(x.shape)


def _movedim(
    result: Operand, x: Operand, source: int | Sequence[int], destination: int | Sequence[int]
) -> Movement:
    pairs = [[s] if isinstance(s, int) else list(s) for s in (source, destination)]
    taken, places = ([axis_of(d, x.rank) for d in dims] for dims in pairs)
    if not x.rank:
        return transpose(())
    placed = dict(zip(places, taken, strict=True))
    rest = iter(d for d in range(x.rank) if d not in taken)
    return transpose(x.shape, [placed[d] if d in placed else next(rest) for d in range(x.rank)])


ENTRIES = (
    Entry(
        "Identity",
        ("Identity",),
        "AB",
        "every element keeps its index; a change of dtype or device is not movement",
        identity_movement,
        {
            aten.clone.default: _copied,
            aten._to_copy.default: _copied,
            aten.type_as.default: _type_as,
            aten.contiguous.default: _contiguous,
            aten.alias.default: _aliased,
            aten.view.dtype: _aliased,  # to its own dtype; `movement_of` refuses others
            aten.detach.default: _aliased,
            aten.lift_fresh.default: _aliased,
            aten.alias_copy.default: _copied,
            aten.detach_copy.default: _copied,
            aten.lift_fresh_copy.default: _copied,
            aten.copy.default: _copy,
            aten.dropout.default: _dropout,
        },
    ),
    Entry(
        "Reshape",
        ("Reshape",),
        "AB",
        "another shape over the same row-major order",
        reshape,
        {
            aten.view.default: _viewed,
            aten._unsafe_view.default: _viewed,
            aten._reshape_alias.default: _viewed,
            aten.view_as.default: _viewed,
            aten.unflatten.int: _viewed,
            aten.view_copy.default: copying(_viewed),
            aten.reshape.default: _reshaped,
            aten.reshape_as.default: _reshaped,
            aten.ravel.default: _ravel,
        },
    ),
    Entry(
        "Flatten",
        ("Flatten",),
        "AB",
        "adjacent dimensions joined to one",
        flatten,
        {aten.flatten.using_ints: _flatten},
    ),
    Entry(
        "Squeeze",
        ("Squeeze",),
        "AB",
        "unit dimensions dropped",
        squeeze,
        {
            aten.squeeze.default: _squeeze,
            aten.squeeze.dim: _squeeze,
            aten.squeeze.dims: _squeeze,
            aten.squeeze_copy.default: copying(_squeeze),
            aten.squeeze_copy.dim: copying(_squeeze),
            aten.squeeze_copy.dims: copying(_squeeze),
        },
    ),
    Entry(
        "Unsqueeze",
        ("Unsqueeze",),
        "AB",
        "unit dimensions inserted",
        unsqueeze,
        {
            aten.unsqueeze.default: _unsqueeze,
            aten.unsqueeze_copy.default: copying(_unsqueeze),
        },
    ),
    Entry(
        "Transpose",
        ("Transpose",),
        "AB",
        "dimensions permuted",
        transpose,
        {
            aten.permute.default: _permute,
            aten.transpose.int: _swap,
            aten.swapaxes.default: _swap,
            aten.swapdims.default: _swap,
            aten.mT.default: _swap,
            aten.t.default: _reversed,
            aten.numpy_T.default: _reversed,
            aten.movedim.int: _movedim,
            aten.movedim.intlist: _movedim,
            aten.moveaxis.int: _movedim,
            aten.moveaxis.intlist: _movedim,
            aten.permute_copy.default: copying(_permute),
            aten.transpose_copy.int: copying(_swap),
            aten.t_copy.default: copying(_reversed),
        },
    ),
)

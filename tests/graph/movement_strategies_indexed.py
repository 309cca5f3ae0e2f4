"""Random arguments for the operators that index, scatter, and rearrange images."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

from graph.movement_strategies import (
    arange,
    arguments_of,
    boolean,
    dim,
    indices,
    integer,
    shape,
    some,
    tensor,
)
from graph.movement_strategies_joined import ARGUMENTS

__all__ = ["ARGUMENTS"]

aten = torch.ops.aten


# Gathers.


@arguments_of(aten.index_select.default)
def _(draw):
    x = some(draw, 0)
    d = dim(draw, x)
    size = x.shape[d] if x.dim() else 1
    count = () if x.dim() == 0 or (size and boolean(draw)) else (integer(draw, 0, 5),)
    index = indices(draw, count, size)
    return x, d, index.int() if boolean(draw) else index


@arguments_of(aten.embedding.default)
def _(draw):
    weight = tensor(draw, (integer(draw, 1, 8), integer(draw, 0, 5)))
    return weight, indices(draw, shape(draw, 0, 3), weight.shape[0])


@arguments_of(aten.gather.default)
def _(draw):
    x = some(draw, 0, 4)
    d = dim(draw, x)
    size = [integer(draw, 0, s) for s in x.shape]
    if x.dim():
        size[d] = integer(draw, 0, 5)
    return x, d, indices(draw, size, x.shape[d] if x.dim() else 1)


@arguments_of(aten.take_along_dim.default)
def _(draw):
    x = some(draw, 1, 4, smallest=1)
    if x.dim() == 1 and boolean(draw):
        return x, indices(draw, (integer(draw, 0, 5),), x.numel())
    d = dim(draw, x)
    size = [1 if boolean(draw) else s for s in x.shape]
    size[d] = integer(draw, 0, 5)
    return x, indices(draw, size, x.shape[d]), d


def _index_arguments(draw, x, unique=False):
    """Some dimensions indexed, by tensors that broadcast: outer products, or of one shape."""
    used = sorted(
        draw(st.lists(st.sampled_from(range(x.dim())), min_size=1, max_size=3, unique=True))
    )
    made = [None] * (used[-1] + 1)
    if boolean(draw):
        # An outer product: each index has a dimension of its own.
        for number, d in enumerate(used):
            most = x.shape[d] if unique else 4
            count = integer(draw, 0, most)
            values = (
                _distinct(draw, x.shape[d], count)
                if unique
                else indices(draw, (count,), x.shape[d], True)
            )
            made[d] = values.reshape([-1 if e == number else 1 for e in range(len(used))])
        return made
    total = math.prod(x.shape[d] for d in used)
    count = integer(draw, 0, min(total, 6))
    flat = _distinct(draw, total, count)
    split = [] if not total else torch.unravel_index(flat, [x.shape[d] for d in used])
    common = (2, count // 2) if count % 2 == 0 and boolean(draw) else (count,)
    for number, d in enumerate(used):
        index = split[number] if total else flat
        if boolean(draw):
            index = index - x.shape[d]
        made[d] = index.reshape(common)
    return made


def _distinct(draw, bound, count):
    generator = torch.Generator().manual_seed(integer(draw, 0, 10**6))
    return torch.randperm(bound, generator=generator)[:count]


@arguments_of(aten.index.Tensor, aten._unsafe_index.Tensor)
def _(draw):
    x = some(draw)
    return x, _index_arguments(draw, x)


# Scatters.


@arguments_of(aten.index_put.default, aten._unsafe_index_put.default)
def _(draw):
    x = some(draw)
    made = _index_arguments(draw, x, unique=True)
    size = list(x[tuple(slice(None) if i is None else i for i in made)].shape)
    while size and size[0] == 1 and boolean(draw):
        size = size[1:]
    return x, made, tensor(draw, size, 1000)


@arguments_of(aten.index_copy.default)
def _(draw):
    x = some(draw)
    d = dim(draw, x)
    count = integer(draw, 0, x.shape[d])
    size = list(x.shape)
    size[d] = count
    return x, d, _distinct(draw, x.shape[d], count), tensor(draw, size, 1000)


@arguments_of(aten.scatter.src)
def _(draw):
    x = some(draw, 1, 4)
    d = dim(draw, x)
    generator = torch.Generator().manual_seed(integer(draw, 0, 10**6))
    order = torch.rand(x.shape, generator=generator).argsort(d)
    covered = [integer(draw, 0, s) for s in x.shape]
    index = order[tuple(slice(s) for s in covered)]
    return x, d, index, tensor(draw, [s + integer(draw, 0, 1) for s in covered], 1000)


@arguments_of(aten.slice_scatter.default)
def _(draw):
    x = some(draw)
    d = dim(draw, x)
    bound = st.none() | st.integers(-x.shape[d] - 1, x.shape[d] + 1)
    start, stop = draw(bound), draw(bound)
    step = draw(st.sampled_from((1, 1, 1, 2, 3)))
    part = aten.slice.Tensor(x, d, start, stop, step)
    return x, tensor(draw, part.shape, 1000), d, start, stop, step


@arguments_of(aten.select_scatter.default)
def _(draw):
    x = some(draw, smallest=1)
    d = dim(draw, x)
    position = integer(draw, -x.shape[d], x.shape[d] - 1)
    return x, tensor(draw, x.select(d, position).shape, 1000), d, position


@arguments_of(aten.diagonal_scatter.default)
def _(draw):
    x, *where = _diagonal(draw)
    return x, tensor(draw, aten.diagonal(x, *where).shape, 1000), *where


# Strides.


@arguments_of(aten.diagonal.default, aten.diagonal_copy.default)
def _diagonal(draw):
    x = some(draw, 2)
    first, second = draw(st.permutations(range(x.dim())))[:2]
    return x, integer(draw, -3, 3), first, second - x.dim()


@arguments_of(aten.unfold.default, aten.unfold_copy.default)
def _(draw):
    x = some(draw, 0, 4, smallest=1)
    d = dim(draw, x)
    size = integer(draw, 1, x.shape[d] if x.dim() else 1)
    return x, d, size, integer(draw, 1, 4)


@arguments_of(aten.as_strided.default, aten.as_strided_copy.default)
def _(draw):
    x = some(draw, 0, 4)
    # Storage of a spaced tensor holds more than the tensor, which the rule refuses.
    room = x.untyped_storage().nbytes() // x.element_size()
    rank = integer(draw, 0, 3)
    size, stride, left = [], [], room - 1
    for _ in range(rank):
        step = integer(draw, 0, 6)
        most = 4 if step == 0 else max(left, 0) // step + 1
        count = integer(draw, 0, min(4, most) if left >= 0 else 0)
        size.append(count)
        stride.append(step)
        left -= max(count - 1, 0) * step
    if left < 0 and 0 not in size:
        return x, [0], [1], 0
    explicit = boolean(draw)
    if not explicit and x.storage_offset():
        explicit = True
    return x, size, stride, integer(draw, 0, max(left, 0)) if explicit else None


# Images.


@arguments_of(aten.pixel_shuffle.default)
def _(draw):
    r = integer(draw, 1, 3)
    lead = shape(draw, 0, 2)
    pixels = [integer(draw, 0, 3), integer(draw, 0, 3)]
    return tensor(draw, (*lead, r * r * integer(draw, 1, 2), *pixels)), r


@arguments_of(aten.pixel_unshuffle.default)
def _(draw):
    r = integer(draw, 1, 3)
    lead = shape(draw, 0, 2)
    pixels = [r * integer(draw, 0, 2), r * integer(draw, 0, 2)]
    return tensor(draw, (*lead, integer(draw, 1, 3), *pixels)), r


@arguments_of(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def _(draw):
    groups = integer(draw, 1, 3)
    size = (integer(draw, 1, 2), groups * integer(draw, 1, 4), *shape(draw, 1, 2, 1))
    return tensor(draw, size), groups


@arguments_of(aten.im2col.default)
def _(draw):
    kernel = [integer(draw, 1, 3), integer(draw, 1, 3)]
    dilation = [integer(draw, 1, 2), integer(draw, 1, 2)]
    pad = [integer(draw, 0, 1)] * 2 if boolean(draw) else [0, 0]
    stride = [integer(draw, 1, 3), integer(draw, 1, 3)]
    least = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    lead = [integer(draw, 1, 3)] if boolean(draw) else [integer(draw, 1, 2), integer(draw, 1, 3)]
    size = (*lead, least[0] + integer(draw, 0, 3), least[1] + integer(draw, 0, 3))
    return tensor(draw, size), kernel, dilation, pad, stride


def _upsampling(count):
    """(x, output size, scales) of nearest upsampling."""

    def make(draw):
        x = tensor(draw, (integer(draw, 1, 2), integer(draw, 1, 2), *shape(draw, count, count, 1)))
        if boolean(draw):
            scales = [float(integer(draw, 1, 4)) for _ in range(count)]
            return x, [int(s * f) for s, f in zip(x.shape[2:], scales, strict=True)], scales
        return x, [integer(draw, 1, 12) for _ in range(count)], None

    return make


def _upsample(plain, vec, count):
    make = _upsampling(count)

    @arguments_of(plain)
    def _(draw):
        x, size, scales = make(draw)
        return (x, size, *(scales or [None] * count))

    @arguments_of(vec)
    def _(draw):
        x, size, scales = make(draw)
        return (x, None, scales) if scales else (x, size, None)


_upsample(aten.upsample_nearest1d.default, aten.upsample_nearest1d.vec, 1)
_upsample(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec, 2)
_upsample(aten.upsample_nearest3d.default, aten.upsample_nearest3d.vec, 3)


# A mask, and a value that broadcasts, are compute.
COMPUTE = {
    "mask": (aten.index.Tensor, (arange((4,)), [torch.tensor([True, False, True, True])])),
    "masked write": (
        aten.index_put.default,
        (arange((4,)), [torch.tensor([True, False, False, False])], torch.zeros(())),
    ),
    "broadcast write": (
        aten.index_put.default,
        (arange((4, 3)), [torch.tensor([1, 2])], torch.zeros(3)),
    ),
    "accumulation": (
        aten.index_put.default,
        (arange((4,)), [torch.tensor([1, 2])], torch.zeros(2), True),
    ),
    "dtype": (aten._to_copy.default, (arange((4,)),), {"dtype": torch.float64}),
    "mixed cat": (aten.cat.default, ([arange((4,)), arange((4,)).double()],)),
    "dtype copy": (aten.copy.default, (arange((4,)), arange((4,)).double())),
    "training dropout": (aten.dropout.default, (arange((4,)), 0.5, True)),
    "overlapping windows": (
        aten.select_scatter.default,
        (arange((5,)).unfold(0, 2, 1), torch.zeros(2), 0, 1),
    ),
    "padded patches": (aten.im2col.default, (arange((1, 1, 4, 4)), [2, 2], [1, 1], [1, 1], [1, 1])),
}

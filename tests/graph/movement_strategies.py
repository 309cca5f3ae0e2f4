"""Random arguments for every ATen operator of the movement table: `ARGUMENTS[overload](draw)`.

Shapes have 1 to 5 dimensions, sizes 0 and 1 included, and tensors come in several layouts. Values
are unique, so that equal results mean equal positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
Call = tuple[tuple[Any, ...], dict[str, Any]]
LIMIT = 240


@dataclass
class Draw:
    """Draws from hypothesis; `given` is taken for the first operand that may be any tensor."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    given: Tensor | None = None

    def __call__(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.draw(strategy)

    def take(self, low: int, high: int, smallest: int = 0) -> Tensor | None:
        x = self.given
        if x is None or not low <= x.dim() <= high or any(s < smallest for s in x.shape):
            return None
        self.given = None
        return x


ARGUMENTS: dict[OpOverload, Callable[[Draw], Call]] = {}


def arguments_of(*ops: OpOverload) -> Callable[[Any], Any]:
    def register(make: Callable[[Draw], Any]) -> Callable[[Draw], Any]:
        def call(draw: Draw) -> Call:
            made = make(draw)
            return made if len(made) == 2 and isinstance(made[1], dict) else (made, {})

        ARGUMENTS.update(dict.fromkeys(ops, call))
        return make

    return register


def integer(draw: Draw, low: int, high: int) -> int:
    return int(draw(st.integers(low, high)))


def boolean(draw: Draw) -> bool:
    return bool(draw(st.booleans()))


def shape(draw: Draw, low: int = 1, high: int = 5, smallest: int = 0) -> tuple[int, ...]:
    sizes = [s for s in (3, 2, 4, 1, 5, 0, 6, 8) if s >= smallest]
    drawn = draw(st.lists(st.sampled_from(sizes), min_size=low, max_size=high))
    while math.prod(max(s, 1) for s in drawn) > LIMIT:
        drawn[drawn.index(max(drawn))] = 2
    return tuple(drawn)


def arange(size: Sequence[int], start: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(start, start + math.prod(size), dtype=dtype).reshape(tuple(size))


def tensor(draw: Draw, size: Sequence[int], start: int = 0) -> Tensor:
    """Unique values from `start` on, in one of several layouts."""
    x = arange(size, start)
    kind = draw(st.sampled_from(("contiguous", "permuted", "spaced", "shifted")))
    if kind == "permuted":
        order = draw(st.permutations(range(x.dim())))
        return x.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])
    if kind == "spaced":
        base = torch.full([2 * s for s in size], -1.0)
        return base[tuple(slice(None, None, 2) for _ in size)].copy_(x)
    if kind == "shifted":
        return torch.full((x.numel() + 3,), -1.0)[3:].view(tuple(size)).copy_(x)
    return x


def some(draw: Draw, low: int = 1, high: int = 5, smallest: int = 0) -> Tensor:
    x = draw.take(low, high, smallest)
    return tensor(draw, shape(draw, low, high, smallest)) if x is None else x


def dense(draw: Draw) -> Tensor:
    """A contiguous tensor, which can be viewed with any other shape."""
    contiguous = draw.given is not None and draw.given.is_contiguous()
    x = draw.take(0, 5) if contiguous else None
    return arange(shape(draw, 0)) if x is None else x


def dim(draw: Draw, x: Tensor) -> int:
    return integer(draw, -max(x.dim(), 1), max(x.dim(), 1) - 1)


def dims(draw: Draw, x: Tensor, low: int = 0) -> list[int]:
    chosen = draw(st.lists(st.sampled_from(range(x.dim())), min_size=low, unique=True))
    return [d - x.dim() if boolean(draw) else d for d in chosen]


def regrouped(draw: Draw, count: int) -> list[int]:
    """A shape with `count` elements."""
    rank = integer(draw, 1, 4)
    if count == 0:
        sizes = [integer(draw, 0, 3) for _ in range(rank)]
        sizes[integer(draw, 0, rank - 1)] = 0
        return sizes
    sizes = []
    for _ in range(rank - 1):
        size = draw(st.sampled_from([s for s in range(1, count + 1) if count % s == 0]))
        sizes.append(size)
        count //= size
    sizes.append(count)
    return list(draw(st.permutations(sizes)))


def indices(draw: Draw, size: Sequence[int], bound: int, negative: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(integer(draw, 0, 10**6))
    low = -bound if negative else 0
    # An index into nothing can only be empty.
    size = size if bound else (0,) * len(size)
    return torch.randint(low, max(bound, 1), tuple(size), generator=generator)


# Views.


@arguments_of(aten.clone.default, aten.alias.default, aten.detach.default, aten.alias_copy.default)
def _(draw):
    return (some(draw, 0),)


@arguments_of(aten.detach_copy.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
def _(draw):
    return (some(draw, 0),)


@arguments_of(aten.view.dtype)
def _(draw):
    x = some(draw, 0)
    return x, x.dtype


@arguments_of(aten._to_copy.default)
def _(draw):
    return (some(draw, 0),), {"dtype": torch.float32}


@arguments_of(aten.contiguous.default)
def _(draw):
    return (some(draw, 0),)


@arguments_of(aten.type_as.default)
def _(draw):
    return some(draw, 0), arange((2,))


@arguments_of(aten.copy.default)
def _(draw):
    x = some(draw, 0)
    kept = [1 if boolean(draw) else s for s in x.shape][integer(draw, 0, x.dim()) :]
    return x, tensor(draw, kept, 1000)


@arguments_of(aten.dropout.default)
def _(draw):
    return some(draw, 0), 0.5, False


@arguments_of(aten.view.default, aten._unsafe_view.default, aten.view_copy.default)
def _(draw):
    x = dense(draw)
    return x, regrouped(draw, x.numel())


@arguments_of(aten.reshape.default)
def _(draw):
    x = some(draw, 0)
    return x, regrouped(draw, x.numel())


@arguments_of(aten._reshape_alias.default)
def _(draw):
    x = dense(draw)
    target = regrouped(draw, x.numel())
    return x, target, list(torch.empty(target).stride())


@arguments_of(aten.view_as.default)
def _(draw):
    x = dense(draw)
    return x, torch.empty(regrouped(draw, x.numel()))


@arguments_of(aten.reshape_as.default)
def _(draw):
    x = some(draw, 0)
    return x, torch.empty(regrouped(draw, x.numel()))


@arguments_of(aten.ravel.default)
def _(draw):
    return (some(draw, 0),)


@arguments_of(aten.unflatten.int)
def _(draw):
    x = some(draw)
    d = dim(draw, x)
    return x, d, regrouped(draw, x.shape[d])


@arguments_of(aten.flatten.using_ints)
def _(draw):
    x = some(draw, 0)
    first = integer(draw, 0, max(x.dim() - 1, 0))
    return x, first, integer(draw, first, max(x.dim() - 1, 0))


@arguments_of(aten.squeeze.default, aten.squeeze_copy.default)
def _(draw):
    return (some(draw, 0),)


@arguments_of(aten.squeeze.dim, aten.squeeze_copy.dim)
def _(draw):
    x = some(draw, 0)
    return x, dim(draw, x)


@arguments_of(aten.squeeze.dims, aten.squeeze_copy.dims)
def _(draw):
    x = some(draw)
    return x, dims(draw, x)


@arguments_of(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def _(draw):
    x = some(draw, 0)
    return x, integer(draw, -x.dim() - 1, x.dim())


@arguments_of(aten.permute.default, aten.permute_copy.default)
def _(draw):
    x = some(draw, 0)
    order = draw(st.permutations(range(x.dim())))
    return x, [d - x.dim() if boolean(draw) else d for d in order]


@arguments_of(aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)
def _(draw):
    x = some(draw, 0)
    return x, dim(draw, x), dim(draw, x)


@arguments_of(aten.transpose_copy.int, aten.movedim.int, aten.moveaxis.int)
def _(draw):
    x = some(draw)
    return x, dim(draw, x), dim(draw, x)


@arguments_of(aten.movedim.intlist, aten.moveaxis.intlist)
def _(draw):
    x = some(draw)
    taken = dims(draw, x)
    places = draw(st.permutations(range(x.dim())))[: len(taken)]
    return x, taken, list(places)


@arguments_of(aten.mT.default)
def _(draw):
    return (some(draw, 2),)


@arguments_of(aten.numpy_T.default)
def _(draw):
    return (some(draw, 2, 2),)


@arguments_of(aten.t.default, aten.t_copy.default)
def _(draw):
    return (some(draw, 0, 2),)


# Boxes.


@arguments_of(aten.slice.Tensor, aten.slice_copy.Tensor)
def _(draw):
    x = some(draw)
    d = dim(draw, x)
    bound = st.none() | st.integers(-x.shape[d] - 1, x.shape[d] + 1)
    return x, d, draw(bound), draw(bound), draw(st.sampled_from((1, 1, 1, 2, 3)))


@arguments_of(aten.narrow.default, aten.narrow_copy.default)
def _(draw):
    x = some(draw)
    d = dim(draw, x)
    start = integer(draw, 0, x.shape[d])
    length = integer(draw, 0, x.shape[d] - start)
    negative = boolean(draw) and start < x.shape[d]
    return x, d, start - x.shape[d] if negative else start, length


@arguments_of(aten.select.int, aten.select_copy.int)
def _(draw):
    x = some(draw, smallest=1)
    d = dim(draw, x)
    return x, d, integer(draw, -x.shape[d], x.shape[d] - 1)


@arguments_of(aten.split.Tensor, aten.unsafe_split.Tensor, aten.split_copy.Tensor)
def _(draw):
    x = some(draw)
    return x, integer(draw, 1, 5), dim(draw, x)


@arguments_of(aten.split.sizes, aten.split_with_sizes.default, aten.split_with_sizes_copy.default)
def _(draw):
    return _sized_split(draw)


@arguments_of(aten.unsafe_split_with_sizes.default)
def _sized_split(draw):
    x = some(draw)
    d = dim(draw, x)
    cuts = sorted(integer(draw, 0, x.shape[d]) for _ in range(integer(draw, 0, 3)))
    ends = [0, *cuts, x.shape[d]]
    return x, [b - a for a, b in itertools.pairwise(ends)], d


@arguments_of(aten.chunk.default, aten.unsafe_chunk.default, aten.tensor_split.sections)
def _(draw):
    x = some(draw)
    return x, integer(draw, 1, 5), dim(draw, x)


@arguments_of(aten.tensor_split.indices)
def _(draw):
    x = some(draw)
    return x, [integer(draw, -7, 7) for _ in range(integer(draw, 0, 3))], dim(draw, x)


@arguments_of(aten.unbind.int, aten.unbind_copy.int)
def _(draw):
    x = some(draw)
    return x, dim(draw, x)


@arguments_of(aten.flip.default)
def _(draw):
    x = some(draw)
    return x, dims(draw, x)


@arguments_of(aten.fliplr.default, aten.flipud.default)
def _(draw):
    return (some(draw, 2),)


@arguments_of(aten.rot90.default)
def _(draw):
    x = some(draw, 2)
    return x, integer(draw, -4, 5), list(draw(st.permutations(range(x.dim())))[:2])

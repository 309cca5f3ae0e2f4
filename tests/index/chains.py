"""Random chains of data movement, each step both as an index map and as the torch operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from vtc.index import Fill, IndexMap, Piece, axes
from vtc.index.affine import Affine, Look, constant

Operator = Callable[[Tensor], Tensor]
ELEMENTS = 240

BIJECTIVE = ("permute", "reshape", "flip", "narrow", "concat")
ALL = (*BIJECTIVE, "pad", "slice", "expand", "twice", "gather")


@dataclass
class Chain:
    """Steps applied to source 0; later sources and lookups are made by the steps that use them."""

    sources: list[Tensor]
    lookups: list[Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    maps: list[IndexMap] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    @property
    def value(self) -> Tensor:
        return self.values[-1] if self.values else self.sources[0]

    def composed(self) -> IndexMap:
        total = IndexMap.identity(self.sources[0].shape)
        for step in self.maps:
            total = step.compose({0: total})
        return total


def arange(shape: Sequence[int], start: int = 0) -> Tensor:
    return torch.arange(start, start + math.prod(shape)).reshape(tuple(shape))


def shapes(low: int = 1, high: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    sizes = st.sampled_from((2, 3, 4, 1, 6, 5, 8, 0, 2, 3, 4, 12))
    return (
        st.lists(sizes, min_size=low, max_size=high)
        .map(tuple)
        .filter(lambda s: math.prod(max(n, 1) for n in s) <= ELEMENTS)
    )


def slice_map(shape: Sequence[int], cuts: Sequence[slice]) -> IndexMap:
    ranges = [range(*c.indices(n)) for c, n in zip(cuts, shape, strict=True)]
    index = [i * r.step + r.start for i, r in zip(axes(len(shape)), ranges, strict=True)]
    return IndexMap.single([len(r) for r in ranges], index)


def flip_map(shape: Sequence[int], dims: Sequence[int]) -> IndexMap:
    index = [
        n - 1 - i if k in dims else i
        for k, (i, n) in enumerate(zip(axes(len(shape)), shape, strict=True))
    ]
    return IndexMap.single(shape, index)


def expand_map(shape: Sequence[int], target: Sequence[int]) -> IndexMap:
    new = len(target) - len(shape)
    index = [
        constant(0) if n == 1 else i for i, n in zip(axes(len(target))[new:], shape, strict=True)
    ]
    return IndexMap.single(target, index)


def concat_map(parts: Sequence[tuple[int | Fill, Sequence[int]]], dim: int) -> IndexMap:
    """Parts (source, shape) side by side along dim."""
    shape = list(parts[0][1])
    pieces, position = [], 0
    for source, part in parts:
        lower, upper = [0] * len(part), list(part)
        lower[dim], upper[dim] = position, position + part[dim]
        index: list[Affine] = list(axes(len(part)))
        index[dim] = index[dim] - position
        pieces.append(Piece(lower, upper, source, () if isinstance(source, Fill) else index))
        position += part[dim]
    shape[dim] = position
    return IndexMap(shape, pieces)


def gather_map(shape: Sequence[int], dim: int, count: int, lookup: int) -> IndexMap:
    target = [*shape[:dim], count, *shape[dim + 1 :]]
    index = list(axes(len(shape)))
    index[dim] = Affine(0, {Look(lookup, (index[dim],)): 1})
    return IndexMap.single(target, index)


@st.composite
def chains(draw: st.DrawFn, operators: Sequence[str] = ALL, low: int = 1, high: int = 6) -> Chain:
    chain = Chain([arange(draw(shapes()))])
    for name in draw(st.lists(st.sampled_from(operators), min_size=low, max_size=high)):
        step, value = STEPS[name](draw, chain)
        assume(value.numel() <= ELEMENTS)
        chain.names.append(name)
        chain.maps.append(step)
        chain.values.append(value)
    return chain


def _permute(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dims = draw(st.permutations(range(x.ndim)))
    return IndexMap.permute(x.shape, dims), x.permute(dims)


def _reshape(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    left, target = x.numel(), []
    for _ in range(draw(st.integers(0, 3))):
        divisors = [d for d in range(1, left + 1) if left % d == 0] or [0, 1, 3]
        target.append(draw(st.sampled_from(divisors)))
        left = left // max(target[-1], 1)
    target = draw(st.permutations([*target, left]))
    if x.numel() == 0 and 0 not in target:
        target = [*target, 0]
    return IndexMap.reshape(x.shape, target), x.reshape(target)


def _flip(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dims = draw(st.sets(st.integers(0, x.ndim - 1)))
    return flip_map(x.shape, dims), x.flip(sorted(dims))


def _narrow(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    return _cut(draw, chain, 1)


def _slice(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    return _cut(draw, chain, 3)


def _cut(draw: st.DrawFn, chain: Chain, step: int) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dim = draw(st.integers(0, x.ndim - 1))
    start = draw(st.integers(0, max(x.shape[dim] - 1, 0)))
    stop = draw(st.integers(start, x.shape[dim]))
    cuts = [slice(None)] * x.ndim
    cuts[dim] = slice(start, stop, draw(st.integers(1, step)))
    return slice_map(x.shape, cuts), x[tuple(cuts)]


def _expand(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    target = [draw(st.integers(1, 3)) if n == 1 else n for n in x.shape]
    if x.ndim < 5 and draw(st.booleans()):
        target = [draw(st.integers(1, 3)), *target]
    return expand_map(x.shape, target), x.expand(target)


def _concat(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dim = draw(st.integers(0, x.ndim - 1))
    other = list(x.shape)
    other[dim] = draw(st.integers(0, 4))
    number = len(chain.sources)
    chain.sources.append(arange(other, 10_000 * number))
    parts = [(0, x.shape), (number, other)]
    tensors = [x, chain.sources[-1]]
    if draw(st.booleans()):
        parts.reverse()
        tensors.reverse()
    return concat_map(parts, dim), torch.cat(tensors, dim)


def _twice(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dim = draw(st.integers(0, x.ndim - 1))
    return concat_map([(0, x.shape), (0, x.shape)], dim), torch.cat([x, x], dim)


def _pad(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dim = draw(st.integers(0, x.ndim - 1))
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    sides = [[*x.shape[:dim], n, *x.shape[dim + 1 :]] for n in (before, after)]
    parts = [(Fill(-7), sides[0]), (0, x.shape), (Fill(-7), sides[1])]
    widths = [0] * (2 * x.ndim)
    widths[2 * (x.ndim - 1 - dim)], widths[2 * (x.ndim - 1 - dim) + 1] = before, after
    return concat_map(parts, dim), torch.nn.functional.pad(x, widths, value=-7)


def _gather(draw: st.DrawFn, chain: Chain) -> tuple[IndexMap, Tensor]:
    x = chain.value
    dim = draw(st.integers(0, x.ndim - 1))
    n = x.shape[dim]
    rows = draw(st.lists(st.integers(-n, n - 1), max_size=4)) if n else []
    index = torch.tensor(rows, dtype=torch.int64)
    chain.lookups.append(index)
    step = gather_map(x.shape, dim, len(rows), len(chain.lookups) - 1)
    return step, x[(slice(None),) * dim + (index,)]


STEPS = {
    "permute": _permute,
    "reshape": _reshape,
    "flip": _flip,
    "narrow": _narrow,
    "slice": _slice,
    "expand": _expand,
    "concat": _concat,
    "twice": _twice,
    "pad": _pad,
    "gather": _gather,
}

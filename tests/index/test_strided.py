"""strided, contiguity and classify against brute force over all addresses."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sympy import Symbol

from index.chains import (
    ALL,
    Chain,
    arange,
    chains,
    concat_map,
    expand_map,
    flip_map,
    gather_map,
    slice_map,
)
from vtc.index import Fill, IndexMap, NotRepresentable, Strided
from vtc.index.piece import Piece
from vtc.index.strided import contiguous_strides

VIEWS = ("permute", "reshape", "narrow", "slice", "expand", "flip", "twice")


def compose_or_reject(chain: Chain) -> IndexMap:
    try:
        return chain.composed()
    except NotRepresentable:
        assume(False)
        raise


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without overlap: dimensions in some order, perhaps with padding."""
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else range(len(shape))
    stride, step = [0] * len(shape), 1
    for d in reversed(order):
        stride[d] = step
        step *= max(shape[d], 1) + draw(st.sampled_from((0, 0, 0, 1, 4)))
    return tuple(stride)


def physical(shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the layout whose elements are their own addresses."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return torch.arange(max(span, 1)).as_strided(shape, stride)


def fitted(addresses: torch.Tensor) -> bool:
    """Whether any nonnegative strides give these addresses, by trying the only candidate."""
    if addresses.numel() == 0:
        return True
    start = addresses[(0,) * addresses.ndim]
    line = torch.zeros_like(addresses) + start
    for k, n in enumerate(addresses.shape):
        if n > 1:
            unit = tuple(int(k == d) for d in range(addresses.ndim))
            step = int(addresses[unit] - start)
            if step < 0:
                return False
            line += step * torch.arange(n).reshape(
                [-1 if k == d else 1 for d in range(addresses.ndim)]
            )
    return torch.equal(line, addresses)


@given(chains(VIEWS, high=5), st.data())
@settings(max_examples=400, deadline=None)
def test_strided_is_found_exactly_when_a_view_exists(chain: Chain, data: st.DataObject) -> None:
    total = compose_or_reject(chain)
    shape = tuple(chain.sources[0].shape)
    source = physical(shape, data.draw(layouts(shape)))
    addresses = total.materialize([source])
    view = total.strided(source.stride())
    assert (view is not None) == fitted(addresses)
    if view is not None:
        storage = source.as_strided((source.untyped_storage().nbytes() // 8,), (1,))
        assert torch.equal(storage.as_strided(view.shape, view.stride, view.offset), addresses)
        for size, step in zip(view.shape, view.stride, strict=True):
            assert step >= 0 or size <= 1


@given(chains(ALL))
@settings(max_examples=100, deadline=None)
def test_maps_of_other_things_than_one_source_are_no_views(chain: Chain) -> None:
    total = compose_or_reject(chain)
    view = total.strided(contiguous_strides(chain.sources[0].shape))
    if view is None:
        return
    if 0 in total.shape:
        assert chain.value.numel() == 0
        return
    x = chain.sources[0].contiguous()
    assert torch.equal(x.as_strided(view.shape, view.stride, view.offset), chain.value)


def runs(piece: Piece, shape: tuple[int, ...], sources: list[torch.Tensor]) -> tuple[int, int]:
    """Block length and alignment of one piece, from the addresses its output positions read."""
    flat = part_of(piece).materialize(sources).reshape(-1).tolist()
    box = tuple(slice(a, b) for a, b in zip(piece.lower, piece.upper, strict=True))
    position = arange(shape)[box].reshape(-1).tolist()
    breaks = [
        n
        for n in range(1, len(flat))
        if flat[n] != flat[n - 1] + 1 or position[n] != position[n - 1] + 1
    ]
    run = math.gcd(len(flat), *breaks)
    return run, math.gcd(*flat[::run])


def part_of(piece: Piece) -> IndexMap:
    """The box of one piece as a map of its own."""
    return IndexMap(piece.upper, (piece,)).restrict(piece.lower, piece.upper)


@given(chains(tuple(n for n in ALL if n != "gather")), st.data())
@settings(max_examples=400, deadline=None)
def test_contiguity_is_the_truth_about_addresses(chain: Chain, data: st.DataObject) -> None:
    total = compose_or_reject(chain)
    assert total.simplify() == total
    sources = []
    for x in chain.sources:
        shape = tuple(x.shape)
        sources.append(physical(shape, data.draw(layouts(shape))))
    strides = {k: x.stride() for k, x in enumerate(sources)}
    found = total.contiguity(strides)
    live = [p for p in total.pieces if not isinstance(p.source, Fill)]
    expected = [runs(p, total.shape, sources) for p in live]
    assert found.run == min((r for r, _ in expected), default=0)
    assert found.alignment == math.gcd(*(a for _, a in expected))


@given(chains(("gather", "permute", "reshape", "flip", "expand", "slice")))
@settings(max_examples=100, deadline=None)
def test_contiguity_through_lookups_holds(chain: Chain) -> None:
    total = compose_or_reject(chain)
    strides = {k: contiguous_strides(x.shape) for k, x in enumerate(chain.sources)}
    found = total.contiguity(strides)
    sources = [arange(x.shape) for x in chain.sources]
    for piece in total.pieces:
        if not isinstance(piece.source, Fill) and not piece.empty:
            flat = part_of(piece).materialize(sources, chain.lookups).reshape(-1)
            own = total.__class__(total.shape, (piece,)).contiguity(strides)
            assert len(flat) % own.run == 0
            blocks = flat.reshape(-1, own.run)
            assert torch.equal(blocks, blocks[:, :1] + torch.arange(own.run))
            for start in blocks[:, 0].tolist():
                assert start == 0 or found.alignment == 0 or start % found.alignment == 0
                assert start == 0 or found.alignment > 0


def test_rows_of_a_large_lookup_are_contiguous() -> None:
    rows = gather_map((1000, 64), 0, 7, 0)
    found = rows.contiguity((64, 1))
    assert (found.run, found.alignment) == (64, 64)
    assert rows.classify((64, 1)) == "partial"


def test_large_odd_slices_are_exact_or_on_the_safe_side() -> None:
    rows = slice_map((4096, 4096), [slice(3, 4000), slice(8, 4000)])
    found = rows.contiguity((4096, 1))
    assert (found.run, found.alignment) == (3992, 8)
    ragged = IndexMap.reshape((4096, 4100), (4096 * 4100,)).restrict((10,), (4096 * 4000,))
    found = ragged.contiguity((8192, 1))
    assert found.run >= 1
    assert 4090 % found.run == 0


def test_strided_of_a_large_map_that_only_looks_divided() -> None:
    split = IndexMap.reshape((1 << 20, 6), ((1 << 20) * 3, 2))
    assert split.strided((6, 1)) == Strided(((1 << 20) * 3, 2), (2, 1), 0)
    assert split.strided((8, 1)) is None


def test_views_of_symbolic_shape() -> None:
    s0, s1 = (Symbol(n, integer=True, positive=True) for n in ("s0", "s1"))
    heads = IndexMap.permute((s0, s1, 8, 16), (0, 2, 1, 3)).compose(
        {0: IndexMap.reshape((s0, s1, 128), (s0, s1, 8, 16))}
    )
    view = heads.strided((s1 * 128, 128, 1))
    assert view == Strided((s0, 8, s1, 16), (128 * s1, 16, 128, 1), 0)
    merged = IndexMap.reshape((s0, 8, s1, 16), (s0 * 8, s1, 16)).compose({0: heads})
    assert merged.strided((s1 * 128, 128, 1)) is None


def test_steps_backwards_are_no_torch_view() -> None:
    assert flip_map((4,), {0}).strided((1,)) is None
    assert flip_map((1,), {0}).strided((1,)) is not None


@pytest.mark.parametrize(
    ("index_map", "strides", "expected"),
    [
        (IndexMap.identity((4, 8)), (8, 1), "I"),
        (IndexMap.identity((4, 8)), (16, 1), "partial"),
        (IndexMap.reshape((4, 8), (2, 2, 8)), (8, 1), "I"),
        (slice_map((8, 8), [slice(2, 6), slice(None)]), (8, 1), "I"),
        (slice_map((8, 8), [slice(None), slice(0, 4)]), (8, 1), "II"),
        (slice_map((8, 32), [slice(None), slice(0, 16)]), (32, 1), "partial"),
        (IndexMap.permute((8, 8), (1, 0)), (8, 1), "II"),
        (IndexMap.permute((8, 8), (1, 0)), (1, 8), "I"),
        (IndexMap.permute((4, 6, 8), (1, 0, 2)), (48, 8, 1), "partial"),
        (expand_map((1, 16), (4, 16)), (16, 1), "partial"),
        (expand_map((16, 1), (16, 4)), (1, 1), "II"),
        (flip_map((64,), {0}), (1,), "II"),
        (IndexMap.identity((0, 3)), (3, 1), "I"),
        (concat_map([(0, (4, 8)), (0, (4, 8))], 1), (8, 1), "partial"),
        (concat_map([(Fill(0), (4, 1)), (0, (4, 8))], 1), (8, 1), "partial"),
    ],
)
def test_classes_of_the_paper(index_map: IndexMap, strides: tuple[int, ...], expected: str) -> None:
    assert index_map.classify(strides) == expected


def test_class_of_a_map_with_several_sources_needs_their_strides() -> None:
    joined = concat_map([(0, (4, 8)), (1, (4, 4))], 1)
    assert joined.contiguity({0: (8, 1), 1: (4, 1)}).run == 4
    assert joined.classify({0: (8, 1), 1: (4, 1)}) == "II"
    assert joined.classify({0: (8, 1), 1: (4, 1)}, itemsize=8) == "partial"
    with pytest.raises(ValueError, match="reads"):
        joined.classify((8, 1))

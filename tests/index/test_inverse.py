"""Inverses round-trip, exist where they must, and are refused where an element is read twice."""

import torch
from hypothesis import given, settings
from sympy import Symbol

from index.chains import ALL, BIJECTIVE, Chain, arange, chains, concat_map, gather_map, slice_map
from vtc.index import IndexMap, NotRepresentable, axes
from vtc.index.inverse import interval_boxes


# Always the same chains: of a reshape that cuts through the parts of a concat an inverse may exist
# that is not found.
@given(chains(BIJECTIVE))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_every_one_to_one_chain_has_its_inverse(chain: Chain) -> None:
    total = chain.composed()
    inverse = total.inverse(0, chain.sources[0].shape)
    assert inverse is not None
    assert inverse.shape == tuple(chain.sources[0].shape)
    check_sources(total, inverse, chain)


def check_sources(total: IndexMap, inverse: IndexMap, chain: Chain) -> None:
    """The inverse of source 0, against the materialised chain."""
    source = chain.sources[0]
    out = chain.value.reshape(-1)
    numbers = arange(chain.value.shape)
    where = inverse.materialize([numbers])
    held = torch.zeros(source.shape, dtype=torch.bool)
    for lower, upper in inverse.domain():
        held[tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))] = True
    assert torch.equal(out[where[held]], source[held])
    # Values of source 0 are below 10_000 in these chains and all different.
    reads = out[(out >= 0) & (out < 10_000)]
    assert len(reads) == int(held.sum())


@given(chains(ALL))
@settings(max_examples=150, deadline=None)
def test_an_inverse_that_is_found_is_right(chain: Chain) -> None:
    try:
        total = chain.composed()
    except NotRepresentable:
        return
    inverse = total.inverse(0, chain.sources[0].shape)
    out = chain.value
    reads = out[(out >= 0) & (out < 10_000)]
    if inverse is None:
        return
    assert len(set(reads.tolist())) == len(reads)
    check_sources(total, inverse, chain)


def test_expand_and_overlap_have_no_inverse() -> None:
    row = IndexMap.single((4, 3), (axes(2)[1],))
    assert row.inverse(0, (3,)) is None
    twice = concat_map([(0, (2, 3)), (0, (2, 3))], 0)
    assert twice.inverse(0, (2, 3)) is None
    windows = IndexMap.strided_view((10,), (4, 4), (2, 1))
    assert windows.inverse(0, (10,)) is None
    assert gather_map((4, 3), 0, 2, 0).inverse(0, (4, 3)) is None


def test_reshape_of_dimensions_that_do_not_nest() -> None:
    there = IndexMap.reshape((2, 12), (3, 8))
    assert there.inverse(0, (2, 12)) == IndexMap.reshape((3, 8), (2, 12))
    batch = IndexMap.reshape((7, 2, 12), (7, 3, 8))
    assert batch.inverse(0, (7, 2, 12)) == IndexMap.reshape((7, 3, 8), (7, 2, 12))


def test_unnested_reshape_of_permuted_long_dimensions() -> None:
    order = IndexMap.permute((512, 30, 70), (2, 0, 1))
    mixed = IndexMap.reshape((70, 512, 30), (512, 70, 30)).compose({0: order})
    inverse = mixed.inverse(0, (512, 30, 70))
    assert inverse is not None
    assert len(inverse.pieces) == 1
    assert inverse.compose({0: mixed}) == IndexMap.identity((512, 30, 70))


def test_unnested_reshape_on_the_output_side() -> None:
    order = IndexMap.permute((3, 1 << 17, 2), (1, 2, 0)).compose(
        {0: IndexMap.reshape((128, 64, 96), (3, 1 << 17, 2))}
    )
    mixed = IndexMap.reshape((1 << 17, 2, 3), (12288, 64)).compose({0: order})
    inverse = mixed.inverse(0, (128, 64, 96))
    assert inverse is not None
    assert inverse.covers()
    where = inverse.restrict((5, 3, 0), (9, 64, 96)).materialize([arange((12288, 64))])
    back = mixed.materialize([arange((128, 64, 96))]).reshape(-1)
    assert torch.equal(back[where], arange((128, 64, 96))[5:9, 3:])


def test_large_maps_invert_to_few_pieces() -> None:
    heads = IndexMap.permute((4096, 32, 128), (1, 0, 2)).compose(
        {0: IndexMap.reshape((4096, 4096), (4096, 32, 128))}
    )
    inverse = heads.inverse(0, (4096, 4096))
    assert inverse is not None
    assert str(inverse) == (
        "(4096, 4096)\n  [i0 in 0:4096, i1 in 0:4096] = source0[(i1//128), i0, (i1%128)]"
    )
    part = slice_map((4096, 6144), [slice(None), slice(4096, 5120)])
    assert part.inverse(0, (4096, 6144)).domain() == (((0, 4096), (4096, 5120)),)


def test_symbolic_inverse() -> None:
    s0 = Symbol("s0", integer=True, positive=True)
    heads = IndexMap.permute((s0, 8, 16), (1, 0, 2)).compose(
        {0: IndexMap.reshape((s0, 128), (s0, 8, 16))}
    )
    inverse = heads.inverse(0, (s0, 128))
    assert inverse is not None
    concrete = heads.substitute({s0: 5})
    assert inverse.substitute({s0: 5}) == concrete.inverse(0, (5, 128))


def test_intervals_of_row_major_positions_as_boxes() -> None:
    for start in range(24):
        for count in range(1, 25 - start):
            held = torch.zeros(2, 3, 4, dtype=torch.int64)
            found = interval_boxes(start, count, (2, 3, 4))
            assert found is not None
            for lower, upper in found:
                held[tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))] += 1
            expected = torch.zeros(24, dtype=torch.int64)
            expected[start : start + count] = 1
            assert torch.equal(held.reshape(-1), expected)

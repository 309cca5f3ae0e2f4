"""Materialised maps equal torch's operators, and composition equals carrying out each step."""

import pytest
import torch
from hypothesis import assume, given, settings

from index.chains import ALL, Chain, arange, chains, concat_map, gather_map, slice_map
from vtc.index import Fill, IndexMap, NotRepresentable, Piece, coords
from vtc.index.boxes import all_disjoint


def compose_or_reject(chain: Chain) -> IndexMap:
    """Only a runtime index into joined tensors has no boxes."""
    try:
        return chain.composed()
    except NotRepresentable:
        assert "gather" in chain.names
        assert {"concat", "pad", "twice", "gather"} & set(chain.names[:-1])
        assume(False)
        raise


@given(chains(ALL))
@settings(max_examples=150, deadline=None)
def test_each_step_equals_the_torch_operator(chain: Chain) -> None:
    before = chain.sources[0]
    for step, value in zip(chain.maps, chain.values, strict=True):
        assert step.shape == tuple(value.shape)
        sources = [before, *chain.sources[1:]]
        assert torch.equal(step.materialize(sources, chain.lookups), value)
        before = value


@given(chains(ALL))
@settings(max_examples=400, deadline=None)
def test_composed_chain_equals_the_torch_operators(chain: Chain) -> None:
    total = compose_or_reject(chain)
    assert total.shape == tuple(chain.value.shape)
    assert torch.equal(total.materialize(chain.sources, chain.lookups), chain.value)
    assert total.covers()
    assert all_disjoint([(p.lower, p.upper) for p in total.pieces])
    assert total.simplify() == total


@given(chains(ALL, low=3))
@settings(max_examples=100, deadline=None)
def test_composition_is_associative_in_meaning(chain: Chain) -> None:
    try:
        late = chain.maps[-1]
        for step in reversed(chain.maps[:-1]):
            late = late.compose({0: step})
    except NotRepresentable:
        assume(False)
    assert torch.equal(late.materialize(chain.sources, chain.lookups), chain.value)


@given(chains(ALL))
@settings(max_examples=100, deadline=None)
def test_restrict_equals_slicing(chain: Chain) -> None:
    total = compose_or_reject(chain)
    lower = [n // 3 for n in total.shape]
    upper = [n - n // 4 for n in total.shape]
    part = total.restrict(lower, upper)
    box = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
    assert torch.equal(part.materialize(chain.sources, chain.lookups), chain.value[box])


def test_views_that_cancel_leave_the_identity() -> None:
    shape = (2, 3, 4, 5)
    there = IndexMap.reshape(shape, (6, 20))
    back = IndexMap.reshape((6, 20), shape)
    assert back.compose({0: there}) == IndexMap.identity(shape)
    order = IndexMap.permute(shape, (3, 1, 0, 2))
    undo = IndexMap.permute((5, 3, 2, 4), (2, 1, 3, 0))
    assert undo.compose({0: order}) == IndexMap.identity(shape)


def test_parts_of_a_split_joined_again_are_the_identity() -> None:
    left = slice_map((4, 6), [slice(None), slice(0, 2)])
    right = slice_map((4, 6), [slice(None), slice(2, 6)])
    joined = concat_map([(0, (4, 2)), (1, (4, 4))], 1)
    assert joined.compose({0: left, 1: right}) == IndexMap.identity((4, 6))


def test_partial_maps_keep_their_domain() -> None:
    hole = IndexMap((4, 6), (Piece((0, 1), (4, 5), 0, coords(2)),))
    assert not hole.covers()
    flat = IndexMap.reshape((4, 6), (24,)).compose({0: hole})
    assert flat.domain() == tuple(((6 * r + 1,), (6 * r + 5,)) for r in range(4))
    assert not flat.covers()
    assert IndexMap((0, 3), ()).covers()


def test_negative_runtime_indices_count_from_the_end_through_other_maps() -> None:
    x = arange((8, 3))
    index = torch.tensor([-1, 0, -4, 2])
    even = slice_map((8, 3), [slice(0, 8, 2), slice(None)])
    rows = gather_map((4, 3), 0, 4, 0).compose({0: even})
    assert torch.equal(rows.materialize([x], [index]), x[::2][index])
    with pytest.raises(IndexError):
        gather_map((4, 3), 0, 4, 0).materialize([x[::2]], [torch.tensor([4, 0, 0, 0])])


def test_runtime_index_into_joined_tensors_is_not_boxes() -> None:
    joined = concat_map([(0, (2, 3)), (1, (2, 3))], 0)
    with pytest.raises(NotRepresentable):
        gather_map((4, 3), 0, 4, 0).compose({0: joined})


def test_renumber_moves_sources_and_lookups() -> None:
    moved = gather_map((4, 3), 0, 2, 0).renumber({0: 5}, {0: 3})
    assert moved.sources() == {5}
    assert moved.lookups() == {3}


def test_maps_are_values() -> None:
    one, two = (IndexMap.reshape((2, 6), (3, 4)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != IndexMap.reshape((2, 6), (4, 3))


def test_printed_form() -> None:
    joined = concat_map([(0, (2, 3)), (1, (2, 5)), (Fill(0.5), (2, 1))], 1)
    assert str(IndexMap.reshape((2, 9), (18,)).compose({0: joined}).restrict((0,), (9,))) == (
        "(9)\n"
        "  [i0 in 0:3] = source0[0, i0]\n"
        "  [i0 in 3:8] = source1[0, i0 - 3]\n"
        "  [i0 in 8:9] = 0.5"
    )
    split = IndexMap.reshape((12,), (3, 4))
    assert str(IndexMap.permute((3, 4), (1, 0)).compose({0: split})) == (
        "(4, 3)\n  [i0 in 0:4, i1 in 0:3] = source0[i0 + 4*i1]"
    )


def test_a_scalar_has_one_element() -> None:
    x = torch.tensor(3.5)
    assert IndexMap.identity(()).materialize([x]) == x
    spread = IndexMap.single((2, 2), ())
    assert torch.equal(spread.materialize([x]), x.expand(2, 2))
    one = IndexMap.reshape((1, 1), ())
    assert one.materialize([x.reshape(1, 1)]) == x

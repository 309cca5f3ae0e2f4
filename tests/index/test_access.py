"""The access normal form addresses the same elements as the map."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from index.chains import ALL, Chain, arange, chains, concat_map, gather_map, slice_map
from vtc.index import Access, Fill, IndexMap, Layout, NotRepresentable, accesses
from vtc.index.access import Bound
from vtc.index.materialize import evaluate, grids


def read(access: Access, storages: list[torch.Tensor], lookups: list[torch.Tensor]) -> torch.Tensor:
    """The box of an access, read from flat storages by address."""
    extent = [b - a for a, b in access.box]
    if isinstance(access.source, Fill):
        return torch.full(extent, access.source.value)
    grid = grids(access.lower, access.upper)
    return storages[access.source][evaluate(access.offset, grid, lookups).expand(extent)]


@given(chains(ALL), st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_accesses_read_what_the_map_describes(chain: Chain, offset: int) -> None:
    try:
        total = chain.composed()
    except NotRepresentable:
        assume(False)
    layouts, storages = {}, []
    for k, x in enumerate(chain.sources):
        storages.append(torch.cat([torch.full((offset,), -1), x.reshape(-1)]))
        layouts[k] = Layout(x.shape, x.stride(), offset)
    out = torch.full(total.shape, -2)
    for access in accesses(total, layouts):
        box = tuple(slice(a, b) for a, b in access.box)
        out[box] = read(access, storages, chain.lookups)
        assert [b.axis for b in access.mask] == [
            k for k, (a, b) in enumerate(access.box) if (a, b) != (0, total.shape[k])
        ]
    assert torch.equal(out, chain.value)


def test_a_slice_is_base_and_strides() -> None:
    part = slice_map((4, 8), [slice(1, 3), slice(2, 8, 2)])
    (access,) = accesses(part, {0: Layout((4, 8), (16, 1), 100)})
    assert (access.base, access.stride, access.rest) == (118, (16, 2), None)
    assert access.mask == ()
    assert str(access) == "[i0 in 0:2, i1 in 0:3] = source0 + 16*i0 + 2*i1 + 118  run 1 align 2"


def test_a_concat_has_one_bound_a_part() -> None:
    joined = concat_map([(0, (4, 8)), (Fill(0.0), (4, 2))], 1)
    first, second = accesses(joined, {0: Layout((4, 8), (8, 1))})
    assert first.mask == (Bound(1, None, 8),)
    assert second.mask == (Bound(1, 8, None),)
    assert str(second) == "[i0 in 0:4, i1 in 8:10] = 0.0"
    assert second.contiguity is None


def test_a_lookup_wraps_explicitly() -> None:
    rows = gather_map((8, 4), 0, 3, 0)
    (access,) = accesses(rows, {0: Layout((8, 4), (4, 1))})
    assert access.lookups == (0,)
    assert str(access.rest) == "4*(lookup0[i0]%8)"
    assert access.stride == (0, 1)
    index = torch.tensor([-1, 0, 5])
    x = arange((8, 4))
    assert torch.equal(read(access, [x.reshape(-1)], [index]), x[index])


def test_a_divided_offset_is_rest() -> None:
    mixed = IndexMap.reshape((4, 3), (12,)).compose({0: IndexMap.permute((3, 4), (1, 0))})
    (access,) = accesses(mixed, {0: Layout((3, 4), (4, 1))})
    assert access.stride == (0,)
    assert str(access.rest) == "4*(i0%3) + (i0//3)"

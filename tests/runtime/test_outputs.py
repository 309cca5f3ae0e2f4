"""Copies of outputs keep strides and sharing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vtc.runtime.outputs import Copies, viewed


def made(draw_from: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "whole": draw_from,
        "windows": draw_from.unfold(0, 3, 1),
        "transposed": draw_from.transpose(0, 1),
        "column": draw_from[:, 2],
        "every second": draw_from[1::2],
        "expanded": draw_from[0].expand(4, -1),
        "nothing": draw_from[:0],
        "bits": draw_from.view(torch.int16),
        "scalar": draw_from[3, 1],
    }


def shared(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Have they an element's byte in common?"""
    return bool(addresses(one) & addresses(other))


def addresses(tensor: torch.Tensor) -> set[int]:
    """The addresses of all bytes."""
    storage = tensor.untyped_storage()
    numbers = torch.arange(storage.nbytes() // tensor.itemsize)
    numbers = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    firsts = {storage.data_ptr() + int(n) * tensor.itemsize for n in numbers.flatten()}
    return {first + byte for first in firsts for byte in range(tensor.itemsize)}


NAMES = list(made(torch.zeros(6, 4)))


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
def test_copies_have_the_strides_values_and_sharing_of_their_originals(names):
    one, other = torch.randn(6, 4), torch.randn(6, 4)
    outputs = [made(one if k % 2 else other)[name] for k, name in enumerate(names)]
    copies = Copies(outputs)
    for _ in range(2):
        got = copies()
        for copy, own in zip(got, outputs, strict=True):
            assert torch.equal(copy, own)
            assert copy.dtype == own.dtype
            assert copy.shape == own.shape
            if own.numel():
                assert copy.stride() == own.stride()
                assert not shared(copy, own)
        for i, own in enumerate(outputs):
            for j in range(i):
                assert shared(got[i], got[j]) == shared(own, outputs[j])
        one.normal_(), other.normal_()


def test_what_is_written_to_a_copy_shows_in_those_that_share_it():
    base = torch.randn(8, 3)
    windows, rows = Copies([base.unfold(0, 2, 1), base[2:5]])()
    rows.fill_(7)
    assert (windows[2] == 7).all()
    assert not (base[2:5] == 7).any()


@pytest.mark.parametrize("of", ["conj", "_neg_view"])
def test_lazy_conjugates_and_negations_are_copied(of):
    own = getattr(torch.randn(3, dtype=torch.complex64), of)()
    (copy,) = Copies([own])()
    assert torch.equal(copy.resolve_conj().resolve_neg(), own.resolve_conj().resolve_neg())


def test_outputs_that_fill_their_memory_take_no_more_than_it():
    arena = torch.randn(100, 100)
    copy, other = Copies([arena[2:4], arena[50]])()
    assert copy.untyped_storage().nbytes() == 800
    assert other.untyped_storage().nbytes() == 400


@pytest.mark.parametrize("start", [0, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_a_view_of_one_tensor_becomes_the_same_view_of_another(name, start):
    own = torch.randn(6, 4)
    given = torch.randn(40)[start : start + 24].view(6, 4)
    got, want = viewed(made(own)[name], own, given), made(given)[name]
    assert torch.equal(got, want)
    assert got.stride() == want.stride()
    assert got.storage_offset() == want.storage_offset()
    assert got.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("dtype", "other"), [(torch.int16, torch.int64), (torch.float64, torch.int8)]
)
def test_a_view_in_another_dtype_is_found_from_where_that_can_begin(dtype, other):
    own, given = (torch.arange(k, k + 32).to(dtype) for k in (0, 50))
    for rows in (slice(0, 32), slice(8, 24)):
        view = own[rows].view(other)[1:]
        got = viewed(view, own, given)
        assert torch.equal(got, given[rows].view(other)[1:])
        got.zero_()
        assert (given[rows].view(other)[1:] == 0).all()
    shifted = torch.arange(33).to(torch.int16)[1:]
    base = torch.arange(32).to(torch.int16)
    assert torch.equal(viewed(base.view(torch.int64), base, shifted), base.view(torch.int64))

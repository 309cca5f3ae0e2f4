"""The check that kernels of ours answer as stock does."""

from __future__ import annotations

import pytest
import torch

from vtc.runtime.agree import LIMITS, difference


def test_rounding_agrees_and_a_wrong_value_does_not():
    x = torch.randn(64, 64)
    assert (
        difference(lambda a: (a @ a,), lambda a: ((a.double() @ a.double()).float(),), [x], [])
        is None
    )
    found = difference(lambda a: (a, a + 1), lambda a: (a, a), [x], [])
    assert found is not None
    assert found.startswith("result 1 of [64, 64]")


@pytest.mark.parametrize("dtype", LIMITS)
def test_one_wrong_row_of_many_is_seen(dtype):
    x = torch.randn(128, 32).to(dtype)
    wrong = x.clone()
    wrong[3] = -2 * wrong[3]
    assert difference(lambda a: wrong, lambda a: a, [x], []) is not None


def test_what_is_not_finite_must_be_so_in_both():
    x = torch.tensor([1.0, float("inf"), float("nan")])
    assert difference(lambda a: a * 1, lambda a: a, [x], []) is None
    assert difference(lambda a: a.nan_to_num(), lambda a: a, [x], []) is not None


def test_integers_must_be_equal():
    x = torch.arange(5)
    assert difference(lambda a: a, lambda a: a.clone(), [x], []) is None
    assert difference(lambda a: a + (a == 2), lambda a: a, [x], []) is not None


def test_updates_are_compared_on_private_copies():
    cache, row = torch.randn(4, 3), torch.randn(3)
    before = cache.clone()

    def update(index):
        return lambda cache, row: cache[index].copy_(row) * 0

    assert difference(update(1), update(1), [cache, row], [0]) is None
    assert difference(update(1), update(2), [cache, row], [0]) is not None
    assert torch.equal(cache, before)

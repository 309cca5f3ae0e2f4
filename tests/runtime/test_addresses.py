"""Where tensors are, compared with at every call."""

from __future__ import annotations

import torch

from vtc.runtime.calls import Addresses


def test_tensors_that_stay_hold_and_every_one_that_moves_shows() -> None:
    tensors = [torch.randn(3, 4) for _ in range(5)]
    inputs = [*tensors, 7]
    known = Addresses(inputs, range(5))
    assert known.hold(inputs)
    assert known.hold([*(t.view(12) for t in tensors), 7]), "the same memory"
    for k in range(5):
        moved = [*inputs]
        moved[k] = tensors[k].clone()
        assert not known.hold(moved), k
        part = [*inputs]
        part[k] = tensors[k][1:]
        assert not known.hold(part), k
    assert not known.hold([*reversed(tensors), 7])
    tensors[2].data = torch.randn(3, 4)
    assert not known.hold(inputs)


def test_only_the_numbered_inputs_are_looked_at() -> None:
    a, b, c = (torch.randn(2) for _ in range(3))
    known = Addresses([a, b], [1])
    assert known.values == (b.data_ptr(),)
    assert known.hold([c, b])
    assert not known.hold([a, c])
    assert Addresses([a, b], []).hold([c, c])

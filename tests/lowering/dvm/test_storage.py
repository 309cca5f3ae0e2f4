"""Strides without gaps are those that PyTorch's kernels give a result."""

from __future__ import annotations

import random

import torch

from vtc.lowering.dvm.storage import without_gaps


def test_gaps_are_closed_as_pytorch_does() -> None:
    rng, seen = random.Random(0), 0
    for _ in range(400):
        sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 5))]
        order = rng.sample(range(len(sizes)), len(sizes))
        x = torch.empty([sizes[d] for d in order])
        x = x.permute([order.index(d) for d in range(len(sizes))])
        x = x[tuple(slice(None, None, rng.choice([1, 1, 2])) for _ in sizes)]
        x = x.expand([rng.choice([1, 3]) if size == 1 else size for size in x.shape])
        if x._is_view() and not x.is_contiguous() and x.dim() > 1:
            seen += 1
        expected = x.sort(0).values.stride()
        found = without_gaps(x.shape, x.stride())
        if torch.ops.aten.is_non_overlapping_and_dense.default(x):
            continue
        assert found is not None
        assert [s for s, n in zip(found, x.shape, strict=True) if n > 1] == [
            s for s, n in zip(expected, x.shape, strict=True) if n > 1
        ]
    assert seen > 100

"""Rules of pools that tell places, and of adaptive ones, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lowering.dvm.evaluated import check


def tied(*shape: int) -> torch.Tensor:
    """Few different numbers, with NaN among them, and a plane of -inf."""
    x = torch.randint(0, 4, shape).float()
    x.view(-1)[::17] = float("nan")
    x[0, 0] = -float("inf")
    return x


# Pools that tell where they found what they give, over f32, bf16 and integers.
PLACES: dict[str, Callable[[Any], Any]] = {
    "padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), 1, 2, True, return_indices=True),
    "of volumes": lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True),
    "of all": lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True),
}

CASES = [(name, dtype) for name in PLACES for dtype in (torch.float32, torch.bfloat16, torch.int64)]
CASES.remove(("of all", torch.int64))  # for which eager PyTorch has no kernel


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_pool_tells_the_places_that_eager_pytorch_tells(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # Lengths of one parity: before PyTorch 2.14 its shape function guards on that.
    calls = [(tied(2, m, 4, n, 11),) for m, n in ((3, 12), (5, 8))]
    if name != "of volumes":
        calls = [(x[:, :, 0],) for (x,) in calls]
    if dtype is torch.int64:
        calls = [(x.nan_to_num(9, -9, -9),) for (x,) in calls]
    check(PLACES[name], *((x.to(dtype),) for (x,) in calls))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adaptive_pools_into_equal_windows_are_kernels(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x[0], (2, 3)),
            F.adaptive_avg_pool1d(x[0], 4),
            F.adaptive_avg_pool3d(x, (1, 2, 4)),
            *F.adaptive_max_pool1d(x[0], 2, return_indices=True),
            *F.adaptive_max_pool2d(x, (4, 3), return_indices=True),
            *F.adaptive_max_pool3d(x, (2, 1, 2), return_indices=True),
        )

    calls = [(tied(2, m, 4, n).to(dtype),) for m, n in ((6, 12), (4, 24))]
    tolerance = 2e-2 if dtype is torch.bfloat16 else None
    check(f, *calls, dynamic=False, captures=2, tolerance=tolerance)

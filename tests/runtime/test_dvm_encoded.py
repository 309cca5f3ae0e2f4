"""Kernels of every form that lowering writes are encoded: no call falls back."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import vtc

r = torch.randn


def _tiled_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv1d(x, weight, bias.tile(2), 2)


def _rolled_scale(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.conv1d(x, weight) * scale.repeat_interleave(2)[None, :, None]


def _picked_bias(x: Tensor, weight: Tensor, bias: Tensor, i: Tensor) -> Tensor:
    return F.conv1d(x, weight) + bias[i][:, None]


def _tiled(x: Tensor) -> Tensor:
    return x.tile(2, 3, 2, 2, 2)


def _permuted(x: Tensor) -> Tensor:
    return x.permute(8, 1, 6, 3, 4, 5, 2, 7, 0).exp()


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (_tiled_bias, (r(2, 16, 7), r(4, 16, 3), r(2))),
        (_rolled_scale, (r(2, 16, 7), r(4, 16, 3), r(2))),
        (_picked_bias, (r(2, 16, 7), r(4, 16, 3), r(5), torch.tensor([3, 0, 4, -1]))),
        (_tiled, (r(3, 2, 3, 2, 2),)),
        (_permuted, (r(2, 3, 2, 2, 2, 2, 3, 2, 2),)),
    ],
)
@torch.no_grad()
def test_a_call_is_encoded(function: Callable[..., Tensor], args: tuple[Tensor, ...]) -> None:
    """An epilogue may read by index, and movement may take more dimensions than a kernel has."""
    compiled = vtc.compile(function, engine="dvm")
    with warnings.catch_warnings():
        warnings.simplefilter("error", vtc.errors.VtcWarning)
        torch.testing.assert_close(compiled(*args), function(*args))

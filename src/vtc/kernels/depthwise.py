"""Depthwise convolution in Triton: one filter a channel, NHWC, any stride and dilation."""

from __future__ import annotations

from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_stencil import Stencil, Tile, stencil_kernel, tiles
from vtc.kernels.convolution_text import Kernel
from vtc.kernels.depthwise_rolling import rolling_kernel, rolling_tiles
from vtc.kernels.depthwise_weights import load_weights


def depthwise_kernels(convolution: Convolution) -> list[Kernel]:
    """Kernels of several tile sizes; none where a filter spans several channels."""
    if not convolution.depthwise:
        return []
    found = tiles(convolution.image, convolution.window)
    banded = [depthwise_kernel(convolution, tile) for tile in found]
    return banded + [rolling_kernel(convolution, tile) for tile in rolling_tiles(convolution)]


def depthwise_kernel(convolution: Convolution, tile: Tile) -> Kernel:
    """The kernel of one tile size."""
    stencil = Stencil(
        convolution.image,
        convolution.window,
        convolution.pieces,
        convolution.dtype,
        convolution.body,
        convolution.tensors,
        prepare=lambda text, tile: load_weights(convolution, text, tile.channels),
        combine=lambda total, value, ky, kx: f"{total} + {value} * k{ky}_{kx}",
    )
    return stencil_kernel(stencil, tile, f"depthwise {tile}")

"""Depthwise convolution in Triton: one filter a channel, NHWC, any stride and dilation."""

from __future__ import annotations

from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_dot import weight_pieces
from vtc.kernels.convolution_stencil import Stencil, Tile, stencil_kernel, tiles
from vtc.kernels.convolution_text import Kernel, Text
from vtc.kernels.io import Coordinate, Space


def depthwise_kernels(convolution: Convolution) -> list[Kernel]:
    """Kernels of several tile sizes; none where a filter spans several channels."""
    if not convolution.depthwise:
        return []
    found = tiles(convolution.image, convolution.window)
    return [depthwise_kernel(convolution, tile) for tile in found]


def depthwise_kernel(convolution: Convolution, tile: Tile) -> Kernel:
    """The kernel of one tile size."""
    stencil = Stencil(
        convolution.image,
        convolution.window,
        convolution.pieces,
        convolution.dtype,
        convolution.body,
        convolution.tensors,
        prepare=lambda text, tile: _load_weights(convolution, text, tile),
        combine=lambda total, value, ky, kx: f"{total} + {value} * k{ky}_{kx}",
    )
    return stencil_kernel(stencil, tile, f"depthwise {tile}")


def _load_weights(convolution: Convolution, text: Text, tile: Tile) -> None:
    """One vector over channels a tap, in f32, kept in registers."""
    channels = convolution.channels
    outside = f"c < {channels}" if channels % tile.channels else None
    channel = Coordinate("c", (0,), "c0", str(tile.channels))
    for ky in range(convolution.window.size[0]):
        for kx in range(convolution.window.size[1]):
            taps = (Coordinate("0"), Coordinate(str(ky)), Coordinate(str(kx)))
            space = Space((channel, *taps), (str(tile.channels),), (outside,))
            value = text.printer(space).load(weight_pieces(convolution), convolution.dtype)
            text.lines.add(f"k{ky}_{kx} = {value.name}.to(tl.float32)[None, :]")

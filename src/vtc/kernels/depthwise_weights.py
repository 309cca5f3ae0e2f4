"""The weights of a depthwise convolution in registers."""

from __future__ import annotations

from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_dot import weight_pieces
from vtc.kernels.convolution_text import Text
from vtc.kernels.io import Coordinate, Space


def load_weights(convolution: Convolution, text: Text, block: int) -> None:
    """One vector over the `block` channels from c0 a tap, in f32: k{ky}_{kx}."""
    channels = convolution.channels
    outside = f"c < {channels}" if channels % block else None
    channel = Coordinate("c", (0,), "c0", str(block))
    for ky in range(convolution.window.size[0]):
        for kx in range(convolution.window.size[1]):
            taps = (Coordinate("0"), Coordinate(str(ky)), Coordinate(str(kx)))
            space = Space((channel, *taps), (str(block),), (outside,))
            value = text.printer(space).load(weight_pieces(convolution), convolution.dtype)
            text.lines.add(f"k{ky}_{kx} = {value.name}.to(tl.float32)[None, :]")

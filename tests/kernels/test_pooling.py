"""Pooling and nearest upsampling in channels-last, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from vtc.index import Fill, Piece, expr
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Window
from vtc.kernels.convolution_build import image_tensor
from vtc.kernels.convolution_stencil import Tile
from vtc.kernels.epilogue import Body
from vtc.kernels.pooling import Pooling, pooling_candidates, pooling_kernel

TILES = [Tile(1, 8, 8, 1), Tile(2, 4, 16, 2)]


def pooled(kind, x, out, window, source=None, **more):
    n, c, h, w = x.shape
    source = IndexMap.identity((n, h, w, c)) if source is None else source
    body = Body()
    output = (source.shape[0], *window.outputs(*source.shape[1:3]), source.shape[3])
    body.store(body.product(), IndexMap.identity(output, 1))
    tensors = (image_tensor(x), image_tensor(out))
    return Pooling(kind, source.shape, source, window, body.build(), tensors, **more)


def nhwc(*shape, device):
    n, c, h, w = shape
    return torch.randn(n, h, w, c, device=device).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (2, 2), (1, 1)),
        Window((5, 5), padding=(2, 2)),
        Window((2, 3), (2, 1), (0, 1), (1, 2)),
    ],
    ids=["stem", "sppf", "uneven"],
)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_maximum(window, tile, device):
    x = nhwc(2, 10, 9, 7, device=device)
    x[0, 3, 4, 4] = float("nan")
    expected = F.max_pool2d(x, window.size, window.stride, window.padding, window.dilation)
    buffer = torch.full((2, 14, *expected.shape[2:]), 7.0, device=device)
    buffer = buffer.contiguous(memory_format=torch.channels_last)
    out = buffer[:, 3:13]
    pooling_kernel(pooled("max", x, out, window), tile).launch()([x, out])
    torch.testing.assert_close(out, expected, equal_nan=True)
    assert (buffer[:, :3] == 7).all()
    assert (buffer[:, 13:] == 7).all()


@pytest.mark.parametrize("count_padding", [True, False])
def test_mean(count_padding, device):
    x = nhwc(1, 6, 7, 9, device=device)
    window = Window((3, 3), (2, 2), (1, 1))
    expected = F.avg_pool2d(x, 3, 2, 1, count_include_pad=count_padding)
    out = torch.empty_like(expected)
    described = pooled("mean", x, out, window, count_padding=count_padding)
    pooling_kernel(described, TILES[1]).launch()([x, out])
    torch.testing.assert_close(out, expected)


def test_values_of_a_pad_operator_are_pixels_to_a_maximum(device):
    x = nhwc(1, 4, 3, 3, device=device) - 5
    axes = expr.axes(4)
    source = IndexMap(
        (1, 4, 3, 4),
        [
            Piece((0, 0, 0, 0), (1, 3, 3, 4), 0, axes),
            Piece((0, 3, 0, 0), (1, 4, 3, 4), Fill(0.0)),
        ],
    )
    expected = F.max_pool2d(F.pad(x, (0, 0, 0, 1)), 2)
    out = torch.empty_like(expected)
    described = pooled("max", x, out, Window((2, 2), (2, 2)), source)
    pooling_kernel(described, TILES[0]).launch()([x, out])
    torch.testing.assert_close(out, expected)


def test_nearest_upsampling_is_a_window_of_one_pixel_on_a_virtual_image(device):
    x = nhwc(2, 5, 3, 4, device=device)
    expected = F.interpolate(x, scale_factor=2, mode="nearest")
    out = torch.empty_like(expected)
    n, h, w, c = expr.axes(4)
    source = IndexMap.single((2, 6, 8, 5), (n, h // 2, w // 2, c))
    for launch in pooling_candidates(pooled("max", x, out, Window((1, 1)), source)):
        out.fill_(0)
        launch([x, out])
        assert torch.equal(out, expected)

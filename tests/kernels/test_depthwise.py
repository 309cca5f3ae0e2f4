"""Depthwise convolution: against float64, through maps, and the machine code of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from kernels.convolution_checks import Layer, case
from kernels.offline import Request, compile_offline
from vtc.index import Fill, Piece, expr
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, Window
from vtc.kernels.convolution_build import image_tensor, plain_tensor
from vtc.kernels.convolution_stencil import Tile
from vtc.kernels.depthwise import depthwise_kernel
from vtc.kernels.depthwise_rolling import RollingTile, rolling_kernel, rolling_tiles
from vtc.kernels.epilogue import Body
from vtc.kernels.text import pointer_text

LAYERS = [
    Layer(2, (7, 6), 12, 12, Window((3, 3), padding=(1, 1)), 12, "silu", scaled=True),
    Layer(1, (9, 11), 10, 10, Window((3, 3), (2, 2), (1, 1)), 10, "relu", extra=6),
    Layer(1, (6, 7), 9, 9, Window((5, 5), padding=(2, 2)), 9, residual=True, nchw=True),
    Layer(1, (8, 8), 7, 7, Window((3, 3), (1, 1), (2, 2), (2, 2)), 7, "gelu", packed=True),
    Layer(2, (5, 9), 8, 8, Window((1, 3), (1, 2), (0, 1)), 8, "hardswish"),
    Layer(1, (1, 1), 5, 5, Window((3, 3), padding=(1, 1)), 5, "sigmoid"),
]
TILES = [Tile(1, 8, 8, 1), Tile(2, 4, 16, 2), Tile(4, 16, 8, 4)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layer_equals_float64(layer, device):
    made = case(layer, device, torch.float32)
    for tile in TILES:
        made.reset()
        depthwise_kernel(made.convolution, tile).launch()(made.tensors)
        made.check()


ROLLING = [
    *(layer for layer in LAYERS if layer.window.dilation == (1, 1) and layer.window.size != (5, 5)),
    Layer(
        1, (20, 11), 9, 9, Window((3, 3), (2, 1), (1, 1)), 9, "hardswish", extra=7, residual=True
    ),
    Layer(2, (13, 8), 6, 6, Window((2, 2), (3, 3), (1, 0)), 6, "relu"),
]


@pytest.mark.parametrize("layer", ROLLING, ids=str)
def test_rows_that_roll_equal_float64(layer, device):
    made = case(layer, device, torch.float32)
    for tile in (RollingTile(2, 4, 8, 1), RollingTile(5, 8, 16, 2, 3), RollingTile(32, 4, 8, 1)):
        made.reset()
        rolling_kernel(made.convolution, tile).launch()(made.tensors)
        made.check()


def test_rolling_tiles_are_for_small_filters_on_images_of_some_rows():
    def tiles(size, window):
        layer = Layer(1, size, 192, 192, window, 192)
        return rolling_tiles(case(layer, torch.device("cpu"), torch.float16).convolution)

    for tile in tiles((64, 64), Window((3, 3), padding=(1, 1))):
        assert tile.columns * tile.channels == 8 * 32 * tile.warps
    assert len(tiles((64, 64), Window((3, 3), (2, 2), (1, 1)))) >= 3
    assert not tiles((64, 64), Window((5, 5), padding=(2, 2)))
    assert not tiles((7, 64), Window((3, 3), padding=(1, 1)))
    assert not tiles((64, 64), Window((3, 3), (1, 1), (2, 2), (2, 2)))


def test_a_concat_of_a_shuffled_image_and_a_padded_one_is_read_in_place(device):
    a = torch.randn(1, 5, 6, 6, device=device).contiguous(memory_format=torch.channels_last)
    b = torch.randn(1, 6, 4, 6, device=device).contiguous(memory_format=torch.channels_last)
    w = torch.randn(11, 1, 3, 3, device=device)
    out = torch.empty(1, 6, 6, 11, device=device).permute(0, 3, 1, 2)
    shuffled = b.view(1, 2, 3, 4, 6).transpose(1, 2).reshape(1, 6, 4, 6)
    joined = torch.cat([a, F.pad(shuffled, (0, 0, 1, 1), value=0.5)], 1)
    source = concat_of_shuffled_and_padded()
    body = Body()
    body.store(body.product(), IndexMap.identity((1, 6, 6, 11), 3))
    convolution = Convolution(
        image=(1, 6, 6, 11),
        source=source,
        weight=2,
        channels=11,
        window=Window((3, 3), padding=(1, 1)),
        groups=11,
        body=body.build(),
        tensors=(image_tensor(a), image_tensor(b), plain_tensor(w), image_tensor(out)),
    )
    depthwise_kernel(convolution, Tile(2, 8, 8, 2)).launch()([a, b, w, out])
    torch.testing.assert_close(out, F.conv2d(joined, w, padding=1, groups=11))


def concat_of_shuffled_and_padded() -> IndexMap:
    """Over (n, h, w, c): image 0 of 5 channels, then image 1, shuffled and padded by two rows."""
    n, h, w, c = expr.axes(4)
    part = c - 5
    inner = part % 2 * 3 + part // 2
    return IndexMap(
        (1, 6, 6, 11),
        [
            Piece((0, 0, 0, 0), (1, 6, 6, 5), 0, (n, h, w, c)),
            Piece((0, 1, 0, 5), (1, 5, 6, 11), 1, (n, h - 1, w, inner)),
            Piece((0, 0, 0, 5), (1, 1, 6, 11), Fill(0.5)),
            Piece((0, 5, 0, 5), (1, 6, 6, 11), Fill(0.5)),
        ],
    )


@pytest.mark.parametrize("kernel", [3, 5])
def test_machine_code_moves_16_bytes_and_spills_nothing(kernel):
    window = Window((kernel, kernel), padding=(kernel // 2,) * 2)
    layer = Layer(1, (56, 56), 128, 128, window, 128, "silu")
    made = case(layer, torch.device("cpu"), torch.float16)
    by_taps = torch.empty(kernel, kernel, 128, dtype=torch.float16).permute(2, 0, 1)[:, None]
    tensors = list(made.convolution.tensors)
    tensors[1] = plain_tensor(by_taps)
    packed = dataclasses.replace(made.convolution, tensors=tuple(tensors))
    types = {f"t{k}": pointer_text(t.dtype) for k, t in enumerate(tensors)}
    text = [depthwise_kernel(c, Tile(4, 16, 64, 4)) for c in (made.convolution, packed)]
    plain, fast = compile_offline(
        [Request(k.source, "depthwise", types, {}, {"num_warps": 4}) for k in text]
    )
    for machine in (plain, fast):
        assert machine.spills == 0
        assert machine.loads[16] >= kernel * (kernel + 3)
        assert set(machine.stores) == {16}
    assert set(fast.loads) == {16}


@pytest.mark.parametrize("stride", [1, 2])
def test_rolling_machine_code_moves_16_bytes_and_spills_nothing(stride):
    window = Window((3, 3), (stride, stride), (1, 1))
    made = case(Layer(16, (128, 128), 192, 192, window, 192, "hardswish", scaled=True),
                torch.device("cpu"), torch.float16)  # fmt: skip
    types = {f"t{k}": pointer_text(t.dtype) for k, t in enumerate(made.convolution.tensors)}
    tiles = rolling_tiles(made.convolution)
    kernels = [rolling_kernel(made.convolution, tile) for tile in tiles]
    found = compile_offline(
        [Request(k.source, "depthwise", types, {}, {"num_warps": k.num_warps}) for k in kernels]
    )
    for tile, machine in zip(tiles, found, strict=True):
        assert machine.spills == 0, tile
        assert set(machine.stores) == {16}, tile
        assert machine.loads[16] >= 3 * stride, tile

"""Convolution as an implicit matmul: against float64, through maps, and the machine code of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from kernels.convolution_checks import Layer, case
from kernels.offline import Request, compile_offline
from vtc.index import Piece, expr
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, Window, collapsed
from vtc.kernels.convolution_bare import bare_launches
from vtc.kernels.convolution_build import image_tensor, plain_tensor
from vtc.kernels.convolution_candidates import candidates
from vtc.kernels.convolution_dot import dot_kernel, dot_kernels
from vtc.kernels.convolution_tiles import DotTile, parts
from vtc.kernels.epilogue import Body
from vtc.kernels.text import pointer_text

LAYERS = [
    Layer(2, (6, 5), 18, 10, Window((3, 3), padding=(1, 1)), activation="silu", scaled=True),
    Layer(1, (9, 7), 20, 22, Window((3, 3), (2, 2), (1, 1)), activation="relu", extra=6),
    Layer(1, (11, 10), 3, 24, Window((3, 3), (2, 2), (1, 1)), activation="hardswish", nchw=True),
    Layer(1, (5, 5), 3, 8, Window((3, 2), (1, 1), (1, 0), (2, 1)), residual=True),
    Layer(1, (6, 6), 32, 32, Window((3, 3), padding=(1, 1)), 2, "gelu", packed=True),
    Layer(2, (4, 4), 48, 48, Window((1, 1)), 3),
    Layer(1, (4, 6), 36, 18, Window((1, 1)), 2, "relu", extra=2),
    Layer(1, (5, 4), 8, 16, Window((3, 3), padding=(1, 1)), 4, residual=True, scaled=True),
    Layer(1, (7, 7), 17, 5, Window((1, 1), (2, 2)), activation="sigmoid"),
    Layer(1, (1, 1), 16, 4, Window((3, 3), padding=(1, 1))),
    Layer(1, (4, 4), 6, 12, Window((3, 3), padding=(1, 1)), 6),
]
TILES = [DotTile(16, 16, 16, 1, 1), DotTile(32, 32, 32, 4, 2), DotTile(16, 16, 16, 2, 2, 3)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layer_equals_float64(layer, device):
    made = case(layer, device, torch.float32)
    for tile in TILES:
        made.reset()
        dot_kernel(collapsed(made.convolution), tile).launch()(made.tensors)
        made.check()


def nhwc_image(channels, height, width, device, batch=1):
    return torch.randn(batch, height, width, channels, device=device).permute(0, 3, 1, 2)


def concat(shape, low):
    """Over (n, h, w, c): channels below `low` of tensor 0, the others of tensor 1."""
    n, height, width, _ = shape
    axes = expr.axes(4)
    return IndexMap(
        shape,
        [
            Piece((0, 0, 0, 0), (n, height, width, low), 0, axes),
            Piece((0, 0, 0, low), shape, 1, (*axes[:3], axes[3] - low)),
        ],
    )


@pytest.mark.parametrize("window", [Window((3, 3), padding=(1, 1)), Window((1, 1))], ids=["3", "1"])
def test_a_concat_is_walked_part_by_part(window, device):
    a, b = nhwc_image(18, 5, 4, device), nhwc_image(22, 5, 4, device)
    w = torch.randn(6, 40, *window.size, device=device)
    out = torch.empty(1, 5, 4, 6, device=device).permute(0, 3, 1, 2)
    convolution = joined(a, b, w, out, window, concat((1, 5, 4, 40), 18))
    assert [(p.low, p.high) for p in parts(collapsed(convolution))] == [(0, 18), (18, 40)]
    dot_kernel(collapsed(convolution), TILES[0]).launch()([a, b, w, out])
    expected = F.conv2d(torch.cat([a, b], 1), w, padding=window.padding)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def joined(a, b, w, out, window, source):
    body = Body()
    body.store(body.product(), IndexMap.identity((1, 5, 4, 6), 3))
    return Convolution(
        source.shape, source, 2, w.shape[0], window, 1, body.build(),
        (image_tensor(a), image_tensor(b), plain_tensor(w), image_tensor(out)),
    )  # fmt: skip


def test_an_upsampled_and_shuffled_image_is_read_in_place_and_two_slices_are_stored(device):
    x = nhwc_image(20, 3, 4, device)
    w = torch.randn(12, 20, 3, 3, device=device)
    left = torch.full((1, 6, 8, 9), 7.0, device=device).permute(0, 3, 1, 2)
    right = torch.full((1, 6, 8, 8), 7.0, device=device).permute(0, 3, 1, 2)
    n, h, width, c = expr.axes(4)
    source = IndexMap.single((1, 6, 8, 20), (n, h // 2, width // 2, c % 2 * 10 + c // 2))
    body = Body()
    value = body.scalar("maximum", body.product(), body.const(0.0))
    axes = expr.axes(4)
    halves = [
        Piece((0, 0, 0, 0), (1, 6, 8, 5), 2, (*axes[:3], axes[3] + 2)),
        Piece((0, 0, 0, 5), (1, 6, 8, 12), 3, (*axes[:3], axes[3] - 5)),
    ]
    body.store(value, IndexMap((1, 6, 8, 12), halves))
    tensors = (image_tensor(x), plain_tensor(w), image_tensor(left), image_tensor(right))
    convolution = Convolution(
        (1, 6, 8, 20), source, 1, 12, Window((3, 3), padding=(1, 1)), 1, body.build(), tensors
    )
    dot_kernel(convolution, TILES[1]).launch()([x, w, left, right])
    virtual = F.interpolate(x, scale_factor=2).view(1, 2, 10, 6, 8).transpose(1, 2)
    expected = F.conv2d(virtual.reshape(1, 20, 6, 8), w, padding=1).relu()
    torch.testing.assert_close(left[:, 2:7], expected[:, :5], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(right[:, :7], expected[:, 5:], rtol=1e-4, atol=1e-4)
    assert (left[:, :2] == 7).all()
    assert (left[:, 7:] == 7).all()
    assert (right[:, 7:] == 7).all()


def test_maps_and_materialised_operands_give_the_same_bits(device):
    a, b = nhwc_image(18, 5, 4, device), nhwc_image(22, 5, 4, device)
    w = torch.randn(6, 40, 3, 3, device=device)
    window = Window((3, 3), padding=(1, 1))
    results = []
    whole = torch.cat([a, b], 1).contiguous(memory_format=torch.channels_last)
    for left, right in ((a, b), (whole[:, :18], whole[:, 18:])):
        out = torch.empty(1, 5, 4, 6, device=device).permute(0, 3, 1, 2)
        convolution = joined(left, right, w, out, window, concat((1, 5, 4, 40), 18))
        dot_kernel(convolution, TILES[0]).launch()([left, right, w, out])
        results.append(out)
    assert torch.equal(*results)


def test_a_pointwise_convolution_on_slices_is_one_row_of_pixels():
    layer = Layer(2, (4, 4), 48, 48, Window((1, 1)), 3, residual=True, extra=16)
    made = case(layer, torch.device("cpu"), torch.float32)
    flat = collapsed(made.convolution)
    assert flat.image == (1, 1, 32, 48)
    assert [p.stride for p in flat.pieces] == [(0, 0, 80, 1)]


def test_descriptions_that_do_not_fit_are_refused():
    made = case(LAYERS[0], torch.device("cpu"), torch.float32).convolution
    with pytest.raises(ValueError, match="groups"):
        Convolution(made.image, made.source, 1, 10, made.window, 4, made.body, made.tensors)
    with pytest.raises(ValueError, match="weight"):
        Convolution(made.image, made.source, 1, 12, made.window, 1, made.body, made.tensors)


@pytest.mark.parametrize("layer", [LAYERS[1], LAYERS[3], LAYERS[6]], ids=str)
def test_a_library_convolution_and_the_epilogue_behind_it_equal_float64(layer, device):
    made = case(layer, device, torch.float32)
    launch, *_ = bare_launches(made.convolution, made.tensors)
    made.reset()
    launch(made.tensors)
    made.check()


def test_every_convolution_has_candidates():
    for layer in LAYERS:
        made = case(layer, torch.device("cpu"), torch.float32)
        names = [c.name for c in candidates(made.convolution, made.tensors)]
        assert names
        assert len(set(names)) == len(names)


def test_machine_code_uses_tensor_cores_and_spills_nothing():
    layers = [
        Layer(1, (32, 32), 1152, 1152, Window((1, 1)), 36, packed=True),
        Layer(1, (28, 28), 64, 64, Window((3, 3), padding=(1, 1)), 1, "silu", packed=True),
        Layer(1, (64, 64), 3, 32, Window((3, 3), (2, 2), (1, 1)), 1, "silu", packed=True),
    ]
    requests, labels = [], []
    for layer in layers:
        made = case(layer, torch.device("cpu"), torch.float16)
        types = {f"t{k}": pointer_text(t.dtype) for k, t in enumerate(made.convolution.tensors)}
        scratch = {"sums": "*fp32", "counters": "*i32"}
        kernels = dot_kernels(made.convolution)
        for kernel in (kernels[0], kernels[-1]):
            options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
            more = scratch if kernel.partial_sums else {}
            requests.append(Request(kernel.source, "convolution", types | more, {}, options))
            labels.append((str(layer), kernel.name))
    found = compile_offline(requests)
    for label, machine in zip(labels, found, strict=True):
        assert machine.spills == 0, label
        assert machine.wgmma or machine.mma, label
    # Grouped 1x1 and dense 3x3: 16 bytes at a time; an RGB stem has no such runs.
    for machine in found[:4]:
        assert 16 in machine.loads

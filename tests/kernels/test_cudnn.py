"""What cuDNN's graph API is asked for: strides, alignment and nodes of a convolution."""

from __future__ import annotations

import pytest
import torch

from kernels.convolution_checks import Layer, case
from vtc.index import Piece, expr
from vtc.index.map import IndexMap
from vtc.kernels import cudnn
from vtc.kernels.convolution import Convolution, Window
from vtc.kernels.convolution_build import image_tensor, plain_tensor
from vtc.kernels.convolution_recipe import NotAcceptedError, Placed, recipe
from vtc.kernels.epilogue import Body
from vtc.program.dtypes import DType

CPU = torch.device("cpu")


def test_a_layer_on_slices_is_a_graph_of_views():
    layer = Layer(2, (6, 5), 16, 8, Window((3, 3), (2, 2), (1, 1)), 1, "silu", extra=8, packed=True)
    made = case(layer, CPU, torch.float16)
    found = recipe(made.convolution, [16, 16, 4, 16])
    assert found.image == Placed(0, (2, 16, 6, 5), (960, 1, 160, 32), 0, DType.F16, 16)
    assert found.output == Placed(2, (2, 8, 3, 3), (216, 1, 72, 24), 0, DType.F16, 4)
    assert [n.op for n in found.nodes] == ["convolution", "load", "add", "sigmoid", "mul"]
    bias = found.nodes[1].value
    assert isinstance(bias, Placed)
    assert bias.size == (1, 8, 1, 1)
    assert bias.stride[1] == 1
    assert found.result == 4
    assert (found.stride, found.padding) == ((2, 2), (1, 1))


def test_equal_layers_share_one_graph():
    layer = Layer(1, (6, 5), 16, 8, Window((3, 3)), 1, "relu", packed=True)
    first, second = (
        recipe(case(layer, CPU, torch.float16, seed).convolution, [16] * 4) for seed in (1, 2)
    )
    assert first == second
    assert hash(first) == hash(second)


def test_a_maximum_with_zero_is_a_relu():
    layer = Layer(1, (6, 5), 16, 8, Window((3, 3)), 1, "relu", packed=True)
    found = recipe(case(layer, CPU, torch.float16).convolution, [16] * 4)
    assert found.nodes[found.result].op == "relu"


def joined_image() -> Convolution:
    a, b, out = (torch.empty(1, 4, 4, 8).permute(0, 3, 1, 2) for _ in range(3))
    axes = expr.axes(4)
    source = IndexMap(
        (1, 4, 4, 16),
        [
            Piece((0, 0, 0, 0), (1, 4, 4, 8), 0, axes),
            Piece((0, 0, 0, 8), (1, 4, 4, 16), 1, (*axes[:3], axes[3] - 8)),
        ],
    )
    weight = torch.empty(8, 16, 1, 1)
    body = Body()
    body.store(body.product(), IndexMap.identity((1, 4, 4, 8), 3))
    tensors = (image_tensor(a), image_tensor(b), plain_tensor(weight), image_tensor(out))
    return Convolution(source.shape, source, 2, 8, Window((1, 1)), 1, body.build(), tensors)


def shuffled_image() -> Convolution:
    made = case(Layer(1, (4, 4), 8, 8, Window((1, 1))), CPU, torch.float32).convolution
    n, h, w, c = expr.axes(4)
    source = IndexMap.single(made.image, (n, h, w, c % 2 * 4 + c // 2))
    return Convolution(made.image, source, 1, 8, made.window, 1, made.body, made.tensors)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (joined_image, "several tensors"),
        (shuffled_image, "no strided view"),
        (
            lambda: case(Layer(1, (4, 4), 8, 8, Window((1, 1))), CPU, torch.float64).convolution,
            "f64",
        ),
        (
            lambda: case(Layer(1, (4, 4), 8, 8, Window((2, 2))), CPU, torch.float16).convolution,
            "not adjacent",
        ),
    ],
    ids=["concat", "shuffle", "float64", "nchw weight"],
)
def test_what_cudnn_does_not_express_is_refused(make, why):
    with pytest.raises(NotAcceptedError, match=why):
        recipe(make(), [16] * 4)


def test_without_a_device_there_are_no_launches():
    if cudnn.available():
        pytest.skip("cuDNN's frontend is there")
    made = case(Layer(1, (4, 4), 8, 8, Window((1, 1))), CPU, torch.float32)
    assert cudnn.cudnn_launches(made.convolution, made.tensors) == []

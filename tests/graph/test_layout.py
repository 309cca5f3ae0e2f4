"""Channels-last rewriting: same values, same outputs' strides, NHWC between convolutions."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from vtc.bench import vision
from vtc.graph.capture import capture
from vtc.graph.layout import CONVOLUTIONS, channels_last, is_channels_last
from vtc.graph.program import value_of

aten = torch.ops.aten


def captured(function, args):
    """(program, inputs) of the one graph of a function, called on `args`."""
    found = []

    def backend(graph_module, example_inputs):
        program = capture(graph_module, example_inputs)
        own = [a.detach().clone() for a in example_inputs]
        found.append((program, [*own, *program.constants]))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=False)(*args)
    (one,) = found
    return one


class Strides(fx.Interpreter):
    """Runs a graph and holds each value's strides against those that its node carries."""

    def run_node(self, n):
        value = super().run_node(n)
        expected = value_of(n)
        if isinstance(expected, torch.Tensor) and n.op == "call_function":
            pairs = zip(value.stride(), expected.stride(), value.shape, strict=True)
            assert all(a == b for a, b, size in pairs if size > 1), n.format_node()
        return value


def rewritten(function, args):
    """The rewritten program, after its outputs were held against the original's on fresh inputs."""
    program, inputs = captured(function, args)
    result = channels_last(program)
    inputs = [torch.randn_like(a) if a.shape == args[0].shape else a for a in inputs]
    with torch.no_grad():
        expected = program.graph_module(*copy.deepcopy(inputs))
        got = Strides(result.graph_module).run(*copy.deepcopy(inputs))
    for a, b in zip(got, expected, strict=True):
        scale = max(float(b.abs().max()), 1.0) if b.numel() else 1.0
        torch.testing.assert_close(a / scale, b / scale, rtol=1e-4, atol=1e-5)
        assert [s for s, n in zip(a.stride(), a.shape, strict=True) if n > 1] == [
            s for s, n in zip(b.stride(), b.shape, strict=True) if n > 1
        ]
    return result


def copies(program):
    return [n for n in program.nodes if n.target is aten.clone.default]


def convolutions_see_nhwc(program):
    found = [n for n in program.nodes if n.target in CONVOLUTIONS]
    return bool(found) and all(
        is_channels_last(value_of(n)) and is_channels_last(value_of(n.args[0])) for n in found
    )


class Shuffled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.third = nn.Conv2d(8, 12, 3, stride=2, groups=4)

    def forward(self, x):
        x = self.first(x)
        x = torch.cat([x[:, :4], F.silu(self.norm(self.second(x)))[:, 4:]], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.third(F.max_pool2d(x, 3, 1, 1))


def test_a_channel_shuffle_is_one_copy_between_channels_last_images():
    result = rewritten(Shuffled().eval(), (torch.randn(2, 3, 7, 5),))
    assert convolutions_see_nhwc(result)
    at_input, shuffle, at_output = copies(result)
    assert at_input.args[0].op == "placeholder"
    assert value_of(shuffle).is_contiguous()
    assert tuple(value_of(shuffle).shape) == (2, 7, 5, 4, 2)
    assert value_of(at_output).is_contiguous()


def test_nothing_is_copied_at_inputs_and_outputs_that_are_channels_last():
    x = torch.randn(2, 3, 7, 5).to(memory_format=torch.channels_last)
    model = Shuffled().eval().to(memory_format=torch.channels_last)
    result = rewritten(model, (x,))
    assert convolutions_see_nhwc(result)
    assert len(copies(result)) == 1


def test_an_input_of_several_convolutions_is_copied_once():
    weights = torch.randn(4, 3, 3, 3), torch.randn(5, 3, 1, 1)

    def function(x, a, b):
        return F.conv2d(x, a), F.conv2d(x, b).relu()

    result = rewritten(function, (torch.randn(1, 3, 6, 6), *weights))
    assert sum(n.args[0].op == "placeholder" for n in copies(result)) == 1


def test_a_view_that_channels_last_strides_do_not_allow_becomes_a_reshape():
    def function(x, w):
        y = F.conv2d(x, w)
        return (y.view(y.shape[0], -1) * 2).sum(1)

    result = rewritten(function, (torch.randn(2, 3, 5, 4), torch.randn(6, 3, 2, 2)))
    assert any(n.target is aten.reshape.default for n in result.nodes)


def test_heads_of_attention_become_channels_of_an_image_by_one_copy():
    def function(x, w, v):
        y = F.conv2d(x, w)  # 6 channels: 2 heads of 3
        n, c, h, width = y.shape
        heads = y.view(n, 2, 3, h * width).transpose(2, 3)
        mixed = heads @ (heads.transpose(2, 3) @ heads)
        return F.conv2d(mixed.transpose(2, 3).reshape(n, c, h, width), v)

    args = torch.randn(2, 3, 5, 4), torch.randn(6, 3, 1, 1), torch.randn(4, 6, 1, 1)
    result = rewritten(function, args)
    assert convolutions_see_nhwc(result)
    assert [tuple(value_of(n).shape) for n in copies(result)][1] == (2, 20, 2, 3)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 1)])
def test_sizes_of_one(channels, size):
    def function(x, a, b):
        return F.conv2d(F.conv2d(x, a).relu(), b)

    args = (
        torch.randn(1, channels, *size),
        torch.randn(4, channels, 1, 1),
        torch.randn(channels, 4, 1, 1),
    )
    rewritten(function, args)


def test_an_updated_input_gets_the_new_value():
    def function(x, w, seen):
        y = F.conv2d(x, w)
        seen.add_(y)
        return y * 2

    args = torch.randn(1, 3, 4, 4), torch.randn(2, 3, 1, 1), torch.randn(1, 2, 4, 4)
    program, _ = captured(function, args)
    result = channels_last(program)
    ((number, value),) = result.updates
    assert number == program.updates[0][0]
    assert value_of(value).stride() == value_of(program.inputs[number]).stride()


def test_an_output_with_gaps_leaves_the_program_as_it_is():
    def function(x, w):
        return F.conv2d(x, w)[:, 1:]

    args = torch.randn(2, 3, 4, 4), torch.randn(3, 3, 1, 1)
    program, _ = captured(function, args)
    assert channels_last(program) is program


def test_programs_without_images_are_returned_as_they_are():
    def function(x, w):
        return F.conv1d(x, w)

    program, _ = captured(function, (torch.randn(1, 3, 8), torch.randn(2, 3, 3)))
    assert channels_last(program) is program


CPU = {"batch": 2, "device": torch.device("cpu"), "dtype": torch.float32, "seed": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: vision.shufflenet("x1_0", 64, **CPU),
        lambda: vision.efficientvit("b1", 64, **CPU),
        lambda: vision.yolo11("n", 64, **CPU),
    ],
    ids=["shufflenet", "efficientvit", "yolo11"],
)
def test_a_model_computes_the_same_in_channels_last(make):
    case = make()
    result = rewritten(case.model, case.inputs.args)
    assert convolutions_see_nhwc(result)

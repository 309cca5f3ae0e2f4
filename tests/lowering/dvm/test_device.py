"""Lowering for a device that need not be there: fake tensors are enough."""

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from vtc.graph.capture import capture
from vtc.lowering.dvm.lower import lower
from vtc.lowering.dvm.plan import EagerStep


def angles(frequencies, positions):
    return (frequencies @ positions,)


def attention(q, k, v):
    return (nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),)


def projection(x, w, b):
    return (nn.functional.linear(x, w, b).relu(),)


def convolution(x, w, b):
    return (nn.functional.conv2d(x, w, b, padding=1),)


# Batch and length by their letters; the other sizes are constants.
CASES = {
    angles: ([(1, 32, 1), (1, 1, "n")], "matmul"),
    attention: ([("b", 4, "n", 64)] * 3, "scaled_dot_product_attention"),
    projection: ([("b", "n", 64), (32, 64), (32,)], "linear"),
    convolution: ([("b", 8, "n", "n"), (8, 8, 3, 3), (8,)], "conv2d"),
}


@pytest.mark.parametrize("function", CASES)
def test_library_calls_keep_sizes_symbolic(function):
    """What a library computes is not traced into: that may guard on the sizes at hand."""
    shapes, target = CASES[function]
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    batch, length = mode.from_tensor(torch.empty(3, 155), symbolic_context=context).shape
    known = {"b": batch, "n": length}
    with mode:
        fakes = [
            torch.empty([known.get(s, s) for s in shape], device="cuda", dtype=torch.bfloat16)
            for shape in shapes
        ]
    captured = capture(fx.symbolic_trace(function), fakes)
    before = dict(shape_env.replacements)
    plan = lower(captured)
    called = [step.name for step in plan.steps if isinstance(step, EagerStep)]
    assert called == [f"aten.{target}.default"]
    assert shape_env.replacements == before

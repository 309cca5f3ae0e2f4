"""Lowering for a device that need not be there: fake tensors are enough."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from patterns.device_operators import heads_rotated, rms
from vm import cuda_on_cpu
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


def running_sum(x):
    return (x.cumsum(-1) + 1,)


def pooling(x):
    best, place = nn.functional.max_pool2d(x, 3, return_indices=True)
    return best.relu(), place


def magnified(x):
    return (nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic"),)


# Batch and length by their letters; the other sizes are constants.
CASES = {
    angles: ([(1, 32, 1), (1, 1, "n")], "matmul.default"),
    attention: ([("b", 4, "n", 64)] * 3, "scaled_dot_product_attention.default"),
    projection: ([("b", "n", 64), (32, 64), (32,)], "linear.default"),
    convolution: ([("b", 8, "n", "n"), (8, 8, 3, 3), (8,)], "conv2d.default"),
    running_sum: ([("b", "n")], "cumsum.default"),
    pooling: ([("b", 8, "n", "n")], "max_pool2d_with_indices.default"),
    magnified: ([("b", 8, "n", "n")], "upsample_bicubic2d.vec"),
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
    assert called == [f"aten.{target}"]
    assert set(called) <= set(plan.splits)  # without a warning
    assert shape_env.replacements == before


def heads_attended(x, w):
    q, k, v = x.view(2, 6, 3, 4, 16).transpose(1, 3).unbind(2)
    out = nn.functional.scaled_dot_product_attention(q, k, v)
    return (nn.functional.linear(out.transpose(1, 2).reshape(2, 6, 64), w),)


def heads_returned(x, w):
    q, k, v = x.view(2, 6, 3, 4, 16).transpose(1, 3).unbind(2)
    out = nn.functional.scaled_dot_product_attention(q, k, v)
    return nn.functional.linear(out.transpose(1, 2).reshape(2, 6, 64), w), out[:, 1:]


def lowered(function):
    with FakeTensorMode():
        x, w = torch.empty(2, 6, 192, device="cuda"), torch.empty(64, 64, device="cuda")
    return lower(capture(fx.symbolic_trace(function), [x, w]))


def test_heads_that_attention_leaves_side_by_side_are_not_copied():
    plan = lowered(heads_attended)
    assert all(isinstance(step, EagerStep) for step in plan.steps)
    attended, projected = plan.steps
    ((_, number),) = attended.results
    assert plan.spaces[number].stride == (384, 16, 64, 1)
    assert projected.args[0].view == ((2, 6, 64), (384, 64, 1), 0)


def test_attention_that_is_returned_has_the_strides_of_its_fake():
    plan = lowered(heads_returned)
    attended = next(s for s in plan.steps if isinstance(s, EagerStep))
    ((_, number),) = attended.results
    returned = plan.outputs[1]
    assert returned.space == number
    assert returned.view[1] == plan.spaces[number].stride


def normed_and_turned(x, cos, sin, w):
    return (heads_rotated(64, normed=True)(x, cos, sin, w),)


def normed_and_projected(x, cos, sin, w):
    return (nn.functional.linear(w * rms(x).to(x.dtype), torch.cat((cos, cos, cos), -1)),)


TURNED = [(2, 5, 192), (5, 64), (5, 64), (64,)]
PROJECTED = [(2, 5, 192), (4, 64), (4, 64), (192,)]


def kernels_of(function, shapes):
    with FakeTensorMode():
        fakes = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    plan = lower(capture(fx.symbolic_trace(function), fakes))
    modules = [step for step in plan.steps if not isinstance(step, EagerStep)]
    return plan, modules, [k for step in modules for k in step.module.kernels()]


def interpreted(plan, step, args):
    """The outputs of a plan of one module, as the device's interpreter computes them."""
    tensors = []
    for number in step.spaces:
        space = None if number is None else plan.spaces[number]
        if space is None:
            tensors.append(None)
        elif space.kind == "input":
            tensors.append(args[space.number])
        else:
            made = torch.empty_strided(space.shape, space.stride, dtype=space.dtype.torch_dtype)
            tensors.append(made)
    encoded = cuda_on_cpu.Machine(step.module).encode([])
    encoded.run([0 if t is None else t.data_ptr() for t in tensors], [])
    found = [(tensors[step.spaces.index(output.space)], output.view) for output in plan.outputs]
    return [t if view is None else t.as_strided(*view) for t, view in found]


def test_rows_that_are_normed_and_then_moved_are_stored_whole():
    """The device has one kernel for such rows, and none for their sums alone."""
    plan, (step,), (norm, turn) = kernels_of(normed_and_turned, TURNED)
    assert norm.reduced
    assert not turn.reduced
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(s, generator=generator).to(torch.bfloat16) for s in TURNED]
    (found,) = interpreted(plan, step, args)
    (expected,) = normed_and_turned(*(a.float() for a in args))
    torch.testing.assert_close(found.float(), expected, rtol=5e-2, atol=5e-2)


def test_rows_that_are_read_where_they_are_normed_are_one_kernel():
    kernels = kernels_of(normed_and_projected, PROJECTED)[2]
    assert sum(bool(k.reduced) for k in kernels) == 1


def pooled(x):
    return (
        F.max_pool2d(x, 9, 2, 3),
        F.avg_pool2d(x, 9, 3, 4, count_include_pad=False),
        F.adaptive_avg_pool2d(x, (5, 1)),
    )


def placed(x):
    best, place = F.adaptive_max_pool2d(x, (5, 1), return_indices=True)
    return best, place


def counted(x):
    ones = x.new_ones(2, 20, dtype=torch.int64)
    return (x[:, 0, 0, :20] + ones.cumsum(-1), x.sum((0, 2)))


IMAGES = torch.randn(2, 3, 20, 23)
TIES = torch.randint(0, 4, (2, 3, 20, 23)).float()


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (pooled, [IMAGES]),
        (pooled, [IMAGES.bfloat16()]),
        (placed, [TIES]),
        (placed, [TIES.bfloat16()]),
        (counted, [IMAGES]),
    ],
)
def test_the_device_pools_and_counts_as_eager_pytorch(function, args):
    with FakeTensorMode():
        fakes = [torch.empty(a.shape, dtype=a.dtype, device="cuda") for a in args]
    plan = lower(capture(fx.symbolic_trace(function), fakes))
    (step,) = plan.steps
    for found, expected in zip(interpreted(plan, step, args), function(*args), strict=True):
        exact = {} if expected.is_floating_point() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found, expected, **exact)

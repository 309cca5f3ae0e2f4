"""Convolutions on the native machine and the reference interpreter against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from program.building import Kernel, buffer, module
from vm.running import encoded, native, with_threads
from vtc.program.dtypes import DType
from vtc.program.evaluate import evaluate
from vtc.program.module import Module
from vtc.program.tile import Access, Convolution, Part, Window
from vtc.vm import isa, reference
from vtc.vm.machine import validate

# Channels in front of and behind those that are read, in every pixel.
FRONT, BEHIND = 2, 3


@dataclass(frozen=True)
class Case:
    """A convolution of [n, h, w, ci] with taps x taps windows to co channels."""

    ci: int
    co: int
    taps: int = 3
    stride: int = 1
    pad: int = 1
    dilation: int = 1
    groups: int = 1
    size: tuple[int, int, int] = (2, 9, 11)
    planar: bool = False  # the input as [n, c, h, w]
    runs: int = 1  # channels are read from this many places

    def output(self) -> tuple[int, int]:
        reach = self.dilation * (self.taps - 1) + 1
        h, w = ((s + 2 * self.pad - reach) // self.stride + 1 for s in self.size[1:])
        return h, w


CASES = [
    Case(3, 24, stride=2, size=(1, 20, 18), planar=True),
    Case(58, 58, taps=1, pad=0),
    Case(58, 33, taps=1, pad=0, runs=3),
    Case(5, 70, taps=1, pad=0, stride=2),
    Case(20, 40, size=(1, 7, 30)),
    Case(20, 7, size=(3, 4, 5), dilation=2, pad=2),
    Case(17, 34, taps=5, pad=2, stride=2, runs=2),
    Case(4, 8, taps=3, pad=0, size=(1, 3, 3)),
    Case(24, 24, groups=24, size=(2, 14, 15)),
    Case(19, 19, groups=19, stride=2, size=(1, 15, 28)),
    Case(40, 40, taps=5, pad=2, groups=40),
    Case(40, 40, taps=5, pad=2, stride=2, groups=40),
    Case(16, 16, groups=16, dilation=2, pad=1),
    Case(6, 6, taps=1, pad=0, groups=6),
    Case(12, 20, groups=4),
    Case(48, 48, taps=1, pad=0, groups=3),
    # Few channels in front of each other: gathered, in every place that a run begins or ends.
    Case(1, 5, size=(2, 5, 6), planar=True),
    Case(3, 16, stride=2, size=(2, 37, 41), planar=True),
    Case(3, 33, taps=7, pad=3, stride=2, size=(1, 33, 35), planar=True),
    Case(4, 17, taps=5, pad=2, stride=3, size=(1, 19, 23), planar=True, runs=2),
    Case(19, 40, taps=1, pad=0, stride=2, size=(1, 9, 34), planar=True),
    # Small maps and many channels; tiles of columns.
    Case(70, 232, taps=1, pad=0, size=(1, 7, 7)),
    Case(33, 300, size=(1, 5, 5)),
    Case(130, 130, groups=130, size=(1, 29, 31)),
    Case(64, 1, size=(1, 6, 6)),
]


def convolution(case: Case, dtype: DType = DType.F32) -> Module:
    """relu(x * w + b), stored into channels of a wider tensor."""
    n, h, w = case.size
    oh, ow = case.output()
    groups, deep, each = case.groups, case.ci // case.groups, case.co // case.groups
    depthwise = each == 1 and deep == 1
    domain = (n, oh, ow, case.co) if depthwise else (n, oh, ow, groups, each)
    wide = FRONT + case.ci + BEHIND
    pixel, channel = (1, h * w) if case.planar else (wide, 1)
    row, image = w * pixel, h * w * wide
    windows = tuple(
        Window(d + 1, case.taps, case.stride, case.dilation, case.pad, s)
        for d, s in enumerate((h, w))
    )
    taps = case.taps**2
    parts = []
    for run in range(case.runs):
        # Channels run, run + runs, ...: as of a shuffle.
        k = len(range(run, deep, case.runs))
        own = (channel,) if depthwise else (deep * channel, 0)
        left = Access(0, (FRONT + run) * channel,
                      (image, 0, 0, *own, row, pixel, case.runs * channel))  # fmt: skip
        step = deep * taps
        own = (step,) if depthwise else (each * step, step)
        right = Access(1, run * taps, (0, 0, 0, *own, case.taps, 1, case.runs * taps))
        parts.append(Part(left, right, k))
    kernel = Kernel("convolution", domain)
    value = kernel.emit("convolution", dtype=dtype.compute,
                        constant=Convolution(windows, tuple(parts), dtype))  # fmt: skip
    own = (1,) if depthwise else (each, 1)
    value = kernel.op("add", value, kernel.load(2, 0, 0, 0, *own, dtype=dtype))
    value = kernel.op("maximum", value, kernel.const(0.0, dtype.compute))
    if dtype.compute is not dtype:
        value = kernel.cast(value, dtype)
    out = FRONT + case.co + BEHIND
    kernel.store(3, value, oh * ow * out, ow * out, out, *own, offset=FRONT)
    extents = (n * image, case.co * deep * taps, case.co, n * oh * ow * out)
    buffers = [buffer(f"x{i}", dtype, e) for i, e in enumerate(extents)]
    buffers[3] = buffer("y", dtype, extents[3])
    return module(kernel, buffers=buffers)


def operands(case: Case, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    n, h, w = case.size
    wide = FRONT + case.ci + BEHIND
    x = torch.randn((n, wide, h, w) if case.planar else (n, h, w, wide))
    weight = torch.randn(case.co, case.ci // case.groups, case.taps, case.taps)
    return [t.to(dtype) for t in (x, weight, torch.randn(case.co))]


def expected(case: Case, given: list[Tensor]) -> Tensor:
    x, weight, bias = (t.double() for t in given)
    x = x if case.planar else x.permute(0, 3, 1, 2)
    x = x[:, FRONT : FRONT + case.ci]
    found = conv2d(x, weight, bias, case.stride, case.pad, case.dilation, case.groups)
    return found.relu().permute(0, 2, 3, 1)


def written(case: Case, flat: Tensor) -> Tensor:
    """The channels that are stored."""
    oh, ow = case.output()
    whole = flat.view(case.size[0], oh, ow, FRONT + case.co + BEHIND)
    assert bool((whole[..., :FRONT] == 1).all() and (whole[..., FRONT + case.co :] == 1).all())
    return whole[..., FRONT : FRONT + case.co].double()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution_in_slices(case: Case) -> None:
    given = operands(case)
    (found,) = native(convolution(case), given)
    want = expected(case, given)
    torch.testing.assert_close(written(case, found), want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_do_not_depend_on_the_number_of_threads(case: Case) -> None:
    made, given = convolution(case), operands(case)
    results = with_threads(lambda: native(made, given)[0])
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F64])
@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[6], CASES[8], CASES[14]], ids=str)
def test_a_convolution_of_other_types(case: Case, dtype: DType) -> None:
    given = operands(case, dtype.torch_dtype)
    (found,) = native(convolution(case, dtype), given)
    rtol, atol = {DType.BF16: (8e-3, 1e-2), DType.F16: (1e-3, 2e-3)}.get(dtype, (1e-12, 1e-12))
    torch.testing.assert_close(written(case, found), expected(case, given), rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", [c for c in CASES if c.ci < 20], ids=str)
def test_the_words_mean_what_the_module_does(case: Case) -> None:
    made, given = convolution(case), operands(case)
    words = encoded(made).words
    validate(words)
    results = []
    for run in (lambda t: reference.run(words, t), lambda t: evaluate(made, {}, t)):
        out = torch.ones(made.buffers[3].extent)
        run([*given, out])
        results.append(written(case, out))
    for result in results:
        torch.testing.assert_close(result, expected(case, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[9], CASES[14]], ids=str)
@pytest.mark.parametrize("short", [0, 1])
def test_an_operand_that_is_too_short_is_not_encoded(case: Case, short: int) -> None:
    made = convolution(case)
    buffers = list(made.buffers)
    # The last element of the operand is read: channels behind it are not.
    behind = (0 if case.planar else BEHIND, 0)[short]
    if case.planar and short == 0:
        behind = BEHIND * case.size[1] * case.size[2]
    enough = int(buffers[short].extent) - behind
    buffers[short] = replace(buffers[short], extent=enough)
    encoded(replace(made, buffers=tuple(buffers)))
    buffers[short] = replace(buffers[short], extent=enough - 1)
    with pytest.raises(NotImplementedError, match="outside of its buffer"):
        encoded(replace(made, buffers=tuple(buffers)))


def test_a_window_beyond_its_input_is_refused() -> None:
    made = convolution(Case(4, 8))
    words = encoded(made).words
    steps = isa.HEAD_WORDS + isa.BUFFER_WORDS * len(made.buffers)
    code = isa.instructions(words, isa.decode_kernel(words, steps).body)
    at = next(at for at, op in code if op.name == "CONVOLUTION")
    digits = len(isa.decode_convolution(words, at).digits)
    extent = at + 6 + 3 * digits + 4
    assert words[extent] == 9
    words[extent] = 10
    with pytest.raises(ValueError, match="outside of its buffer"):
        validate(words)

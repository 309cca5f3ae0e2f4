"""Convolutions written by hand, and what they give in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from program.building import Kernel, buffer, module
from vtc.program.dtypes import DType
from vtc.program.module import Module
from vtc.program.tile import Access, Convolution, Panel, Part, Window

# Channels in front of and behind those that are read, in every pixel.
FRONT, BEHIND = 2, 3
# Columns of a panel: that of the widest instruction set.
WIDTH = 32


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
    panels: bool = False  # the weight in panels

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
    # Weights in panels; windows that hang over at one end, at both, and at none.
    Case(58, 58, taps=1, pad=0, panels=True),
    Case(16, 40, size=(1, 6, 80), panels=True),
    Case(8, 16, stride=2, size=(2, 13, 31), panels=True),
    Case(3, 24, stride=2, size=(1, 20, 18), planar=True, panels=True),
    Case(17, 34, taps=5, pad=2, size=(1, 8, 9), runs=2, panels=True),
    Case(5, 33, taps=3, pad=0, size=(1, 9, 40), panels=True),
    Case(6, 10, taps=3, pad=3, stride=3, size=(1, 9, 10), panels=True),
    # Depthwise with channels that lie apart.
    Case(2, 2, stride=2, groups=2, size=(1, 14, 14), planar=True),
    Case(35, 35, taps=5, pad=2, groups=35, planar=True),
    Case(19, 19, groups=19, dilation=2, pad=2, planar=True),
    # Tiles that begin within a line of outputs, in its middle and elsewhere.
    Case(64, 64, size=(1, 10, 10), panels=True),
    Case(24, 64, size=(1, 14, 14), panels=True),
    Case(116, 116, groups=116, size=(1, 14, 14)),
    Case(58, 58, groups=58, stride=2, size=(1, 26, 26)),
    Case(40, 58, taps=1, pad=0, size=(1, 28, 28), panels=True),
]


Behind = Callable[[Kernel, int], int]


def relu(kernel: Kernel, value: int) -> int:
    zero = kernel.const(0.0, kernel.body[value].dtype)
    return kernel.op("maximum", value, zero)


def convolution(case: Case, dtype: DType = DType.F32, behind: Behind = relu) -> Module:
    """behind(x * w + b), stored into channels of a wider tensor."""
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
        if case.panels:
            across = WIDTH * deep
            strides = (case.taps * across, across, case.runs * WIDTH)
            right = Access(1, run * WIDTH, (0, 0, 0, 0, taps * across, *strides))
        parts.append(Part(left, right, k))
    kernel = Kernel("convolution", domain)
    panel = Panel(WIDTH, 1) if case.panels else None
    value = kernel.emit("convolution", dtype=dtype.compute,
                        constant=Convolution(windows, tuple(parts), dtype, panel))  # fmt: skip
    own = (1,) if depthwise else (each, 1)
    value = kernel.op("add", value, kernel.load(2, 0, 0, 0, *own, dtype=dtype))
    value = behind(kernel, value)
    if dtype.compute is not dtype:
        value = kernel.cast(value, dtype)
    out = FRONT + case.co + BEHIND
    kernel.store(3, value, oh * ow * out, ow * out, out, *own, offset=FRONT)
    columns = -(-case.co // WIDTH) * WIDTH if case.panels else case.co
    result = n * oh * ow * out
    extents = (n * image, columns * deep * taps, case.co, result, result)
    buffers = [buffer(f"x{i}", dtype, e) for i, e in enumerate(extents)]
    buffers[3] = buffer("y", dtype, result)
    if all(i.access is None or i.access.buffer != 4 for i in kernel.body):
        buffers.pop()
    return module(kernel, buffers=buffers)


def operands(case: Case, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    n, h, w = case.size
    wide = FRONT + case.ci + BEHIND
    x = torch.randn((n, wide, h, w) if case.planar else (n, h, w, wide))
    weight = torch.randn(case.co, case.ci // case.groups, case.taps, case.taps)
    return [t.to(dtype) for t in (x, weight, torch.randn(case.co))]


def in_memory(case: Case, given: list[Tensor]) -> list[Tensor]:
    """The operands as the module has them: the weight in panels, where it is."""
    if not case.panels:
        return given
    x, weight, *others = given
    panels = -(-case.co // WIDTH)
    padded = weight.new_zeros(panels * WIDTH, *weight.shape[1:])
    padded[: case.co] = weight
    lying = padded.view(panels, WIDTH, *weight.shape[1:]).permute(0, 3, 4, 2, 1)
    return [x, lying.contiguous(), *others]


def sums(case: Case, given: list[Tensor]) -> Tensor:
    """x * w + b in float64, [n, h, w, c]."""
    x, weight, bias = (t.double() for t in given)
    x = x if case.planar else x.permute(0, 3, 1, 2)
    x = x[:, FRONT : FRONT + case.ci]
    found = conv2d(x, weight, bias, case.stride, case.pad, case.dilation, case.groups)
    return found.permute(0, 2, 3, 1)


def expected(case: Case, given: list[Tensor]) -> Tensor:
    return sums(case, given).relu()


def written(case: Case, flat: Tensor) -> Tensor:
    """The channels that are stored."""
    oh, ow = case.output()
    whole = flat.view(case.size[0], oh, ow, FRONT + case.co + BEHIND)
    assert bool((whole[..., :FRONT] == 1).all() and (whole[..., FRONT + case.co :] == 1).all())
    return whole[..., FRONT : FRONT + case.co].double()

"""Convolutions and what lies between them as one program."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from lowering.dvm.evaluated import Compiled
from vtc.errors import FallbackWarning
from vtc.lowering.dvm.plan import ModuleStep


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def check(model: Any, *inputs: Tensor, tolerance: float = 1e-5) -> Compiled:
    """Compiled once, right for every input, without eager operators."""
    for name, value in model.named_buffers():
        if name.endswith("running_mean"):
            value.normal_()
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2)
    model.eval()
    compiled = Compiled(model)
    wide = copy.deepcopy(model).double()
    for x in inputs:
        with torch.no_grad():
            want, plain = wide(x.double()), model(x)
        got = compiled(x)
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
        assert got.stride() == plain.stride()
    assert not compiled.eager
    return compiled


def kernels(compiled: Compiled) -> int:
    """Kernels of a call; what is prepacked is not counted."""
    steps = [s for plan in compiled.plans for s in plan.steps if isinstance(s, ModuleStep)]
    return sum(1 for step in steps for _ in step.module.kernels())


def images(channels: int, *sizes: tuple[int, int, int]) -> list[Tensor]:
    return [torch.randn(n, channels, h, w) for n, h, w in sizes]


class Unit(nn.Module):
    """A unit of ShuffleNet-v2 (arXiv:1807.11164, figure 3): half of the channels pass."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        half = channels // 2
        inner = half if stride == 1 else channels
        self.stride = stride
        self.branch = nn.Sequential(
            nn.Conv2d(inner, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False), nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
        )  # fmt: skip
        self.other = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
            nn.BatchNorm2d(channels), nn.Conv2d(channels, half, 1), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        kept, x = x.chunk(2, dim=1) if self.stride == 1 else (self.other(x), x)
        whole = torch.cat((kept, self.branch(x)), dim=1)
        n, c, h, w = whole.shape
        return whole.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Bottlenecks(nn.Module):
    """A C2f block of YOLO: every intermediate result is kept for the last convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.SiLU())
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Conv2d(half, half, 3, padding=1), nn.SiLU()) for _ in range(2)
        )
        self.last = nn.Sequential(nn.Conv2d(2 * channels, channels, 1), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for inner in self.inner:
            parts.append(parts[-1] + inner(parts[-1]))
        return self.last(torch.cat(parts, 1))


@pytest.mark.parametrize("units", [2, 5])  # after five no two channels of a unit's half are left
def test_shuffles_between_convolutions_move_nothing(units: int) -> None:
    between = (Unit(16) for _ in range(units))
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *between, Unit(16, 2), nn.Conv2d(16, 12, 1))
    compiled = check(model, *images(3, (2, 16, 12), (3, 9, 14)))
    assert all(plan.copies == 0 for plan in compiled.plans), compiled.text


def test_a_concat_of_what_was_split_moves_nothing() -> None:
    compiled = check(Bottlenecks(16), *images(16, (2, 6, 7), (3, 4, 9)))
    assert all(plan.copies == 0 for plan in compiled.plans), compiled.text


class Padded(nn.Module):
    """A convolution of what was padded before, by as much as its stride needs where not given."""

    def __init__(self, taps: Any, stride: int, groups: int, pads: Any = None, own: int = 0) -> None:
        super().__init__()
        self.inner = nn.Conv2d(8, 8, taps, stride, own, groups=groups)
        self.taps, self.stride, self.pads = taps, stride, pads

    def forward(self, x: Tensor) -> Tensor:
        pads = self.pads
        if pads is None:
            missing = [
                max((-(-size // self.stride) - 1) * self.stride + self.taps - size, 0)
                for size in (x.shape[3], x.shape[2])
            ]
            pads = [p for m in missing for p in (m // 2, m - m // 2)]
        return self.inner(pad(x.relu(), pads)).relu()


@pytest.mark.parametrize(
    "model",
    [
        Padded(3, 2, 1, (0, 1, 0, 1)),
        Padded(3, 1, 8, (1, 2, 0, 3)),
        Padded(3, 1, 1, (1, 1, 0, 2), own=1),
        Padded((3, 1), 1, 1, (0, 0, 1, 1)),
        Padded(3, 2, 1),
        Padded(5, 1, 8),
    ],
    ids=str,
)
def test_zeros_around_an_image_are_padding_of_its_convolution(model: Padded) -> None:
    compiled = check(model, *images(8, (2, 9, 12), (3, 13, 10), (1, 15, 8)))
    assert kernels(compiled) == 2, compiled.text


@pytest.mark.parametrize(
    ("taps", "pads"), [((3, 1), (0, 1, 1, 1)), (1, (0, 1, 1, 0)), (3, (-1, 2, 0, 1))]
)
def test_what_its_windows_do_not_reach_is_padded_before(taps: Any, pads: Any) -> None:
    check(Padded(taps, 1, 1, pads), *images(8, (2, 9, 12), (3, 13, 10), (1, 15, 8)))


def test_other_numbers_around_an_image_are_none() -> None:
    class Ones(Padded):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(pad(x.relu(), self.pads, value=1.0))

    compiled = check(Ones(3, 1, 1, (1, 1, 1, 1)), *images(8, (2, 9, 12), (3, 13, 10)))
    assert kernels(compiled) > 2, compiled.text


@pytest.mark.parametrize(
    ("upward", "shapes"),
    [
        (nn.ConvTranspose2d(8, 6, 2, 2), ((2, 8, 5, 7), (3, 8, 4, 9))),
        (nn.ConvTranspose2d(8, 6, (3, 2), (3, 2), bias=False), ((8, 5, 7), (8, 6, 2))),
        (nn.ConvTranspose1d(8, 1, 4, 4), ((2, 8, 9), (3, 8, 5))),
        (nn.ConvTranspose3d(4, 3, 2, 2), ((2, 4, 3, 6, 5), (3, 4, 2, 7, 6))),
    ],
    ids=str,
)
def test_blocks_of_a_transposed_convolution_are_channels_of_another(
    upward: nn.Module, shapes: Any
) -> None:
    model = nn.Sequential(nn.ReLU(), upward, nn.Sigmoid())
    compiled = check(model, *map(torch.randn, shapes))
    assert kernels(compiled) == 3, compiled.text


def test_a_transposed_convolution_whose_blocks_overlap_runs_as_eager_pytorch() -> None:
    model, x = nn.ConvTranspose2d(8, 6, 3, 2), torch.randn(2, 8, 5, 7)
    compiled = Compiled(model)
    with pytest.warns(FallbackWarning, match="conv_transpose2d"):
        got = compiled(x)
    torch.testing.assert_close(got, model(x))
    assert compiled.eager == {"aten.conv_transpose2d.input"}


def test_the_epilogue_is_part_of_the_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.Hardswish())
    compiled = check(model, *images(6, (2, 6, 7)))
    assert kernels(compiled) == 1, compiled.text


def test_a_depthwise_convolution_of_a_concat() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, 6, 1)
            self.second = nn.Conv2d(4, 10, 1)
            self.last = nn.Conv2d(16, 16, 3, padding=1, groups=16)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([self.first(x), self.second(x)], 1)).relu()

    compiled = check(Model(), *images(4, (2, 6, 7), (3, 5, 5)))
    assert all(plan.copies == 0 for plan in compiled.plans), compiled.text


@pytest.mark.parametrize("options", [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (1, 5), "padding": "same", "bias": False},
    {"kernel_size": 2, "padding": "same", "dilation": 3},
    {"kernel_size": 3, "groups": 3, "padding": (2, 0)},
    {"kernel_size": 3, "groups": 6, "dilation": 2},
    {"kernel_size": 1, "stride": 3},
], ids=str)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_windows(options: dict[str, Any]) -> None:
    check(nn.Conv2d(6, 12, **options), *images(6, (2, 9, 10), (3, 11, 8)))


def test_one_and_three_dimensions_and_no_batch() -> None:
    check(nn.Conv1d(3, 5, 3, 2, 1), torch.randn(2, 3, 9), torch.randn(4, 3, 12))
    torch._dynamo.reset()
    check(nn.Conv3d(3, 5, 3, 2, 1), torch.randn(2, 3, 5, 6, 7))
    torch._dynamo.reset()
    check(nn.Conv2d(3, 5, 3, 2, 1), torch.randn(3, 9, 7))


def test_images_that_lie_channels_last() -> None:
    (x,) = images(3, (2, 9, 8))
    check(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()), x.to(memory_format=torch.channels_last))


def test_a_weight_that_is_an_argument() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return conv2d(x.relu(), w, padding=1).relu().mean((2, 3))

    compiled = Compiled(f)
    for n in (11, 2):
        x, w = torch.randn(n, 3, 8, 8), torch.randn(4, 3, 3, 3)
        torch.testing.assert_close(compiled(x, w), f(x, w), rtol=1e-4, atol=1e-5)
    assert not compiled.eager


def test_an_output_between_convolutions_has_eager_strides() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            held = self.first(x).relu()
            return held, self.second(held)

    model = Model()
    compiled = Compiled(model)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        want = model(x)
    for a, b in zip(compiled(x), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.stride() == b.stride()


class Diagonal(nn.Module):
    """A convolution of whose results those on a diagonal are asked for."""

    def __init__(self, dims: tuple[int, int], groups: int) -> None:
        super().__init__()
        self.dims = dims
        self.convolution = nn.Conv2d(6, 6, 3, 2, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(self.convolution(x).diagonal(0, *self.dims))


@pytest.mark.parametrize("dims", [(0, 2), (3, 0), (2, 3), (1, 3), (0, 1)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_diagonal_moves_along_several_dimensions_at_once(
    dims: tuple[int, int], groups: int
) -> None:
    check(Diagonal(dims, groups), *images(6, (3, 9, 9), (2, 5, 7)))

"""2-D convolutions that read and write through index maps, as data.

    y[n, oh, ow, oc] = epilogue(
        sum over kh, kw, ic of x[n, oh*s + kh*d - p, ow*s + kw*d - p, g*C + ic] * w[oc, ic, kh, kw])

Images are channels-last: the iteration space is (n, oh, ow, oc). The image is a virtual tensor over
(n, h, w, c): a slice, a concat, a channel shuffle, a padded or an upsampled image. So is what the
epilogue addresses. `convolution_candidates` lists the kernels that can run a convolution; which is
fastest is for measurement to say.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vtc.index import affine, expr
from vtc.index.access import Access, Layout, accesses
from vtc.index.map import IndexMap
from vtc.index.piece import Fill
from vtc.kernels import epilogue
from vtc.kernels.epilogue import Tensor
from vtc.program import tile
from vtc.program.dtypes import DType
from vtc.program.tile import Instr

Pair = tuple[int, int]
Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Window:
    """The taps of a convolution or pooling, each field as (along height, along width)."""

    size: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def outputs(self, height: int, width: int) -> Pair:
        """Output height and width."""
        return self._outputs(0, height), self._outputs(1, width)

    def _outputs(self, axis: int, size: int) -> int:
        reach = self.dilation[axis] * (self.size[axis] - 1)
        return (size + 2 * self.padding[axis] - reach - 1) // self.stride[axis] + 1

    @property
    def pointwise(self) -> bool:
        """Does each output pixel read the input pixel in its own place?"""
        return self.size == self.stride == (1, 1) and self.padding == (0, 0)


@dataclass(frozen=True)
class Convolution:
    """A convolution over numbered tensors, the arguments of a call.

    image: (n, h, w, c) of the input; source: a map over it, without the window's padding. weight:
    the number of a tensor laid out as (oc, ic / groups, kh, kw), in whatever strides it has.
    channels: of the output. body: the epilogue over (n, oh, ow, oc), product 0 being the sum.
    Source numbers of maps and buffers of accesses are positions in `tensors`. tf32: may f32
    operands be rounded to TF32 (as `torch.backends.cudnn.allow_tf32` says)?
    """

    image: Shape
    source: IndexMap
    weight: int
    channels: int
    window: Window
    groups: int
    body: tuple[Instr, ...]
    tensors: tuple[Tensor, ...]
    tf32: bool = False

    def __post_init__(self) -> None:
        inner = self.image[3] // self.groups
        if self.image[3] % self.groups or self.channels % self.groups:
            raise ValueError(f"{self.groups} groups of {self.image[3]} and {self.channels}")
        if self.source.shape != self.image:
            raise ValueError(f"the image has shape {self.source.shape}, not {self.image}")
        expected = (self.channels, inner, *self.window.size)
        found = self.tensors[self.weight].layout.shape
        if found != expected:
            raise ValueError(f"the weight has shape {found}, not {expected}")
        reason = epilogue.unsupported(self.body)
        if reason is not None:
            raise ValueError(reason)

    @property
    def output(self) -> Shape:
        """(n, oh, ow, oc)."""
        n, h, w, _ = self.image
        return (n, *self.window.outputs(h, w), self.channels)

    @property
    def inner(self) -> int:
        """Input channels of a group."""
        return self.image[3] // self.groups

    @property
    def depthwise(self) -> bool:
        """One filter a channel."""
        return self.groups == self.image[3] == self.channels

    @property
    def dtype(self) -> DType:
        """That of the weights, and of the products' operands."""
        return self.tensors[self.weight].dtype

    @property
    def flops(self) -> int:
        """Additions and multiplications."""
        n, oh, ow, oc = self.output
        return 2 * n * oh * ow * oc * self.window.size[0] * self.window.size[1] * self.inner

    @functools.cached_property
    def pieces(self) -> tuple[Access, ...]:
        """The accesses of the image."""
        return image_pieces(self.source, self.tensors)


def image_pieces(source: IndexMap, tensors: Sequence[Tensor]) -> tuple[Access, ...]:
    """The accesses of a virtual image, without fills of 0: outside all pieces it is 0 anyway."""
    layouts = {k: tensors[k].layout for k in source.sources()}
    found = accesses(source, layouts)
    return tuple(p for p in found if not (isinstance(p.source, Fill) and p.source.value == 0))


@dataclass(frozen=True)
class Launch:
    """One way to run a convolution or pooling: call it with the tensors of the description.

    A tensor stands for its first element: layouts count from there, whatever its own strides. A
    call enqueues kernels on the current stream and nothing else, so it can be captured in a CUDA
    graph once it has run. generated: launches only the generated ones of several kernels, which
    may be compiled ahead.
    """

    name: str
    run: Callable[[Sequence[torch.Tensor]], None]
    generated: Callable[[Sequence[torch.Tensor]], None] | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.run(tensors)


def deferred(name: str, make: Callable[[], Callable[..., None]]) -> Launch:
    """A launch whose kernel is made when it is first called: of several candidates of which the
    fastest is known, the text of one alone is written."""
    made = functools.cache(make)

    def run(tensors: Sequence[torch.Tensor]) -> None:
        made()(tensors)

    return Launch(name, run)


def nhwc(value: torch.Tensor) -> Layout:
    """An NCHW tensor of any strides as the layout of an NHWC one."""
    shape, stride = value.shape, value.stride()
    return Layout([shape[d] for d in (0, 2, 3, 1)], [stride[d] for d in (0, 2, 3, 1)])


def collapsed(convolution: Convolution) -> Convolution:
    """A pointwise convolution as one over a single row of pixels, where all accesses allow it.

    before: image (16, 32, 32, 64), y[n, h, w, c] at 65536*n + 2048*h + 64*w + c
    after:  image (1, 1, 16384, 64), y[0, 0, w, c] at 64*w + c
    """
    n, h, w, c = convolution.image
    if not convolution.window.pointwise or n * h == 1:
        return convolution
    rows = n * h * w
    source = _in_a_row(convolution.source, convolution)
    body = [_instr_in_a_row(instr, convolution) for instr in convolution.body]
    kept = [instr for instr in body if instr is not None]
    if source is None or len(kept) < len(body):
        return convolution
    return dataclasses.replace(convolution, image=(1, 1, rows, c), source=source, body=tuple(kept))


def _in_a_row(index_map: IndexMap, convolution: Convolution) -> IndexMap | None:
    """The map with all pixels in one row; None where the address is not linear in the pixel."""
    n, h, w, c = index_map.shape
    _, _, pixel, channel = expr.axes(4)
    places = (pixel // (h * w), pixel // w % h, pixel % w, channel)
    try:
        flat = IndexMap.single((1, 1, n * h * w, c), places).compose({0: index_map})
    except ValueError:  # not a reasonable number of boxes
        return None
    layouts = {k: convolution.tensors[k].layout for k in flat.sources()}
    for piece in accesses(flat, layouts):
        if piece.rest is not None and not affine.coordinates(piece.rest) <= {3}:
            return None
    return flat


def _instr_in_a_row(instr: Instr, convolution: Convolution) -> Instr | None:
    if isinstance(instr.constant, IndexMap):
        flat = _in_a_row(instr.constant, convolution)
        return None if flat is None else dataclasses.replace(instr, constant=flat)
    if instr.access is None:
        return None if instr.op == "iota" else instr
    access = instr.access
    step = _pixel_stride(access, convolution.output)
    if step is None or access.terms or any(b.dim < 3 for b in access.mask):
        return None
    merged = dataclasses.replace(access, stride=(0, 0, step, access.stride[3]))
    return dataclasses.replace(instr, access=merged)


def _pixel_stride(access: tile.Access, shape: Shape) -> int | None:
    """The stride from pixel to pixel over the whole batch."""
    step, total = 0, 1
    for dim in (2, 1, 0):
        stride = access.stride[dim]
        if shape[dim] == 1:
            continue
        if not isinstance(stride, int) or (total > 1 and stride != step * total):
            return None
        step = stride if total == 1 else step
        total *= shape[dim]
    return step

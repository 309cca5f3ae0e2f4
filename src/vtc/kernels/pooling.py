"""Max and average pooling over channels-last images in Triton, read and stored through index maps.

A window of one pixel is a plain copy with an epilogue: nearest upsampling is that, with the
upsampled image as its source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vtc.index.access import Access, accesses
from vtc.index.map import IndexMap
from vtc.kernels import epilogue
from vtc.kernels.convolution import Launch, Shape, Window
from vtc.kernels.convolution_stencil import Stencil, Tile, stencil_kernel, tiles
from vtc.kernels.convolution_text import Kernel, Text
from vtc.kernels.epilogue import Tensor
from vtc.kernels.text import Lines
from vtc.program.dtypes import DType
from vtc.program.tile import Instr


@dataclass(frozen=True)
class Pooling:
    """epilogue(max or mean over the window of x[n, oh*s + kh*d - p, ow*s + kw*d - p, c]).

    image: (n, h, w, c); source: a map over it. body: the epilogue over (n, oh, ow, c), product 0
    being the pooled value in f32. count_padding: a mean divides by the size of the window, not by
    the number of pixels in it. ceil_mode is not known. A maximum is NaN where any pixel is.
    """

    kind: Literal["max", "mean"]
    image: Shape
    source: IndexMap
    window: Window
    body: tuple[Instr, ...]
    tensors: tuple[Tensor, ...]
    count_padding: bool = True

    def __post_init__(self) -> None:
        if self.source.shape != self.image:
            raise ValueError(f"the image has shape {self.source.shape}, not {self.image}")
        reason = epilogue.unsupported(self.body)
        if reason is not None:
            raise ValueError(reason)

    @property
    def dtype(self) -> DType:
        """That of the image in memory."""
        return self.tensors[min(self.source.sources())].dtype


def pooling_candidates(pooling: Pooling) -> list[Launch]:
    """Every launch that computes the pooling, in no order: measure them."""
    return [k.launch() for k in pooling_kernels(pooling)]


def pooling_kernels(pooling: Pooling) -> list[Kernel]:
    """Kernels of several tile sizes."""
    return [pooling_kernel(pooling, tile) for tile in tiles(pooling.image, pooling.window)]


def pooling_kernel(pooling: Pooling, tile: Tile) -> Kernel:
    """The kernel of one tile size."""
    largest = pooling.kind == "max"
    outside = float("-inf") if largest else 0.0
    stencil = Stencil(
        pooling.image,
        pooling.window,
        _pieces(pooling),
        pooling.dtype,
        pooling.body,
        pooling.tensors,
        prepare=_nothing,
        combine=_larger if largest else _plus,
        other=outside,
        initial=outside,
        finish=_unchanged if largest else _mean(pooling),
    )
    return stencil_kernel(stencil, tile, f"pool {tile}")


def _pieces(pooling: Pooling) -> tuple[Access, ...]:
    """The accesses of the image; its fills are values like others, the window's padding is not."""
    layouts = {k: pooling.tensors[k].layout for k in pooling.source.sources()}
    return accesses(pooling.source, layouts)


def _nothing(text: Text, tile: Tile) -> None:
    """Pooling has no weights."""


def _larger(total: str, value: str, ky: int, kx: int) -> str:
    return f"tl.maximum({total}, {value}, propagate_nan=tl.PropagateNan.ALL)"


def _plus(total: str, value: str, ky: int, kx: int) -> str:
    return f"{total} + {value}"


def _unchanged(lines: Lines, partial: str, row: int) -> str:
    return partial


def _mean(pooling: Pooling) -> Callable[[Lines, str, int], str]:
    window = pooling.window
    size = window.size[0] * window.size[1]
    if pooling.count_padding or window.padding == (0, 0):
        return lambda lines, partial, _row: lines.bind("mean", f"{partial} * {1 / size!r}")

    def divided(lines: Lines, partial: str, row: int) -> str:
        rows = _inside(window, 0, f"oh{row}", pooling.image[1])
        columns = _inside(window, 1, "w", pooling.image[2])
        count = lines.bind("count", f"(({rows}) * ({columns})).to(tl.float32)")
        return lines.bind("mean", f"{partial} / {count}[:, None]")

    return divided


def _inside(window: Window, axis: int, place: str, size: int) -> str:
    """How many taps of an output coordinate lie in the image."""
    taps: Sequence[int] = range(window.size[axis])
    start = f"{place} * {window.stride[axis]} - {window.padding[axis]}"
    reads = [f"{start} + {k * window.dilation[axis]}" for k in taps]
    return " + ".join(f"(({r} >= 0) & ({r} < {size})).to(tl.int32)" for r in reads)

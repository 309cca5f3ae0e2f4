"""The launches that can run a convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vtc.kernels.convolution import Convolution, Launch, collapsed, deferred
from vtc.kernels.convolution_bare import bare_launches
from vtc.kernels.convolution_dot import dot_kernel, dot_kernels
from vtc.kernels.convolution_stencil import tiles
from vtc.kernels.convolution_text import Kernel
from vtc.kernels.convolution_tiles import PROCESSORS, DotTile, dot_grid, dot_tiles
from vtc.kernels.cudnn import cudnn_launches
from vtc.kernels.depthwise import depthwise_kernel, depthwise_kernels
from vtc.kernels.depthwise_rolling import rolling_kernel, rolling_tiles

LIKELY_PLANS = 2
"""Of a library's plans that are built when a whole model is compiled."""


def candidates(convolution: Convolution, tensors: Sequence[torch.Tensor]) -> list[Launch]:
    """Every launch that computes the convolution, in no order: measure them.

    Triton kernels of several tile sizes, the plans of cuDNN's graph API where it is installed and
    takes the description, and library convolutions with a pointwise kernel behind them. tensors:
    examples of a call's, aligned in memory as later calls' are. A launch may still refuse with a
    RuntimeError when it first runs (a plan that cuDNN offers and cannot run): leave it out.
    """
    kernels = depthwise_kernels(convolution) + dot_kernels(convolution)
    found = [k.launch() for k in kernels] + cudnn_launches(convolution, tensors)
    return found + bare_launches(convolution, tensors)


def likely(convolution: Convolution, tensors: Sequence[torch.Tensor]) -> list[Launch]:
    """The few of `candidates` that are compiled in a second or two each and were among the fastest
    where all were measured (benchmarks/convolution.py): what compiling a whole model can afford."""
    if convolution.depthwise:
        shapes = tiles(convolution.image, convolution.window)
        kept = [t for t in shapes if t.columns <= 8][:3] or shapes[:1]
        found = [deferred(f"depthwise {t}", _made(depthwise_kernel, convolution, t)) for t in kept]
        rolling = rolling_tiles(convolution)[:3]
        return found + [
            deferred(f"depthwise rolling {t}", _made(rolling_kernel, convolution, t))
            for t in rolling
        ]
    flat = collapsed(convolution)
    dots = [deferred(f"dot {tile}", _made(dot_kernel, flat, tile)) for tile in _nearest(flat)]
    dense = convolution.groups == 1 and convolution.window.size != (1, 1)
    return dots + (bare_launches(convolution, tensors, LIKELY_PLANS) if dense else [])


def _made(
    kernel: Callable[[Convolution, Any], Kernel], convolution: Convolution, tile: Any
) -> Callable[[], Launch]:
    return lambda: kernel(convolution, tile).launch()


def _nearest(convolution: Convolution) -> list[DotTile]:
    """The tiles whose number of programs is nearest to what fills the device once: four, and two
    that share the contraction."""

    def distance(tile: DotTile) -> float:
        return abs(math.log2(max(math.prod(dot_grid(convolution, tile)), 1) / PROCESSORS))

    found = sorted(dot_tiles(convolution), key=distance)
    whole = [t for t in found if t.splits == 1]
    shared = [t for t in found if t.splits > 1]
    return whole[:4] + shared[:2]

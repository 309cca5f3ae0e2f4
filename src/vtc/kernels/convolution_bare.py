"""A library's convolution without epilogue, then the epilogue as one pointwise kernel of ours.

Large dense convolutions are fastest that way where the library's fused kernels are slower than its
plain ones by more than the pass over memory costs. The sum is rounded to the image's type between
the two, as in eager PyTorch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from vtc.index.access import Layout
from vtc.index.map import IndexMap
from vtc.index.strided import contiguous_strides
from vtc.kernels.convolution import Convolution, Launch, Window
from vtc.kernels.convolution_recipe import NotAcceptedError, Placed, view_of_image
from vtc.kernels.convolution_stencil import Tile, tiles
from vtc.kernels.cudnn import PLANS, cudnn_launches
from vtc.kernels.epilogue import Body, Tensor
from vtc.kernels.pooling import Pooling, pooling_kernel

PIXEL = Window((1, 1))
Library = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Tensors of a call -> the sum of products, dense in channels-last."""


def divided(convolution: Convolution) -> tuple[Convolution, Pooling]:
    """The convolution into one more, dense tensor, and the epilogue on that."""
    output, number = convolution.output, len(convolution.tensors)
    between = Tensor(convolution.dtype, Layout(output, contiguous_strides(output)))
    tensors = (*convolution.tensors, between)
    body = Body()
    body.store(body.product(), IndexMap.identity(output, number))
    bare = dataclasses.replace(convolution, body=body.build(), tensors=tensors)
    source = IndexMap.identity(output, number)
    return bare, Pooling("mean", output, source, PIXEL, convolution.body, tensors)


def bare_launches(
    convolution: Convolution, tensors: Sequence[torch.Tensor], plans: int = PLANS
) -> list[Launch]:
    """PyTorch's own convolution, and for slices cuDNN's plans, with the pointwise kernel behind.

    On a dense image PyTorch finds the best of these plans by itself. tensors: examples of a call's.
    An image that is no strided view has none.
    """
    bare, pointwise = divided(convolution)
    try:
        libraries = {"aten": _aten(convolution)}
        dense = _is_dense(view_of_image(convolution))
    except NotAcceptedError:
        return []
    if not dense:
        for plan in cudnn_launches(bare, [*tensors, _dense(convolution, tensors)], plans):
            libraries[plan.name] = functools.partial(_into_dense, convolution, plan)
    behind = pooling_kernel(pointwise, _tile(convolution)).launch()
    generated = functools.partial(_run, functools.partial(_dense, convolution), behind)
    return [
        Launch(f"{name} + {behind.name}", functools.partial(_run, first, behind), generated)
        for name, first in libraries.items()
    ]


def reads_dense_image(convolution: Convolution) -> bool:
    """Does it read one image that lies dense in channels-last, as libraries like it best?"""
    try:
        return _is_dense(view_of_image(convolution))
    except NotAcceptedError:
        return False


def _is_dense(placed: Placed) -> bool:
    _, c, h, w = placed.size
    steps = (h * w * c, 1, w * c, c)
    return all(a == b for a, b, n in zip(placed.stride, steps, placed.size, strict=True) if n > 1)


def _run(first: Library, behind: Launch, tensors: Sequence[torch.Tensor]) -> None:
    behind([*tensors, first(tensors)])


def _into_dense(
    convolution: Convolution, plan: Launch, tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    between = _dense(convolution, tensors)
    plan([*tensors, between])
    return between


def _dense(convolution: Convolution, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor for between the two kernels, as (n, oh, ow, oc).

    The allocator hands memory back in stream order, and a graph that is captured keeps it.
    """
    like = tensors[convolution.weight]
    return torch.empty(convolution.output, dtype=like.dtype, device=like.device)


def _tile(convolution: Convolution) -> Tile:
    """Eight values a thread where the image is large enough for that."""
    found = tiles(convolution.output, PIXEL)
    return found[min(1, len(found) - 1)]


def _aten(convolution: Convolution) -> Library:
    """PyTorch's convolution: it allocates its result, and copies operands that are not dense."""
    image, window = view_of_image(convolution), convolution.window
    held = convolution.tensors[convolution.weight].layout

    def run(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        x = tensors[image.argument]
        x = x.as_strided(image.size, image.stride, x.storage_offset() + image.offset)
        w = tensors[convolution.weight]
        w = w.as_strided(held.shape, held.stride, w.storage_offset() + held.offset)
        y = torch.nn.functional.conv2d(
            x, w, None, window.stride, window.padding, window.dilation, convolution.groups
        )
        return y.contiguous(memory_format=torch.channels_last)

    return run

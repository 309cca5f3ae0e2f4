"""Sliding windows over spatial dimensions: padding and output sizes as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Pairs = list[tuple[int, int]]


def explicit_pads(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Pairs:
    """What is added before and after each spatial dimension.

    SAME_UPPER and SAME_LOWER pad to ceil(size / stride) windows, an odd element at the end or at
    the beginning.
    """
    rank = len(kernel)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for size, k, s, t in zip(sizes, kernel, strides, dilations, strict=True):
            extent = (k - 1) * t + 1
            total = max((-(-size // s) - 1) * s + extent - size, 0)
            low = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            pairs.append((low, total - low))
        return pairs
    given = [0] * (2 * rank) if pads is None or auto_pad == "VALID" else list(pads)
    return list(zip(given[:rank], given[rank:], strict=True))


def symmetric(pairs: Pairs) -> list[int] | None:
    """One amount a dimension, None where the two sides of one differ."""
    return [low for low, _ in pairs] if all(low == high for low, high in pairs) else None


def window_count(size: int, extent: int, stride: int, pair: tuple[int, int], ceil: bool) -> int:
    """The number of windows in a padded dimension; with `ceil` a last one may reach over the end,
    as long as it starts before the padding there."""
    free = size + sum(pair) - extent
    if not ceil:
        return free // stride + 1
    count = -(-free // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pair[0] else count


def overhang(size: int, extent: int, stride: int, pair: tuple[int, int], ceil: bool) -> int:
    """How far the last window reaches over the padded end."""
    count = window_count(size, extent, stride, pair, ceil)
    return max((count - 1) * stride + extent - size - sum(pair), 0)


def windows(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """(N, C, *sizes) -> (N, C, *counts, *kernel), a view."""
    for d, (k, s, t) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        x = x.unfold(d, (k - 1) * t + 1, s)
    for d, t in enumerate(dilations, 2 + len(kernel)):
        x = x[(slice(None),) * d + (slice(None, None, t),)]
    return x

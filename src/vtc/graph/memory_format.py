"""The memory formats in which PyTorch's kernels give norms and paddings on a CPU.

    x: (2, 5, 9), strides (45, 1, 5)      batch_norm(x): strides (45, 9, 1), on fakes (45, 1, 5)

The kernels lay their result out channels-last or contiguous, as `x.suggest_memory_format()` says
(ATen, `native/Normalization.cpp`, `native/group_norm.cpp`, `native/cpu/PaddingKernel.cpp`). The
fake of a batch norm keeps the strides of the input instead; that of a group norm is contiguous, as
is that of a padding by reflection or replication in some releases. Whether a reshape behind it
copies would be told wrongly. On CUDA nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# The first argument is the input, the first result is what has its memory format.
_NAMES = (
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional",
    "_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update",
    "group_norm", "native_group_norm", "reflection_pad2d", "reflection_pad3d",
    "replication_pad2d", "replication_pad3d",
)  # fmt: skip
_OPERATORS = frozenset(
    getattr(packet, name)
    for packet in (getattr(aten, name) for name in _NAMES if hasattr(aten, name))
    for name in packet.overloads()
    if "out" not in name
)


def laid_out(func: Any, args: Sequence[Any], result: Any) -> Any:
    """`result`, of `func` on `args`, with the strides that eager PyTorch gives it.

    A result that has them is returned as it is, any other as a copy.
    """
    edges = func is aten.pad.default and len(args) > 2 and args[2] in ("reflect", "replicate")
    if (func not in _OPERATORS and not edges) or args[0].device.type != "cpu":
        return result
    first = result if isinstance(result, torch.Tensor) else result[0]
    kind = suggest_memory_format(args[0])
    if first.is_contiguous(memory_format=kind):
        return result
    first = first.contiguous(memory_format=kind)
    return first if isinstance(result, torch.Tensor) else (first, *result[1:])


class Laid(TorchDispatchMode):
    """Runs a graph on fakes with the strides of eager PyTorch."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return laid_out(func, args, func(*args, **(kwargs or {})))


def misjudged(node: fx.Node) -> bool:
    """May a node of Dynamo's graph have strides other than those of eager PyTorch?"""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if not any(part in name for part in ("batch_norm", "group_norm", "pad")):
        return False
    given = node.args[0] if node.args else node.kwargs.get("input")
    x = given.meta.get("example_value") if isinstance(given, fx.Node) else None
    found = node.meta.get("example_value")
    if not isinstance(x, torch.Tensor) or not isinstance(found, torch.Tensor):
        return True
    return x.device.type == "cpu" and not found.is_contiguous(
        memory_format=suggest_memory_format(x)
    )

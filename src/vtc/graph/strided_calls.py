"""as_strided() calls that a functional graph cannot carry.

They address storage. Where in its storage an argument begins may differ from call to call, and
Dynamo does not guard it. A functional graph has the new value of an updated tensor in another
storage, maybe laid out otherwise; and what is written through such a view it scatters into the
tensor alone, each element once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx, ops

from vtc.errors import CaptureError
from vtc.graph.program import Program, value_of
from vtc.graph.strides import is_dense
from vtc.index import sizes

Layout = tuple[tuple[Any, ...], tuple[Any, ...]]

_READS, _WRITES = ops.aten.as_strided.default, ops.aten.as_strided_scatter.default


def refuse_strided(trace: fx.GraphModule, fakes: Sequence[Any], updated: Sequence[int]) -> None:
    """Raises CaptureError for the first call that is not carried. `fakes` are the arguments, and
    `updated` the numbers of those that the graph updates."""
    held = {_storage(a) for a in fakes if isinstance(a, Tensor)}
    changed = [_layout(fakes[i]) for i in updated]
    for node in trace.graph.nodes:
        if node.target not in (_READS, _WRITES):
            continue
        tensor = value_of(node.args[0])
        size, stride, *rest = node.args[1:] if node.target is _READS else node.args[2:]
        start = rest[0] if rest else node.kwargs.get("storage_offset")
        of_argument = _storage(tensor) in held
        absolute = start is not None and bool(of_argument or updated)
        moved = not of_argument and any(
            not is_dense(*layout) and layout != _layout(tensor) for layout in changed
        )
        lost = node.target is _WRITES and not _fills(tensor, size, stride, start)
        if absolute or moved or lost:
            reason = "an as_strided() call addresses storage that is not the graph's own"
            raise CaptureError(str(node.target), reason, stock=False)


def refuse_offsets(program: Program) -> None:
    """Raises CaptureError for a call on a tensor that begins inside its storage: TorchInductor may
    take that for the beginning."""
    for node in program.nodes:
        if node.target is _READS and sizes.as_size(value_of(node.args[0]).storage_offset()) != 0:
            reason = "an as_strided() call is on a tensor that begins inside its storage"
            raise CaptureError(str(node.target), reason, stock=False)


def _fills(tensor: Tensor, size: Any, stride: Any, start: Any) -> bool:
    """Are all places of a view of a tensor's storage the tensor's, and no two the same?"""
    if not is_dense(*_layout(tensor)):
        return False
    own, extent = sizes.as_size(tensor.storage_offset()), sizes.as_size(tensor.numel())
    first = own if start is None else _value(start)
    shape, steps = tuple(map(_value, size)), tuple(map(_value, stride))
    if not all(isinstance(n, int) for n in (own, extent, first, *shape, *steps)):
        return bool(first == own and _layout(tensor) == (shape, steps))
    end = first
    for step, n in sorted(zip(steps, shape, strict=True)):
        if n > 1 and step <= end - first:
            return False
        end += (n - 1) * step
    return 0 in shape or own <= first <= end < own + extent


def _value(given: Any) -> Any:
    """A number of a call, which a node may compute."""
    return sizes.as_size(value_of(given) if isinstance(given, fx.Node) else given)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _layout(tensor: Tensor) -> Layout:
    return tuple(map(sizes.as_size, tensor.shape)), tuple(map(sizes.as_size, tensor.stride()))

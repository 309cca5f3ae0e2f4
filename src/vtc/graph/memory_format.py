"""Layouts that PyTorch's fake tensors get wrong.

The memory formats in which PyTorch's kernels give norms, paddings and shuffles on a CPU:

    x: (2, 5, 9), strides (45, 1, 5)      batch_norm(x): strides (45, 9, 1), on fakes (45, 1, 5)

The kernels lay their result out channels-last or contiguous, as `x.suggest_memory_format()` says
(ATen, `native/Normalization.cpp`, `native/group_norm.cpp`, `native/cpu/PaddingKernel.cpp`). The
fake of a batch norm keeps the strides of the input instead; that of a group norm is contiguous, as
is that of a padding by reflection or replication in some releases. Whether a reshape behind it
copies would be told wrongly. On CUDA nothing is changed.

A `channel_shuffle` on a CPU is a new tensor in that format; its fake is contiguous, and a view
where no channel moves.

So has a roll, which joins two parts. A `max_pool1d` is contiguous, and follows its input on fakes.

A vector norm along dimensions counted from the end has another shape in some releases.

An upsampling is laid out so on every device; traced, it follows its input.

What is computed of two tensors element by element lies as the first of them whose strides tell,
where PyTorch's fakes compute it in several steps, in whose order it lies then.
A `logsigmoid` and an `im2col` on a CPU are contiguous. What is sorted lies as its input does,
without gaps, and a dimension that repeats elements stays where it is among the others.

What is scattered into an expanded tensor is dense, as two of its elements may differ. The fakes of
some releases keep the strides of the expanded tensor:

    x: (4, 3), strides (0, 1)      slice_scatter(x, ...): strides (3, 1), on fakes (0, 1)

The stride of a dimension of one element shows nowhere, but what joins or copies tensors takes them
for channels-last or not by it, too. In a trace, views and stacks have others than ATen's:

    x: (1, 5, 24, 3), strides (360, 1, 15, 5)
    x.view(1, 5, 3, 8, 3): strides (5, 1, 120, 15, 5), on fakes (360, 1, 120, 15, 5)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import no_python_dispatcher
from torch._guards import detect_fake_mode
from torch._prims_common import (
    compute_elementwise_output_strides,
    make_contiguous_strides_for,
    suggest_memory_format,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from vtc.graph.culprit import Interpreter
from vtc.graph.hidden_views import viewed_instead
from vtc.graph.strides import known

aten = torch.ops.aten

# The first argument is the input, the first result is what has its memory format.
_NAMES = (
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional",
    "_batch_norm_with_update", "_batch_norm_with_update_functional", "_batch_norm_no_update",
    "group_norm", "native_group_norm", "reflection_pad2d", "reflection_pad3d",
    "replication_pad2d", "replication_pad3d", "native_channel_shuffle", "max_unpool2d",
)  # fmt: skip
_UPSAMPLING = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
)  # fmt: skip
_ELEMENTWISE = (
    "copysign", "floor_divide", "heaviside", "xlogy", "special_xlog1py", "logaddexp", "logaddexp2",
)  # fmt: skip


def _overloads(names: Sequence[str]) -> frozenset[Any]:
    return frozenset(
        getattr(packet, name)
        for packet in (getattr(aten, name) for name in names if hasattr(aten, name))
        for name in packet.overloads()
        if "out" not in name
    )


_OPERATORS = _overloads(_NAMES)
_UPSAMPLINGS = _overloads(_UPSAMPLING)
_CONTIGUOUS = {aten.max_pool1d.default, aten.log_sigmoid.default, aten.im2col.default}
_PAIRS = _overloads(_ELEMENTWISE) | {aten.div.Tensor_mode}
_SORTS = _overloads(("sort", "argsort", "msort"))

_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.stack.default}

# Of the names that they have in Dynamo's graphs.
_PARTS = ("batch_norm", "group_norm", "pad", "channel_shuffle", "max_unpool2d")
_ORDERED = (
    "logsigmoid", "log_sigmoid", "im2col", "copysign", "floor_divide", "floordiv", "heaviside",
    "xlog", "logaddexp", "max_pool1d",
)  # fmt: skip
# Contiguous on a CPU, and made of others where fakes are computed.
_COMPOSITE = ("logsigmoid", "log_sigmoid", "max_pool1d")
_EXPANDING = ("expand", "expand_as", "broadcast_to")
_VECTOR_NORMS = ("norm", "vector_norm", "linalg_vector_norm")
_VIEWING = ("view", "view_as", "reshape", "reshape_as", "unflatten", "stack")
_SCATTERS = frozenset(
    {
        aten.slice_scatter.default,
        aten.select_scatter.default,
        aten.diagonal_scatter.default,
        aten.as_strided_scatter.default,
    }
)


def done_instead(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[], Any] | None:
    """What is to be done in the place of an operator whose fake result is wrong; None for others
    and those that `laid_out` corrects."""
    if _returns_its_input(func, args):
        return lambda: aten.alias.default(args[0])
    if (view := viewed_instead(func, args, kwargs)) is not None:
        return view
    if func is aten.expand.default and _adds_units(*args, **kwargs):
        return lambda: _expanded(*args, **kwargs)
    if (counted := _from_the_front(func, args)) is not None:
        return lambda: func(*counted, **kwargs)
    return None


def repeats_nothing(tensor: torch.Tensor, size: Sequence[Any], **_: Any) -> bool:
    """Does `expand` to `size` only add dimensions of size 1 in front?"""
    added = len(size) - tensor.dim()
    shape = (*(1,) * added, *tensor.shape)
    return all(
        (isinstance(n, int) and n == -1) or statically_known_true(n == own)
        for n, own in zip(size, shape, strict=True)
    )


def _adds_units(tensor: torch.Tensor, size: Sequence[Any], **_: Any) -> bool:
    """Does `expand` add dimensions of size 1, and repeat others? The fakes of those in front of one
    that repeats have other strides, which tell the order of what is computed of them."""
    added = size[: len(size) - tensor.dim()]
    units = any(isinstance(n, int) and n == 1 for n in added)
    return units and not repeats_nothing(tensor, size)


def _expanded(tensor: torch.Tensor, size: Sequence[Any], **_: Any) -> torch.Tensor:
    """`expand`, its new dimensions one by one from the last."""
    added = len(size) - tensor.dim()
    own = size[added:]
    view = tensor if repeats_nothing(tensor, own) else tensor.expand(own)
    for n in reversed(size[:added]):
        view = view.unsqueeze(0)
        if not (isinstance(n, int) and n == 1):
            view = view.expand(n, *view.shape[1:])
    return view


def _from_the_front(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments of a norm with its dimensions counted from the front, if some are not: of a
    dimension of one element that is counted from the end the fakes of some releases keep it."""
    if func is not aten.linalg_vector_norm.default or len(args) < 3 or not args[0].dim():
        return None
    x, order, dims, *rest = args
    if not dims or min(dims) >= 0:
        return None
    return (x, order, [d % x.dim() for d in dims], *rest)


def _returns_its_input(func: Any, args: Sequence[Any]) -> bool:
    """Does a channel shuffle move no channel? Away from a CPU it gives its input, as a view, where
    the fake is a new tensor."""
    if func not in (aten.channel_shuffle.default, aten.native_channel_shuffle.default):
        return False
    x, groups = args
    return x.device.type != "cpu" and (groups == 1 or statically_known_true(x.shape[1] == groups))


def laid_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """`result`, of `func` on `args`, with the strides that eager PyTorch gives it.

    A result that has them is returned as it is, any other as a copy, or computed anew.
    """
    if func in _SCATTERS and repeats(result):
        return func(args[0].clone(), *args[1:], **kwargs)
    if (func is aten.roll.default or func in _CONTIGUOUS) and args[0].device.type == "cpu":
        kind = _rolled(*args) if func is aten.roll.default else torch.contiguous_format
        return result if _lies(result, kind) else result.contiguous(memory_format=kind)
    if func in _UPSAMPLINGS:
        kind = suggest_memory_format(args[0])
        return result if _lies(result, kind) else result.contiguous(memory_format=kind)
    if func in _PAIRS:
        return _in_order_of(args, result)
    if func in _SORTS:
        return pytree.tree_map_only(torch.Tensor, partial(_in_order_of, args[:1]), result)
    if func in _VIEWS and any(_ambiguous(result, x) for x in _tensors(args)):
        return _viewed(func, args, kwargs, result)
    if func is aten.channel_shuffle.default and args[0].device.type == "cpu":
        return _shuffled(args[0], result)
    edges = func is aten.pad.default and len(args) > 2 and args[2] in ("reflect", "replicate")
    if (func not in _OPERATORS and not edges) or args[0].device.type != "cpu":
        return result
    first = result if isinstance(result, torch.Tensor) else result[0]
    kind = suggest_memory_format(args[0])
    if first.is_contiguous(memory_format=kind):
        return result
    first = first.contiguous(memory_format=kind)
    return first if isinstance(result, torch.Tensor) else (first, *result[1:])


def _ambiguous(result: torch.Tensor, operand: torch.Tensor) -> bool:
    """May a view of the operand be channels-last by the stride of a dimension of one element?"""
    return (
        result.dim() in (4, 5)
        and known(result)  # before sizes are compared: a symbol's would be a guard
        and known(operand)
        and 1 in result.shape
        and 0 not in result.shape
        and operand.stride() != make_contiguous_strides_for(operand.shape)
    )


def _viewed(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor
) -> torch.Tensor:
    """The result of a view or stack with ATen's strides, where its memory format tells."""

    def bare(x: Any) -> Any:
        return torch.empty_strided(x.shape, x.stride(), device="meta")

    with _disable_current_modes(), no_python_dispatcher():
        own = func(*pytree.tree_map_only(torch.Tensor, bare, args), **kwargs)
        kinds = suggest_memory_format(own), suggest_memory_format(bare(result))
    if kinds[0] == kinds[1]:
        return result
    return result.as_strided(own.shape, own.stride())


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]


def _shuffled(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    kind = suggest_memory_format(x)
    if _shares(x, result) and 0 not in x.shape:
        return result.clone(memory_format=kind)
    return result.contiguous(memory_format=kind)


def _in_order_of(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """The result in the order of dimensions that ATen gives an operator on its operands, without
    gaps (`TensorIterator::reorder_dimensions`, `allocate_or_resize_outputs`)."""
    given = [a for a in args if isinstance(a, torch.Tensor) and a.dim()]
    wide = [a.expand(result.shape) for a in given]
    strides = compute_elementwise_output_strides(*wide) if wide else result.stride()
    if tuple(strides) == tuple(result.stride()):
        return result
    order = sorted(range(result.dim()), key=lambda d: (-strides[d], d))
    back = [order.index(d) for d in range(result.dim())]
    return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _shares(one: torch.Tensor, two: torch.Tensor) -> bool:
    storages = [_value(t).untyped_storage()._cdata for t in (one, two)]
    return bool(storages[0] == storages[1])


def _value(tensor: torch.Tensor) -> torch.Tensor:
    """What functionalization wraps: each of its own tensors has a storage of its own."""
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    return torch._from_functional_tensor(tensor.elem)


def _rolled(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """The memory format of a roll: that in which its two parts are joined, dimension by dimension
    (ATen, `native/TensorTransformations.cpp`)."""
    numbers = all(isinstance(n, int) for n in (*x.shape, *x.stride(), *shifts))
    if not dims or not numbers or 0 in x.shape:
        return torch.contiguous_format
    with _disable_current_modes():
        own = torch.empty_strided(x.shape, x.stride(), device="meta")
        for shift, dim in zip(shifts, dims, strict=True):
            size = own.shape[dim]
            start = (size - shift) % size
            parts = own.narrow(dim, start, size - start), own.narrow(dim, 0, start)
            own = torch.cat(parts, dim)
        return suggest_memory_format(own)


def _lies(tensor: torch.Tensor, kind: Any) -> bool:
    return tensor.is_contiguous(memory_format=kind)


class _Laid(TorchDispatchMode):
    """Computes fakes with the shapes and strides of eager PyTorch."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (instead := done_instead(func, args, kwargs)) is not None:
            return instead()
        return laid_out(func, args, kwargs, func(*args, **kwargs))


class Laid(Interpreter):
    """Runs a graph of Dynamo's on fakes with the shapes and strides of eager PyTorch."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with _Laid():
            return super().run(*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        composite = isinstance(found, torch.Tensor) and _name(n) in _COMPOSITE
        return found.contiguous() if composite and found.device.type == "cpu" else found


def repeats(tensor: torch.Tensor) -> bool:
    """Do several elements lie at one address?"""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(
        isinstance(step, int) and step == 0 and not (isinstance(size, int) and size <= 1)
        for size, step in pairs
    )


def scatter_densely(traced: fx.GraphModule) -> None:
    """Scatters, in place, into copies of expanded tensors, where functionalization made the calls.

    before: slice_scatter(expand(x), y)      with the strides of expand(x)
    after:  slice_scatter(clone(expand(x)), y)
    """
    graph, changed = traced.graph, set[fx.Node]()
    for node in list(graph.nodes):
        if node.target in _SCATTERS and repeats(node.meta["val"]):
            with graph.inserting_before(node):
                base = graph.call_function(aten.clone.default, (node.args[0],))
            base.meta.update(node.meta)
            _evaluate(base)
            node.args = (base, *node.args[1:])
            changed.add(node)
        reads = node in changed or not changed.isdisjoint(node.all_input_nodes)
        if reads and node.op == "call_function":
            changed.add(node)
            _evaluate(node)
    if changed:
        traced.recompile()


def _evaluate(node: fx.Node) -> None:
    """The node's fake value, by those of its operands."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    with mode or contextlib.nullcontext():
        node.meta["val"] = node.target(*args, **kwargs)


def scatter_into_copies(graph_module: fx.GraphModule) -> None:
    """Copies, in Dynamo's graph and in place, of expanded tensors that are scattered into: stock
    TorchInductor compiles that graph with the same fakes, and stores elements over each other.

    before: slice_scatter(expand(x), y)
    after:  slice_scatter(clone(expand(x)), y)
    """
    graph, changed = graph_module.graph, False
    for node in list(graph.nodes):
        found = node.meta.get("example_value")
        scatters = _name(node).endswith("_scatter") and isinstance(found, torch.Tensor)
        if scatters and node.args and repeats(found):
            with graph.inserting_before(node):
                base = graph.call_method("clone", (node.args[0],))
            node.args = (base, *node.args[1:])
            changed = True
    if changed:
        graph_module.recompile()


def _has_unit(x: Any) -> bool:
    sizes = x.shape if isinstance(x, torch.Tensor) else ()
    return any(isinstance(n, int) and n == 1 for n in sizes)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def misjudged(node: fx.Node) -> bool:
    """May a node of Dynamo's graph have other strides than eager PyTorch gives it, or be of another
    shape?"""
    name = _name(node)
    found = node.meta.get("example_value")
    if name.endswith("_scatter"):
        return not isinstance(found, torch.Tensor) or repeats(found)
    if name in _VIEWING:
        operands = [n.meta.get("example_value") for n in node.all_input_nodes]
        if not isinstance(found, torch.Tensor) or any(x is None for x in operands):
            return True
        return any(_ambiguous(found, x) for x in _tensors(operands))
    if name == "roll":
        return not isinstance(found, torch.Tensor) or found.dim() > 2
    if any(part in name for part in _ORDERED):
        return True
    if "div" in name and node.kwargs.get("rounding_mode") is not None:
        return True
    if name in _EXPANDING and isinstance(found, torch.Tensor):
        (x,) = [n.meta.get("example_value") for n in node.all_input_nodes[:1]]
        return isinstance(x, torch.Tensor) and found.dim() > x.dim() and _has_unit(found)
    if name in _VECTOR_NORMS:
        given = [n.meta.get("example_value") for n in node.all_input_nodes]
        return any(x is None or _has_unit(x) for x in given)
    upsamples = "interpolate" in name or "upsample" in name
    if not upsamples and not any(part in name for part in _PARTS):
        return False
    given = node.args[0] if node.args else node.kwargs.get("input")
    x = given.meta.get("example_value") if isinstance(given, fx.Node) else None
    if not isinstance(x, torch.Tensor) or not isinstance(found, torch.Tensor):
        return True
    if x.device.type != "cpu" and not upsamples:
        return name == "channel_shuffle"
    lies = found.is_contiguous(memory_format=suggest_memory_format(x))
    return not lies or (name == "channel_shuffle" and _shares(x, found))

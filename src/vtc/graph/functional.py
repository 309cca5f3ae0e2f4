"""Tracing a graph as functional ATen: as it is where it updates nothing, functionalized else.

Functionalization wraps every value and calls every operator twice; most graphs of inference need
none of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import _should_decompose_because_unsafe_op
from torch._subclasses import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from vtc.errors import CaptureError
from vtc.graph.culprit import Interpreter, named, note
from vtc.graph.hidden_views import hides_writes
from vtc.graph.memory_format import done_instead, laid_out, repeats_nothing
from vtc.graph.out_of_place import out_of_place

aten = torch.ops.aten

# Batch norms update their running statistics though no schema says so.
_NORMS = frozenset(
    {
        aten.batch_norm.default,
        aten.instance_norm.default,
        aten._batch_norm_impl_index.default,
        aten.native_batch_norm.default,
        aten.cudnn_batch_norm.default,
        aten.miopen_batch_norm.default,
    }
)
# Names of functions: in-place operators of Python's, and of those norms.
_UPDATING = frozenset(
    {"setitem", "batch_norm", "instance_norm"}
    | {name for name in vars(operator) if name.startswith("i") and f"__{name}__" in vars(operator)}
    - {"inv", "invert", "index", "indexOf", "is_", "is_not"}
)
_LOGICAL = frozenset({"and_", "or_", "not_", "is_"})

# In place, functionalization has the shapes of these checked by a decomposition, in Python: with
# sizes that are symbols each takes a fifth of a second.
ACTIVATIONS = {
    aten.celu_.default: aten.celu.default,
    aten.elu_.default: aten.elu.default,
    aten.gelu_.default: aten.gelu.default,
    aten.hardsigmoid_.default: aten.hardsigmoid.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.leaky_relu_.default: aten.leaky_relu.default,
    aten.mish_.default: aten.mish.default,
    aten.silu_.default: aten.silu.default,
}


_SETTING = frozenset(
    getattr(aten, name).default for name in ("shallow_copy_data_",) if hasattr(aten, name)
)
"""Operators that give a tensor another storage though no tag says so."""


class _Functional(FunctionalTensorMode):
    """Takes operators apart in which writes would be lost, or rounded: what is written through an
    expanded tensor is added to its base, as a difference. Activations in place become new values
    of their tensors, and cuDNN's norms of inference those of no library.

    `reshaping` is the last operator that gave a tensor other sizes, strides or another storage."""

    reshaping: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return self._traced(func, types, args, kwargs)
        except Exception as error:
            note(error, func)
            raise

    def _traced(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if hides_writes(func, args):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func is aten.expand.default and repeats_nothing(*args, **(kwargs or {})):
            with self:
                view = args[0].view(args[0].shape)
                for _ in range(len(args[1]) - view.dim()):
                    view = view.unsqueeze(0)
                return view
        if func is aten.resize_as_.default:
            with self:
                return args[0].resize_(args[1].shape, **(kwargs or {}))
        if func in _SETTING or torch.Tag.inplace_view in getattr(func, "tags", ()):
            self.reshaping = func
        if func in ACTIVATIONS and isinstance(args[0], FunctionalTensor):
            with self:
                value = ACTIVATIONS[func](*args, **(kwargs or {}))
            args[0].replace_(value.from_functional())
            args[0].commit_update()
            args[0].sync()
            return args[0]
        if (instead := _instead(func, args, kwargs or {})) is not None:
            with self:
                return instead()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            return laid_out(func, args, kwargs or {}, result)


def _instead(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """What is traced in the place of an operator whose fake result is wrong, or that has to be
    cuDNN's; None for all others."""
    if (found := done_instead(func, args, kwargs)) is not None:
        return found
    if _unbinds_symbols(func, args):
        return lambda: _selected(*args)
    if func is aten.cudnn_batch_norm.default and not args[5]:
        return lambda: _cudnn_inference(*args)
    return None


def _cudnn_inference(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, _: bool, momentum: Any, eps: Any
) -> tuple[torch.Tensor, ...]:
    """A batch norm of inference that eager PyTorch calls cuDNN for, on a dense input: as the
    operator that is read in any strides, and generated."""
    norm = aten._native_batch_norm_legit_no_training.default
    return (*norm(x, weight, bias, mean, var, momentum, eps), x.new_empty((0,), dtype=torch.uint8))


def functional(
    run: Callable[..., Any],
    updated: list[int],
    mode_type: type[FunctionalTensorMode] = _Functional,
) -> Callable[..., Any]:
    """`run` without mutation: one trailing `copy_` into each updated input.

    `updated` receives the numbers of the inputs that `run` updates. Raises CaptureError if it gives
    one another shape or storage.
    """
    mode = mode_type(pre_dispatch=True, export=True)

    def plain(tensor: FunctionalTensor) -> torch.Tensor:
        torch._sync(tensor)
        return torch._from_functional_tensor(tensor.elem)

    def inner(*args: Any) -> Any:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            with mode:
                wrapped = [
                    FunctionalTensor.to_functional(a) if isinstance(a, torch.Tensor) else a
                    for a in args
                ]
                out = pytree.tree_map_only(FunctionalTensor, plain, run(*wrapped))
                if any(map(_reshaped, wrapped)):
                    what = named(getattr(mode, "reshaping", None) or "the graph")
                    reason = "it gives an argument another shape or storage"
                    raise CaptureError(what, reason, stock=False)
                values = [
                    (i, plain(t))
                    for i, t in enumerate(wrapped)
                    if isinstance(t, FunctionalTensor)
                    and torch._functionalize_has_data_mutation(t.elem)
                ]
            for i, value in values:
                updated.append(i)
                args[i].copy_(value)
        return out

    return inner


def _reshaped(tensor: Any) -> bool:
    """Has an argument been given other sizes, strides or another storage?"""
    if not isinstance(tensor, FunctionalTensor):
        return False
    return bool(
        torch._functionalize_has_metadata_mutation(tensor.elem)
        or torch._functionalize_was_storage_changed(tensor.elem)
    )


def traced(
    graph_module: fx.GraphModule,
    fakes: Sequence[Any],
    mode: FakeTensorMode,
    updated: list[int],
    mode_type: type[FunctionalTensorMode] | None = None,
) -> fx.GraphModule:
    """The graph as functional ATen above decomposition, one trailing `copy_` into each updated
    input, whose numbers `updated` receives. `mode_type` functionalizes in the place of our mode."""
    # Values are dropped at once at the end: one by one takes longer.
    run = Interpreter(graph_module, garbage_collect_values=False).run
    plain = graph_module if mode_type is not None else out_of_place(graph_module)
    if mode_type is None and not may_update(plain):
        found = _trace_plain(Interpreter(plain, garbage_collect_values=False).run, fakes, mode)
        if found is not None:
            return found
    return _trace(functional(run, updated, mode_type or _Functional), fakes)


def _trace(run: Callable[..., Any], fakes: Sequence[Any]) -> fx.GraphModule:
    traced: fx.GraphModule = make_fx(
        run, pre_dispatch=True, tracing_mode="real", _allow_non_fake_inputs=True
    )(*fakes)
    return traced


def _trace_plain(
    run: Callable[..., Any], fakes: Sequence[Any], mode: FakeTensorMode
) -> fx.GraphModule | None:
    """The trace of a graph that updates nothing, which is functional as it is; None if it does."""
    env = mode.shape_env
    pending = list(env.pending_fresh_unbacked_symbols) if env is not None else []

    def inner(*args: Any) -> Any:
        with _Plain(pre_dispatch=True, export=True):
            return run(*args)

    try:
        return _trace(inner, fakes)
    except _Updates:
        if env is not None:
            env.pending_fresh_unbacked_symbols[:] = pending
        return None


class _Updates(Exception):  # noqa: N818 - a finding about a graph
    """The graph updates a tensor."""


def _unbinds_symbols(func: Any, args: Sequence[Any]) -> bool:
    """Is it an unbind of a dimension whose size is a symbol? In some releases it is one of each
    part too, whose fakes keep that dimension."""
    return func is aten.unbind.int and not isinstance(args[0].shape[_dim(*args)], int)


def _dim(_: torch.Tensor, dim: int = 0) -> int:
    return dim


def _selected(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    return [x.select(dim, k) for k in range(int(x.shape[dim]))]


@functools.cache
def _decomposes(func: torch._ops.OpOverload) -> bool:
    """Does a functional trace for export, above the dispatcher, take the operator apart? It does
    with operators that may alias or update an argument, and with those unsafe to keep."""
    if func is aten.dropout.default or not torch._C._dispatch_has_kernel(func.name()):
        return False
    schema = func._schema
    aliases = any(argument.alias_info for argument in schema.arguments)
    return aliases or schema.is_mutable or _should_decompose_because_unsafe_op(func)


class _Plain(_Functional):
    """Decomposes the operators that functional traces decompose, and makes nothing functional.

    Raises _Updates at the first operator that writes a tensor, or may do so although its schema
    does not say it.
    """

    def _traced(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        kwargs = kwargs or {}
        if func is aten.batch_norm.default and _only_reads(*args, **kwargs):
            x, weight, bias, mean, variance, _, momentum, eps, *_ = args
            norm = aten._native_batch_norm_legit_no_training.default
            normalized = norm(x, weight, bias, mean, variance, momentum, eps)[0]
            return laid_out(func, args, kwargs, normalized)
        if not isinstance(func, torch._ops.OpOverload) or func in _NORMS:
            raise _Updates
        if (instead := _instead(func, args, kwargs)) is not None:
            with self:
                return instead()
        apart = hides_writes(func, args) or _decomposes(func)
        if apart and func not in FunctionalTensor.metadata_fns:
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if func._schema.is_mutable:
            raise _Updates
        if func is aten.lift_fresh.default:  # a literal, which is a new tensor in each call
            func = aten.lift_fresh_copy.default
        return laid_out(func, args, kwargs, func(*args, **kwargs))


def _only_reads(*args: Any, **kwargs: Any) -> bool:
    """Is a batch norm one of inference on a CPU, with the statistics that it is given?"""
    if kwargs or len(args) < 8:
        return False
    x, _, _, mean, variance, training, *_ = args
    return not training and mean is not None and variance is not None and x.device.type == "cpu"


def may_update(graph_module: fx.GraphModule) -> bool:
    """Does a graph of Dynamo's look as if it updates a tensor? By the names of what it calls: the
    trace finds out for sure, and a wrong guess costs time only."""
    nodes = graph_module.graph.nodes
    return any(node.op == "call_module" or updates(node) for node in nodes)


def updates(node: fx.Node) -> bool:
    """Does a call of Dynamo's look as if it updates its first argument, or `out`, by its name?"""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    plain = name.endswith("__") or name in _LOGICAL or not name.endswith("_")
    if (not plain or name in _UPDATING) and not _of_inference(node):
        return True
    return node.kwargs.get("out") is not None or bool(node.kwargs.get("inplace"))


def _of_inference(node: fx.Node) -> bool:
    """Is the node a batch norm that is told not to train?"""
    if node.target is not torch.nn.functional.batch_norm:
        return False
    training = node.args[5] if len(node.args) > 5 else node.kwargs.get("training", False)
    return training is False

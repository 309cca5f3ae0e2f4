"""What TorchInductor compiles, with eager PyTorch in its place where it cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor import exc

from vtc import errors
from vtc.graph.culprit import named
from vtc.lowering.record import place

Call = Callable[..., Any]

_COMPILER_MODULES = ("torch._inductor", "triton")
"""Where the exceptions of a failed compilation come from; others are the program's own."""


def or_eager(
    compile_: Callable[[], Call],
    graph_module: fx.GraphModule,
    updated: Sequence[int] | None,
) -> Call:
    """What `compile_()` gives, or the graph as eager PyTorch, warned of once by its first operator.

    Inductor compiles some kernels when they are first called, and its code checks the layout of
    what library kernels give: the first call falls back too, with
    the arguments numbered in `updated`, which it may have written by then, as they were. Where it
    is None these are all that are no parameters.
    Out of memory, and what Dynamo raises to trace again, are raised.
    """
    eager = _as_it_is(graph_module)
    try:
        return _FirstCall(compile_(), eager, updated)
    except Exception as error:
        if not _falls_back(error):
            raise
        _warn(eager, error)
        return eager.forward


class _FirstCall:
    """A compiled graph that may yet fail to compile when it is called for the first time."""

    def __init__(self, call: Call, eager: fx.GraphModule, updated: Sequence[int] | None) -> None:
        self.call, self.eager, self.updated = call, eager, updated
        self.pending = True

    def _kept(self, args: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Storages that the call may write, with copies of them."""
        numbers = range(len(args)) if self.updated is None else self.updated
        found = [args[i] for i in numbers if isinstance(args[i], torch.Tensor)]
        if self.updated is None:
            found = [a for a in found if not isinstance(a, torch.nn.Parameter)]
        storages = {a.untyped_storage()._cdata: a.untyped_storage() for a in found}
        return [(storage, storage.clone()) for storage in storages.values()]

    def __call__(self, *args: Any) -> Any:
        if not self.pending:
            return self.call(*args)
        kept = self._kept(args)
        try:
            made = self.call(*args)
        except Exception as error:
            if not compiling(error):
                raise
            for storage, held in kept:
                storage.copy_(held)
            _warn(self.eager, error)
            self.call = self.eager.forward
            made = self.call(*args)
        self.pending = False
        return made


def compiling(error: BaseException) -> bool:
    """Was it a compilation that failed, rather than the program or the memory?"""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, exc.InductorError):
        return not isinstance(error.inner_exception, torch.OutOfMemoryError)
    return type(error).__module__.startswith(_COMPILER_MODULES) or _misjudged(error)


def _misjudged(error: BaseException) -> bool:
    """Does compiled code find a library's result laid out otherwise than PyTorch's fakes said?"""
    return isinstance(error, AssertionError) and "Error in op: torch.ops." in str(error)


def _falls_back(error: Exception) -> bool:
    if isinstance(error, torch._dynamo.exc.TorchDynamoException):
        return compiling(error)
    return not isinstance(error, torch.OutOfMemoryError)


def _as_it_is(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph as it is now, over the same tensors: Inductor's passes change their argument."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return fx.GraphModule(graph_module, graph)


def _warn(graph_module: fx.GraphModule, error: Exception) -> None:
    what, where = culprit(graph_module)
    reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    warnings.warn(errors.FallbackWarning(what, reason, where=where), stacklevel=4)


def culprit(graph_module: fx.GraphModule) -> tuple[str, str | None]:
    """Name and place of the first operator of a graph."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            return named(node.target), place(node)
    return "an empty graph", None

"""Operators as PyTorch decomposes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from vtc.graph.program import value_of
from vtc.lowering.dvm.nodes import Unsupported


def decomposition(
    node: fx.Node, target: Any, given: Sequence[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node], Any]:
    """What a call of the operator decomposes into: placeholders for `given`, the nodes that
    compute, and what it gives.

    Raises Unsupported where PyTorch has no decomposition, or none without the operator itself.
    """
    values = [value_of(a) for a in given] + [value_of(node)]
    modes = [v.fake_mode for v in values if hasattr(v, "fake_mode")]
    seeded = torch.Tag.nondeterministic_seeded
    if not isinstance(target, torch._ops.OpOverload) or seeded in target.tags or not modes:
        raise Unsupported(str(target))

    function = _written_out(target)

    def run(*values: Any) -> Any:
        env = dict(zip(given, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: env.get(n, value_of(n)))
        return function(*args, **kwargs)

    def trace(function: Callable[..., Any]) -> fx.Graph:
        return make_fx(
            function,
            decomposition_table=_table(target),
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*(value_of(a) for a in given)).graph

    try:
        with torch.no_grad(), modes[0]:
            traced = trace(run)
            if any(map(_mutates, traced.nodes)):
                traced = trace(dispatch_functionalize(run))
    except Exception as error:  # whatever an operator's decomposition does not do
        raise Unsupported(str(target)) from error
    inner = [n for n in traced.nodes if n.op == "call_function"]
    if any(n.target is target for n in inner) or any(n.op == "get_attr" for n in traced.nodes):
        raise Unsupported(str(target))
    return [n for n in traced.nodes if n.op == "placeholder"], inner, traced.output_node().args[0]


def _written_out(target: torch._ops.OpOverload) -> Callable[..., Any]:
    """The operator; one that C++ composes of others, asking for numbers as sizes, as PyTorch writes
    it in Python where it does."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )
    return torch._decomp.decomposition_table.get(target, target) if composite else target


@functools.cache
def _table(target: Any) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions: those into core operators, and the operator's own."""
    own = torch._decomp.decomposition_table.get(target)
    return _core_table() if own is None else {target: own, **_core_table()}


@functools.cache
def _core_table() -> dict[Any, Callable[..., Any]]:
    """Those into core operators; making the table takes tens of milliseconds."""
    return dict(torch._decomp.core_aten_decompositions())


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable

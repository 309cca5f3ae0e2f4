"""`torch.vmap` in a graph that Dynamo made: written out as the batched operators it stands for.

Dynamo records a vmap as calls that raise and lower the level of nesting, with the function's own
operators in between. Those run on functorch's wrapped tensors, which cannot be made functional.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._functorch import predispatch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from vtc import errors


def without_vmap(
    graph_module: fx.GraphModule, fakes: Sequence[Any], mode: FakeTensorMode
) -> fx.GraphModule:
    """The graph, over these fake inputs, with each vmap traced into the batched operators that it
    comes to.

    inc; a = add_batch_dim(x, 0); b = sin(a); y = remove_batch_dim(b); dec   ->   y = sin(x)

    Raises CaptureError for one that cannot be traced.
    """
    blocks = list(_blocks(graph_module.graph))
    if not blocks:
        return graph_module
    examples = _Values(graph_module)
    try:
        with torch.no_grad(), mode, functorch_restored():
            examples.run(*fakes)
    except Exception as error:
        raise errors.CaptureError("vmap", str(error).split("\n")[0]) from error
    written = copy.copy(graph_module)
    written.graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    inside = {node: block for block in blocks for node in block}
    for node in graph_module.graph.nodes:
        if node not in inside:
            values[node] = written.graph.node_copy(node, lambda n: values[n])
        elif node is inside[node][-1]:
            traced = _traced(graph_module, inside[node], examples.values, mode)
            _inline(traced, inside[node], written, values)
    written.recompile()
    return written


@contextmanager
def functorch_restored() -> Iterator[None]:
    """Leave functorch's levels of nesting as they were, also where a trace fails within one."""
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        while functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _blocks(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """The nodes of each outermost vmap."""
    block: list[fx.Node] = []
    depth = 0
    for node in graph.nodes:
        depth += node.target is predispatch._vmap_increment_nesting
        if depth:
            block.append(node)
        if node.target is predispatch._vmap_decrement_nesting:
            depth -= 1
            if not depth:
                yield block
                block = []


class _Values(fx.Interpreter):
    """Keeps the value of each node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def _inputs(block: list[fx.Node]) -> list[fx.Node]:
    own = set(block)
    return list(dict.fromkeys(o for n in block for o in n.all_input_nodes if o not in own))


def _results(block: list[fx.Node]) -> list[fx.Node]:
    own = set(block)
    return [n for n in block if any(u not in own for u in n.users)]


def _traced(
    owner: fx.GraphModule, block: list[fx.Node], examples: dict[fx.Node, Any], mode: FakeTensorMode
) -> fx.GraphModule:
    """A block as batched operators, from its inputs to what is used of it later."""
    inner = fx.Graph()
    local = {n: inner.placeholder(n.name) for n in _inputs(block)}
    for node in block:
        local[node] = inner.node_copy(node, lambda n: local[n])
    inner.output([local[n] for n in _results(block)])
    run = fx.Interpreter(fx.GraphModule(owner, inner)).run
    try:
        with torch.no_grad(), mode, functorch_restored(), fx.traceback.preserve_node_meta():
            return make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)(
                *[examples[n] for n in _inputs(block)]
            )
    except Exception as error:
        raise errors.CaptureError("vmap", str(error).split("\n")[0]) from error


def _inline(
    traced: fx.GraphModule,
    block: list[fx.Node],
    written: fx.GraphModule,
    values: dict[fx.Node, fx.Node],
) -> None:
    """Append a traced block; `values` receives what is used of it later."""
    given = iter(_inputs(block))
    within: dict[fx.Node, fx.Node] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            within[node] = values[next(given)]
        elif node.op == "get_attr":  # a constant of the function
            name = f"{block[0].name}{node.target}"
            setattr(written, name, getattr(traced, node.target))
            within[node] = written.graph.create_node("get_attr", name)
        elif node.op == "output":
            made = [within[n] for n in node.args[0]]
            values.update(zip(_results(block), made, strict=True))
        else:
            within[node] = written.graph.node_copy(node, lambda n: within[n])

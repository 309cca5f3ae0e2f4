"""A vmap that Dynamo records is captured as the batched operators it comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._functorch import predispatch

from vtc import errors
from vtc.graph.capture import capture
from vtc.graph.program import Program

TABLE = torch.randn(5, 4)


NESTING = (predispatch._vmap_increment_nesting, predispatch._vmap_decrement_nesting)


def run_captured(fn: Callable[..., Any], *args: Any, dynamic: bool) -> tuple[Any, Program]:
    """The answer of the captured program, and the program."""
    found: list[Program] = []

    def backend(graph_module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        assert any(n.target in NESTING for n in graph_module.graph.nodes), "no vmap was recorded"
        program = capture(graph_module, examples)
        found.append(program)
        return lambda *inputs: program.graph_module(*inputs, *program.constants)

    torch._dynamo.reset()
    with torch.no_grad():
        answer = torch.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    (program,) = found
    return answer, program


def one(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda a: torch.sin(a) @ w, in_dims=1)(x) + 1


def two(x: Tensor, w: Tensor) -> Tensor:
    first = torch.vmap(lambda a, b: (a * b).sum(-1))(x, x + 1)
    return torch.vmap(lambda a: a.cumsum(0), in_dims=1, out_dims=1)(x * first[:, None]) @ w


def nested(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda a: torch.vmap(lambda b: torch.dot(a, b))(w.t()))(x)


def with_constant(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda a: TABLE[1] * a + torch.tensor([1.0, 2, 3, 4]))(x) @ w


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [one, two, nested, with_constant])
def test_vmap_becomes_batched_operators(fn: Callable[..., Any], dynamic: bool) -> None:
    x, w = torch.randn(6, 4), torch.randn(6 if fn is one else 4, 3)
    answer, program = run_captured(fn, x, w, dynamic=dynamic)
    assert not any(n.target in NESTING for n in program.nodes)
    torch.testing.assert_close(answer, fn(x, w))


def test_functorch_is_left_as_it_was_where_a_vmap_cannot_be_captured() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(predispatch._vmap_increment_nesting, (3, "error"))
    wrapped = graph.call_function(predispatch._add_batch_dim, (x, 0, 1))
    graph.call_function(torch.mm, (wrapped, wrapped))  # vectors, not matrices
    graph.call_function(predispatch._vmap_decrement_nesting, ())
    graph.output((x,))
    module = fx.GraphModule({}, graph)
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    with pytest.raises(errors.CaptureError, match="vmap"):
        capture(module, [torch.randn(3, 2)])
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == depth

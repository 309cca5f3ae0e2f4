"""Graphs without updates are traced as they are, to what functionalization gives; others by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from vtc.graph import functional


def _graph(function: Callable[..., Any], args: Sequence[Any]) -> fx.GraphModule:
    """What Dynamo hands a backend."""
    found: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*args)
    return found[0]


def _traced(
    function: Callable[..., Any], args: Sequence[Any], *, plainly: bool
) -> tuple[fx.GraphModule | None, list[int]]:
    graph = _graph(function, args)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [
        mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args if isinstance(a, Tensor)
    ]
    updated: list[int] = []
    with torch.no_grad(), mode:
        if plainly:
            return functional._trace_plain(fx.Interpreter(graph).run, fakes, mode), updated
        return functional.traced(graph, fakes, mode, updated), updated


def _functionalized(function: Callable[..., Any], args: Sequence[Tensor]) -> fx.GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    run = fx.Interpreter(_graph(function, args)).run
    fakes = [mode.from_tensor(a) for a in args]
    with torch.no_grad(), mode:
        return functional._trace(functional.functional(run, []), fakes)


def _listing(graph: fx.GraphModule) -> list[str]:
    """Targets, shapes and strides, but for checks, sizes and what nobody uses."""
    graph.graph.eliminate_dead_code()
    aten = torch.ops.aten
    skipped = {aten.sym_size.int, aten._assert_tensor_metadata.default}
    lines = []
    for node in graph.graph.nodes:
        if node.target in skipped or node.target in FunctionalTensor.metadata_fns:
            continue
        value = node.meta.get("val")
        layout = (
            (value.dtype, tuple(value.shape), value.stride()) if isinstance(value, Tensor) else ""
        )
        lines.append(f"{node.op} {node.target if node.op != 'placeholder' else ''} {layout}")
    return lines


X = torch.randn(4, 6)
IMAGE = torch.randn(2, 3, 8, 8)
HEADS = torch.randn(2, 4, 5, 8)

PLAIN: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    "pointwise": (lambda x: F.gelu(x + 1) * torch.sigmoid(x), [X]),
    "reshape": (lambda x: x.t().reshape(3, 8).flatten() + 1, [X]),
    "chunk": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], [X]),
    "linear": (
        lambda x, w, b: F.linear(x, w, b).softmax(-1),
        [X, torch.randn(5, 6), torch.ones(5)],
    ),
    "norm": (lambda x, w: F.layer_norm(x, (6,), w), [X, torch.ones(6)]),
    "matmul": (lambda x, y: x @ y.transpose(-1, -2), [HEADS, HEADS]),
    "einsum": (lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y), [HEADS, HEADS]),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [HEADS]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [IMAGE, torch.randn(4, 3, 3, 3)]),
    "pooling": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), [IMAGE]),
    "meshgrid": (lambda x: sum(torch.meshgrid(x[0], x[1], indexing="ij")), [X]),
    "cast": (lambda x: x.to(torch.float64).double().float() + x.long(), [X]),
    "expand": (lambda x: x[:, None].expand(4, 3, 6).contiguous().mean(1), [X]),
    "gather": (lambda x: x[torch.arange(3)] + x.index_select(0, torch.arange(3)), [X]),
    "resize": (lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), [IMAGE]),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False) * 2, [X]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_graph_without_updates_is_traced_as_functionalization_does(name: str) -> None:
    function, args = PLAIN[name]
    assert not functional.may_update(_graph(function, args))
    plain, updated = _traced(function, args, plainly=True)
    assert plain is not None
    assert updated == []
    assert _listing(plain) == _listing(_functionalized(function, args))


@torch.library.custom_op("own::bump", mutates_args={"x"})
def bump(x: Tensor) -> None:
    x.add_(1)


@bump.register_fake
def _(x: Tensor) -> None:
    return None


def _updated_by_operator(x: Tensor) -> Tensor:
    x += 1
    return x * 2


def _updated_by_index(x: Tensor) -> Tensor:
    x[0] = 3
    return x.sum()


def _updated_by_custom_operator(x: Tensor) -> Tensor:
    torch.ops.own.bump(x)
    return x * 2


UPDATING: dict[str, tuple[Callable[..., Any], list[Tensor], list[int]]] = {
    "method": (lambda x: x.add_(1), [X], [0]),
    "operator": (_updated_by_operator, [X], [0]),
    "index": (_updated_by_index, [X], [0]),
    "view": (lambda x: x.view(-1)[2:].mul_(2).sum(), [X], [0]),
    "keyword": (lambda x: F.relu(x, inplace=True) + 1, [X], [0]),
    "out": (lambda x, y: torch.add(x, 1, out=y), [X, torch.empty(4, 6)], [1]),
    "custom": (_updated_by_custom_operator, [X], [0]),
    "batch norm": (
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        [IMAGE, torch.zeros(3), torch.ones(3)],
        [1, 2],
    ),
    "instance norm": (
        F.instance_norm,
        [IMAGE, torch.zeros(3), torch.ones(3)],
        [1, 2],
    ),
    "intermediate": (lambda x: (x + 1).mul_(2), [X], []),
}


@pytest.mark.parametrize("name", UPDATING)
def test_updates_are_found(name: str) -> None:
    function, args, numbers = UPDATING[name]
    args = [a.clone() for a in args]
    plain, _ = _traced(function, args, plainly=True)
    assert plain is None
    whole, updated = _traced(function, args, plainly=False)
    assert whole is not None
    assert sorted(updated) == numbers


def test_an_update_that_no_name_shows_is_found_by_the_trace() -> None:
    graph = _graph(_updated_by_custom_operator, [X.clone()])
    for node in graph.graph.nodes:
        if node.target is torch.ops.own.bump:
            node.target = torch.ops.own.bump.default
    assert not functional.may_update(graph)


class Modules(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.logical_and(x > 0, x < 1) & (x != 2) | (x == 3)


def test_logic_is_no_update() -> None:
    assert not functional.may_update(_graph(Modules(), [X]))

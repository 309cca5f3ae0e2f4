"""Sizes whose arithmetic is done once: what tracers see is what PyTorch gives."""

from __future__ import annotations

import contextlib
import gc
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo import symbolic_convert
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from vtc.runtime import dvm_compile
from vtc.runtime.tracing import _BINARY, quick_tracing

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "eq", "ne", "ge", "gt", "le")
} | {"lt": operator.lt, "max": torch.sym_max, "min": torch.sym_min}


def symbolic(*shape: int) -> Tensor:
    """A fake tensor each of whose sizes is a symbol of its own."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(shape))
    return mode.from_tensor(torch.empty(shape), symbolic_context=context)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_on_sizes_give_what_pytorch_gives(name: str) -> None:
    first, second, third = symbolic(3, 5, 7).shape
    pairs = [
        (a, b)
        for a in (first, second, first * second, first * third + 2, 4)
        for b in (second, third, second * first, first + third, 7)
        if not (isinstance(a, int) and isinstance(b, int))
    ]
    expected = [OPERATORS[name](a, b).node for a, b in pairs]
    with quick_tracing():
        for _ in range(2):  # computed, and then known
            found = [OPERATORS[name](a, b).node for a, b in pairs]
            for one, other in zip(found, expected, strict=True):
                assert (one.expr, one.hint, one.pytype) == (other.expr, other.hint, other.pytype)


def test_results_are_nodes_of_their_own_and_not_those_of_another_trace() -> None:
    one, other = symbolic(3, 5), symbolic(3, 6)
    with quick_tracing():
        product, again = (one.shape[0] * one.shape[1] for _ in range(2))
        assert product.node is not again.node
        assert product.node.expr is again.node.expr
        elsewhere = other.shape[0] * other.shape[1]
        assert elsewhere.node.shape_env is other.shape[0].node.shape_env
        assert elsewhere.node.hint == 18


def test_sizes_that_depend_on_data_keep_what_is_told_of_them_later() -> None:
    env = ShapeEnv()
    unknown = env.create_unbacked_symint()
    with quick_tracing():
        before = unknown * 2
        torch._check(unknown == 4)
        assert bool(unknown * 2 == 8)
        assert before.node.hint is None


def test_arithmetic_of_the_traced_program_is_recorded_each_time() -> None:
    def program(x: Tensor) -> Tensor:
        return x * (x.shape[0] * x.shape[1] + 1) + x.shape[0] * x.shape[1]

    with quick_tracing():
        traced = make_fx(program, tracing_mode="symbolic")(torch.randn(3, 5))
    x = torch.randn(4, 6)
    assert operator.mul in {n.target for n in traced.graph.nodes}
    torch.testing.assert_close(traced(x), program(x))


def test_pytorch_is_as_it_was_afterwards() -> None:
    before = {name: getattr(SymNode, f"_{name}") for name in _BINARY}
    names = symbolic_convert.get_funcname
    with contextlib.suppress(RuntimeError), quick_tracing():
        assert SymNode._mul is not before["mul"]
        raise RuntimeError("in a trace")
    assert before == {name: getattr(SymNode, f"_{name}") for name in _BINARY}
    assert symbolic_convert.get_funcname is names


def test_dynamo_gives_the_same_graphs_for_the_same_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        b, n, c = x.shape
        heads = x.reshape(b, n, 4, c // 4).transpose(1, 2)
        if b * n > 20:
            heads = heads * 2
        return heads.reshape(b * 4, n, c // 4) @ y.expand(b * 4, c // 4, 3)

    def traces() -> list[str]:
        torch._dynamo.reset()
        found: list[str] = []

        def backend(graph_module: fx.GraphModule, inputs: Any) -> Any:
            found.append(graph_module.print_readable(print_output=False))
            return graph_module.forward

        compiled = dvm_compile.dynamic(program, backend)
        for b, n, c in ((2, 3, 8), (2, 5, 16), (4, 7, 8), (3, 9, 12)):
            x, y = torch.randn(b, n, c), torch.randn(1, c // 4, 3)
            torch.testing.assert_close(compiled(x, y), program(x, y))
        return found

    quick = traces()
    monkeypatch.setattr(dvm_compile, "quick_tracing", contextlib.nullcontext)
    assert quick == traces()
    assert len(quick) >= 2


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_as_it_was_after_a_trace(collecting: bool) -> None:
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        (gc.enable if collecting else gc.disable)()
        with dvm_compile._collected_later():
            assert not gc.isenabled()
        assert gc.isenabled() is collecting
        assert gc.get_freeze_count() == frozen
    finally:
        (gc.enable if enabled else gc.disable)()


def test_what_a_user_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with dvm_compile._collected_later():
            pass
        assert gc.get_freeze_count() >= frozen - 100  # some may have been freed
    finally:
        gc.unfreeze()

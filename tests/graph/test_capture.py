"""Capture keeps movement, lists updated inputs, and says no to what it cannot write down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from vtc import errors
from vtc.graph.capture import capture
from vtc.graph.functional import ACTIVATIONS
from vtc.graph.program import InputView, Program, value_of
from vtc.runtime.calls import overlapping

aten = torch.ops.aten


def captured(fn: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Program:
    """The program of the one graph that Dynamo makes of `fn`."""
    found: list[Program] = []

    def backend(graph_module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        found.append(capture(graph_module, examples))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=backend, fullgraph=True, **options)(*args)
    (program,) = found
    return program


def targets(program: Program) -> list[Any]:
    return [n.target for n in program.nodes]


def run(program: Program, *args: Tensor) -> tuple[Any, ...]:
    return program.graph_module(*args)


# Updated inputs.


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_what_is_written_through_a_meshgrid_is_seen(indexing: str) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        first, second = torch.meshgrid(x, y, indexing=indexing)
        second.mul_(2)
        return first + second

    x, y = torch.randn(1), torch.randn(3)
    program = captured(f, (x.clone(), y.clone()))
    output, updated = run(program, x, y)[0], [program.inputs[i] for i, _ in program.updates]
    assert [n.meta["user_name"] for n in updated] == ["l_y_"]
    expected_y = y.clone()
    assert torch.equal(output, f(x, expected_y))


def test_each_updated_input_has_its_final_value() -> None:
    def f(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        a.add_(x)
        b[:2] = a[:2] * 2
        a.mul_(3)
        return a + x

    args = (torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3))
    program = captured(f, tuple(a.clone() for a in args))
    names = [n.meta["user_name"] for n in program.inputs]
    assert sorted(names[i] for i, _ in program.updates) == ["l_a_", "l_b_"]
    assert not any(n.target._schema.is_mutable for n in program.nodes)

    given = dict(zip(["l_a_", "l_b_", "l_x_"], args, strict=True))
    output = next(n for n in program.graph_module.graph.nodes if n.op == "output")
    output.args = (tuple(value for _, value in program.updates),)
    program.graph_module.recompile()
    finals = run(program, *[given[n] for n in names])
    expected = {n: a.clone() for n, a in given.items()}
    f(*expected.values())
    for (i, _), value in zip(program.updates, finals, strict=True):
        assert torch.equal(value, expected[names[i]])


def test_nothing_is_updated_in_a_functional_graph() -> None:
    program = captured(lambda x: x.clone().add_(1), (torch.randn(3),))
    assert program.updates == ()


def test_in_place_operators_become_functional_ones() -> None:
    def f(cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
        return cache.index_copy_(1, at, x)[:, 0]

    program = captured(f, (torch.randn(2, 4), torch.tensor([1]), torch.randn(2, 1)))
    assert aten.index_copy.default in targets(program)
    assert "updated inputs: " in str(program)
    assert "none" not in str(program)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activations_in_place_are_seen_through_views_and_arguments(activation: Any) -> None:
    def f(x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1.5
        activation(y[1:])
        z = x + 1
        activation(z.view(-1))
        activation(given[0])
        return y * 2, z + given

    x, given = torch.randn(4, 6), torch.randn(4, 6)
    program = captured(f, (x, given.clone()))
    assert ACTIVATIONS[activation] in targets(program)
    found = run(program, x, given.clone())
    assert all(torch.equal(a, b) for a, b in zip(found, f(x, given), strict=False))


@pytest.mark.parametrize(
    ("fn", "target"),
    [
        (lambda x: torch.roll(x, 1, 1) * 2, aten.roll.default),
        (lambda x: nn.functional.linear(x, x), aten.linear.default),
        (lambda x: nn.functional.pixel_shuffle(x.view(1, 4, 2, 2), 2) + 1, None),
        (lambda x: x[None].expand(3, 4, 4) + 1, aten.expand.default),
        (lambda x: torch.cat([x, x]) + 1, aten.cat.default),
        (
            lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
            aten.scaled_dot_product_attention.default,
        ),
    ],
)
def test_movement_and_composites_stay(fn: Callable[..., Any], target: Any) -> None:
    program = captured(fn, (torch.randn(4, 4),))
    expected = aten.pixel_shuffle.default if target is None else target
    assert expected in targets(program)


# Aliases.


def test_outputs_that_are_views_of_an_updated_input() -> None:
    def f(cache: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        cache[1:3] = x
        return cache[2:].t(), cache.sum()

    storage = torch.randn(40)
    cache = storage[5:25].view(5, 4)
    program = captured(f, (cache, torch.randn(2, 4)))
    number = next(i for i, n in enumerate(program.inputs) if n.meta["user_name"] == "l_cache_")
    assert program.aliases == {0: InputView(number, (4, 3), (1, 4), 8)}


VIEWS = {
    "updated": (lambda x: (x.add_(1)[1:, :2].t(),), InputView(0, (2, 2), (1, 4), 4)),
    "reshaped": (lambda x: (x.mul_(2).reshape(-1), x.sum()), InputView(0, (12,), (1,), 0)),
    "read": (lambda x: (x[1:], x.sum()), InputView(0, (2, 4), (4, 1), 4)),
}


@pytest.mark.parametrize("form", VIEWS)
def test_views_of_sizes_that_a_guard_makes_numbers_are_views_of_numbers(form: str) -> None:
    """Dynamo's tensors keep the symbols that they were made with."""
    view, expected = VIEWS[form]

    def f(x: Tensor) -> tuple[Tensor, ...]:
        outputs = view(x)
        return *outputs, (x * 2 if x.shape == (3, 4) else x)

    program = captured(f, (torch.randn(3, 4),), dynamic=True)
    assert not program.symbolic
    assert program.aliases == {0: expected}
    numbers = [n for a in program.aliases.values() for n in (*a.size, *a.stride, a.offset)]
    assert {type(n) for n in numbers} == {int}


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("view_as_real", torch.view_as_real),
        ("split", lambda x: torch.view_as_real(x).split(1)[1]),
        ("getitem", lambda x: torch.view_as_real(x)[1]),
    ],
)
def test_an_output_of_other_bits_of_an_updated_input_is_named_by_its_operator(
    name: str, view: Callable[[Tensor], Tensor]
) -> None:
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return view(x)

    with pytest.raises(Exception, match=f"CaptureError: {name} cannot be captured"):
        captured(f, (torch.randn(3, 4, dtype=torch.complex64),))


def test_arguments_in_one_storage_are_seen() -> None:
    base, other = torch.randn(10), torch.randn(3)
    assert overlapping([base[:6], other, base[4:]], [0])
    assert overlapping([base[:6], base[4:]], [0, 1])
    assert not overlapping([base, other], [0, 1])
    assert not overlapping([base[:6], base[4:]], [])


# What comes with the graph.


def test_stack_traces_name_the_users_line() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        return torch.cat([y, y.sin()])

    program = captured(f, (torch.randn(3),))
    traces = {n.target: n.meta.get("stack_trace", "") for n in program.nodes}
    assert "y = x.exp()" in traces[aten.exp.default]
    assert "torch.cat([y, y.sin()])" in traces[aten.cat.default]
    assert "test_capture.py" in traces[aten.cat.default]


def test_attributes_become_trailing_inputs() -> None:
    linear = nn.Linear(4, 3)
    root = nn.Module()
    root.layer = linear
    root.register_buffer("shift", torch.randn(3))
    graph = fx.Graph()
    x = graph.placeholder("x")
    weight, shift = graph.get_attr("layer.weight"), graph.get_attr("shift")
    again = graph.get_attr("layer.weight")
    y = graph.call_function(torch.nn.functional.linear, (x, weight))
    z = graph.call_function(torch.nn.functional.linear, (x, again))
    total = graph.call_function(torch.add, (graph.call_function(torch.add, (y, z)), shift))
    graph.output((total,))
    program = capture(fx.GraphModule(root, graph), [torch.randn(2, 4)])
    assert len(program.inputs) == 3
    first, second = program.constants
    assert first is linear.weight
    assert second is root.shift
    value = torch.randn(2, 4)
    with torch.no_grad():
        (ours,) = run(program, value, *program.constants)
        torch.testing.assert_close(ours, 2 * (value @ linear.weight.t()) + root.shift)


def test_symbolic_sizes() -> None:
    program = captured(lambda x: torch.cat([x.exp(), x], 1), (torch.randn(4, 6),), dynamic=True)
    assert program.symbolic
    assert aten.cat.default in targets(program)
    assert not captured(lambda x: torch.cat([x.exp(), x], 1), (torch.randn(4, 6),)).symbolic


# Autocast.


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x).softmax(-1))
        return torch.cat([self.last(y), torch.mm(x, y.t().to(x.dtype))], 1)


def test_autocast_is_written_into_the_graph() -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = model(x)
        program = captured(model, (x,))
    assert value_of(program.outputs[0]).dtype is expected.dtype
    weights = dict(model.named_parameters())

    def argument(node: fx.Node) -> Tensor:
        name = node.meta["user_name"]
        found = [v for k, v in weights.items() if all(part in name for part in k.split("."))]
        return found[0] if found else x

    with torch.no_grad():
        (ours,) = run(program, *map(argument, program.inputs))
    assert ours.dtype is expected.dtype
    assert torch.equal(ours, expected)


def test_a_switch_of_autocast_inside_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y + 1

    with pytest.raises(Exception, match="autocast") as raised:
        captured(f, (torch.randn(4, 4),))
    assert "CaptureError" in repr(raised.value) or isinstance(raised.value, errors.CaptureError)


# What is not captured.


def test_higher_order_operators_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.exp(), lambda t: t.sin(), (x,))

    caught: list[errors.CaptureError] = []

    def backend(graph_module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        with pytest.raises(errors.CaptureError) as raised:
            capture(graph_module, examples)
        caught.append(raised.value)
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(f, backend=backend)(torch.randn(3))
    (error,) = caught
    assert "cond" in str(error)
    assert "higher-order" in error.reason


def test_a_literal_tensor_of_the_model_becomes_a_constant_input() -> None:
    def model(x: Tensor) -> Tensor:
        table = torch.tensor([1.0, 2.0])
        return torch.cat([x + table, table[None]], 0)

    program = captured(model, (torch.randn(3, 2),))
    assert len(program.constants) == 1
    assert len(program.inputs) == 2
    assert not program.graph_module.graph.find_nodes(op="get_attr")

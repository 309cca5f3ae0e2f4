"""The ways in: `vtc.compile`, `torch.compile(backend="vtc")`, their options, dynamic shapes, users'
own movement operators, real tensors on request, and `vtc.explain`."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

import vtc
import vtc.compiler
from compiling import QUICK, Compilations, compiled, quick_and_strict
from vtc.graph.movement import Movement
from vtc.index import IndexMap

pytestmark = quick_and_strict


def two_matmuls(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x @ w, (x + 1) @ w], 1).relu()


# Backend and options.


def test_the_entry_point_is_the_backend() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="vtc")
    assert found.load() is vtc.compiler.backend


@torch.no_grad()
def test_torch_compile_with_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compile_graph = vtc.compiler.compile_graph

    def spy(graph_module: Any, inputs: Any, settings: Any) -> Any:
        seen.append(settings)
        return compile_graph(graph_module, inputs, settings)

    monkeypatch.setattr(vtc.compiler, "compile_graph", spy)
    options = {**QUICK, "objective": "memory", "engine": "inductor", "max_exhaustive": 3}
    call = torch.compile(two_matmuls, backend="vtc", options=options)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(call(x, w), two_matmuls(x, w))
    (settings,) = seen
    assert (settings.objective, settings.options.max_exhaustive) == ("memory", 3)
    assert not settings.options.verify


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"serch": "greedy"}}, "unknown option 'serch'"),
        ({"options": {"objective": "speed"}}, "unknown objective 'speed'"),
        ({"options": {"engine": "cuda"}}, "unknown engine 'cuda'"),
        ({"options": {"freeze": True}}, "vtc.compile"),
        ({"mode": "max-autotune"}, "unknown mode 'max-autotune'"),
    ],
)
def test_torch_compile_refuses_what_it_does_not_know(given: Any, message: str) -> None:
    call = torch.compile(two_matmuls, backend="vtc", **given)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        call(torch.randn(3, 4), torch.randn(4, 5))


@pytest.mark.parametrize("way", [vtc.compile, lambda f, **k: vtc.export(f, (torch.ones(2),), **k)])
def test_unknown_choices(way: Any) -> None:
    with pytest.raises(vtc.errors.UnknownChoiceError, match=r"engine 'inducter'.*'inductor'"):
        way(torch.sin, engine="inducter")
    with pytest.raises(vtc.errors.UnknownChoiceError, match="objective 'speed'"):
        way(torch.sin, objective="speed")
    with pytest.raises(vtc.errors.UnknownOptionError, match=r"'freese'.*'freeze'"):
        way(torch.sin, options={"freese": True})


@pytest.mark.parametrize("way", [vtc.compile, lambda f, **k: vtc.export(f, (torch.ones(2),), **k)])
def test_the_dvm_without_its_native_module(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtc.vm.machine._native", None)
    with pytest.raises(vtc.errors.EngineUnavailableError, match="'dvm' is not available"):
        way(torch.sin, engine="dvm")


def test_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(vtc.errors.UnsupportedTorchError, match=r"2\.10\.1"):
        vtc.compile(torch.sin)


def test_environment_variables_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTC_COST", "static")
    monkeypatch.setenv("VTC_FREEZE", "1")
    call = vtc.compile(nn.Linear(2, 2))
    assert type(call).__name__ == "_Frozen"


@torch.no_grad()
def test_methods_classes_and_decorators() -> None:
    class Model(nn.Module):
        @vtc.compile
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x * 2], 0)

    x = torch.randn(2, 3)
    assert torch.equal(Model()(x), torch.cat([x, x * 2], 0))


# Dynamic shapes.


class Grouped(nn.Module):
    """Grouped attention over a cache as transformers writes it, for any batch and length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 16)

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        q, k, v = self.qkv(x).split([8, 4, 4], -1)
        keys[:, :length].copy_(k)
        q = q.view(batch, length, 2, 4).transpose(1, 2)
        k, v = (t[:, None, :length].expand(batch, 2, length, 4) for t in (keys, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, 8)
        return torch.cat([y, x], 2)


@pytest.mark.parametrize(("dynamic", "graphs"), [(True, 3), (None, 5)])
@torch.no_grad()
def test_dynamic_shapes(dynamic: bool | None, graphs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations(monkeypatch)
    model = Grouped()
    call = compiled(model, dynamic=dynamic)
    shapes = [(2, 3), (5, 3), (4, 7), (3, 2), (1, 6), (2, 3), (7, 4), (6, 8), (9, 2)]
    for batch, length in shapes:
        x, keys = torch.randn(batch, length, 8), torch.randn(batch, 9, 4)
        own = keys.clone()
        torch.testing.assert_close(call(x, own), model(x, keys))
        torch.testing.assert_close(own, keys)
    assert compilations.count <= graphs  # a batch of one is a graph of its own


# Real tensors on request.


def schedule_of(model: Any, *args: Any, **options: Any) -> str:
    report = vtc.explain(model, *args, objective="bytes", options={**QUICK, **options})
    return report.graphs[0].schedule


@torch.no_grad()
def test_materialize(monkeypatch: pytest.MonkeyPatch) -> None:
    args = torch.randn(3, 4), torch.randn(4, 4)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.cat([x @ w, (x + 1) @ w], 0) @ w

    virtual = schedule_of(fn, *args)
    assert "arena:" in virtual
    assert "cat" in virtual.split("steps:")[0]
    want = compiled(fn)(*args)
    names = [line.split(" ")[2] for line in virtual.splitlines() if "(library)" in line]
    for given in ("all", *names):
        torch._dynamo.reset()
        monkeypatch.setenv("VTC_MATERIALIZE", given)
        real = schedule_of(fn, *args)
        assert ("arena:" not in real) if given == "all" else (f"{given} (library)" not in real)
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(fn)(*args), want)


@torch.no_grad()
def test_materialize_a_name_that_no_graph_has() -> None:
    args = torch.randn(3, 4), torch.randn(4, 5)
    with pytest.warns(vtc.errors.VtcWarning, match="cannot materialize 'nothing'.*'all'"):
        got = compiled(two_matmuls, materialize="nothing")(*args)
    torch.testing.assert_close(got, two_matmuls(*args))


# A user's own movement operator.


runs = []


@torch.library.custom_op("vtctest::swap_rows", mutates_args=())
def swap_rows(x: Tensor) -> Tensor:
    runs.append(x.shape)
    return x.flip(0).transpose(0, 1).contiguous()


@swap_rows.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], x.shape[0])


def backwards(shape: Any) -> IndexMap:
    """Rows from the last to the first."""
    row, column = vtc.index.coords(2)
    return IndexMap.single(shape, (shape[0] - 1 - row, column))


@torch.no_grad()
def test_register_movement() -> None:
    def rule(result: Any, x: Any) -> Movement:
        load = IndexMap.permute(x.shape, (1, 0)).compose({0: backwards(x.shape)})
        return Movement("SwapRows", result.shape, 1, load, (load.inverse(0, x.shape),))

    def fn(x: Tensor) -> Tensor:
        return swap_rows(x.relu()).exp() + 1

    x = torch.randn(4, 6)
    vtc.register_movement(swap_rows, rule, name="SwapRows")
    report = vtc.explain(fn, x, objective="bytes", options=QUICK)
    (fate,) = [o for o in report.operators if o.operator == "SwapRows"]
    assert (fate.fate, fate.on, fate.direction) == ("virtual", "relu", "load")
    torch._dynamo.reset()
    call = compiled(fn)
    torch.testing.assert_close(call(x), fn(x))
    runs.clear()
    got = call(x + 1)
    assert not runs
    torch.testing.assert_close(got, fn(x + 1))


# Explain.


@torch.no_grad()
def test_explain_names_every_movement_operator(tmp_path: Path) -> None:
    model = Grouped()
    x, keys = torch.randn(2, 3, 8), torch.randn(2, 9, 4)
    before = keys.clone()
    report = vtc.explain(model, x, keys, objective="bytes", options=QUICK)
    assert torch.equal(keys, before)
    found = {o.operator for o in report.operators}
    assert {"Split", "Expand", "Transpose", "Concat", "Slice"} <= found
    assert {o.fate for o in report.operators} <= {"view", "folded", "virtual", "residual"}
    assert all("test_compile.py:" in (o.stack or "") for o in report.operators)
    data = json.loads(json.dumps(report.to_dict()))
    assert data.keys() == {"movement", "peak_bytes", "vtog", "search", "operators"}
    assert data["movement"]["operators"] == len(data["operators"])
    assert data["movement"].keys() == {
        "operators", "virtual", "residual", "kernels_before", "kernels_after", "bytes_before",
        "bytes_after",
    }  # fmt: skip
    assert data["peak_bytes"].keys() == {"before", "after"}
    assert data["vtog"].keys() == {"nodes", "edges", "conflicts"}
    assert data["search"].keys() == {"profiles", "cache_hits", "seconds", "gap"}
    assert data["operators"][0].keys() == {
        "operator", "node", "fate", "on", "direction", "type", "saving_us", "stack",
    }  # fmt: skip
    assert "Concat" in str(report)
    page = report.save(tmp_path / "page.html").read_text()
    assert "<html" in page
    assert "http" not in page.replace("http://www.w3.org", "")


@torch.no_grad()
def test_explain_leaves_arguments_and_model_alone() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor, states: list[Tensor]) -> Tensor:
            self.count.add_(1)
            x.add_(1)
            states[0] = torch.cat([states[0], x], 0)
            return states[0] * 2

    model, x, states = Counting(), torch.zeros(2), [torch.zeros(3)]
    for freeze in (False, True):
        torch._dynamo.reset()
        vtc.explain(model, x, states, objective="bytes", options={**QUICK, "freeze": freeze})
        assert not model.count.any()
        assert not x.any()
        assert states[0].shape == (3,)


def test_explain_without_a_graph() -> None:
    with pytest.raises(vtc.errors.CaptureError, match="no part of it was captured"):
        vtc.explain(lambda x: x, torch.ones(2), options=QUICK)

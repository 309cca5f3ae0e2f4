"""`engine="auto"` on a CPU keeps the DVM's program where it measured faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from vtc.lowering import timing
from vtc.runtime import candidates, dvm, rival

try:
    dvm.native_machine()
except vtc.errors.EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("clean_dynamo")


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).tanh()


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Graphs that are "compiled" by TorchInductor: they run as they are."""
    seen: list[Any] = []

    def compile_stock(graph_module: Any, inputs: Any, **_: Any) -> Any:
        seen.append(graph_module)
        return graph_module.forward

    monkeypatch.setattr(candidates, "compile_stock", compile_stock)
    return seen


def timed(monkeypatch: pytest.MonkeyPatch, dvm_us: float, other_us: float) -> list[int]:
    turns: list[int] = []

    def interleaved(calls: Any, inputs: Any, updated: Any, held: Any = None) -> list[float]:
        turns.append(len(calls))
        return [dvm_us, other_us]

    monkeypatch.setattr(timing, "interleaved", interleaved)
    return turns


@pytest.mark.parametrize(("dvm_us", "other_us", "engine"), [(1.0, 2.0, "dvm"), (2.0, 1.0, "")])
def test_the_faster_one_is_kept(
    tmp_path: Path, monkeypatch: Any, stock: list[Any], dvm_us: float, other_us: float, engine: str
) -> None:
    turns = timed(monkeypatch, dvm_us, other_us)
    options = {"cache_dir": tmp_path}
    for _ in range(2):
        torch._dynamo.reset()
        compiled = vtc.compile(Norm(), options=options, dynamic=False)
        runs = dvm.counters.encodes
        for _ in range(2):
            x = torch.randn(6, 40)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), Norm()(x))
    assert (dvm.counters.encodes > runs) == (engine == "dvm")
    # What was measured is known the second time: nothing is timed, and only what is kept is made.
    assert turns == [2]
    assert len(stock) == (1 if engine == "dvm" else 2)


def test_frozen_weights_and_another_number_of_threads_are_measured_anew(
    tmp_path: Path, monkeypatch: Any, stock: list[Any]
) -> None:
    turns = timed(monkeypatch, 1.0, 2.0)
    before = torch.get_num_threads()
    try:
        for freeze, threads in ((False, 2), (True, 2), (True, 3), (True, 2)):
            torch._dynamo.reset()
            torch.set_num_threads(threads)
            options = {"cache_dir": tmp_path, "freeze": freeze}
            compiled = vtc.compile(Norm(), options=options, dynamic=False)
            with torch.no_grad():
                compiled(torch.randn(6, 40))
    finally:
        torch.set_num_threads(before)
    assert turns == [2, 2, 2]


def test_an_answer_that_differs_is_not_kept(
    tmp_path: Path, monkeypatch: Any, stock: list[Any]
) -> None:
    timed(monkeypatch, 1.0, 2.0)
    plain = rival.rival

    def wrong(*args: Any) -> Any:
        found = plain(*args)
        assert found is not None
        run = found.run
        object.__setattr__(found, "run", lambda *inputs: tuple(t + 1 for t in run(*inputs)))
        return found

    monkeypatch.setattr(vtc.compiler, "rival", wrong)
    compiled = vtc.compile(Norm(), options={"cache_dir": tmp_path}, dynamic=False)
    x = torch.randn(6, 40)
    with torch.no_grad(), pytest.warns(vtc.errors.DisagreementWarning):
        found = compiled(x)
    torch.testing.assert_close(found, Norm()(x))


def test_what_the_dvm_runs_in_part_is_no_rival(tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[Any] = []
    plain = rival.rival

    def noted(*args: Any) -> Any:
        seen.append(plain(*args))
        return seen[-1]

    monkeypatch.setattr(vtc.compiler, "rival", noted)
    monkeypatch.setattr(candidates, "compile_stock", lambda g, *_, **__: g.forward)
    options = {"cache_dir": tmp_path}
    compiled = vtc.compile(lambda x: torch.linalg.inv(x) + 1, options=options, dynamic=False)
    with torch.no_grad():
        compiled(torch.eye(3) * 2)
    assert seen == [None]


class Counting(nn.Module):
    """Buffers that each call updates, as a cache is; frozen, they are constants of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        self.cache.mul_(0.5).add_(x)
        return (self.cache * self.calls).tanh()


@pytest.mark.parametrize("export", [False, True])
def test_what_a_frozen_model_updates_is_measured_and_put_back(
    tmp_path: Path, stock: list[Any], monkeypatch: Any, export: bool
) -> None:
    turns: list[int] = []
    interleaved = timing.interleaved

    def noted(calls: Any, inputs: Any, updated: Any, held: Any) -> list[float]:
        before = [t.clone() for t in held.tensors]
        interleaved(calls, inputs, updated, held)
        assert len(before) == 2
        assert all(map(torch.equal, held.tensors, before))
        turns.append(len(calls))
        return [1.0, 2.0]

    monkeypatch.setattr(timing, "interleaved", noted)
    model, eager = Counting(), Counting()
    x = torch.randn(8, 16)
    options: Any = {"freeze": True, "cache_dir": tmp_path}
    with torch.no_grad():
        if export:
            compiled = vtc.export(model, (x,), options=options)
            assert int(model.calls) == 0
            assert not model.cache.any()
        else:
            compiled = vtc.compile(model, options=options, dynamic=False)
        for _ in range(3):
            x = torch.randn(8, 16)
            torch.testing.assert_close(compiled(x), eager(x))
            torch.testing.assert_close(model.cache, eager.cache)
            assert int(model.calls) == int(eager.calls)
    assert turns == [2]
    assert dvm.counters.encodes > 0


def test_an_update_that_differs_is_not_kept(tmp_path: Path, monkeypatch: Any) -> None:
    def wrong(graph_module: Any, inputs: Any, **_: Any) -> Any:
        def run(*args: Any) -> Any:
            found = graph_module.forward(*args)
            graph_module.get_buffer(
                next(n for n, b in graph_module.named_buffers() if b.dim())
            ).mul_(2)
            return found

        return run

    monkeypatch.setattr(candidates, "compile_stock", wrong)
    model = Counting()
    compiled = vtc.compile(model, options={"freeze": True, "cache_dir": tmp_path}, dynamic=False)
    with torch.no_grad(), pytest.warns(vtc.errors.DisagreementWarning):
        compiled(torch.randn(8, 16))

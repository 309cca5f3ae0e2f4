"""Where compiling fails: the process goes on, says so once, and answers right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vtc
import vtc.compiler
from compiling import compiled, one_fallback, quick_and_strict
from vtc.lowering import implement, profile

pytestmark = quick_and_strict


def fn(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x @ w, (x + 1) @ w], 0) @ w


def updating(cache: Tensor, x: Tensor, w: Tensor) -> Tensor:
    cache[1:4].copy_((x @ w).exp())
    return torch.cat([x @ w, cache], 0) @ w


def args() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(4, 4)


# A region that Inductor does not compile.


def break_inductor(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The first `times` steps that are compiled raise."""
    compile_fx, calls = implement.compile_fx, []

    def broken(*arguments: Any, **kwargs: Any) -> Any:
        calls.append(arguments)
        if len(calls) <= times:
            raise RuntimeError("no kernel for this\nmore lines")
        return compile_fx(*arguments, **kwargs)

    monkeypatch.setattr(implement, "compile_fx", broken)


@torch.no_grad()
def test_a_region_that_cannot_be_compiled_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    break_inductor(monkeypatch)
    x, w = args()
    call = compiled(fn)
    with one_fallback("runs as eager PyTorch: RuntimeError: no kernel for this") as given:
        got = call(x, w)
    torch.testing.assert_close(got, fn(x, w))
    (warning,) = given
    assert "aten." in str(warning.message)
    assert "test_errors_at_call.py" in str(warning.message)
    torch.testing.assert_close(call(x + 1, w), fn(x + 1, w))


@torch.no_grad()
def test_an_eager_region_updates_its_inputs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    break_inductor(monkeypatch, times=99)
    x, w = args()
    ours, theirs = torch.zeros(6, 4), torch.zeros(6, 4)
    call = compiled(updating)
    with pytest.warns(vtc.errors.FallbackWarning, match="runs as eager PyTorch"):
        got = call(ours, x, w)
    torch.testing.assert_close(got, updating(theirs, x, w))
    torch.testing.assert_close(ours, theirs)


@torch.no_grad()
def test_a_plan_that_fails_leaves_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any) -> None:
        raise vtc.errors.PlanCheckError("(ii)", "nothing was stored")

    monkeypatch.setattr(vtc.compiler, "check", check)
    x, w = args()
    with one_fallback("runs as stock TorchInductor: it cannot be planned (PlanCheckError"):
        got = compiled(fn)(x, w)
    torch.testing.assert_close(got, fn(x, w))


@torch.no_grad()
def test_a_graph_that_cannot_be_captured() -> None:
    def conditional(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * 2

    call, x = compiled(conditional), torch.ones(3)
    with one_fallback("runs as stock TorchInductor: higher-order operators are not captured"):
        got = call(x)
    torch.testing.assert_close(got, conditional(x))
    torch.testing.assert_close(call(-x), conditional(-x))


@torch.no_grad()
def test_frozen_weights_are_not_stale_where_stock_takes_over() -> None:
    class Conditional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.lin(x),))

    model, x = Conditional(), torch.ones(2, 4)
    call = compiled(model, freeze=True)
    with one_fallback("cond"):
        torch.testing.assert_close(call(x), model(x))
    model.lin.weight.mul_(2)
    torch.testing.assert_close(call(x), model(x))


# The profile.


def profiled(folder: Path) -> Any:
    options = {"cost": "profile", "verify": False, "min_gain_us": 0.0, "cache_dir": folder}
    return vtc.compile(fn, objective="latency", options=options)


def big_args() -> tuple[Tensor, Tensor]:
    return torch.randn(2048, 64), torch.randn(64, 64)


@torch.no_grad()
def test_a_corrupt_cache_file_is_replaced(tmp_path: Path) -> None:
    x, w = big_args()
    torch.testing.assert_close(profiled(tmp_path)(x, w), fn(x, w))
    files = sorted(tmp_path.rglob("*.json"))
    assert files, "nothing was measured"
    for k, file in enumerate(files):
        file.write_text(("{", '{"microseconds": "fast"}', '{"microseconds": -1}', "[]")[k % 4])
    torch._dynamo.reset()
    with pytest.warns(vtc.errors.CacheCorruptWarning, match="cannot be read"):
        torch.testing.assert_close(profiled(tmp_path)(x, w), fn(x, w))
    torch._dynamo.reset()
    torch.testing.assert_close(profiled(tmp_path)(x, w), fn(x, w))  # without a warning


@torch.no_grad()
def test_an_unwritable_cache_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    x, w = big_args()
    with pytest.warns(vtc.errors.VtcWarning) as given:
        got = profiled(file / "below")(x, w)
    torch.testing.assert_close(got, fn(x, w))
    assert [w.category for w in given] == [vtc.errors.CacheUnwritableWarning]


@torch.no_grad()
def test_out_of_memory_while_profiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> float:
        raise vtc.errors.ProfileMemoryError("a region", 2**30, "cuda:0")

    monkeypatch.setattr(profile.timing, "microseconds", exhausted)
    x, w = big_args()
    with pytest.warns(vtc.errors.VtcWarning, match="out of memory on cuda:0") as given:
        got = profiled(tmp_path)(x, w)
    torch.testing.assert_close(got, fn(x, w))
    assert len(given) == 1
    assert not list(tmp_path.rglob("*.json"))

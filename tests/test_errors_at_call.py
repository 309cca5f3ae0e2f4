"""Where compiling fails: the process goes on, says so once, and answers right."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vtc
import vtc.compiler
from compiling import compiled, one_fallback, quick_and_strict
from vtc.lowering import guarded, implement, profile
from vtc.lowering.settings import Settings
from vtc.runtime import dvm_compile, stock

pytestmark = quick_and_strict


def fn(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x @ w, (x + 1) @ w], 0) @ w


def updating(cache: Tensor, x: Tensor, w: Tensor) -> Tensor:
    cache[1:4].copy_((x @ w).exp())
    return torch.cat([x @ w, cache], 0) @ w


def args() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(4, 4)


# A graph that is not captured.


@torch.library.custom_op("own::without_a_fake", mutates_args=())
def without_a_fake(x: Tensor) -> Tensor:
    return x.flip(0)


def raises_in_python(x: Tensor) -> Tensor:
    if isinstance(x, torch._subclasses.FakeTensor):
        raise NotImplementedError("it looks at values\nmore lines")  # as user code may
    return x + 1


UNCAPTURED = {
    "own.without_a_fake.default": lambda x: torch.ops.own.without_a_fake(x.exp()) * 2,
    "aten.item.default": lambda x: x * float(x.sum()),
    "raises_in_python": raises_in_python,
}


@torch.no_grad()
@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("name", UNCAPTURED)
def test_a_graph_that_is_not_captured_is_warned_of_by_an_operator(name: str, updates: bool) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    if updates:
        graph.call_method("add_", (x, 1))
    made = graph.call_function(UNCAPTURED[name], (x,))
    graph.output((graph.call_function(torch.neg, (made,)),))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with one_fallback("; so does its graph") as given:
        call = dvm_compile.compile_graph(module, [torch.randn(3)], Settings(engine="dvm"))
    ours = torch.randn(3)
    theirs = ours.clone()
    assert torch.equal(call(ours)[0], module(theirs)[0])
    assert torch.equal(ours, theirs)
    (warning,) = given
    assert warning.message.what == name


# A region that Inductor does not compile.


def break_inductor(
    monkeypatch: pytest.MonkeyPatch, times: int = 1, module: Any = implement
) -> None:
    """The first `times` steps that are compiled raise."""
    compile_fx, calls = module.compile_fx, []

    def broken(*arguments: Any, **kwargs: Any) -> Any:
        calls.append(arguments)
        if len(calls) <= times:
            raise RuntimeError("no kernel for this\nmore lines")
        return compile_fx(*arguments, **kwargs)

    monkeypatch.setattr(module, "compile_fx", broken)


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


class Late(torch._inductor.exc.InductorError):
    """What a kernel raises that is compiled when it is first called."""

    def __init__(self) -> None:
        RuntimeError.__init__(self, "PTXASError: no such instruction")
        self.inner_exception = RuntimeError("no such instruction")


def break_late(monkeypatch: pytest.MonkeyPatch, module: Any, inputs: int) -> None:
    """What `module` compiles raises when it is called, after it has written its inputs."""

    def broken(*_: Any, **__: Any) -> Any:
        def call(*arguments: Any) -> Any:
            for value in arguments[:inputs]:
                value.fill_(77)
            raise Late

        return call

    monkeypatch.setattr(module, "compile_fx", broken)


@torch.no_grad()
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_what_inductor_cannot_compile_runs_eagerly_from_the_values_before(
    monkeypatch: pytest.MonkeyPatch, whole: bool, late: bool
) -> None:
    graph = torch.fx.symbolic_trace(updating)
    x, w = args()
    ours, theirs = torch.randn(8, 4)[1:7], torch.zeros(6, 4)
    theirs.copy_(ours)
    module = stock if whole else implement
    if late:
        break_late(monkeypatch, module, inputs=1)
    else:
        break_inductor(monkeypatch, times=99, module=module)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        if whole:
            run = stock.compile_stock(graph, [ours, x, w])
        else:
            run = guarded.or_eager(lambda: implement.compile_fx(graph, [ours, x, w]), graph, [0])
        for _ in range(2):
            got = run(ours, x, w)
            torch.testing.assert_close(got, updating(theirs, x, w))
            torch.testing.assert_close(ours, theirs)
    (warning,) = [w for w in given if w.category is vtc.errors.FallbackWarning]
    assert "runs as eager PyTorch" in str(warning.message)


@torch.no_grad()
@pytest.mark.parametrize("message", ["Error in op: torch.ops.aten._fft_r2c.default", "x > 0"])
def test_a_layout_that_fakes_misjudged_runs_eagerly_and_other_assertions_are_raised(
    message: str,
) -> None:
    def failing(*_: Any) -> Any:
        raise AssertionError(f"expected size 10==10, stride 1==7 at dim=1\n{message}")

    run = guarded.or_eager(lambda: failing, torch.fx.symbolic_trace(fn), [])
    x, w = args()
    if message == "x > 0":
        with pytest.raises(AssertionError):
            run(x, w)
        return
    with one_fallback("matmul runs as eager PyTorch: AssertionError: expected size"):
        torch.testing.assert_close(run(x, w), fn(x, w))


@torch.no_grad()
def test_every_region_that_fails_at_its_first_call_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_late(monkeypatch, stock, inputs=0)
    break_late(monkeypatch, implement, inputs=0)
    x, w = args()
    call = compiled(fn)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        torch.testing.assert_close(call(x, w), fn(x, w))
        torch.testing.assert_close(call(x + 1, w), fn(x + 1, w))
    said = [str(w.message) for w in given if w.category is vtc.errors.FallbackWarning]
    assert len(said) == len(set(said)) == 2


@torch.no_grad()
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), IndexError("too large")])
def test_errors_of_the_program_itself_are_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any) -> Any:
        raise error

    graph = torch.fx.symbolic_trace(fn)
    run = guarded.or_eager(lambda: failing, graph, [])
    with pytest.raises(type(error)):
        run(*args())


@torch.no_grad()
def test_a_plan_that_fails_leaves_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any) -> None:
        raise vtc.errors.PlanCheckError("(ii)", "nothing was stored")

    monkeypatch.setattr(vtc.compiler, "checked", check)
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
    (warning,) = [w for w in given if w.category is vtc.errors.FallbackWarning]
    assert "runs as stock TorchInductor" in str(warning.message)
    assert not list(tmp_path.rglob("*.json"))

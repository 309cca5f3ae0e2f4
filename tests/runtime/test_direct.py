"""Direct calls: past torch.compile's wrapper where the guards hold, through it everywhere else."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import vtc
from vtc.runtime import direct, dvm_compile
from vtc.runtime.dvm import counters

scale = 2.0
calls: list[int] = []


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that go through torch.compile's wrapper."""
    found: list[str] = []

    def counting(
        function: Any, compiled: Callable[..., Any], codes: direct.Codes
    ) -> Callable[..., Any]:
        @functools.wraps(compiled)
        def through(*args: Any, **kwargs: Any) -> Any:
            found.append(function.__name__)
            return compiled(*args, **kwargs)

        return direct.direct(function, through, codes)

    monkeypatch.setattr(dvm_compile, "direct", counting)
    torch._dynamo.reset()
    return found


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def _captures(run: Callable[[], Any]) -> int:
    before = counters.captures
    run()
    return counters.captures - before


def _function() -> Callable[[Tensor, Tensor], Tensor]:
    """A new code object, which Dynamo has not seen, of a file, which Dynamo traces as it is."""
    namespace: dict[str, Any] = {"torch": torch}
    source = "def f(x, y):\n    return torch.relu(x + y) * 2 - x"
    exec(compile(source, __file__, "exec"), namespace)
    return namespace["f"]  # type: ignore[no-any-return]


def _check(compiled: Callable[..., Any], plain: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), plain(*args))


def test_calls_of_known_guards_are_direct(wrapped: list[str]) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    for n in (3, 5, 1, 17, 3):
        _check(compiled, f, torch.randn(n, 4), torch.randn(n, 4))
    assert len(wrapped) == 1
    _check(compiled, f, *torch.randn(2, 6, 8).unbind())
    assert len(wrapped) == 1


def test_other_calls_go_through_the_wrapper(wrapped: list[str]) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 3, 4).unbind()
    _check(compiled, f, x, y)
    torch.testing.assert_close(compiled(x, y=y), f(x, y))
    assert len(wrapped) == 1
    with pytest.raises(TypeError):
        compiled(x)
    with pytest.raises(TypeError):
        compiled(x, y, x)
    with torch.compiler.set_stance("force_eager"):
        assert _captures(lambda: _check(compiled, f, x.double(), y.double())) == 0
    assert len(wrapped) == 2


def test_parameters_that_a_call_leaves_out_have_the_defaults_of_then(wrapped: list[str]) -> None:
    def f(x: Tensor, factor: float = 2.0, added: float = 1.0) -> Tensor:
        return x * factor + added

    compiled = vtc.compile(f, engine="dvm")
    x = torch.randn(4)
    for _ in range(2):
        _check(compiled, f, x)
        _check(compiled, f, x, 3.0)
        torch.testing.assert_close(compiled(x, added=5.0), f(x, added=5.0))
        torch.testing.assert_close(compiled(x=x, added=5.0, factor=0.5), f(x, 0.5, 5.0))
    before = len(wrapped)
    _check(compiled, f, x, 3.0, 2.0)
    assert len(wrapped) <= before + 1
    f.__defaults__ = (7.0, -1.0)
    _check(compiled, f, x)
    _check(compiled, f, x, 3.0)


def test_positional_only_parameters_stay_so(wrapped: list[str]) -> None:
    def f(x: Tensor, y: Tensor, /) -> Tensor:
        return x - y

    compiled = vtc.compile(f, engine="dvm")
    for n in (3, 5):
        _check(compiled, f, torch.randn(n), torch.randn(n))
    assert len(wrapped) == 1
    with pytest.raises(TypeError):
        compiled(torch.randn(3), y=torch.randn(3))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.double(),
        lambda t: t.t(),
        lambda t: torch.randn(2, *t.shape),
        lambda t: t.to(torch.int32),
        lambda t: t.expand(3, *t.shape)[1],
    ],
    ids=["dtype", "layout", "rank", "integers", "offset"],
)
def test_tensors_of_another_kind_get_their_own_answer(
    change: Callable[[Tensor], Tensor], wrapped: list[str]
) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 5, 4).unbind()
    for _ in range(3):
        _check(compiled, f, x, y)
        _check(compiled, f, change(x), change(y))
    assert len(wrapped) <= 2  # then both are known


def test_what_a_function_reads_of_its_module_is_guarded(
    wrapped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * scale + 1

    compiled = vtc.compile(scaled, engine="dvm")
    x = torch.randn(6)
    for value in (2.0, 3.5, 2.0, -1.0):
        monkeypatch.setattr(sys.modules[__name__], "scale", value)
        _check(compiled, scaled, x)
        _check(compiled, scaled, x)
    assert len(wrapped) < 8


def test_side_effects_happen_in_each_call(wrapped: list[str]) -> None:
    def noting(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return x + 1

    compiled = vtc.compile(noting, engine="dvm")
    calls.clear()
    for _ in range(4):
        compiled(torch.randn(3))
    assert calls == [0, 1, 2, 3]


def test_gradients_are_not_lost(wrapped: list[str]) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 5, 4).unbind()
    _check(compiled, f, x, y)
    x.requires_grad_()
    with torch.enable_grad(), pytest.warns(vtc.errors.FallbackWarning):
        assert compiled(x, y).requires_grad
    x.requires_grad_(False)
    _check(compiled, f, x, y)
    assert len(wrapped) == 2


def test_after_a_reset_the_function_is_captured_anew(wrapped: list[str]) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 5, 4).unbind()
    compiled(x, y)
    torch._dynamo.reset()
    assert _captures(lambda: _check(compiled, f, x, y)) == 1
    assert _captures(lambda: _check(compiled, f, x, y)) == 0
    assert len(wrapped) == 2


class Holder:
    def __init__(self, value: float) -> None:
        self.value = value


def test_an_object_that_is_no_more_takes_its_code_along(wrapped: list[str]) -> None:
    def held(x: Tensor, holder: Holder) -> Tensor:
        return x * holder.value

    compiled = vtc.compile(held, engine="dvm")
    x = torch.randn(4)
    for value in range(1, 12):
        holder = Holder(value)
        torch.testing.assert_close(compiled(x, holder), x * value)
        del holder
        gc.collect()


def test_a_graph_break_leaves_the_calls_to_the_wrapper(wrapped: list[str]) -> None:
    def broken(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    compiled = vtc.compile(broken, engine="dvm")
    for n in (3, 4, 5):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), (x + 1) * 2)
    assert len(wrapped) == 3


def test_two_engines_of_one_function_keep_apart(wrapped: list[str]) -> None:
    f = _function()
    seen: list[int] = []

    def other(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            seen.append(1)
            return graph.forward(*args)

        return run

    compiled, rival = vtc.compile(f, engine="dvm"), torch.compile(f, backend=other, dynamic=True)
    x, y = torch.randn(2, 5, 4).unbind()
    for k in range(1, 4):
        _check(compiled, f, x, y)
        _check(rival, f, x, y)
        assert len(seen) == k


def test_tracers_see_the_function(wrapped: list[str]) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 5, 4).unbind()
    compiled(x, y)
    with pytest.raises(RuntimeError, match="FX"):  # as torch.compile has it
        make_fx(compiled)(x, y)
    with FakeTensorMode() as mode, pytest.warns(vtc.errors.FallbackWarning):  # runs eagerly
        assert compiled(mode.from_tensor(x), mode.from_tensor(y)).shape == (5, 4)
    whole = torch.func.vmap(compiled)(x, y)
    torch.testing.assert_close(whole, f(x, y))
    _check(compiled, f, x, y)


def test_a_caller_that_dynamo_compiles_inlines_the_function(wrapped: list[str]) -> None:
    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 5, 4).unbind()
    compiled(x, y)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    outer = torch.compile(lambda a, b: compiled(a * 2, b) + 1, backend=backend)
    torch.testing.assert_close(outer(x, y), f(x * 2, y) + 1)
    assert len(graphs) == 1


def test_the_callers_compiler_is_as_it_was(wrapped: list[str]) -> None:
    def failing(x: Tensor, n: int) -> Tensor:
        return x.view(n, -1)

    f = _function()
    compiled = vtc.compile(f, engine="dvm")
    x, y = torch.randn(2, 5, 4).unbind()
    compiled(x, y)
    before = set_eval_frame(None)
    assert before is None
    set_eval_frame(False)  # what torch.compile leaves to a caller that only runs compiled code
    try:
        compiled(x, y)
        with pytest.raises(TypeError):
            compiled(x)
    finally:
        after = set_eval_frame(before)
    assert after is False


def test_the_wrapper_gets_no_defaults() -> None:
    """A number that is passed is one that changes for Dynamo, a default is a constant."""
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def function(x: int, alpha: float = 1.5, beta: float = 2.5) -> None: ...

    def compiled(*args: Any, **kwargs: Any) -> None:
        given.append((args, kwargs))

    call = direct.direct(function, compiled, direct.Codes(function))
    call(1)
    call(1, 0.5)
    call(1, beta=0.5)
    call(x=1, alpha=1.5)
    assert given == [((1,), {}), ((1,), {"alpha": 0.5}), ((1,), {"beta": 0.5}), ((1,), {})]

"""Modes, hooks, and what is global, around direct calls of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runtime import direct_models
from runtime.direct_models import (
    MARKS,
    Model,
    assert_same,
    compiled_codes,
    new_model,
    watched,
)

pytestmark = MARKS


class _Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            return func(*args, **(kwargs or {})) * 2
        return func(*args, **(kwargs or {}))


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        _Doubled,
        lambda: torch.compiler.set_stance("force_eager"),
        lambda: torch.device("cpu"),
    ],
    ids=["gradients", "inference", "autocast", "function mode", "stance", "device"],
)
def test_modes_are_seen(mode: Callable[[], Any]) -> None:
    model = new_model()
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    with mode():
        for _ in range(2):
            x = torch.randn(5, 6)
            expected, found = model(x), compiled(x)
            assert found.dtype == expected.dtype
            assert found.requires_grad == expected.requires_grad
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)
    for _ in range(2):
        assert_same(compiled, model)


def test_gradients_reach_weights_that_were_frozen() -> None:
    model = new_model().requires_grad_(False)
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    with torch.enable_grad():
        for _ in range(2):
            assert not compiled(torch.randn(5, 6)).requires_grad
        model.second.weight.requires_grad_(True)
        x = torch.randn(5, 6)
        compiled(x).sum().backward()
        assert model.second.weight.grad is not None
        found = model.second.weight.grad.clone()
        model.second.weight.grad = None
        model(x).sum().backward()
        torch.testing.assert_close(found, model.second.weight.grad, rtol=1e-3, atol=1e-3)


def test_a_dispatch_mode_sees_the_operators() -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    with _Counting() as mode:
        assert_same(compiled, codes.model)
    assert mode.count > 5


def test_hooks_of_all_modules_run() -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, result: seen.append(type(m).__name__)
    )
    try:
        with pytest.warns(UserWarning, match="global hooks"):
            compiled(torch.randn(5, 6))
    finally:
        handle.remove()
    assert "Model" in seen
    assert_same(compiled, codes.model)


def test_another_forward_of_the_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)

    def forward(self: Model, x: Tensor, gain: float = 1.0) -> Tensor:
        return self.second(x) - 2

    monkeypatch.setattr(Model, "forward", forward)
    assert_same(compiled, codes.model)
    monkeypatch.undo()
    assert_same(compiled, codes.model)
    monkeypatch.setattr(Model.forward, "__code__", forward.__code__.replace())
    assert_same(compiled, codes.model)


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    monkeypatch.setattr(direct_models, "shift", -6.0)
    assert_same(compiled, codes.model)

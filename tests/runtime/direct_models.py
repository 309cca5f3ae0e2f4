"""A model with whatever Dynamo guards on, and calls of it that are direct and watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from vtc.runtime import direct_module, guard_watch

# Of the tests that call these models.
MARKS = [
    pytest.mark.skipif(
        not guard_watch.can_watch(), reason="this Python does not tell what is watched"
    ),
    pytest.mark.usefixtures("without_gradients"),
]

shift = 1.0


class Options:
    def __init__(self) -> None:
        self.factor = 2.0


class Scaled(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n))
        self.register_buffer("offset", torch.randn(n))
        self.scale, self.flag, self.pair = 3.0, True, (1, 2)
        self.table = {"a": 1.0, "b": {"c": 2.0}}
        self.steps = [1.0, 2.0]
        self.options = Options()
        self.bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight * self.scale + self.offset
        if self.flag:
            y = y + self.pair[1] * self.table["a"] + self.table["b"]["c"]
        for step in self.steps:
            y = y * step
        if self.bias is not None:
            y = y - self.bias
        return y * self.options.factor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.second = Scaled(6)
        self.drop = nn.Dropout(0.5)
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(2)])

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        x = self.second(self.first(x))
        for layer in self.layers:
            x = layer(x)
        return self.drop(x) * gain + shift


def new_model() -> Model:
    model = Model().eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return model


def compiled_codes(model: nn.Module, **options: Any) -> tuple[Any, direct_module._ModuleCodes]:
    compiled: Any = vtc.compile(model, **({"engine": "dvm"} | options))
    return compiled, compiled.forward.__globals__["_vtc_codes"]


def watched(compiled: Any, codes: direct_module._ModuleCodes) -> None:
    """Calls until calls are direct and watched."""
    for _ in range(3):
        assert_same(compiled, codes.model)
    assert any(code.watch is not None for code in codes.known)  # type: ignore[attr-defined]


def assert_same(compiled: Any, model: Any, *more: Any) -> None:
    x = torch.randn(5, 6, dtype=next(model.parameters()).dtype)
    torch.manual_seed(3)
    expected = model(x, *more)
    torch.manual_seed(3)
    found = compiled(x, *more)
    assert found.dtype == expected.dtype
    assert found.requires_grad == expected.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def count_calls(compiled: Any, counted: list[int]) -> None:
    """Counts the calls that go through the wrapper, in place."""
    made = compiled.forward.__globals__
    stock = made["_vtc_compiled"]

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return stock(*args, **kwargs)

    made["_vtc_compiled"] = counting

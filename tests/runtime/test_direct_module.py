"""Direct calls of modules: which calls are direct, with which arguments, and how long."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from runtime.direct_models import (
    MARKS,
    assert_same,
    compiled_codes,
    count_calls,
    new_model,
    watched,
)
from vtc.runtime import direct_module
from vtc.runtime.direct_module import PATIENCE

pytestmark = MARKS


@pytest.mark.parametrize("options", [{}, {"engine": "auto"}, {"dynamic": False}], ids=str)
def test_calls_of_an_unchanged_module_are_direct(options: dict[str, Any]) -> None:
    compiled, codes = compiled_codes(new_model(), **options)
    watched(compiled, codes)
    counted: list[int] = []
    count_calls(compiled, counted)
    for _ in range(4):
        assert_same(compiled, codes.model)
    assert_same(compiled, codes.model, 1.0)
    assert not counted


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.t().contiguous().t(),
        lambda x: x[:2],
        lambda x: x.expand(3, 5, 6)[1:],
        lambda x: x.clone().requires_grad_(),
        torch._neg_view,
        nn.Parameter,
    ],
    ids=["dtype", "strides", "shape", "rank", "gradients", "negated", "parameter"],
)
def test_other_arguments_get_their_own_answer(change: Callable[[Tensor], Tensor]) -> None:
    model = new_model()
    model.first[1] = nn.Identity()  # any rank
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    for _ in range(3):
        x = change(torch.randn(5, 6))
        if x.dtype == torch.float64:
            with pytest.raises(RuntimeError):
                compiled(x)
            continue
        with torch.set_grad_enabled(x.requires_grad):
            expected, found = model(x), compiled(x)
        assert found.requires_grad == expected.requires_grad
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_weight_as_argument() -> None:
    model = new_model()
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    for weight in (model.second.weight, model.layers[0].weight):
        torch.testing.assert_close(compiled(weight), model(weight), rtol=1e-3, atol=1e-3)


def test_parameters_and_wrong_calls() -> None:
    model = new_model()
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    x = torch.randn(5, 6)
    for _ in range(2):
        for gain in (1.0, 2.0, 3):
            torch.testing.assert_close(
                compiled(x, gain=gain), model(x, gain=gain), rtol=1e-3, atol=1e-3
            )
        torch.testing.assert_close(compiled(x=x), model(x=x), rtol=1e-3, atol=1e-3)
    for wrong in (compiled, lambda: compiled(x, 1.0, 2.0), lambda: compiled(x, y=1)):
        with pytest.raises(TypeError):
            wrong()


def test_two_models_of_a_class_keep_apart() -> None:
    models = [new_model() for _ in range(3)]
    pairs = [compiled_codes(m) for m in models]
    for _ in range(2):
        for compiled, codes in pairs:
            watched(compiled, codes)
    models[0].second.scale = 9.0
    models[1].train()
    for (compiled, _), model in zip(pairs, models, strict=True):
        assert_same(compiled, model)


def test_a_copy_calls_its_own_weights() -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    other = copy.deepcopy(compiled)
    other.second.weight.mul_(3)
    assert_same(other, other._orig_mod)
    assert_same(compiled, codes.model)


def test_after_a_reset_it_is_compiled_again() -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    torch._dynamo.reset()
    watched(compiled, codes)


def test_a_model_that_always_changes_is_no_longer_watched() -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    for k in range(PATIENCE + 2):
        codes.model.note = k
        assert_same(compiled, codes.model)
    assert codes.known[0].watch is None  # type: ignore[attr-defined]


def test_a_model_that_goes_to_and_fro_stays_watched() -> None:
    model = new_model()
    model.drop = nn.Dropout(0.0)
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    for _ in range(2):
        for mode in (True, False):
            model.drop.train(mode)
            watched(compiled, codes)
            for _ in range(PATIENCE):
                assert_same(compiled, model)
    served = [code for code in codes.known if code.watch is not None]  # type: ignore[attr-defined]
    assert served
    assert all(code.patience > 20 for code in codes.known)  # type: ignore[attr-defined]


@pytest.mark.parametrize("reset", [True, False])
def test_nothing_is_kept_alive(reset: bool) -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    gone = weakref.ref(codes.model)
    if reset:
        torch._dynamo.reset()
    del compiled, codes
    gc.collect()
    assert gone() is None


def test_any_number_of_arguments() -> None:
    class Variadic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor, y: float = 2.0, *args: Tensor, **kwargs: float) -> Tensor:
            for arg in args:
                x = x + arg * y
            return x * self.weight * kwargs.get("scale", 1.0)

    model = Variadic()
    compiled, codes = compiled_codes(model)
    x, z = torch.randn(2, 5, 6).unbind()
    for _ in range(3):
        for args, kwargs in (
            ((x,), {}), ((x, 3.0), {}), ((x, 3.0, z), {}), ((x, 3.0, z, x), {"scale": 2.0}),
            ((), {"x": x, "scale": 3.0}), ((x,), {"y": 4.0}), ((x,), {"scale": 2.0, "other": 1.0}),
        ):  # fmt: skip
            torch.testing.assert_close(compiled(*args, **kwargs), model(*args, **kwargs))
    assert codes.known


def test_what_cannot_be_called_directly_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, *, y: float = 1.0) -> Tensor:
            return x + y

    compiled: Any = vtc.compile(Named(), engine="dvm")
    assert "_vtc_codes" not in compiled.forward.__globals__
    monkeypatch.setattr(direct_module, "can_watch", lambda: False)
    compiled = vtc.compile(new_model(), engine="dvm")
    assert "_vtc_codes" not in compiled.forward.__globals__


@pytest.mark.parametrize("freeze", [True])
def test_frozen_models_are_called_directly(freeze: bool) -> None:
    model = new_model()
    frozen: Any = vtc.compile(model, options={"freeze": freeze})
    codes = frozen.compiled.forward.__globals__["_vtc_codes"]
    for _ in range(3):
        assert_same(frozen, model)
    assert codes.known
    model.second.weight.mul_(2)
    assert_same(frozen, model)
    model.second.weight = nn.Parameter(torch.randn(6, 6))
    assert_same(frozen, model)
    model.second.scale = 0.5
    assert_same(frozen, model)

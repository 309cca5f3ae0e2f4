"""Direct calls of modules: what Dynamo's guards, or a call of a module, would see is seen by the
watch."""

from __future__ import annotations

import copy
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import vtc
from vtc.runtime import direct_module, guard_watch
from vtc.runtime.direct_module import PATIENCE

shift = 1.0

pytestmark = pytest.mark.skipif(
    not guard_watch.can_watch(), reason="this Python does not tell what is watched"
)


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


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def _model() -> Model:
    model = Model().eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return model


def _compiled(model: nn.Module, **options: Any) -> tuple[Any, direct_module._ModuleCodes]:
    compiled: Any = vtc.compile(model, **({"engine": "dvm"} | options))
    return compiled, compiled.forward.__globals__["_vtc_codes"]


def _watched(compiled: Any, codes: direct_module._ModuleCodes) -> None:
    """Calls until calls are direct and watched."""
    for _ in range(3):
        _same(compiled, codes.model)
    assert any(code.watch is not None for code in codes.known)  # type: ignore[attr-defined]


def _same(compiled: Any, model: Any, *more: Any) -> None:
    x = torch.randn(5, 6, dtype=next(model.parameters()).dtype)
    torch.manual_seed(3)
    expected = model(x, *more)
    torch.manual_seed(3)
    found = compiled(x, *more)
    assert found.dtype == expected.dtype
    assert found.requires_grad == expected.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def _calls(compiled: Any, counted: list[int]) -> None:
    """Counts the calls that go through the wrapper, in place."""
    made = compiled.forward.__globals__
    stock = made["_vtc_compiled"]

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return stock(*args, **kwargs)

    made["_vtc_compiled"] = counting


@pytest.mark.parametrize("options", [{}, {"engine": "auto"}, {"dynamic": False}], ids=str)
def test_calls_of_an_unchanged_module_are_direct(options: dict[str, Any]) -> None:
    compiled, codes = _compiled(_model(), **options)
    _watched(compiled, codes)
    counted: list[int] = []
    _calls(compiled, counted)
    for _ in range(4):
        _same(compiled, codes.model)
    _same(compiled, codes.model, 1.0)
    assert not counted


def _set(path: str, value: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        *way, name = path.split(".")
        setattr(model.get_submodule(".".join(way)), name, value() if callable(value) else value)

    return change


def _item(path: str, key: Any, value: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        *way, name = path.split(".")
        getattr(model.get_submodule(".".join(way)), name)[key] = value

    return change


class Halved(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def _another_class(model: Model) -> None:
    model.first[2].__class__ = Halved


def _another_dict(model: Model) -> None:
    model.second.__dict__ = {**vars(model.second), "scale": -4.0}


def _another_forward(model: Model) -> None:
    model.second.forward = lambda x: x * 5  # type: ignore[method-assign]


def _another_forward_of_all(model: Model) -> None:
    model.forward = lambda x, gain=1.0: x * 5  # type: ignore[method-assign,assignment]


def _hooked(path: str, pre: bool = False) -> Callable[[Model], Any]:
    def change(model: Model) -> Any:
        module = model.get_submodule(path)
        if pre:
            return module.register_forward_pre_hook(lambda m, args: (args[0] * 2, *args[1:]))
        return module.register_forward_hook(lambda m, args, result: result * 2)

    return change


def _data(value: Callable[[Tensor], Tensor]) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.second.weight.data = value(model.second.weight.data)

    return change


def _rows(model: Model) -> None:
    model.first[0] = nn.Linear(6, 12)
    model.first[1] = nn.Identity()
    model.first.append(nn.Linear(12, 6))


CHANGES: dict[str, Callable[[Model], Any]] = {
    "train": lambda m: m.train(),
    "train a part": lambda m: m.first[1].train(),
    "drop": lambda m: m.drop.train(),
    "number": _set("second.scale", 7.0),
    "integer for float": _set("second.scale", 7),
    "flag": _set("second.flag", False),
    "tuple": _set("second.pair", (1, 5)),
    "none to tensor": _set("second.bias", lambda: torch.randn(6)),
    "deleted bias": _set("first.0.bias", None),
    "item": _item("second.table", "a", 5.0),
    "item of an item": lambda m: m.second.table["b"].update(c=9.0),
    "list": _item("second.steps", 0, 4.0),
    "longer list": lambda m: m.second.steps.append(0.5),
    "object": lambda m: setattr(m.second.options, "factor", 3.0),
    "another object": lambda m: setattr(m.second, "options", types.SimpleNamespace(factor=4.0)),
    "parameter": _set("second.weight", lambda: nn.Parameter(torch.randn(6, 6))),
    "shared parameter": lambda m: setattr(m.second, "weight", m.layers[0].weight),
    "buffer": _set("second.offset", lambda: torch.randn(6)),
    "scalar buffer": _set("second.offset", lambda: torch.randn(1)),
    "submodule": _set("drop", nn.ReLU),
    "in a Sequential": lambda m: m.first.__setitem__(2, nn.Sigmoid()),
    "longer Sequential": lambda m: m.first.append(nn.Tanh()),
    "shorter Sequential": lambda m: m.first.__delitem__(2),
    "longer ModuleList": lambda m: m.layers.append(nn.Linear(6, 6)),
    "other sizes": _rows,
    "in place": lambda m: m.second.weight.mul_(2),
    "load": lambda m: m.load_state_dict(_model().state_dict()),
    "data": _data(torch.randn_like),
    "data turned": _data(torch.t),
    "data of a view": _data(lambda t: torch.randn(12, 12)[::2, ::2]),
    "data negated": _data(torch._neg_view),
    "turned in place": lambda m: m.second.weight.t_(),
    "double": lambda m: m.double(),
    "bfloat16 and back": lambda m: m.bfloat16().float(),
    "class": _another_class,
    "attributes": _another_dict,
    "forward of a part": _another_forward,
    "forward": _another_forward_of_all,
    "hook": _hooked(""),
    "hook before": _hooked("", pre=True),
    "hook of a part": _hooked("first.0"),
    "hook before a part": _hooked("second", pre=True),
    "hook of a part without weights": _hooked("first.2"),
    "hook of a list's part": _hooked("layers.1"),
    "momentum and eps": _set("first.1.eps", 0.5),
}


AUTO = ("train", "number", "parameter", "hook", "hook of a part", "data turned")


@pytest.mark.parametrize(
    ("name", "engine"), [*((n, "dvm") for n in CHANGES), *((n, "auto") for n in AUTO)]
)
def test_a_change_of_the_model_is_seen(name: str, engine: str) -> None:
    model = _model()
    compiled, codes = _compiled(model, engine=engine)
    _watched(compiled, codes)
    CHANGES[name](model)
    for _ in range(3):
        _same(compiled, model)


@pytest.mark.parametrize(
    "name", ["train", "number", "hook", "hook of a part", "submodule", "parameter"]
)
def test_a_change_that_is_taken_back_is_seen(name: str) -> None:
    model = _model()
    kept = copy.deepcopy(model)
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
    handle = CHANGES[name](model)
    _same(compiled, model)
    if name == "train":
        model.load_state_dict(kept.state_dict())
        model.eval()
    elif name.startswith("hook"):
        handle.remove()
    elif name == "number":
        model.second.scale = 3.0
    elif name == "submodule":
        model.drop = nn.Dropout(0.5).eval()
    else:
        model.second.weight = kept.second.weight
    for _ in range(3):
        _same(compiled, model)
        _same(compiled, kept)


def test_hooks_of_others_leave_calls_direct() -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
    counted: list[int] = []
    _calls(compiled, counted)
    other = nn.Linear(2, 2)
    for _ in range(40):  # more often than a watch is begun again
        other.register_forward_hook(lambda *_: None)
        _same(compiled, codes.model)
    assert not counted
    assert any(code.watch is not None for code in codes.known)  # type: ignore[attr-defined]


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
    model = _model()
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
    with mode():
        for _ in range(2):
            x = torch.randn(5, 6)
            expected, found = model(x), compiled(x)
            assert found.dtype == expected.dtype
            assert found.requires_grad == expected.requires_grad
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)
    for _ in range(2):
        _same(compiled, model)


def test_gradients_reach_weights_that_were_frozen() -> None:
    model = _model().requires_grad_(False)
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
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
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
    with _Counting() as mode:
        _same(compiled, codes.model)
    assert mode.count > 5


def test_hooks_of_all_modules_run() -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
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
    _same(compiled, codes.model)


def test_another_forward_of_the_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)

    def forward(self: Model, x: Tensor, gain: float = 1.0) -> Tensor:
        return self.second(x) - 2

    monkeypatch.setattr(Model, "forward", forward)
    _same(compiled, codes.model)
    monkeypatch.undo()
    _same(compiled, codes.model)
    monkeypatch.setattr(Model.forward, "__code__", forward.__code__)
    _same(compiled, codes.model)


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
    monkeypatch.setitem(globals(), "shift", -6.0)
    _same(compiled, codes.model)


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
    model = _model()
    model.first[1] = nn.Identity()  # any rank
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
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
    model = _model()
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
    for weight in (model.second.weight, model.layers[0].weight):
        torch.testing.assert_close(compiled(weight), model(weight), rtol=1e-3, atol=1e-3)


def test_parameters_and_wrong_calls() -> None:
    model = _model()
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
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
    models = [_model() for _ in range(3)]
    pairs = [_compiled(m) for m in models]
    for _ in range(2):
        for compiled, codes in pairs:
            _watched(compiled, codes)
    models[0].second.scale = 9.0
    models[1].train()
    for (compiled, _), model in zip(pairs, models, strict=True):
        _same(compiled, model)


def test_a_copy_calls_its_own_weights() -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
    other = copy.deepcopy(compiled)
    other.second.weight.mul_(3)
    _same(other, other._orig_mod)
    _same(compiled, codes.model)


def test_after_a_reset_it_is_compiled_again() -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
    torch._dynamo.reset()
    _watched(compiled, codes)


def test_a_model_that_always_changes_is_no_longer_watched() -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
    for k in range(PATIENCE + 2):
        codes.model.note = k
        _same(compiled, codes.model)
    assert codes.known[0].watch is None  # type: ignore[attr-defined]


def test_a_model_that_goes_to_and_fro_stays_watched() -> None:
    model = _model()
    model.drop = nn.Dropout(0.0)
    compiled, codes = _compiled(model)
    _watched(compiled, codes)
    for _ in range(2):
        for mode in (True, False):
            model.drop.train(mode)
            _watched(compiled, codes)
            for _ in range(PATIENCE):
                _same(compiled, model)
    served = [code for code in codes.known if code.watch is not None]  # type: ignore[attr-defined]
    assert served
    assert all(code.patience > 20 for code in codes.known)  # type: ignore[attr-defined]


@pytest.mark.parametrize("reset", [True, False])
def test_nothing_is_kept_alive(reset: bool) -> None:
    compiled, codes = _compiled(_model())
    _watched(compiled, codes)
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
    compiled, codes = _compiled(model)
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
    compiled = vtc.compile(_model(), engine="dvm")
    assert "_vtc_codes" not in compiled.forward.__globals__


@pytest.mark.parametrize("freeze", [True])
def test_frozen_models_are_called_directly(freeze: bool) -> None:
    model = _model()
    frozen: Any = vtc.compile(model, options={"freeze": freeze})
    codes = frozen.compiled.forward.__globals__["_vtc_codes"]
    for _ in range(3):
        _same(frozen, model)
    assert codes.known
    model.second.weight.mul_(2)
    _same(frozen, model)
    model.second.weight = nn.Parameter(torch.randn(6, 6))
    _same(frozen, model)
    model.second.scale = 0.5
    _same(frozen, model)

"""A change of a model after calls of it have become direct is seen by the watch."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime.direct_models import (
    MARKS,
    Model,
    assert_same,
    compiled_codes,
    count_calls,
    new_model,
    watched,
)

pytestmark = MARKS


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
    "load": lambda m: m.load_state_dict(new_model().state_dict()),
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
    model = new_model()
    compiled, codes = compiled_codes(model, engine=engine)
    watched(compiled, codes)
    CHANGES[name](model)
    for _ in range(3):
        assert_same(compiled, model)


@pytest.mark.parametrize(
    "name", ["train", "number", "hook", "hook of a part", "submodule", "parameter"]
)
def test_a_change_that_is_taken_back_is_seen(name: str) -> None:
    model = new_model()
    kept = copy.deepcopy(model)
    compiled, codes = compiled_codes(model)
    watched(compiled, codes)
    handle = CHANGES[name](model)
    assert_same(compiled, model)
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
        assert_same(compiled, model)
        assert_same(compiled, kept)


def test_hooks_of_others_leave_calls_direct() -> None:
    compiled, codes = compiled_codes(new_model())
    watched(compiled, codes)
    counted: list[int] = []
    count_calls(compiled, counted)
    other = nn.Linear(2, 2)
    for _ in range(40):  # more often than a watch is begun again
        other.register_forward_hook(lambda *_: None)
        assert_same(compiled, codes.model)
    assert not counted
    assert any(code.watch is not None for code in codes.known)  # type: ignore[attr-defined]

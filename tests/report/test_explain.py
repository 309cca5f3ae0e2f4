"""`vtc.explain` hands the call to the compiler as it is, and labels what comes back."""

from typing import Any

import pytest
import torch

from vtc import Options
from vtc.errors import UnknownChoiceError
from vtc.report.explain import explain
from vtc.virtual.record import GraphReport


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, graph: GraphReport) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def compile_records(model: Any, args: Any, kwargs: Any, **settings: Any) -> list[GraphReport]:
        made.append({"model": model, "args": args, "kwargs": kwargs, **settings})
        return [graph]

    monkeypatch.setattr("vtc.report.explain.compile_records", compile_records)
    return made


def test_arguments_and_settings_reach_the_compiler(calls: list[dict[str, Any]]) -> None:
    model, x, mask = torch.nn.Linear(2, 3), torch.zeros(4, 2), torch.ones(4)
    report = explain(
        model, x, mask=mask, search="exhaustive", objective="memory", options=Options(freeze=True)
    )
    (call,) = calls
    assert call["model"] is model
    assert call["args"][0] is x
    assert call["kwargs"] == {"mask": mask}
    assert (call["engine"], call["objective"]) == ("auto", "memory")
    assert call["options"] == Options(freeze=True, search="exhaustive")
    assert (report.model, report.device) == ("Linear", "cpu")
    assert report.settings == {
        "dtype": "float32",
        "engine": "auto",
        "objective": "memory",
        "search": "exhaustive",
        "freeze": True,
    }


def test_a_function_is_named_and_its_dtype_is_that_of_its_arguments(
    calls: list[dict[str, Any]],
) -> None:
    def double(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x[i] * 2

    report = explain(double, torch.tensor([1]), torch.zeros(3, dtype=torch.float64))
    assert report.model == "double"
    assert report.settings["dtype"] == "float64"


def test_an_unknown_search_is_refused_before_anything_is_compiled(
    calls: list[dict[str, Any]],
) -> None:
    search: Any = "random"
    with pytest.raises(UnknownChoiceError, match="search 'random'"):
        explain(torch.nn.Linear(2, 3), torch.zeros(4, 2), search=search)
    assert calls == []

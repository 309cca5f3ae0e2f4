"""The DVM engine from `vtc.compile` to the native machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import vtc
from patterns.dynamic_patterns import DYNAMIC
from vtc.runtime import dvm
from vtc.runtime.dvm import counters

try:
    dvm.native_machine()
except vtc.errors.EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("error::vtc.errors.VtcWarning"),
    pytest.mark.usefixtures("clean_dynamo"),
]
r = torch.randn
TWICE = {"rms_norm_of_any_batch_144068", "decode_context_grows"}


def copies(args: Any) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


@pytest.fixture(autouse=True)
def from_zero() -> None:
    counters.reset()


@pytest.mark.parametrize("name", DYNAMIC)
@torch.no_grad()
def test_a_pattern_runs_without_compiling_again(name: str) -> None:
    fn, calls = DYNAMIC[name]()
    compiled = vtc.compile(fn, engine="dvm")
    for args in [*calls, *calls]:
        ours, theirs = copies(args), copies(args)
        torch.testing.assert_close(compiled(*ours), fn(*theirs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs)
    assert counters.captures == (2 if name in TWICE else 1)
    assert counters.compilations == 0


@torch.no_grad()
def test_a_known_size_is_not_encoded_again() -> None:
    compiled = vtc.compile(lambda x: x.softmax(-1) * 2, engine="dvm")
    for n in (3, 5, 3, 5, 7, 3):
        compiled(r(n, 9))
    assert (counters.captures, counters.encodes) == (1, 3)


@torch.no_grad()
def test_old_encodings_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dvm, "KEPT", 2)
    compiled = vtc.compile(lambda x: x + 1, engine="dvm")
    for n in (3, 5, 7, 3):
        assert torch.equal(compiled(torch.ones(n, 2)), torch.full((n, 2), 2.0))
    assert counters.encodes == 4


@torch.no_grad()
def test_as_a_backend_of_torch_compile() -> None:
    fn = torch.compile(
        lambda x, y: (x @ y).relu(), backend="vtc", options={"engine": "dvm"}, dynamic=True
    )
    for n in (4, 9):
        x, y = r(n, 6), r(6, 3)
        torch.testing.assert_close(fn(x, y), (x @ y).relu())
    assert counters.captures == 1


@torch.no_grad()
def test_arguments_that_overlap_are_seen_to() -> None:
    def update(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b

    compiled = vtc.compile(update, engine="dvm")
    compiled(r(8), r(8))
    ours, theirs = (torch.arange(9.0) for _ in range(2))
    assert torch.equal(compiled(ours[:-1], ours[1:]), update(theirs[:-1], theirs[1:]))
    assert torch.equal(ours, theirs)


@torch.no_grad()
def test_an_index_out_of_range_is_an_error() -> None:
    compiled = vtc.compile(lambda x, i: x[i] * 2, engine="dvm")
    compiled(r(6, 3), torch.tensor([5, -6]))
    with pytest.raises(IndexError, match="out of"):
        compiled(r(6, 3), torch.tensor([0, 6]))


@torch.no_grad()
def test_what_has_no_kernel_is_named_once() -> None:
    compiled = vtc.compile(lambda x: (x * 2).sort(-1).values + 1, engine="dvm")
    x = r(4, 6)
    with pytest.warns(vtc.errors.FallbackWarning, match="sort"):
        assert torch.equal(compiled(x), (x * 2).sort(-1).values + 1)
    compiled(r(5, 6))
    assert counters.eager == 2


def test_the_report_shows_the_tile_programs() -> None:
    (record,) = vtc.compiler.compile_records(
        lambda x: x.t().softmax(-1), (r(4, 5),), {}, engine="dvm"
    )
    assert record.engine == "dvm"
    assert "reduce f32 max" in record.texts["tile programs"]
    assert record.movement.residual == 0


@torch.no_grad()
def test_a_model_keeps_its_weights_where_they_are() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    compiled = vtc.compile(model, engine="dvm")
    for n in (4, 7):
        x = r(n, 6)
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.mul_(2)
    assert counters.captures == 1

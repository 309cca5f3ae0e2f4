"""Exported and frozen models of the DVM's are bound to their weights: no answer is for old ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from vtc import errors
from vtc.runtime import dvm, unchanged
from vtc.runtime.bound import Bound

pytest.importorskip("vtc.vm._native")


class Net(nn.Module):
    """Weights that are packed, weights that are read where they lie, and a part in a part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Linear(32, 32)
        self.shift = nn.Parameter(torch.randn(32))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).mean((2, 3))) * self.shift


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    dvm.counters.reset()
    with torch.no_grad():
        yield


def net() -> Net:
    model = Net().eval()
    for own in model.buffers():
        if own.is_floating_point():
            own.uniform_(0.5, 1.5)
    return model


def images() -> Tensor:
    return torch.randn(2, 4, 6, 6)


def exported(model: nn.Module) -> Any:
    return vtc.export(model, (images(),), engine="dvm")


def frozen(model: nn.Module) -> Any:
    return vtc.compile(model, engine="dvm", dynamic=False, options={"freeze": True})


def live(model: nn.Module) -> Any:
    return vtc.export(model, (images(),), engine="dvm", options={"freeze": False})


def assert_as_eager(call: Callable[[Tensor], Tensor], model: nn.Module) -> None:
    x = images()
    torch.testing.assert_close(call(x), model(x), atol=1e-4, rtol=1e-4)


def _data(m: Net) -> None:
    m.head.weight.data = torch.randn(32, 32)


def _set(m: Net) -> None:
    m.head.weight.set_(torch.randn(32, 32))


def _parameter(m: Net) -> None:
    m.head.weight = nn.Parameter(torch.randn(32, 32))


def _item(m: Net) -> None:
    m.head._parameters["weight"] = nn.Parameter(torch.randn(32, 32))


def _dictionary(m: Net) -> None:
    m.head._parameters = {**m.head._parameters, "bias": nn.Parameter(torch.randn(32))}


def _part(m: Net) -> None:
    m.head = nn.Linear(32, 32)


def _part_of_a_part(m: Net) -> None:
    m.inner[0] = nn.Conv2d(4, 32, 3, padding=1)


def _parts(m: Net) -> None:
    m.inner._modules = {**m.inner._modules, "0": nn.Conv2d(4, 32, 3, padding=1)}


def _buffer(m: Net) -> None:
    m.inner[1].running_mean = torch.randn(32)


def _deleted(m: Net) -> None:
    del m.shift
    m.shift = nn.Parameter(torch.randn(32))


def _loaded(m: Net) -> None:
    m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})


def _assigned(m: Net) -> None:
    m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True)


CHANGES = [
    lambda m: m.head.weight.mul_(2),
    lambda m: m.head.bias.add_(1),
    lambda m: m.shift.zero_(),
    lambda m: m.inner[0].weight.neg_(),
    lambda m: m.inner[1].running_var.add_(1),
    lambda m: m.inner[1].weight[3:].add_(1),
    _data, _set, _parameter, _item, _dictionary, _part, _part_of_a_part, _parts, _buffer, _deleted,
    _loaded, _assigned,
]  # fmt: skip


@pytest.mark.parametrize("make", [exported, frozen, live])
@pytest.mark.parametrize("counted", [True, False])
def test_no_change_of_a_weight_leaves_an_old_answer(
    make: Callable[[nn.Module], Any], counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not counted:  # as where CPython counts no changes of dictionaries
        monkeypatch.setattr(unchanged.machine._native, "dicts_are_counted", lambda: False)
    model = net()
    call = make(model)
    for _ in range(2):
        assert_as_eager(call, model)
    for change in CHANGES:
        if make is frozen:  # or Dynamo, which compiles again for another tensor, would give up
            torch._dynamo.reset()
            assert_as_eager(call, model)
        change(model)
        for _ in range(2):
            assert_as_eager(call, model)


def _turned(m: Net) -> None:
    m.head.weight.data = m.head.weight.data.t()


def _turned_in_place(m: Net) -> None:
    m.head.weight.t_()


def _viewed(m: Net) -> None:
    m.shift.data = m.shift.data.view(1, 32)


REFUSED = (errors.WeightsChangedError, errors.SignatureError)


@pytest.mark.parametrize("make", [exported, frozen, live])
@pytest.mark.parametrize("change", [_turned, _turned_in_place, _viewed])
def test_a_weight_that_is_laid_out_otherwise_in_its_place_is_refused(
    make: Callable[[nn.Module], Any], change: Callable[[Net], None]
) -> None:
    model = net()
    call = make(model)
    assert_as_eager(call, model)
    change(model)
    for _ in range(2):
        with pytest.raises(
            (errors.WeightsChangedError, errors.SignatureError), match=r"head|shift"
        ):
            call(images())


def test_a_call_looks_nothing_up_and_packs_nothing() -> None:
    model = net()
    call = exported(model)
    assert isinstance(call.trace.graph.run, Bound)
    assert_as_eager(call, model)
    packs, encodes = dvm.counters.packs, dvm.counters.encodes
    assert packs > 0
    assert call.trace.weights.unchanged()
    for _ in range(3):
        assert_as_eager(call, model)
    assert (dvm.counters.packs, dvm.counters.encodes) == (packs, encodes)
    model.shift.add_(1)  # read where it lies: nothing is packed again
    assert_as_eager(call, model)
    assert (dvm.counters.packs, dvm.counters.encodes) == (packs, encodes)
    model.inner[0].weight.add_(1)
    assert_as_eager(call, model)
    assert dvm.counters.packs == packs + 1
    assert dvm.counters.encodes == encodes


def test_an_attribute_that_is_no_weight_asks_the_guards_again_and_changes_nothing() -> None:
    model = net()
    call = exported(model)
    assert_as_eager(call, model)
    model.note = "a note"
    assert not call.trace.weights.unchanged()
    trace = call.trace
    assert_as_eager(call, model)
    assert call.trace is trace
    assert trace.weights.unchanged()


def test_inference_tensors_are_packed_in_each_call() -> None:
    with torch.inference_mode():
        model = net()
        call = exported(model)
        assert_as_eager(call, model)
        model.inner[0].weight.mul_(2)
        assert_as_eager(call, model)


def test_weights_outside_of_modules_are_asked_for_by_the_guards() -> None:
    weights = [torch.randn(8, 8)]

    class Listed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ weights[0]

    model, x = Listed(), torch.randn(3, 8)
    call = vtc.export(model, (x,), engine="dvm")
    for change in (lambda: None, lambda: weights[0].mul_(2), lambda: None):
        change()
        torch.testing.assert_close(call(x), model(x))


@pytest.mark.parametrize("freeze", [True, False])
def test_a_shared_weight_is_seen_from_each_place(freeze: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    x = torch.randn(3, 8)
    call = vtc.export(model, (x,), engine="dvm", options={"freeze": freeze})
    torch.testing.assert_close(call(x), model(x))
    model[2].weight = nn.Parameter(torch.randn(8, 8))
    torch.testing.assert_close(call(x), model(x))
    model[0].weight.mul_(3)
    torch.testing.assert_close(call(x), model(x))


@pytest.mark.parametrize("freeze", [True, False])
def test_one_tensor_passed_twice_at_export_may_be_two_in_a_call(freeze: bool) -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + 2 * b

    model, x, y = Sum(), torch.randn(3), torch.randn(3)
    call = vtc.export(model, (x, x), engine="dvm", options={"freeze": freeze})
    for pair in ((x, x), (x, y), (y, y), (y, x)):
        torch.testing.assert_close(call(*pair), model(*pair))


def test_a_result_is_new_in_each_call_and_a_returned_weight_is_the_weight() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.lin(x), self.lin.weight[2:]

    model, x = Both(), torch.randn(3, 8)
    call = vtc.export(model, (x,), engine="dvm")
    first, rows = call(x)
    kept = first.clone()
    second, _ = call(torch.randn(3, 8))
    assert torch.equal(first, kept)
    assert first.data_ptr() != second.data_ptr()
    assert rows.data_ptr() == model.lin.weight[2:].data_ptr()


def test_threads_call_one_model_while_weights_change_between_calls() -> None:
    model = net()
    call = exported(model)
    x = images()
    for _ in range(5):
        model.inner[0].weight.add_(0.1)
        want, found = model(x), []

        def work(found: list[Tensor] = found) -> None:
            with torch.no_grad():
                found.append(call(x))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        for got in found:
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)

"""Prepacked operands are never stale, and computed no more often than they change."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
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


@pytest.fixture(autouse=True)
def from_zero() -> None:
    counters.reset()


def model() -> nn.Module:
    found = nn.Sequential(nn.Linear(40, 70), nn.ReLU(), nn.Linear(70, 33), nn.BatchNorm1d(33))
    norm: Any = found[3]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return found.eval()


def agrees(compiled: Any, plain: nn.Module, rows: int = 50) -> None:
    x = r(rows, 40)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x), rtol=1e-4, atol=1e-4)


def change(own: nn.Module, how: str) -> None:
    first, norm = own[0], own[3]  # type: ignore[index]
    with torch.no_grad():
        if how == "in place":
            first.weight.mul_(2)
        elif how == "a buffer in place":
            norm.running_var.mul_(3)
        elif how == "data":
            first.weight.data = r(70, 40)
        elif how == "a parameter of its own":
            first.weight = nn.Parameter(r(70, 40))
        elif how == "load_state_dict":
            own.load_state_dict({k: v + 1 for k, v in own.state_dict().items()})
        elif how == "copy":
            first.weight.copy_(r(70, 40))
        else:
            torch.optim.SGD(own.parameters(), 0.5).zero_grad()
            first.weight.grad = r(70, 40)
            torch.optim.SGD(own.parameters(), 0.5).step()


CHANGES = ["in place", "a buffer in place", "data", "a parameter of its own", "load_state_dict",
           "copy", "an optimizer"]  # fmt: skip


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_weight_is_packed_again(how: str) -> None:
    own = model()
    compiled = vtc.compile(own, engine="dvm")
    agrees(compiled, own)
    packs = counters.packs
    assert packs == 4  # two panels, and the norm's scale and shift
    agrees(compiled, own)
    assert counters.packs == packs
    change(own, how)
    agrees(compiled, own)
    assert packs < counters.packs
    packs = counters.packs
    agrees(compiled, own, rows=60)
    assert counters.packs == packs


def test_an_address_that_was_given_back_is_no_old_weight() -> None:
    """Tensors that take each other's place in memory: a kept copy holds on to its weight's."""
    own = nn.Linear(64, 64)
    compiled = vtc.compile(own, engine="dvm")
    for _ in range(6):
        own.weight.data = r(64, 64)
        x = r(20, 64)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), own(x), rtol=1e-4, atol=1e-4)


def test_copies_of_replaced_weights_are_given_back() -> None:
    """Neither they nor the memory of the weights that they were made from."""
    own = nn.Linear(64, 64)
    compiled = vtc.compile(own, engine="dvm")
    old = []
    x = r(20, 64)
    for _ in range(4):
        own.weight.data = r(64, 64)
        old.append(weakref.ref(own.weight.untyped_storage()))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), own(x), rtol=1e-4, atol=1e-4)
    assert [one() is None for one in old] == [True] * 3 + [False]


def test_few_rows_need_no_copies() -> None:
    own = nn.Linear(40, 70)
    compiled = vtc.compile(own, engine="dvm")
    x = r(3, 40)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), own(x))
        assert counters.packs == 0
        torch.testing.assert_close(compiled(r(16, 40)).shape, torch.Size([16, 70]))
    assert counters.packs == 1


def test_no_copies_without_room_for_them() -> None:
    own = model()
    compiled = vtc.compile(own, engine="dvm", options={"prepack_mib": 0})
    agrees(compiled, own)
    assert counters.packs == 0


def test_layers_that_share_a_graph_keep_a_copy_each() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(40, 40)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).relu()

    blocks = [Block() for _ in range(3)]
    compiled = [vtc.compile(b, engine="dvm") for b in blocks]
    x = r(30, 40)
    with torch.no_grad():
        for _ in range(3):
            for block, one in zip(blocks, compiled, strict=True):
                torch.testing.assert_close(one(x), block(x))
    assert counters.packs == 3


def test_inference_tensors_are_never_stale() -> None:
    """They count no versions: what is computed from them is computed at every call."""
    with torch.inference_mode():
        own = nn.Linear(40, 70)
        compiled = vtc.compile(own, engine="dvm")
        for _ in range(3):
            x = r(20, 40)
            torch.testing.assert_close(compiled(x), own(x))
            own.weight.mul_(2)


def test_an_output_is_no_kept_copy() -> None:
    weight = nn.Parameter(r(40, 40))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            scaled = self.weight.exp()
            return x * scaled, scaled

    own = Own()
    compiled = vtc.compile(own, engine="dvm")
    x = r(40, 40)
    with torch.no_grad():
        _, given = compiled(x)
        given.zero_()
        torch.testing.assert_close(compiled(x), own(x))


def test_an_eager_operator_takes_what_is_kept() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(r(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            scaled = self.weight.exp()
            return torch.linalg.inv(scaled.t() + 0 * x) + torch.linalg.det(scaled.t()) + x * scaled

    own = Own()
    x = r(6, 6)
    compiled = vtc.compile(own, engine="dvm")
    with torch.no_grad():
        with pytest.warns(vtc.errors.FallbackWarning):
            found = compiled(x)
        torch.testing.assert_close(found, own(x), rtol=1e-3, atol=1e-3)


def test_an_updated_buffer_is_seen_by_those_who_read_it() -> None:
    """A program that writes a buffer counts its version up: another keeps a copy made from it."""

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(40))

        def forward(self, x: Tensor) -> Tensor:
            self.scale.add_(x)
            return x * 2

    class Reader(nn.Module):
        def __init__(self, scale: Tensor) -> None:
            super().__init__()
            self.register_buffer("scale", scale)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(self.scale.abs() + 1)

    writer = Writer()
    reader = Reader(writer.scale)
    write, read = (vtc.compile(m, engine="dvm") for m in (writer, reader))
    with torch.no_grad():
        for _ in range(3):
            x = r(7, 40)
            torch.testing.assert_close(read(x), reader(x))
            write(r(40))
    assert counters.packs == 3


def test_threads_call_one_model_while_weights_change_between_calls() -> None:
    own = model()
    compiled = vtc.compile(own, engine="dvm")
    agrees(compiled, own)
    wrong: list[float] = []

    def work(x: Tensor, expected: Tensor) -> None:
        with torch.no_grad():
            wrong.extend(float((compiled(x) - expected).abs().max()) for _ in range(20))

    for _ in range(3):
        change(own, "in place")
        inputs = [r(20 + 5 * k, 40) for k in range(4)]
        with torch.no_grad():
            threads = [threading.Thread(target=work, args=(x, own(x))) for x in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(wrong) == 240
    assert max(wrong) < 1e-3

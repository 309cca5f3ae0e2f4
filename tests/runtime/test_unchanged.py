"""Changes of tensors are seen by address and version, in native code and in Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vtc.runtime import unchanged


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(unchanged, "_functions", lambda: None)
    return request.param


def _data(t: Tensor) -> None:
    t.data = torch.zeros(3)


def _moved(t: Tensor) -> None:
    t.set_(torch.zeros(3))


@pytest.mark.parametrize("number", [0, 9, 19])
@pytest.mark.parametrize("change", [Tensor.zero_, lambda t: t.view(-1)[0].add_(1), _data, _moved])
def test_a_change_of_any_tensor_is_seen(
    way: str, number: int, change: Callable[[Tensor], object]
) -> None:
    tensors = [torch.ones(3) for _ in range(20)]
    same = unchanged.watch(tensors, [True] * 20)
    assert same()
    assert same()
    with torch.no_grad():
        change(tensors[number])
    assert not same()
    assert unchanged.watch(tensors, [True] * 20)()


def test_versions_that_do_not_matter_are_not_looked_at(way: str) -> None:
    counted, other = torch.ones(3), torch.ones(3)
    same = unchanged.watch([counted, other], [True, False])
    other.zero_()
    assert same()
    _data(other)
    assert not same()


def test_an_inference_tensor_has_an_address_and_no_version(way: str) -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
    assert unchanged.watch([tensor], [False])()
    with pytest.raises(RuntimeError, match="version"):
        unchanged.watch([tensor], [True])


def test_tensors_live_as_long_as_their_watch(way: str) -> None:
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    same = unchanged.watch([tensor], [True])
    del tensor
    gc.collect()
    assert same()
    assert alive() is not None
    del same
    gc.collect()
    assert alive() is None


def test_libtorch_exports_what_the_native_way_asks_for() -> None:
    assert unchanged._functions() is not None

"""Changes of tensors are seen by address and version, in native code and in Python."""

from __future__ import annotations

import gc
import sys
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


def _turned(t: Tensor) -> None:
    t.data = t.data.t()


def _reshaped(t: Tensor) -> None:
    t.data = t.data.view(9)


def _another_dtype(t: Tensor) -> None:
    t.data = t.data.view(torch.int32)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("change", [Tensor.t_, _turned, _reshaped, _another_dtype])
def test_another_layout_in_the_same_place_is_seen(
    way: str, change: Callable[[Tensor], object], counted: bool
) -> None:
    tensors = [torch.ones(3, 3) for _ in range(20)]
    same = unchanged.watch(tensors, [counted] * 20)
    assert same()
    change(tensors[7])
    assert not same()
    assert unchanged.watch(tensors, [counted] * 20)()


def test_the_insides_of_a_watched_tensor_are_not_exchanged() -> None:
    tensors = [torch.ones(3), torch.zeros(3)]
    same = unchanged.watch(tensors, [True, True])
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(tensors[0], torch.zeros(3))
    assert same()


class _Held:
    """Its attributes lie in its own dictionary."""

    def __init__(self) -> None:
        self.value = 1


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="CPython counts no changes any more")
@pytest.mark.parametrize("number", [0, 17, 39])
def test_a_change_of_any_dictionary_is_seen(number: int) -> None:
    held = [_Held() for _ in range(40)]
    same = unchanged.watch_dicts([vars(h) for h in held])
    for _ in range(100):  # until the interpreter has specialised what it does
        assert same()
    own = held[number]

    def deleted() -> None:
        del own.value

    def assigned(k: int) -> None:
        own.value = k

    changes = [lambda k=k: assigned(1000 + k) for k in range(50)]
    changes += [lambda: vars(own).update(more=2), deleted, lambda: setattr(own, "value", 3)]
    changes += [lambda: vars(own).clear(), lambda: vars(own).setdefault("value", 4)]
    for change in changes:
        change()
        assert not same()
        same = unchanged.watch_dicts([vars(h) for h in held])
        assert same()


def test_only_dictionaries_are_watched_so() -> None:
    with pytest.raises(TypeError):
        unchanged.watch_dicts([[1]])  # type: ignore[list-item]


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


@pytest.mark.parametrize("change", [_data, _moved, Tensor.t_, lambda t: t.requires_grad_()])
def test_the_same_tensors_of_the_next_call_are_known(change: Callable[[Tensor], object]) -> None:
    same: unchanged.Same[str] = unchanged.Same()
    tensors = [torch.ones(3, 3) for _ in range(4)]
    assert same(tensors) is None
    same.note(tensors, "found")
    tensors[2].add_(1)  # values do not matter
    assert same(tensors) == "found"
    assert same(tensors[:3]) is None
    assert same([*tensors[:3], tensors[3].clone()]) is None
    assert same(list(reversed(tensors))) is None
    with torch.no_grad():
        change(tensors[1])
    assert same(tensors) is None


def test_noted_tensors_are_not_kept_alive() -> None:
    same: unchanged.Same[int] = unchanged.Same()
    tensors = [torch.ones(3), torch.ones(3)]
    same.note(tensors, 1)
    gone = weakref.ref(tensors[0])
    del tensors[0]
    gc.collect()
    assert gone() is None
    assert same([torch.ones(3), tensors[0]]) is None


def test_tensors_that_always_differ_are_no_longer_noted() -> None:
    same: unchanged.Same[int] = unchanged.Same()
    for k in range(unchanged.MISSES):
        tensors = [torch.ones(3)]
        same.note(tensors, k)
        assert same.known is not None
    same.note(tensors, 0)
    assert same.known is None
    assert same(tensors) is None


def test_without_what_libtorch_exports_no_tensors_are_known(monkeypatch) -> None:
    monkeypatch.setattr(unchanged, "_functions", lambda: None)
    same: unchanged.Same[int] = unchanged.Same()
    tensors = [torch.ones(3)]
    same.note(tensors, 1)
    assert same(tensors) is None

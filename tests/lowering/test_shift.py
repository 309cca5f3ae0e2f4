"""Caches that move on: recognised by what moves, and written in place in the code of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

import vtc
from vtc.kernels import attention, shift, sliding_attention, storing_attention
from vtc.kernels.attention_tiling import Tiling
from vtc.lowering import attention as attention_choice
from vtc.lowering import cached_attention, calls, choose
from vtc.lowering import shift as choice
from vtc.lowering.contest import Times
from vtc.lowering.plan import Plan

KEYS, DIM = 24, 8
OPTIONS = {"verify": False, "profile_budget_s": 0.0, "min_gain_us": 0.0}


def by_roll(cache: Tensor, new: Tensor) -> None:
    """As transformers' StaticSlidingWindowLayer with a full window."""
    rolled = cache.roll(-1, dims=-2)
    rolled[:, :, torch.tensor([-1], dtype=torch.int64)] = new
    cache.copy_(rolled)


def by_cat(cache: Tensor, new: Tensor) -> None:
    cache.copy_(torch.cat([cache[:, :, new.shape[2] :], new], 2))


def by_slices(cache: Tensor, new: Tensor) -> None:
    rows = new.shape[2]
    moved = cache.roll(-rows, dims=2)
    moved[:, :, KEYS - rows :] = new
    cache.copy_(moved)


WAYS: dict[str, tuple[Callable[[Tensor, Tensor], None], int]] = {
    "roll and index_put": (by_roll, 1),
    "cat": (by_cat, 1),
    "cat, several rows": (by_cat, 3),
    "roll and slices": (by_slices, 2),
}


def stale(cache: Tensor, new: Tensor) -> Tensor:
    """The old cache is read as well."""
    before = cache.sum()
    by_cat(cache, new)
    return before


def backwards(cache: Tensor, new: Tensor) -> None:
    cache.copy_(torch.cat([new, cache[:, :, : KEYS - new.shape[2]]], 2))


def too_far(cache: Tensor, new: Tensor) -> None:
    rolled = cache.roll(-2, dims=2)
    rolled[:, :, KEYS - 1 :] = new
    cache.copy_(rolled)


def somewhere(cache: Tensor, new: Tensor) -> None:
    rolled = cache.roll(-1, dims=2)
    rolled[:, :, torch.tensor([KEYS - 2])] = new
    cache.copy_(rolled)


OTHERS = {f.__name__: f for f in (stale, backwards, too_far, somewhere)}


class Module(nn.Module):
    def __init__(self, way: Callable[[Tensor, Tensor], Tensor | None]) -> None:
        super().__init__()
        self.way = way

    def forward(self, cache: Tensor, new: Tensor) -> Tensor:
        before = self.way(cache, new * 2)
        after = (cache + 1) * 3
        return after if before is None else after + before


class Layer(nn.Module):
    """One decoder layer's attention on a sliding window, two query heads on each cached one."""

    def __init__(self, way: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.way = way
        self.project = nn.Linear(32, 64)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.project(x).split([32, 16, 16], -1)
        q, k, v = (t.view(b, s, -1, DIM).transpose(1, 2) for t in (q, k, v))
        self.way(keys, k)
        self.way(values, v)
        key, value = (
            t[:, :, None].expand(b, 2, 2, KEYS, DIM).reshape(b, 4, KEYS, DIM)
            for t in (keys, values)
        )
        logits = torch.tanh(q @ key.transpose(2, 3) * 0.3 / 5.0) * 5.0 + mask
        out = torch.softmax(logits, -1, dtype=torch.float32).to(x.dtype) @ value
        return self.out(out.transpose(1, 2).reshape(b, s, 32))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Our operators are taken everywhere, on a CPU too; the plans that are made."""
    made: list[Plan] = []
    prepare = choose.prepare
    tiling = Tiling(16, 16, 1, 4, 2)
    # Which form of a linear is faster here would decide the last bit of what the caches are given.
    monkeypatch.setattr(calls, "_ratio", lambda *_: 1.0)
    monkeypatch.setattr(attention, "supports", lambda *_: True)
    monkeypatch.setattr(shift, "supports", lambda *_: True)
    for operator in (sliding_attention, storing_attention):
        monkeypatch.setattr(operator, "supports", lambda *_: True)
    monkeypatch.setattr(attention_choice, "_measured", lambda *_: (tiling, 1.0, 2.0))
    times = Times([16, 16, 1, 4, 1], "a tiling", 1.0, 2.0)
    for module in (choice, cached_attention):
        monkeypatch.setattr(module, "measured", lambda *_: times)
    monkeypatch.setattr("vtc.compiler.prepare", lambda *a: made.append(prepare(*a)) or made[-1])
    torch._dynamo.reset()
    torch.manual_seed(0)
    return made


def called(plan: Plan, target: Any) -> int:
    return sum(n.target is target for n in plan.program.nodes)


def run(
    model: nn.Module,
    caches: list[Tensor],
    inputs: Callable[[], list[Any]],
    path: Path,
    *,
    exact: bool = True,
    **settings: Any,
) -> str:
    """Two calls, each compared with eager PyTorch; the code that is generated for the first."""
    compiled = vtc.compile(model, options={**OPTIONS, "cache_dir": path}, **settings)
    theirs = [c.clone() for c in caches]
    found: list[str] = []

    def call(*args: Any) -> Any:
        if found:
            return compiled(*args)
        result, codes = run_and_get_code(compiled, *args)
        found.append("\n".join(codes))
        return result

    with torch.no_grad():
        for _ in range(2):
            given = inputs()
            got = call(*_around(given, caches))
            torch.testing.assert_close(got, model(*_around(given, theirs)))
            for cache, want in zip(caches, theirs, strict=True):
                if exact:
                    assert torch.equal(cache, want)
                torch.testing.assert_close(cache, want)
    return found[0]


def _around(given: list[Any], caches: list[Tensor]) -> list[Any]:
    """A layer's arguments: x, then the caches, then the mask; new rows come after one cache."""
    return [given[0], *caches, *given[1:]] if len(caches) == 2 else [*caches, *given]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", WAYS)
def test_a_cache_moves_on_in_place(
    name: str, batch: int, plans: list[Plan], tmp_path: Path
) -> None:
    way, rows = WAYS[name]
    cache = torch.randn(batch, 3, KEYS, DIM)
    code = run(Module(way), [cache], lambda: [torch.randn(batch, 3, rows, DIM)], tmp_path)
    (plan,) = plans
    assert called(plan, shift.OVERLOAD) == 1
    assert "vtc.shift_.default" in code
    assert "roll" not in code
    assert any("vtc::shift" in note for note in plan.attentions)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_read_or_moved_otherwise_stays(
    name: str, plans: list[Plan], tmp_path: Path
) -> None:
    cache = torch.randn(2, 3, KEYS, DIM)
    run(Module(OTHERS[name]), [cache], lambda: [torch.randn(2, 3, 1, DIM)], tmp_path)
    (plan,) = plans
    assert called(plan, shift.OVERLOAD) == 0


class Returned(nn.Module):
    """The new value leaves the model: as it is, as a view, or as a tensor of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, cache: Tensor, new: Tensor) -> Any:
        moved = torch.cat([cache[:, :, 1:], new], 2)
        cache.copy_(moved)
        return {
            "the cache": lambda: cache,
            "a view of it": lambda: cache[:, 0],
            "the value": lambda: moved,
            "a view of the value": lambda: moved[:, 0].transpose(0, 1),
            "both": lambda: (moved, cache),
        }[self.how]()


@pytest.mark.parametrize(
    "how", ["the cache", "a view of it", "the value", "a view of the value", "both"]
)
def test_what_a_model_returns_shares_memory_as_in_eager(
    how: str, plans: list[Plan], tmp_path: Path
) -> None:
    model = Returned(how)
    compiled = vtc.compile(model, options={**OPTIONS, "cache_dir": tmp_path})
    found = {}
    base, new = torch.randn(2, 3, KEYS, DIM), torch.randn(2, 3, 1, DIM)
    for call in (compiled, model):
        cache = base.clone()
        with torch.no_grad():
            given = call(cache, new)
            parts = given if isinstance(given, tuple) else (given,)
            kept = [p.clone() for p in parts]
            cache.zero_()
        shares = [not torch.equal(k, p) for k, p in zip(kept, parts, strict=True)]
        found[call] = kept, shares
    (ours, our_sharing), (theirs, their_sharing) = found.values()
    assert all(map(torch.equal, ours, theirs))
    assert our_sharing == their_sharing


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("name", "queries"), [("roll and index_put", 1), ("cat", 1), ("cat", 3)])
def test_attention_on_a_sliding_window_moves_its_caches_on(
    name: str, queries: int, batch: int, plans: list[Plan], tmp_path: Path
) -> None:
    caches = [torch.randn(batch, 2, KEYS, DIM) for _ in range(2)]
    inputs = lambda: [torch.randn(batch, queries, 32), torch.randn(1, 1, queries, KEYS)]  # noqa: E731
    code = run(Layer(WAYS[name][0]).eval(), caches, inputs, tmp_path)
    (plan,) = plans
    assert called(plan, sliding_attention.OVERLOAD) == 1
    assert called(plan, attention.OVERLOAD) == called(plan, shift.OVERLOAD) == 0
    assert "vtc.sliding_attention_.default" in code


def test_one_cache_for_keys_and_values_is_left_to_eager(plans: list[Plan], tmp_path: Path) -> None:
    layer = Layer(by_cat).eval()
    compiled = vtc.compile(layer, options={**OPTIONS, "cache_dir": tmp_path})
    ours, x, mask = torch.randn(2, 2, KEYS, DIM), torch.randn(2, 1, 32), torch.zeros(1, 1, 1, KEYS)
    theirs = ours.clone()
    with torch.no_grad():
        got, want = compiled(x, ours, ours, mask), layer(x, theirs, theirs, mask)
    torch.testing.assert_close(got, want)
    assert torch.equal(ours, theirs)


def test_for_memory_nothing_is_measured(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(choice, "measured", refuse)
    cache = torch.randn(2, 3, KEYS, DIM)
    inputs = lambda: [torch.randn(2, 3, 1, DIM)]  # noqa: E731
    code = run(Module(by_roll), [cache], inputs, tmp_path, objective="memory")
    (plan,) = plans
    assert called(plan, shift.OVERLOAD) == 1
    assert "vtc.shift_.default" in code


def test_what_is_slower_stays_as_it_is(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = Times([16, 16, 1, 4, 1], "a tiling", 2.0, 2.0)
    monkeypatch.setattr(choice, "measured", lambda *_: times)
    cache = torch.randn(2, 3, KEYS, DIM)
    run(Module(by_roll), [cache], lambda: [torch.randn(2, 3, 1, DIM)], tmp_path)
    (plan,) = plans
    assert plan.attentions == ()
    assert called(plan, shift.OVERLOAD) == 0

"""Models exported for one signature: what they check, what they keep, what they leave alone."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from compiling import QUICK, Compilations, exported, one_fallback, quick_and_strict

pytestmark = quick_and_strict


class Block(nn.Module):
    """Parameters, a buffer, a counter that each call updates, nested arguments and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(
        self, x: Tensor, factor: float = 1.0, *, mask: Tensor | None = None, more: Any = None
    ) -> dict[str, Any]:
        self.count.add_(1)
        y = torch.cat([self.lin(x) @ self.weight * self.scale * factor, x[:, :4].cos()], 1)
        if mask is not None:
            y = y + mask
        if more is not None:
            y = y + more["a"][0] + more["b"]
        return {"y": y, "rest": (self.count + 0, [y.sum()])}


def call_args() -> tuple[tuple[Any, ...], dict[str, Any]]:
    more = {"a": [torch.ones(8)], "b": torch.ones(2, 1)}
    return (torch.randn(2, 8), 2.0), {"mask": torch.randn(2, 8), "more": more}


def assert_same(call: Callable[..., Any], block: Block, *args: Any, **kwargs: Any) -> None:
    before = int(block.count)
    with torch.no_grad():
        want, got = block(*args, **kwargs), call(*args, **kwargs)
    torch.testing.assert_close(got["y"], want["y"], atol=1e-5, rtol=1e-5)
    assert int(want["rest"][0]) == before + 1
    assert int(got["rest"][0]) == before + 2 == int(block.count)
    assert isinstance(got["rest"], tuple)
    assert not got["y"].requires_grad


# Signatures.


def wrong(**changes: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]:
    def change(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        args = (changes.get("x", args[0]), changes.get("factor", args[1]))
        args = args[: changes.get("count", 2)]
        kwargs = {k: changes.get(k, v) for k, v in kwargs.items() if changes.get(k) != "absent"}
        return args, {**kwargs, **changes.get("extra", {})}

    return change


@pytest.fixture(scope="module")
def signed() -> Any:
    torch._dynamo.reset()
    args, kwargs = call_args()
    return exported(Block().eval(), *args, **kwargs)


@pytest.mark.parametrize(
    ("change", "argument", "quantity"),
    [
        (wrong(x=torch.randn(3, 8)), "args[0]", "shape"),
        (wrong(x=torch.randn(2, 8, 1)), "args[0]", "shape"),
        (wrong(x=torch.randn(2, 8, dtype=torch.float64)), "args[0]", "dtype"),
        (wrong(x=torch.randn(2, 8, device="meta")), "args[0]", "device"),
        (wrong(x=torch.randn(8, 2).t()), "args[0]", "strides"),
        (wrong(x=torch._neg_view(torch.randn(2, 8))), "args[0]", "is_neg()"),
        (wrong(x=[1.0]), "args[0]", "type"),
        (wrong(factor=3.0), "args[1]", "value"),
        (wrong(factor=2), "args[1]", "value"),
        (wrong(factor=None), "args[1]", "value"),
        (wrong(count=1), "args[1]", "a call with"),
        (wrong(mask=None), "mask", "type"),
        (wrong(mask="absent"), "mask", "a call with"),
        (wrong(extra={"other": 1}), "other", "a call with"),
        (wrong(more={"a": [torch.ones(9)], "b": torch.ones(2, 1)}), "more['a'][0]", "shape"),
        (wrong(more={"a": [], "b": torch.ones(2, 1)}), "more['a']", "length"),
        (wrong(more={"a": [torch.ones(8)]}), "more", "keys"),
    ],
)
def test_call_of_another_signature_names_the_argument(
    signed: Any, change: Any, argument: str, quantity: str
) -> None:
    args, kwargs = change(*call_args())
    before = int(signed.model.count)
    with pytest.raises(vtc.errors.SignatureError) as raised:
        signed(*args, **kwargs)
    assert (raised.value.argument, raised.value.quantity) == (argument, quantity)
    assert argument in str(raised.value)
    assert int(signed.model.count) == before


def test_call_of_the_same_signature(signed: Any) -> None:
    args, kwargs = call_args()
    assert_same(signed, signed.model, *args, **kwargs)
    kwargs["more"]["a"] = tuple(kwargs["more"]["a"])
    x = torch.randn(2, 1, 8).squeeze(1)
    assert_same(signed, signed.model, x, *args[1:], **kwargs)


def test_autocast_is_part_of_the_signature(signed: Any) -> None:
    args, kwargs = call_args()
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(vtc.errors.SignatureError, match="autocast"),
    ):
        signed(*args, **kwargs)


def test_exported_under_autocast() -> None:
    fn, x, w = (lambda x, w: torch.cat([x @ w, x], 1)), torch.randn(3, 4), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call, want = exported(fn, x, w), fn(x, w)
        torch.testing.assert_close(call(x, w), want)
    with pytest.raises(vtc.errors.SignatureError, match="autocast"):
        call(x, w)


# Nothing runs at export.


def test_nothing_runs_and_nothing_is_updated_at_export() -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.history: list[Tensor] = []
            self.last: Tensor | None = None

        def forward(self, x: Tensor, cache: Tensor) -> Tensor:
            cache[:, 1:3].copy_(x)
            y = torch.cat([x, cache], 1)
            self.history.append(y)
            self.last = y
            return y

    model, x, cache = Recorder(), torch.randn(2, 2), torch.zeros(2, 4)
    call = exported(model, x, cache)
    assert not cache.any()
    assert (model.history, model.last) == ([], None)
    y = call(x, cache)
    assert torch.equal(cache[:, 1:3], x)
    assert torch.equal(y, torch.cat([x, cache], 1))
    assert model.last is y
    assert len(model.history) == 1


# Weights.


@pytest.mark.parametrize("freeze", [True, False])
def test_weights_that_change_after_export(freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations(monkeypatch)
    block, x = Block().eval(), torch.randn(2, 8)
    call = exported(block, x, freeze=freeze)
    assert int(block.count) == 0
    assert_same(call, block, x)
    assert_same(call, block, torch.randn(2, 8))

    def others() -> dict[str, Tensor]:
        state = block.state_dict().items()
        return {k: torch.randn(v.shape) if v.is_floating_point() else v.clone() for k, v in state}

    with torch.no_grad():
        block.weight.mul_(2)
    assert_same(call, block, x)
    block.load_state_dict(others())
    assert_same(call, block, x)
    assert compilations.count == 1
    block.load_state_dict(others(), assign=True)
    assert_same(call, block, x)
    block.weight = nn.Parameter(torch.randn(8, 4))
    assert_same(call, block, x)
    block.weight.data = torch.randn(8, 4)
    assert_same(call, block, x)
    block.lin = nn.Linear(8, 8)
    assert_same(call, block, x)
    torch._dynamo.reset()
    assert_same(call, block, x)
    assert compilations.count == (4 if freeze else 1)


@pytest.mark.parametrize(
    ("freeze", "error"),
    [(True, vtc.errors.WeightsChangedError), (False, vtc.errors.SignatureError)],
)
def test_weights_of_another_dtype(freeze: bool, error: type[Exception]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8)
    call = exported(model, x, freeze=freeze)
    model.double()
    with pytest.raises(error, match=r"'0\.weight'"):
        call(x)
    model.float()
    torch.testing.assert_close(call(x), model(x).detach())


def test_weights_are_frozen_by_default() -> None:
    block, x = Block().eval(), torch.randn(2, 8)
    assert vtc.export(block, (x,), options={"cost": "static", "verify": False}).freeze
    assert not exported(block, x, freeze=False).freeze


def test_many_models_of_one_class() -> None:
    x = torch.randn(2, 8)
    blocks = [nn.Linear(8, 4) for _ in range(9)]
    calls = [exported(block, x) for block in blocks]
    for call, block in zip(calls, blocks, strict=True):
        torch.testing.assert_close(call(x), block(x).detach())


# Other objects.


class Cache:
    """A cache that is no module: a tensor, a position tensor and a plain length."""

    def __init__(self, size: int = 6) -> None:
        self.keys = torch.randn(2, size, 4)
        self.at = torch.tensor([1])
        self.length = 3


def attend(x: Tensor, cache: Cache) -> Tensor:
    cache.keys.index_copy_(1, cache.at, x)
    cache.at.add_(1)
    return torch.cat([cache.keys[:, : cache.length].sum(1) * 2, x[:, 0]], 1)


def test_caches_are_updated_in_their_own_place() -> None:
    x, caches = torch.randn(2, 1, 4), (Cache(), Cache())
    before = caches[0].keys.clone()
    call = exported(attend, x, caches[0])
    assert torch.equal(caches[0].keys, before)
    for cache in (*caches, caches[0]):
        twin = Cache()
        twin.keys, twin.at = cache.keys.clone(), cache.at.clone()
        torch.testing.assert_close(call(x, cache), attend(x, twin))
        assert torch.equal(cache.keys, twin.keys)
        assert torch.equal(cache.at, twin.at)


def test_what_is_taken_out_of_objects_is_checked() -> None:
    x, cache, longer = torch.randn(2, 1, 4), Cache(), Cache(7)
    call = exported(attend, x, cache)
    with pytest.raises(vtc.errors.SignatureError, match=r"'args\[1\]\.keys': expected shape"):
        call(x, longer)
    cache.length = 4
    with pytest.raises(vtc.errors.SignatureError, match=r"'args\[1\]\.length': expected value 3"):
        call(x, cache)
    with pytest.raises(vtc.errors.SignatureError, match=r"'args\[1\]': expected type Cache"):
        call(x, None)


def test_a_tensor_of_an_object_is_checked_after_it_changed_in_its_place() -> None:
    x, cache = torch.randn(2, 1, 4), Cache()
    call = exported(attend, x, cache)
    for _ in range(3):
        call(x, cache)
        cache.at.fill_(1)
    kept = cache.keys.data
    cache.keys.data = torch.randn(2, 7, 4)
    with pytest.raises(vtc.errors.SignatureError, match=r"'args\[1\]\.keys': expected shape"):
        call(x, cache)
    cache.keys.data = kept
    call(x, cache)
    cache.keys.data = torch._neg_view(kept)  # the same place and layout, read otherwise
    with pytest.raises(vtc.errors.SignatureError, match=r"is_neg\(\) False, got True"):
        call(x, cache)


def test_output_objects_and_hooks() -> None:
    Pair = namedtuple("Pair", ["left", "right"])

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return Pair(torch.cat([x, x * 2], 1), {"x": x, "none": None, "number": 3})

    model, x = Model(), torch.randn(2, 3)
    model.register_forward_hook(lambda module, args, out: Pair(out.left + 1, out.right))
    got = exported(model, x)(x)
    assert type(got) is Pair
    assert torch.equal(got.left, torch.cat([x, x * 2], 1) + 1)
    assert got.right["x"] is x
    assert (got.right["none"], got.right["number"]) == (None, 3)


def test_transformers_output() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def fn(x: Tensor, states: dict[str, Tensor]) -> Any:
        hidden = (x + 1, states["z"] * 2)
        return outputs.BaseModelOutput(torch.cat([x, x * 2], 1), hidden_states=hidden)

    x = torch.randn(2, 3)
    got, want = exported(fn, x, states={"z": x})(x, states={"z": x}), fn(x, {"z": x})
    assert type(got) is type(want)
    torch.testing.assert_close(dict(got), dict(want))


def test_overlapping_arguments() -> None:
    def fn(buffer: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        buffer[:2].copy_(x)
        return buffer[:1], torch.cat([x * 2, buffer[2:]], 0)

    buffer, x = torch.randn(4, 3), torch.randn(2, 3)
    call = exported(fn, buffer, x)
    view = call(buffer, x)[0]
    assert view.data_ptr() == buffer.data_ptr()
    ours, theirs = (torch.arange(18.0).view(6, 3) for _ in range(2))
    got, want = call(ours[:4], ours[2:4]), fn(theirs[:4], theirs[2:4])
    torch.testing.assert_close(got, want)
    assert torch.equal(ours, theirs)


def test_arguments_that_come_to_overlap() -> None:
    """The same objects as in the calls before, one of them moved onto another."""

    def fn(buffer: Tensor, other: Tensor, x: Tensor) -> Tensor:
        buffer.add_(x)
        other.mul_(2)
        return buffer + other * 3

    given = [torch.randn(4, 3) for _ in range(3)]
    call = exported(fn, *given)

    def check(ours: list[Tensor]) -> None:
        theirs = [t.clone() for t in ours]
        if ours[0].data_ptr() == ours[1].data_ptr():
            theirs[1] = theirs[0]
        torch.testing.assert_close(call(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs)

    for _ in range(3):
        check(given)
    given[1].set_(given[0])
    for _ in range(3):
        check(given)
    given[1].set_(torch.randn(4, 3))
    check(given)


@pytest.mark.parametrize("engine", ["inductor", "dvm"])
@pytest.mark.parametrize("place", ["argument", "weight"])
def test_a_tensor_that_is_negated_lazily(engine: Any, place: str) -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: Tensor) -> None:
            super().__init__()
            self.register_buffer("scale", scale)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cat([x @ self.scale, x + 1], 1), x.t()

    def negated() -> Tensor:
        return torch.randn(4, 4, dtype=torch.complex64).conj().imag

    x = negated() if place == "argument" else torch.randn(4, 4)
    model = Scaled(negated() if place == "weight" else torch.randn(4, 4))
    with one_fallback("negated lazily"):
        call = vtc.export(model, (x,), engine=engine, options=QUICK)
    torch.testing.assert_close(call(x), model(x))


def test_a_conjugate_is_another_signature() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * x

    x = torch.randn(3, dtype=torch.complex64)
    call = vtc.export(fn, (x.conj(),), engine="inductor", options=QUICK)
    torch.testing.assert_close(call(x.conj()), fn(x.conj()))
    with pytest.raises(vtc.errors.SignatureError, match=r"is_conj\(\) True, got False"):
        call(x)


# What cannot be exported.


def test_graph_break() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.cos()
        torch._dynamo.graph_break()
        return y.sin()

    with pytest.raises(vtc.errors.CaptureError, match="broken cannot be captured as one graph"):
        exported(broken, torch.randn(2))


def test_graph_that_only_stock_compiles() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.ones(3)
    with one_fallback("cond"):
        call = exported(fn, x)
    torch.testing.assert_close(call(x), x.sin())
    torch.testing.assert_close(call(-x), x.cos())

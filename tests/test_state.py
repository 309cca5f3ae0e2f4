"""What changes between calls of a compiled model: weights, caches, modes, arguments, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

import vtc
from arguments import fresh
from compiling import Compilations, compiled, one_fallback, quick_and_strict

pytestmark = quick_and_strict


class Net(nn.Module):
    """A convolution with batch norm, that freezing folds, and matmuls that meet in a concat."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.left, self.right = nn.Linear(4, 6), nn.Linear(4, 5, bias=False)
        nn.init.uniform_(self.bn.running_var, 0.5, 2)
        nn.init.normal_(self.bn.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.conv(x))).mean((2, 3))
        return torch.cat([self.left(y), self.right(y).tanh()], 1) * 2


def assert_right(call: Any, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x), atol=2e-5, rtol=2e-5)


# Weights.


@pytest.mark.parametrize("freeze", [False, True])
def test_weights_that_change_after_compilation(freeze: bool) -> None:
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    call = compiled(model, freeze=freeze)

    def others() -> dict[str, Tensor]:
        state = model.state_dict().items()
        return {k: torch.rand(v.shape) if v.is_floating_point() else v.clone() for k, v in state}

    assert_right(call, model, x)
    with torch.no_grad():
        model.conv.weight.mul_(2)
        model.bn.running_mean.add_(1)
        model.left.bias.zero_()
    assert_right(call, model, x)
    model.load_state_dict(others())
    assert_right(call, model, x)
    model.load_state_dict(others(), assign=True)
    assert_right(call, model, x)
    model.right.weight = nn.Parameter(torch.randn(5, 4))
    assert_right(call, model, x)
    model.bn.running_var = torch.rand(4) + 0.5
    assert_right(call, model, x)
    model.left.weight.data = torch.randn(6, 4)
    assert_right(call, model, x)


def test_a_frozen_weight_of_another_dtype_is_refused() -> None:
    model, x = nn.Linear(8, 4), torch.randn(2, 8)
    call = compiled(model, freeze=True)
    assert_right(call, model, x)
    model.double()
    with torch.no_grad(), pytest.raises(vtc.errors.WeightsChangedError, match="'weight'"):
        call(x)
    model.float()
    assert_right(call, model, x)


def test_frozen_models_keep_their_attributes() -> None:
    model = Net()
    call = compiled(model, freeze=True)
    assert call.eval() is model or not model.training
    assert call.conv is model.conv
    assert len(list(call.parameters())) == len(list(model.parameters()))
    assert "conv.weight" in {name.removeprefix("_orig_mod.") for name in call.state_dict()}


def test_compiled_with_and_then_without_freezing() -> None:
    """Dynamo remembers on the tensors that they were frozen once."""
    model, x = nn.Linear(8, 4), torch.randn(2, 8)
    assert_right(compiled(model, freeze=True), model, x)
    torch._dynamo.reset()
    call = compiled(model)
    assert_right(call, model, x)
    with torch.no_grad():
        model.weight.mul_(2)
    assert_right(call, model, x)
    with one_fallback("a graph that records gradients"):
        y = call(x)
    y.sum().backward()
    assert model.weight.grad is not None


def test_weights_made_in_inference_mode_are_not_frozen() -> None:
    with torch.inference_mode():
        model, x = nn.Linear(8, 4), torch.randn(2, 8)
        call = compiled(model, freeze=True)
        torch.testing.assert_close(call(x), model(x))
        model.weight.mul_(2)
        torch.testing.assert_close(call(x), model(x))


# Caches.


class KeyValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 2, 8, 4))
        self.register_buffer("values", torch.zeros(2, 2, 8, 4))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64))


class Decoder(nn.Module):
    """Grouped attention over a cache, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor, cache: KeyValues) -> tuple[Tensor, Tensor]:
        batch = x.shape[0]
        q, k, v = self.qkv(x).split([16, 8, 8], -1)
        cache.keys.index_copy_(2, cache.length, k.view(batch, 1, 2, 4).transpose(1, 2))
        cache.values.index_copy_(2, cache.length, v.view(batch, 1, 2, 4).transpose(1, 2))
        mask = torch.arange(8)[None] <= cache.length
        cache.length.add_(1)
        keys, values = (
            t[:, :, None].expand(batch, 2, 2, 8, 4).reshape(batch, 4, 8, 4)
            for t in (cache.keys, cache.values)
        )
        q = q.view(batch, 1, 4, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, keys, values, mask)
        return self.out(y.transpose(1, 2).reshape(batch, 1, 16)), cache.keys


@pytest.mark.parametrize("freeze", [False, True])
@torch.no_grad()
def test_another_cache_object(freeze: bool) -> None:
    model = Decoder()
    call = compiled(model, freeze=freeze)
    ours, theirs = [KeyValues(), KeyValues()], [KeyValues(), KeyValues()]
    held = []
    for turn in (0, 1, 0, 0, 1):
        x = torch.randn(2, 1, 16)
        got, keys = call(x, ours[turn])
        want, _ = model(x, theirs[turn])
        torch.testing.assert_close(got, want)
        assert keys.data_ptr() == ours[turn].keys.data_ptr()
        for mine, other in zip(ours[turn].buffers(), theirs[turn].buffers(), strict=True):
            torch.testing.assert_close(mine, other)
        held.append((got, want))
    for got, want in held:  # outputs that are held over later calls keep their values
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("freeze", [False, True])
@torch.no_grad()
def test_a_buffer_of_the_model_that_each_call_updates(
    freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilations = Compilations(monkeypatch)

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("state", torch.zeros(3, 8))

        def forward(self, x: Tensor) -> Tensor:
            self.state.copy_(torch.cat([self.state[:, 4:], self.lin(x)], 1))
            return self.state.sum(1)

    model, twin = Running(), Running()
    twin.load_state_dict(model.state_dict())
    call, state = compiled(model, freeze=freeze), model.state
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(call(x), twin(x))
        torch.testing.assert_close(state, twin.state)
    assert compilations.count == 1


@torch.no_grad()
def test_outputs_alias_updated_inputs_as_in_eager() -> None:
    def fn(buffer: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        buffer[:, 1:3] = torch.cat([x.exp(), x.cos()], 1)
        return buffer, buffer[1:].t(), buffer[:, 1:3], buffer + 1

    call, buffer = compiled(fn), torch.randn(3, 4)
    call(buffer, torch.randn(3, 1))
    outs = call(buffer, torch.randn(3, 1))
    buffer.fill_(5)
    for out in outs[:3]:
        assert (out == 5).all()
    assert outs[1].stride() == (1, 4)
    assert not (outs[3] == 6).all()


# Arguments that overlap.


def shifted(buffer: Tensor, x: Tensor) -> Tensor:
    buffer[:2] = torch.cat([x[:, :1], x[:, 1:] * 2], 1)
    return torch.cat([buffer, x], 0)


@pytest.mark.parametrize("overlapping_first", [False, True])
@torch.no_grad()
def test_arguments_that_overlap(overlapping_first: bool) -> None:
    call = compiled(shifted)

    def check(overlapping: bool) -> None:
        ours, theirs = (torch.arange(24.0).view(6, 4) for _ in range(2))
        x = [(t[1:3] if overlapping else t[4:].clone()) for t in (ours, theirs)]
        torch.testing.assert_close(call(ours[:4], x[0]), shifted(theirs[:4], x[1]))
        assert torch.equal(ours, theirs)

    with (
        one_fallback("runs as eager PyTorch: arguments overlap")
        if overlapping_first
        else nullcontext()
    ):
        check(overlapping_first)
    check(not overlapping_first)
    check(overlapping_first)


@torch.no_grad()
def test_parts_of_one_buffer_do_not_overlap() -> None:
    def fn(keys: Tensor, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        keys[:, :1].copy_(x)
        values[:, 1:2].copy_(x * 2)
        return torch.cat([keys, values], 1) + 1, values.t()

    call = compiled(fn)
    for one_buffer in (True, False, True):
        ours, theirs, x = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(3, 1)
        theirs.copy_(ours)
        mine = list(ours) if one_buffer else [ours[0].clone(), ours[1].clone()]
        out = call(*mine, x)
        torch.testing.assert_close(out, fn(*theirs, x))
        torch.testing.assert_close(mine, list(theirs))
        assert out[1].data_ptr() == mine[1].data_ptr()


@torch.no_grad()
def test_one_tensor_passed_twice() -> None:
    def fn(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return torch.cat([a, b * 2], 0)

    call = compiled(fn)
    for twice in (True, False, True):
        a, b = torch.randn(2, 3), torch.randn(2, 3)
        args = (a, a) if twice else (a, b)
        ours, theirs = fresh(args), fresh(args)
        torch.testing.assert_close(call(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs)


# Modes.


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv(x).view(2, 5, 2, 4).transpose(1, 2).chunk(2, 1)
        q = self.q(x).view(2, 5, 2, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, *(t.expand(2, 2, 5, 4) for t in (k, v)))
        return torch.cat([y.transpose(1, 2).reshape(2, 5, 8), x], 2), y.softmax(-1)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("autocast_first", [False, True])
@torch.no_grad()
def test_autocast_around_the_call(freeze: bool, autocast_first: bool) -> None:
    model, x = Attention(), torch.randn(2, 5, 8)
    call = compiled(model, freeze=freeze)
    for enabled in (autocast_first, not autocast_first, autocast_first):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            got, want = call(x), model(x)
        tolerance = 2e-2 if enabled else 1e-5
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)  # dtypes too


@pytest.mark.parametrize("freeze", [False, True])
@torch.no_grad()
def test_autocast_with_virtual_tensors(freeze: bool) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4, bias=False)
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = torch.cat([self.lin(x), self.lin(x + 1)], 0)
            z = self.conv(y.reshape(1, 2, -1, 4).permute(0, 3, 1, 2).contiguous())
            # A matmul of two dtypes, whose result tells nothing of the cast.
            return self.norm(y) @ self.lin.weight, z, z.softmax(1)

    model, x = Mixed(), torch.randn(6, 4)
    call = compiled(model, freeze=freeze)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = call(x), model(x)
    torch.testing.assert_close(got, want, atol=3e-2, rtol=3e-2)


@torch.no_grad()
def test_autocast_frozen_weights_change() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    call = compiled(model, freeze=True)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got, want = call(x), model(x)
        torch.testing.assert_close(got, want, atol=5e-2, rtol=5e-2)
        model.left.weight.mul_(-3)


@torch.no_grad()
def test_autocast_inside_the_model() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return torch.cat([y.float(), x @ w], 1)

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    with one_fallback("autocast"):
        got = compiled(fn)(x, w)
    torch.testing.assert_close(got, fn(x, w), atol=2e-2, rtol=2e-2)


def test_inference_mode_and_no_grad() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 6, 6)
    call = compiled(model)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            got, want = call(x), model(x)
            assert got.is_inference() == want.is_inference()
        torch.testing.assert_close(got, want)


def test_gradients_go_to_stock_with_one_warning() -> None:
    model, twin, x = Net().eval(), Net().eval(), torch.randn(2, 3, 6, 6)
    twin.load_state_dict(model.state_dict())
    call = compiled(model)
    with one_fallback("a graph that records gradients runs as stock TorchInductor"):
        y = call(x)
    torch.testing.assert_close(y, twin(x))
    y.sum().backward()
    twin(x).sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    assert_right(call, model, x)


# Graphs, shapes, threads.


@torch.no_grad()
def test_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations(monkeypatch)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = torch.cat([x @ w, x], 1)
        torch._dynamo.graph_break()
        return torch.cat([y.relu(), y[:, :3] @ w[:3]], 1)

    call = compiled(fn)
    for _ in range(2):
        x, w = torch.randn(4, 6), torch.randn(6, 5)
        torch.testing.assert_close(call(x, w), fn(x, w))
    assert compilations.count == 2


@torch.no_grad()
def test_two_shapes_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations(monkeypatch)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.cat([x @ w, x.relu()], 1)

    call, w = compiled(fn), torch.randn(6, 5)
    for rows in (3, 4, 3, 4):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(call(x, w), fn(x, w))
    assert compilations.count == 2


def test_two_threads() -> None:
    model = Decoder()
    call = compiled(model)

    def decode(seed: int) -> None:
        xs = torch.randn(12, 2, 1, 16, generator=torch.Generator().manual_seed(seed))
        ours, theirs = KeyValues(), KeyValues()
        with torch.no_grad():
            for x in xs[:8]:
                torch.testing.assert_close(call(x, ours)[0], model(x, theirs)[0])
            torch.testing.assert_close(ours.values, theirs.values)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(decode, range(4)))

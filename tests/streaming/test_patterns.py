"""What a stream fuses: the patterns of the DVM's own tests, right and with counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import vtc
from vtc.runtime.dvm import counters

pytestmark = pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
r = torch.randn


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def streamed(fn: Callable[..., Any], *args: Any) -> tuple[Any, vtc.streaming.Stream]:
    with vtc.stream() as own:
        found = fn(*args)
    return found, own


def counts(own: vtc.streaming.Stream) -> tuple[int, int, int]:
    return own.flushes, own.stores, own.kernels


def check(fn: Callable[..., Any], *args: Tensor, **near: float) -> vtc.streaming.Stream:
    found, own = streamed(fn, *args)
    torch.testing.assert_close(found, fn(*args), **near)
    return own


def test_a_chain_is_one_kernel_and_one_result() -> None:
    own = check(lambda x, y: ((x + y) * 2 - x.exp()).tanh(), r(33, 17), r(33, 17))
    assert counts(own) == (1, 1, 1)
    assert own.operators == 5


def test_swiglu() -> None:
    assert counts(check(lambda a, b: functional.silu(a) * b, r(16, 48), r(16, 48))) == (1, 1, 1)


def test_rms_norm() -> None:
    def written_out(x: Tensor, w: Tensor) -> Tensor:
        return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    assert counts(check(written_out, r(16, 48), r(48))) == (1, 1, 1)
    named = check(lambda x, w: functional.rms_norm(x, (48,), w), r(16, 48), r(48))
    assert counts(named) == (1, 1, 1)


def test_sibling_views_of_a_fused_value_are_one_store() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2 + 1).chunk(2, -1)  # type: ignore[return-value]

    x = r(6, 10)
    (left, right), own = streamed(fn, x)
    torch.testing.assert_close([left, right], list(fn(x)))
    assert counts(own) == (1, 1, 1)
    assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    assert left.stride() == (10, 1)


def test_a_view_alone_keeps_what_it_views() -> None:
    assert counts(check(lambda x: (x + 1).t()[2:], r(5, 7))) == (1, 1, 1)


def test_a_strided_view_is_updated_in_place() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = x + y
        before = s * 1
        s[:, ::2].mul_(3)
        s[1].add_(y[1])
        return s, before, s - y

    own = check(fn, r(6, 10), r(6, 10))
    assert own.flushes == 1
    assert own.stores == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_as_eager_does(dtype: torch.dtype) -> None:
    def cascade(x: Tensor) -> Tensor:
        y = ((x * 0.1 + 0.3) * 3.7 - 1.1) / 7 + x
        return torch.where(y > 0.3, 1.7 - y, 0.3 / y)

    x = r(64, 50).to(dtype)
    found, own = streamed(cascade, x)
    assert torch.equal(found, cascade(x))
    assert counts(own) == (1, 1, 1)


def test_a_value_that_nobody_holds_is_not_stored() -> None:
    x = r(9, 4)
    with vtc.stream() as own:
        for _ in range(3):
            y = (x + 1).relu() * 2
        del y
    assert counts(own) == (0, 0, 0)
    with vtc.stream() as own:
        held = x + 1
        kept = held * 2
        del held
    assert own.stores == 1
    torch.testing.assert_close(kept, (x + 1) * 2)


def test_independent_results_are_one_program() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.exp(), y.sum(-1), x.softmax(0)

    own = check(fn, r(5, 8), r(3, 4))
    assert (own.flushes, own.stores) == (1, 3)


def test_products_and_norms_are_one_program() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        h = functional.layer_norm(x, x.shape[-1:])
        return x + functional.gelu(functional.linear(h, w, b))

    own = check(layer, r(5, 16), r(16, 16), r(16), rtol=1e-4, atol=1e-5)
    assert (own.flushes, own.stores) == (1, 1)


def test_attention_written_out_is_one_program() -> None:
    def attention(x: Tensor, w: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (x @ w).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)) / (width // 4) ** 0.5
        found = scores.softmax(-1) @ v
        return found.transpose(1, 2).reshape(batch, length, width)

    w = r(16, 48)
    lowered = []
    for batch, length in ((2, 5), (6, 7), (5, 11), (7, 9)):
        own = check(attention, r(batch, length, 16), w, rtol=1e-4, atol=1e-4)
        assert own.flushes == 1
        lowered.append(own.programs)
    assert lowered[1:] == [0, 0, 0]


def test_other_sizes_are_encoded_only() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return (x.softmax(-1) + y).view(-1, 2, x.shape[-1]).sum(0)

    first = check(fn, r(4, 6), r(6))
    before = counters.captures
    for rows, columns in ((8, 5), (10, 31), (64, 7)):
        own = check(fn, r(rows, columns), r(columns))
        assert own.programs == 0
    assert first.programs in (0, 1)
    assert counters.captures == before
    assert counters.compilations == 0


def test_a_number_that_changes_becomes_an_operand() -> None:
    x = r(4, 6)
    lowered = []
    for n in range(6):
        found, own = streamed(lambda n=n: (x + (0.5 + n)) * (n + 3))
        torch.testing.assert_close(found, (x + (0.5 + n)) * (n + 3))
        lowered.append(own.programs)
    assert lowered[2:] == [0, 0, 0, 0]


def test_a_size_that_changes_becomes_a_symbol() -> None:
    x = r(4, 64)
    lowered = []
    for n in (5, 9, 17, 33):
        found, own = streamed(lambda n=n: (x * 2)[:, :n].cos())
        torch.testing.assert_close(found, (x * 2)[:, :n].cos())
        lowered.append(own.programs)
    assert lowered[2:] == [0, 0]


def test_a_long_block_runs_in_several_programs() -> None:
    def fn(x: Tensor) -> Tensor:
        for _ in range(300):
            x = x * 1.001 + 0.001
        return x

    own = check(fn, r(7, 9))
    assert (own.flushes, own.stores) == (5, 5)


def test_results_of_several_kinds() -> None:
    def fn(x: Tensor) -> Any:
        values, places = (x * 2).max(-1)
        return values + 1, places, (x > 0).any(), torch.var_mean(x + 1, dim=0)

    check(fn, r(5, 8))


def test_numpy_arrays_come_and_go() -> None:
    array = r(6, 5).numpy()
    with vtc.stream() as own:
        x = torch.from_dlpack(array)
        y = torch.from_numpy(array) * 2 + x
        back = y.numpy()
    assert own.flushes == 1
    torch.testing.assert_close(torch.from_numpy(back), torch.from_numpy(array * 3))


def test_inference_mode_is_as_good() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return functional.layer_norm(functional.linear(x, w), (4,)).reshape(-1).contiguous()

    with torch.inference_mode():
        own = check(fn, r(3, 8), r(4, 8), rtol=1e-4, atol=1e-5)
    assert own.flushes == 1

"""What must not go wrong: reads, updates, aliases, errors, nesting and threads."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vtc
from vtc.streaming.tensor import Pending

pytestmark = pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
r = torch.randn


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda y: y.sum().item(),
    "tolist": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy().copy(),
    "asarray": lambda y: np.asarray(y).copy(),
    "dlpack": lambda y: np.from_dlpack(y).copy(),
    "printing": str,
    "formatting": lambda y: f"{y.sum():.4f}",
    "truth": lambda y: bool((y > 0).any()),
    "copying": lambda y: copy.deepcopy(y).tolist(),
    "saving": lambda y: _saved(y).tolist(),
    "storage": lambda y: y.untyped_storage().tolist(),
    "a list": lambda y: [float(v) for v in y[0]],
    "a new tensor": lambda y: torch.tensor(y).tolist(),
    "detaching": lambda y: y.detach().tolist(),
    "data": lambda y: y.data.tolist(),
    "an operator without kernel": lambda y: torch.sort(y)[0].tolist(),
    "an index by data": lambda y: y[y > 0].tolist(),
    "converting": lambda y: y.double().tolist(),
}


def _saved(y: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    loaded: Tensor = torch.load(file)
    return loaded


@pytest.mark.parametrize("name", READS)
@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")
def test_a_read_sees_the_value(name: str) -> None:
    x = torch.randint(-4, 5, (4, 3)).float()
    expected = READS[name](x * 3 + 1)
    with vtc.stream() as own:
        found = READS[name](x * 3 + 1)
        assert own.flushes >= 1
    assert str(found) == str(expected)


def test_values_are_plain_tensors_after_the_block() -> None:
    x = r(4, 3)
    with vtc.stream():
        y = x * 2
        view = y.t()
        assert type(y) is Pending
        assert (y.shape, y.dtype, view.stride()) == ((4, 3), torch.float32, (1, 3))
    assert type(y) is Tensor
    assert type(view) is Tensor
    assert view._base is not None
    assert view.data_ptr() == y.data_ptr()
    y.add_(1)
    torch.testing.assert_close(view, (x * 2 + 1).t())


def test_memory_of_others_is_not_written_late() -> None:
    x = torch.ones(4)
    alias = x.numpy()
    with vtc.stream():
        y = x * 2
        x.add_(5)
        assert alias.tolist() == [6.0] * 4
        z = x * y
    assert y.tolist() == [2.0] * 4
    assert z.tolist() == [12.0] * 4


def test_a_view_of_an_input_is_updated_after_what_reads_it() -> None:
    x = r(6, 4)
    before = x.clone()
    with vtc.stream() as own:
        y = x.t() * 2
        x[1:3].zero_()
        z = x + 0
    torch.testing.assert_close(y, before.t() * 2)
    torch.testing.assert_close(z, x)
    assert not x[1:3].any()
    assert own.flushes == 2


def test_an_update_of_what_nothing_reads_flushes_nothing() -> None:
    x, other = r(4), r(4)
    with vtc.stream() as own:
        y = x * 2
        other.add_(1)
        assert own.flushes == 0
    torch.testing.assert_close(y, x * 2)


def test_out_arguments_are_written_at_once() -> None:
    x, out = r(4), torch.empty(4)
    with vtc.stream():
        y = x * 2
        given = torch.add(y, 1, out=out)
        assert given is out
        torch.mul(x, 3, out=y)
        z = y + 1
    torch.testing.assert_close(out, x * 2 + 1)
    torch.testing.assert_close(y, x * 3)
    torch.testing.assert_close(z, x * 3 + 1)


def test_an_update_in_place_gives_the_same_object() -> None:
    x = r(4)
    with vtc.stream() as own:
        y = x * 2
        assert y.add_(1) is y
        assert y.sort()[0].shape == (4,)
        assert y.mul_(2) is y
        assert y.contiguous() is y
        assert torch.nn.functional.relu(y, inplace=True) is y
    torch.testing.assert_close(y, ((x * 2 + 1) * 2).relu())
    assert own.flushes >= 1


def test_equal_values_have_memory_of_their_own() -> None:
    x = r(4)
    with vtc.stream():
        y, z, w = x * 2, x * 2, (x + 1).to(torch.float32, copy=True)
        copied = x.clone()
    y.zero_()
    copied.zero_()
    torch.testing.assert_close(z, x * 2)
    torch.testing.assert_close(w, x + 1)
    assert x.any()


def test_an_expanded_value_is_not_updated() -> None:
    with vtc.stream(), pytest.raises(RuntimeError, match="single memory location"):
        (r(1, 3) * 2).expand(4, 3).add_(1)


def test_an_input_that_gets_other_data_is_read_as_it_was() -> None:
    x, other = r(4), r(4)
    before = x.clone()
    with vtc.stream():
        y = x * 2
        x.data = other
    torch.testing.assert_close(y, before * 2)


def test_a_copy_that_a_reshape_makes_stays_as_it_was() -> None:
    x = r(4, 3)
    expected = x.t().reshape(-1) * 2
    with torch.inference_mode(), vtc.stream():
        flat = x.t().reshape(-1)
        x.zero_()
        y = flat * 2
    torch.testing.assert_close(y, expected)


def test_an_update_at_the_end_of_a_program_is_not_lost() -> None:
    x = torch.ones(5)
    with vtc.stream():
        y = x * 1
        for _ in range(300):
            y.add_(1)
    assert y.tolist() == [301.0] * 5


def test_layouts_change_in_place() -> None:
    x = r(4, 3)
    with vtc.stream():
        y = x * 2
        y.t_()
        assert y.shape == (3, 4)
        y.unsqueeze_(0)
        z = y + 1
    torch.testing.assert_close(y, (x * 2).t()[None])
    torch.testing.assert_close(z, (x * 2).t()[None] + 1)


def test_views_escape_and_their_base_dies() -> None:
    x = r(8, 3)
    kept = []
    with vtc.stream() as own:
        for n in range(2):
            y = x + n
            kept.append(y[2:5].t())
        del y
    assert own.stores == 2
    for n, view in enumerate(kept):
        torch.testing.assert_close(view, (x + n)[2:5].t())


def test_memory_is_given_back() -> None:
    x = r(64)
    with vtc.stream():
        y = x * 2
    gone = weakref.ref(y.untyped_storage())
    input_gone = weakref.ref(x)
    del x, y
    gc.collect()
    assert gone() is None
    assert input_gone() is None


def test_an_exception_in_the_block_leaves_values() -> None:
    x, found = r(4), []

    def block() -> None:
        with vtc.stream():
            found.append(x * 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert type(found[0]) is Tensor
    torch.testing.assert_close(found[0], x * 2)


def test_an_operator_that_cannot_be_is_an_error_at_once() -> None:
    with vtc.stream():
        y = r(4) * 2
        with pytest.raises(RuntimeError, match="must match the size"):
            y + r(3)
        z = y + 1
    torch.testing.assert_close(z, y + 1)


def test_an_index_out_of_range_is_an_error_and_its_value_is_lost() -> None:
    x = r(4, 3)
    with vtc.stream():
        lost = (x * 2).index_select(0, torch.tensor([0, 9]))
        with pytest.raises(IndexError, match="out of"):
            lost.tolist()
        with pytest.raises(vtc.errors.LostValueError, match="out of"):
            lost.tolist()
        with pytest.raises(vtc.errors.LostValueError):
            lost + 1
        fine = x + 1
    torch.testing.assert_close(fine, x + 1)


def test_blocks_nest() -> None:
    x = r(4)
    with vtc.stream() as outer:
        y = x * 2
        with vtc.stream() as inner:
            z = y + 1
            assert outer.flushes == 1
        w = z * y
        with outer:
            v = w + 1
    torch.testing.assert_close(v, (x * 2 + 1) * (x * 2) + 1)
    assert (inner.flushes, inner.operators) == (1, 1)
    assert type(z) is type(v) is Tensor


def test_a_stream_is_used_again() -> None:
    own = vtc.stream()
    for n in range(3):
        x = r(4)
        with own:
            y = x * 2
        torch.testing.assert_close(y, x * 2)
        assert own.flushes == n + 1


def test_another_thread_reads_and_computes() -> None:
    x = r(1000)
    found: list[Tensor] = []
    with vtc.stream():
        y = x * 2
        view = y[10:]
        thread = threading.Thread(target=lambda: found.append(view + 1))
        thread.start()
        thread.join()
        z = y * 3
    torch.testing.assert_close(found[0], (x * 2)[10:] + 1)
    torch.testing.assert_close(z, x * 6)


def test_threads_have_streams_of_their_own() -> None:
    wrong = []

    def work(seed: int) -> None:
        with torch.no_grad():
            x = torch.full((seed + 2, 5), float(seed))
            for n in range(20):
                with vtc.stream() as own:
                    y = (x * 2 + n).softmax(-1) * (x + n)
                if own.flushes != 1 or not torch.allclose(y, (x * 2 + n).softmax(-1) * (x + n)):
                    wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_records_gradients_runs_at_once() -> None:
    w = r(3, 3, requires_grad=True)
    with torch.enable_grad(), vtc.stream() as own:
        x = r(4, 3) * 2
        y = (x @ w).relu().sum()
        y.backward()
        assert own.operators == 1
    assert y.requires_grad
    torch.testing.assert_close(w.grad, x.t() @ ((x @ w) > 0).float())


def test_a_value_may_ask_for_gradients() -> None:
    with torch.enable_grad(), vtc.stream():
        x = (r(4) * 2).requires_grad_()
        (x * x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_compiled_functions_take_pending_values() -> None:
    compiled = vtc.compile(lambda x: x.softmax(-1) * 2, engine="dvm")
    x = r(3, 5)
    compiled(x)
    with vtc.stream():
        y = x + 1
        z = compiled(y) + y
    torch.testing.assert_close(z, (x + 1).softmax(-1) * 2 + x + 1)


def test_control_flow_of_torch_runs_at_once() -> None:
    x = r(4)
    with vtc.stream():
        y = x * 2
        z = torch.cond(y.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,))
    expected = x * 2 + 1 if (x * 2).sum() > 0 else x * 2 - 1
    torch.testing.assert_close(z, expected)


def test_odd_operands_run_at_once() -> None:
    x = r(4)
    with vtc.stream():
        imaginary = torch.complex(x, x).conj().imag
        assert imaginary.is_neg()
        y = (x * 2) + imaginary
        z = (x * 2).to_sparse().to_dense() - x
        n = y + torch.rand(4) * 0
    torch.testing.assert_close(y, x)
    torch.testing.assert_close(z, x)
    torch.testing.assert_close(n, x)


def test_parameters_are_operands() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    x = r(3, 6)
    with vtc.stream() as own:
        y = layer(x)
    torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-5)
    assert (own.flushes, own.stores) == (1, 1)


def test_autocast_is_seen() -> None:
    x, w = r(5, 8), r(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        with vtc.stream():
            y = (x @ w).relu()
        expected = (x @ w).relu()
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y, expected)


def test_empty_tensors() -> None:
    with vtc.stream():
        y = (r(0, 3) * 2).sum(0)
        z = (r(2, 0) + 1).t()
    assert y.tolist() == [0.0] * 3
    assert z.shape == (0, 2)

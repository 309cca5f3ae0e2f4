"""What a compiled call leaves as it is in eager PyTorch: modes, random numbers, layouts, aliases,
special values, and the settings of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import vtc
from compiling import QUICK

pytestmark = [
    pytest.mark.usefixtures("clean_dynamo"),
    pytest.mark.filterwarnings("ignore::vtc.errors.FallbackWarning"),
]


@pytest.fixture(params=["inductor", "dvm"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def compile_(model: Callable[..., Any]) -> Callable[..., Any]:
        if request.param == "dvm":
            return vtc.compile(model, engine="dvm")
        return vtc.compile(model, objective="bytes", dynamic=False, options=QUICK)

    return compile_


def settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().tolist(),
    )


@contextmanager
def restored(change: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


def joined(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x @ w, x.relu()], 1) * 2


ARGS = torch.randn(3, 4), torch.randn(4, 5)


def test_no_setting_of_the_process_changes(compiled: Callable[..., Any]) -> None:
    run, before = compiled(joined), settings()
    with torch.no_grad():
        inside = settings()
        run(*ARGS)
        assert settings() == inside
    assert settings() == before


def test_answers_follow_a_changed_default_dtype(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cat([x + torch.zeros(4), torch.full((1, 4), 0.1)], 0)

    run, x = compiled(f), torch.randn(3, 4)
    with torch.no_grad():
        assert run(x).dtype == torch.float32
        with restored(torch.set_default_dtype, torch.float64, torch.float32):
            assert run(x).dtype == torch.float64
            assert torch.equal(run(x), f(x))
        assert run(x).dtype == torch.float32


def test_answers_follow_a_changed_number_of_threads(compiled: Callable[..., Any]) -> None:
    run, threads = compiled(joined), torch.get_num_threads()
    with torch.no_grad():
        want = joined(*ARGS)
        for count in (1, 2, 3):
            with restored(torch.set_num_threads, count, threads):
                torch.testing.assert_close(run(*ARGS), want)
                assert torch.get_num_threads() == count


def test_deterministic_mode_fills_what_is_not_initialised(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cat([torch.empty(2, 4), x], 0)

    run, x = compiled(f), torch.randn(3, 4)

    def mode(on: bool) -> None:
        torch.use_deterministic_algorithms(on)

    with torch.no_grad():
        run(x)
        with restored(mode, True, False):
            assert torch.equal(run(x).isnan(), f(x).isnan())


def test_autocast_around_the_call_counts(compiled: Callable[..., Any]) -> None:
    run = compiled(lambda x, w: (x @ w, F.softmax(x @ w, 1)))
    with torch.no_grad():
        plain = [o.dtype for o in run(*ARGS)]
        with torch.autocast("cpu", torch.bfloat16):
            cast = [o.dtype for o in run(*ARGS)]
            want = [o.dtype for o in ((ARGS[0] @ ARGS[1]), F.softmax(ARGS[0] @ ARGS[1], 1))]
        again = [o.dtype for o in run(*ARGS)]
    assert cast == want
    assert plain == again == [torch.float32, torch.float32]


def test_inference_mode_gives_inference_tensors(compiled: Callable[..., Any]) -> None:
    run = compiled(joined)
    with torch.no_grad():
        assert not run(*ARGS).is_inference()
    with torch.inference_mode():
        assert run(*ARGS).is_inference()
    with torch.no_grad():
        assert not run(*ARGS).is_inference()


def test_gradients_flow_when_they_are_asked_for_later(compiled: Callable[..., Any]) -> None:
    run, (x, w) = compiled(joined), (ARGS[0], ARGS[1].clone().requires_grad_())
    with torch.no_grad():
        assert not run(x, w).requires_grad
    run(x, w).square().sum().backward()
    found, w.grad = w.grad, None
    joined(x, w).square().sum().backward()
    torch.testing.assert_close(found, w.grad)
    with torch.no_grad():
        assert not run(x, w).requires_grad


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x, 0.5) + 1,
        lambda x: torch.cat([x, torch.rand(2, 5)], 0) * torch.randn_like(x[:1]),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: F.rrelu(x, 0.0, 1.0, training=True) + 1,
        lambda x: F.alpha_dropout(x, 0.5, training=True) + 1,
        lambda x: torch.normal(x, 2.0) + torch.empty_like(x).exponential_(),
        lambda x: torch.poisson(x.exp()) + torch.randint_like(x, 9) + torch.randperm(5),
        lambda x: torch.multinomial(x.exp(), 2) * 2,
    ],
    ids=[
        *("dropout", "rand", "bernoulli", "rrelu", "alpha_dropout", "normal", "poisson"),
        "multinomial",
    ],
)
def test_random_numbers_are_those_of_eager_pytorch(
    compiled: Callable[..., Any], fn: Callable[..., Any]
) -> None:
    run, x = compiled(fn), torch.randn(4, 5)
    with torch.no_grad():
        run(x)
        torch.manual_seed(3)
        got, state = [run(x), run(x)], torch.get_rng_state()
        torch.manual_seed(3)
        want = [fn(x), fn(x)]
    torch.testing.assert_close(got, want)
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_drops_out_in_training_only(compiled: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))
    run, x = compiled(model), torch.randn(4, 5)
    with torch.no_grad():
        for training in (False, True, False):
            model.train(training)
            torch.manual_seed(5)
            got = run(x)
            torch.manual_seed(5)
            torch.testing.assert_close(got, model(x))


def test_layouts_of_outputs_are_those_of_eager_pytorch(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        return y.relu(), x.exp(), torch.cat([x, x * 2], 1), x.transpose(1, 3) + 1, y.mean(1)

    nhwc = torch.channels_last
    args = [t.to(memory_format=nhwc) for t in (torch.randn(2, 4, 5, 6), torch.randn(8, 4, 3, 3))]
    with torch.no_grad():
        got, want = compiled(f)(*args), f(*args)
    assert [o.stride() for o in got] == [o.stride() for o in want]


def test_views_of_what_is_computed_lie_as_in_eager_pytorch(compiled: Callable[..., Any]) -> None:
    """A part of every other row, and windows over each other."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([x, x], 1)
        return x.clamp(-1, 1)[::2, :, 0], joined.unfold(1, 3, 1)

    x = torch.randn(6, 5, 3)
    with torch.no_grad():
        got, want = compiled(f)(x), f(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert [o.stride() for o in got] == [o.stride() for o in want]


def test_what_is_joined_as_a_copy_keeps_memory_of_its_own(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        rolled = torch.roll(x, 2, 1)
        own = rolled.clone()
        return torch.cat([own, own, x, x], 0), rolled.permute(1, 0)

    x = torch.randn(2, 33)
    with torch.no_grad():
        joined, rolled = compiled(f)(x)
    torch.testing.assert_close((joined, rolled), f(x), rtol=0, atol=0)
    assert joined.untyped_storage().data_ptr() != rolled.untyped_storage().data_ptr()


def test_outputs_alias_what_they_do_in_eager_pytorch(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = (x * 2).view(-1)
        joined = torch.cat([z, y], 0)
        return x[1:], x.t(), z, z.view(3, 4), joined, joined[2:], y.sum(0), x.contiguous()

    x, y = torch.randn(3, 4), torch.randn(1)
    with torch.no_grad():
        got, want = compiled(f)(x, y), f(x, y)
    ours, theirs = (
        [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in v] for b in v]
        for v in ((*got, x, y), (*want, x, y))
    )
    assert ours == theirs


def test_a_dropout_that_drops_nothing_returns_its_argument(compiled: Callable[..., Any]) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        idle = F.dropout(y, 0.5, False), F.dropout(y, p=0.0), torch.dropout(x, 0.5, train=False)
        return y, *idle, F.dropout(y, 1.0)

    x = torch.randn(3, 4)
    with torch.no_grad():
        y, first, second, third, dropped = compiled(f)(x)
    assert y.data_ptr() == first.data_ptr() == second.data_ptr() != dropped.data_ptr()
    assert third.data_ptr() == x.data_ptr()
    torch.testing.assert_close(y, x + 1)
    assert not dropped.any()
    with torch.no_grad():
        assert compiled(nn.Dropout(0.5).eval())(x).data_ptr() == x.data_ptr()


def test_what_is_written_into_an_output_shows_where_it_does_in_eager_pytorch(
    compiled: Callable[..., Any],
) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[1:], x.sum(1)

    x, y = torch.randn(3, 1), torch.randn(3, 1)
    run = compiled(f)
    for args, call in ((x, run), (y, f)):
        with torch.no_grad():
            args.fill_(1)
            view, total = call(args)
            view.fill_(5)
            total.fill_(7)
    assert torch.equal(x, y)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 1e-40, -3e38])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x.relu(), F.relu6(x), x.clamp(-1, 1), x.clamp(min=0), F.hardtanh(x)),
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)),
        lambda x, y: (x < y, x == y, x != x, x.isfinite(), x.sign(), x.abs()),
        lambda x, y: (x.amax(1), x.amin(1), x.max(1).values, x.argmax(1), x.any(1)),
        lambda x, y: (x.sigmoid(), x.exp(), F.silu(x), x.sqrt(), x.log(), x / y),
        lambda x, y: (x.softmax(1), x.logsumexp(1), x.sum(1), F.softplus(x), x.tanh()),
        lambda x, y: (torch.where(x > 0, x, y), x.nan_to_num(), torch.atan2(x, y), x**2),
    ],
)
def test_values_that_are_no_numbers_are_kept(
    compiled: Callable[..., Any], fn: Callable[..., Any]
) -> None:
    x = SPECIAL.repeat(8, 1)
    y = x.t().contiguous()
    with torch.no_grad():
        torch.testing.assert_close(compiled(fn)(x, y), fn(x, y), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap_as_in_eager_pytorch(
    compiled: Callable[..., Any], dtype: torch.dtype
) -> None:
    info = torch.iinfo(dtype)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            (x + y),
            (x - y) * 3,
            x * y,
            -x,
            x.abs() if info.min else x,
            x.sum(),
            (x + 100).float(),
            torch.cat([x * 2, y - 1]).to(torch.int64),
            x.cumsum(0),
            (x * x) > y,
        )

    x = torch.tensor([info.min, info.max, 0, 1, info.max - 3, 7], dtype=dtype)
    with torch.no_grad():
        assert all(map(torch.equal, compiled(f)(x, x.flip(0)), f(x, x.flip(0))))


def test_hooks_run(compiled: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, out: out + 3)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(ARGS[0]), model(ARGS[0]))


class Named(Tensor):
    """A subclass that operators keep."""


def test_a_subclass_of_tensor_stays_one(compiled: Callable[..., Any]) -> None:
    x = ARGS[0].clone().as_subclass(Named)
    with torch.no_grad():
        got, want = compiled(joined)(x, ARGS[1]), joined(x, ARGS[1])
    assert type(got) is type(want)
    torch.testing.assert_close(got.as_subclass(Tensor), want.as_subclass(Tensor))


def test_a_tensor_that_is_negated_lazily_is_read_as_negated(compiled: Callable[..., Any]) -> None:
    run, (x, w) = compiled(joined), ARGS
    with torch.no_grad():
        run(x, w)
        negated = torch._neg_view(x)
        torch.testing.assert_close(run(negated, w), joined(negated, w))
        torch.testing.assert_close(run(x, w), joined(x, w))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_of_matmuls_is_what_is_asked_for(
    compiled: Callable[..., Any], precision: str
) -> None:
    run = compiled(joined)
    with torch.no_grad():
        run(*ARGS)
        with restored(torch.set_float32_matmul_precision, precision, "highest"):
            error = (run(*ARGS) - joined(*[a.double() for a in ARGS])).abs().max()
            eager = (joined(*ARGS) - joined(*[a.double() for a in ARGS])).abs().max()
    assert error <= 2 * eager + 1e-6

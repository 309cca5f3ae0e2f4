"""Calls of sizes that recur, with a recorder that stands for a device's."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import vtc
from vtc.errors import KernelFailedError
from vtc.graph.capture import capture
from vtc.graph.program import is_parameter
from vtc.lowering.dvm import lower
from vtc.runtime import dvm_compile, recurring
from vtc.runtime.dvm import counters
from vtc.runtime.recurring import RECURRING, Recurring
from vtc.runtime.unchanged import MISSES


class Recorder:
    """Computes nothing while it records: what is recorded runs at each replay, into the same
    results."""

    def __init__(self) -> None:
        self.recorded = self.released = 0
        self.full = False
        self.fault: Exception | None = None
        self.fails = False

    def begin(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault

    def release(self, everything: bool) -> None:
        self.released += 1

    def record(self, run, args):
        if self.fails:
            raise RuntimeError("no room")
        self.recorded += 1
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        before = [t.detach().clone() for t in tensors]
        outputs = run(*args)
        for tensor, own in zip(tensors, before, strict=True):
            tensor.data.copy_(own)
        places = {t.untyped_storage()._cdata for t in tensors}
        made = [o for o in outputs if o.untyped_storage()._cdata not in places]
        for own in made:
            own.fill_(torch.nan)

        def replay() -> None:
            found = [o for o in run(*args) if o.untyped_storage()._cdata not in places]
            for own, value in zip(made, found, strict=True):
                own.copy_(value)

        return replay, outputs


@pytest.fixture
def recorder(monkeypatch):
    own = Recorder()

    def replayed(program, captured, wanted):
        passed = captured.inputs[: program.plan.inputs]
        weights = [i for i, n in enumerate(passed) if is_parameter(n)]
        own.program = Recurring(program, weights, own)
        return own.program

    torch._dynamo.reset()
    counters.reset()
    monkeypatch.setattr(dvm_compile, "recurring", replayed)
    monkeypatch.setattr(recurring, "launches_directly", lambda: False)
    return own


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)), x[1:]


def check(model, compiled, rows: int) -> tuple:
    x = torch.randn(rows, 8)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert found[1].data_ptr() == x[1:].data_ptr()
    return found, expected


def test_calls_of_sizes_that_recur_are_replayed_and_their_results_stay(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    answers = [check(model, compiled, rows) for _ in range(RECURRING + 2) for rows in (3, 5)]
    check(model, compiled, 7)
    assert recorder.recorded == 2
    assert counters.replays == 2 * 3
    assert counters.captures == 1
    for found, expected in answers:
        torch.testing.assert_close(found, expected)


def test_weights_are_read_where_they_are(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for _ in range(RECURRING):
        check(model, compiled, 3)
    with torch.no_grad():
        model.linear.weight.add_(1)
    check(model, compiled, 3)
    assert recorder.recorded == 1
    assert counters.replays == 2


@pytest.mark.parametrize("moved", ["data", "parameter"])
def test_weights_that_moved_are_found_and_calls_counted_anew(recorder, moved):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for _ in range(RECURRING + 1):
        check(model, compiled, 3)
    replays = counters.replays
    before = model.linear.weight.data  # kept, so that what is new lies elsewhere
    if moved == "data":
        model.linear.weight.data = torch.randn(4, 8)
    else:
        model.linear.weight = nn.Parameter(torch.randn(4, 8))
    check(model, compiled, 3)
    assert model.linear.weight.data_ptr() != before.data_ptr()
    assert counters.replays == replays
    assert recorder.released == 1
    for _ in range(RECURRING + 1):
        check(model, compiled, 3)
    assert recorder.recorded == 2
    assert counters.replays > replays


def test_weights_that_move_again_and_again_are_no_longer_captured(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    held = []  # so that none comes to lie where another was
    for _ in range(RECURRING * (MISSES + 4)):
        held.append(model.linear.weight.data)
        model.linear.weight.data = model.linear.weight.data.clone()
        check(model, compiled, 3)
    assert recorder.program.closed
    assert recorder.recorded <= 1


def test_an_updated_input_is_updated_once_a_call(recorder):
    def step(x, cache):
        cache.add_(1)
        return x * cache

    compiled = vtc.compile(step, engine="dvm")
    cache = torch.zeros(6)
    for n in range(RECURRING + 3):
        x, version = torch.randn(6), cache._version
        torch.testing.assert_close(compiled(x, cache), x * (n + 1))
        torch.testing.assert_close(cache, torch.full((6,), n + 1.0))
        assert cache._version > version
    assert recorder.recorded == 1


def test_another_cache_is_updated_where_it_is(recorder):
    def step(x, cache):
        cache.add_(1)
        return x * cache

    compiled = vtc.compile(step, engine="dvm")
    first, second, x = torch.zeros(6), torch.zeros(6), torch.randn(6)
    for _ in range(RECURRING + 1):
        compiled(x, first)
    torch.testing.assert_close(compiled(x, second), x)
    assert first.tolist() == [RECURRING + 1] * 6
    assert second.tolist() == [1] * 6


def test_what_cannot_be_captured_runs_as_before(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    recorder.fails = True
    for _ in range(RECURRING + 2):
        check(model, compiled, 3)
    recorder.fails = False
    for _ in range(RECURRING + 2):
        check(model, compiled, 4)
    assert recorder.recorded == 0
    assert counters.replays == 0


def test_a_device_without_room_gets_no_more_captures(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for _ in range(RECURRING):
        check(model, compiled, 3)
    recorder.full = True
    for _ in range(RECURRING + 1):
        check(model, compiled, 4)
        check(model, compiled, 3)
    assert recorder.recorded == 1
    assert counters.replays == 1 + RECURRING + 1


def test_the_capture_not_used_for_longest_goes_first(recorder, monkeypatch):
    monkeypatch.setattr(recurring, "KEPT", 2)
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for rows in (3, 4, 5):
        for _ in range(RECURRING):
            check(model, compiled, rows)
        check(model, compiled, 3)
    assert [sizes[-1] for sizes in recorder.program.captures] == [5, 3]
    assert recorder.released == 1


def test_captures_end_after_so_many(recorder, monkeypatch):
    monkeypatch.setattr(recurring, "CAPTURES", 1)
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for _ in range(RECURRING + 1):
        check(model, compiled, 3)
        check(model, compiled, 4)
    assert recorder.recorded == 1


def test_arguments_that_take_long_to_copy_are_left_where_they_are(recorder, monkeypatch):
    monkeypatch.setattr(recurring, "COPIED_BYTES", 4 * 8 * 4)
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for _ in range(RECURRING + 1):
        check(model, compiled, 4)
        check(model, compiled, 5)
    assert [sizes[-1] for sizes in recorder.program.captures] == [4]


def test_what_a_kernel_found_is_raised_by_the_next_replay(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for _ in range(RECURRING + 1):
        check(model, compiled, 3)
    recorder.fault = KernelFailedError(2)
    with pytest.raises(KernelFailedError), torch.no_grad():
        compiled(torch.randn(3, 8))
    check(model, compiled, 3)


def test_calls_in_a_capture_of_the_callers_launch(recorder, monkeypatch):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    monkeypatch.setattr(recurring, "launches_directly", lambda: True)
    for _ in range(RECURRING + 1):
        check(model, compiled, 3)
    assert recorder.recorded == 0


def test_a_capture_made_in_inference_mode_serves_other_calls(recorder):
    model = Model()
    compiled = vtc.compile(model, engine="dvm")
    for mode in (torch.inference_mode, contextlib.nullcontext):
        for _ in range(RECURRING + 1):
            with mode():
                check(model, compiled, 3)


def chain(x, w):
    for _ in range(recurring.STEPS // 2):
        x = torch.relu(nn.functional.linear(x, w))
    return (x,)


def short(x, w):
    return (torch.relu(nn.functional.linear(x, w)),)


def reading(x, w):
    (x,) = chain(x, w)
    return (torch.nonzero(x > 0),)


def numbered(x, w):
    (x,) = chain(x, w)
    return (x.sum().item(),)


def of_device(function, monkeypatch, wanted=True, device="cuda"):
    """What runs a function's program, lowered for a device that need not be there."""
    monkeypatch.setattr(recurring, "DeviceRecorder", lambda device: Recorder())
    with FakeTensorMode(shape_env=ShapeEnv()):
        fakes = [torch.empty(8, 8, device=device) for _ in range(2)]
    captured = capture(fx.symbolic_trace(function), fakes)
    program = SimpleNamespace(plan=lower(captured))
    return program, recurring.recurring(program, captured, wanted)


def test_programs_of_many_steps_on_a_device_are_replayed(monkeypatch):
    program, run = of_device(chain, monkeypatch)
    assert len(program.plan.steps) == recurring.STEPS
    assert isinstance(run, Recurring)


@pytest.mark.parametrize("function", [short, reading, numbered])
def test_programs_that_are_short_or_use_the_host_are_not(monkeypatch, function):
    program, run = of_device(function, monkeypatch)
    assert run is program


def test_programs_are_not_replayed_where_it_is_not_wanted_or_on_a_cpu(monkeypatch):
    program, run = of_device(chain, monkeypatch, wanted=False)
    assert run is program
    program, run = of_device(chain, monkeypatch, device="cpu")
    assert run is program

"""What is decided about CUDA graphs before one is captured; no device is needed."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
import weakref

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from vtc import errors
from vtc.graph import program
from vtc.graph.program import Program
from vtc.lowering.timing import Held
from vtc.runtime import cuda_graph
from vtc.runtime.cuda_graph import RESTLESS, STEADY, CudaGraphs, capturable, warm_up

aten = torch.ops.aten
CUDA = torch.device("cuda")


def graph_of(calls: list[tuple], *devices: str) -> Program:
    """A program over vectors x0, x1, ... on `devices`; calls name their operands by strings."""
    graph, mode = fx.Graph(), FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[str, fx.Node] = {}
    with mode:
        for k, device in enumerate(devices):
            made[f"x{k}"] = graph.placeholder(f"x{k}")
            made[f"x{k}"].meta["val"] = torch.empty(4, device=device)
        for name, target, args, kwargs in calls:
            operands = [made.get(a, a) if isinstance(a, str) else a for a in args]
            made[name] = graph.call_function(target, tuple(operands), kwargs)
            values = [o.meta["val"] if isinstance(o, fx.Node) else o for o in operands]
            made[name].meta["val"] = target(*values, **kwargs)
    graph.output((made[calls[-1][0]],))
    return program.build(fx.GraphModule({}, graph), ())


def number(name: str) -> tuple:
    return (name, aten.scalar_tensor.default, (1.5,), {"device": torch.device("cpu")})


@pytest.mark.parametrize(
    "calls",
    [
        [number("n"), ("y", aten.copy.default, ("x0", "n"), {})],
        [number("n"), ("y", aten._to_copy.default, ("n",), {"device": CUDA})],
        [("y", aten._to_copy.default, ("x0",), {"device": torch.device("cpu")})],
        [
            ("r", aten.rand.default, ([4],), {"device": torch.device("cpu")}),
            ("y", aten.mul.Tensor, ("x0", 2), {}),
        ],
    ],
)
def test_a_graph_that_uses_the_cpu_is_not_captured(calls: list, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="vtc"):
        assert not capturable(graph_of(calls, "cuda"))
    assert "one by one" in caplog.text


@pytest.mark.parametrize(
    "calls",
    [
        [("y", aten.mul.Tensor, ("x0", 2), {})],
        [number("n"), ("y", aten.mul.Tensor, ("x0", "n"), {})],
        [number("n"), ("m", aten.gt.Scalar, ("x0", 0), {})]
        + [("y", aten.masked_fill.Tensor, ("x0", "m", "n"), {})],
    ],
)
def test_numbers_from_the_cpu_are_handed_to_kernels(calls: list) -> None:
    assert capturable(graph_of(calls, "cuda"))


def test_what_is_passed_is_on_one_cuda_device() -> None:
    calls = [("y", aten.mul.Tensor, ("x0", 2), {})]
    assert not capturable(graph_of(calls, "cpu"))
    assert not capturable(graph_of(calls, "cuda", "cpu"))
    assert not capturable(graph_of(calls, "cuda", "cuda:1"))


def test_each_warm_up_has_the_values_of_the_caller() -> None:
    """An index that a call leaves out of range would be read by the next."""
    index, table = torch.tensor([2, 0]), torch.randn(3)
    seen = []

    def run(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        seen.append(index.tolist())
        found = table[index]
        index.fill_(7)
        return found

    warm_up(run, [index, table], Held([index]))
    assert seen == [[2, 0], [2, 0]]
    assert index.tolist() == [2, 0]


def test_an_error_in_a_warm_up_leaves_the_values_of_the_caller() -> None:
    index = torch.tensor([1])

    def run(index: torch.Tensor) -> None:
        index.fill_(7)
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        warm_up(run, [index], Held([index]))
    assert index.tolist() == [1]


class Recorded:
    """A CUDA graph on the CPU: what is called while it is captured runs again at each replay, on
    the same tensors, into the same outputs."""

    current: Recorded | None = None
    made: int = 0

    def __init__(self) -> None:
        self.again = lambda: None
        Recorded.made += 1

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        self.again()


@contextlib.contextmanager
def recording(graph: Recorded, pool=None, stream=None):
    Recorded.current = graph
    try:
        yield
    finally:
        Recorded.current = None


@pytest.fixture
def recorded(monkeypatch):
    """CUDA graphs are recorded."""

    class Stream:
        def wait_stream(self, other):
            pass

        synchronize = wait_stream_of = lambda self: None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_graph, "ALIGNED", 1)
    Recorded.made = 0


def counted(x, cache):
    """Updates a cache; gives a result, a view of an argument and a view of the cache."""

    def compute():
        cache.add_(1)
        return x * 2 + cache

    if Recorded.current is None:
        return compute(), x[1:], cache[:1]
    out = torch.empty_like(x)  # a capture computes nothing
    Recorded.current.again = lambda: out.copy_(compute())
    return out, x[1:], cache[:1]


def check(graphs: CudaGraphs, x: torch.Tensor, cache: torch.Tensor) -> None:
    """A call gives what the function gives, and views of what it was given."""
    before = cache.clone()
    out, part, kept = graphs(x, cache)
    assert torch.equal(cache, before + 1)
    assert torch.equal(out, x * 2 + cache)
    assert part.data_ptr() == x[1:].data_ptr()
    assert part.shape == x[1:].shape
    assert kept.data_ptr() == cache.data_ptr()


def test_steady_arguments_are_read_where_they_are(recorded) -> None:
    graphs, x, cache = CudaGraphs(counted, [], [1]), torch.randn(4), torch.zeros(4)
    for _ in range(2 * STEADY):
        x.normal_()
        check(graphs, x, cache)
    assert Recorded.made == 2
    (capture,) = graphs.captures.values()
    assert capture.copied == []
    assert capture.arguments[0] is x


def test_other_arguments_are_copied_again_and_stay_so(recorded) -> None:
    graphs, x, cache = CudaGraphs(counted, [], [1]), torch.randn(4), torch.zeros(4)
    for _ in range(2 * STEADY):
        check(graphs, x, cache)
    y = torch.randn(4)
    held = graphs(y, cache)[0]
    assert torch.equal(held, y * 2 + cache)
    gone = weakref.ref(x)
    for _ in range(2 * STEADY):
        check(graphs, y, cache)
        check(graphs, x, cache)
    assert Recorded.made == 3
    del x
    gc.collect()
    assert gone() is None


def test_a_steady_argument_that_moved_is_found(recorded) -> None:
    graphs, x, cache = CudaGraphs(counted, [], [1]), torch.randn(4), torch.zeros(4)
    for _ in range(2 * STEADY):
        check(graphs, x, cache)
    x.data = torch.randn(4)
    check(graphs, x, cache)
    assert Recorded.made == 3


def test_arguments_that_differ_are_no_longer_compared(recorded) -> None:
    graphs, cache = CudaGraphs(counted, [], [1]), torch.zeros(4)
    for _ in range(RESTLESS + 3):
        check(graphs, torch.randn(4), cache)
    assert Recorded.made == 1
    (capture,) = graphs.captures.values()
    assert capture.watched is None


def test_arguments_at_odd_addresses_are_copied(recorded, monkeypatch) -> None:
    monkeypatch.setattr(cuda_graph, "ALIGNED", 64)
    graphs, x, cache = CudaGraphs(counted, [], [1]), torch.randn(9)[1:5], torch.zeros(4)
    x = x if x.data_ptr() % 64 else torch.randn(10)[2:6]
    for _ in range(2 * STEADY):
        check(graphs, x, cache)
    assert Recorded.made == 1


def test_outputs_of_steady_calls_stay(recorded) -> None:
    graphs, x, cache = CudaGraphs(counted, [], [1]), torch.randn(4), torch.zeros(4)
    answers = [(graphs(x, cache)[0], x * 2 + cache) for _ in range(2 * STEADY)]
    assert all(torch.equal(got, expected) for got, expected in answers)


def test_another_capture_that_fails_leaves_the_first(recorded) -> None:
    def failing(x, cache):
        if Recorded.current is not None and Recorded.made > 1:
            raise RuntimeError("no room")
        return counted(x, cache)

    graphs, x, cache = CudaGraphs(failing, [], [1]), torch.randn(4), torch.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3 * STEADY):
            check(graphs, x, cache)
    assert Recorded.made == 2
    assert not graphs.refused


def test_arguments_that_cannot_be_copied_again_are_computed_directly(recorded) -> None:
    def failing(x, cache):
        if Recorded.current is not None and Recorded.made > 2:
            raise RuntimeError("no room")
        return counted(x, cache)

    graphs, x, cache = CudaGraphs(failing, [], [1]), torch.randn(4), torch.zeros(4)
    for _ in range(2 * STEADY):
        check(graphs, x, cache)
    with pytest.warns(errors.FallbackWarning, match="no room"):
        check(graphs, torch.randn(4), cache)
    check(graphs, torch.randn(4), cache)

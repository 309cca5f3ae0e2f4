"""The operators of dvm_gpu.py over shapes, most of them unaligned, and how each system is timed.

Every operator has a process of its own, in which all systems compile it for all shapes; then one
process after another has the device to itself and times what it has compiled.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import random
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import vtc
from vtc.errors import FallbackWarning
from vtc.runtime.dvm import counters

Function = Callable[..., Any]
Shape = tuple[int, ...]
COUNT = 64
ALIGNED = 4  # every fourth shape
DEVICE = "cuda"
DTYPE = torch.bfloat16
TOLERANCE = 2e-2  # of float64, over the largest magnitude
TURNS = 5
TURN_US = 1500.0


@dataclass(frozen=True)
class Operator:
    """`function` of tensors whose shapes are named by letters of `sizes`."""

    name: str
    function: Function
    operands: tuple[str, ...]
    sizes: str = "rc"

    def inputs(self, shape: Shape, seed: int) -> list[Tensor]:
        """Operands on the device, from a normal distribution."""
        generator = torch.Generator(DEVICE).manual_seed(seed)
        known = dict(zip(self.sizes, shape, strict=True))
        return [
            torch.randn([known[d] for d in o], generator=generator, device=DEVICE).to(DTYPE)
            for o in self.operands
        ]


def if_else_add(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a > 0, a + b, a - b)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def addmm(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addmm(c, a, b)


def layer_norm(a: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return F.layer_norm(a, (a.shape[-1],), c, d)


def softmax(a: Tensor) -> Tensor:
    return torch.softmax(a, -1)


def rms_norm_add(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    total = a + b
    return total, F.rms_norm(total, (total.shape[-1],), c, 1e-6)


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def gelu(a: Tensor, c: Tensor) -> Tensor:
    return F.gelu(a + c)


OPERATORS: Mapping[str, Operator] = {
    o.name: o
    for o in (
        Operator("matmul", matmul, ("mk", "kn"), "mnk"),
        Operator("layer_norm", layer_norm, ("rc", "c", "c")),
        Operator("if_else_add", if_else_add, ("rc", "rc")),
        Operator("addmm", addmm, ("mk", "kn", "n"), "mnk"),
        Operator("softmax", softmax, ("rc",)),
        Operator("rms_norm_add", rms_norm_add, ("rc", "rc", "c")),
        Operator("swiglu", swiglu, ("rc", "rc")),
        Operator("gelu", gelu, ("rc", "c")),
    )
}

SYSTEMS: Mapping[str, Callable[[Function], Function]] = {
    "eager": lambda run: run,
    "inductor": functools.partial(torch.compile, dynamic=False),
    "inductor-dynamic": functools.partial(torch.compile, dynamic=True),
    "vtc": lambda run: vtc.compile(run, engine="dvm"),
}


def shapes(operator: Operator, count: int = COUNT) -> list[Shape]:
    """Sizes of an operator, drawn evenly by their logarithms; every fourth shape is aligned."""
    draw = random.Random(operator.name)
    bounds = {"r": (16, 8192), "c": (64, 8192), "m": (16, 4096), "n": (64, 4096), "k": (64, 4096)}
    found: list[Shape] = []
    while len(found) < count:
        sizes = []
        for letter in operator.sizes:
            low, high = (math.log(b) for b in bounds[letter])
            size = round(math.exp(draw.uniform(low, high)))
            sizes.append(max(size // 64, 1) * 64 if len(found) % ALIGNED == 0 else size | 1)
        if tuple(sizes) not in found:
            found.append(tuple(sizes))
    return found


def fresh(function: Function) -> Function:
    """The function with code of its own: Dynamo keeps what it compiles by the code object."""
    assert isinstance(function, FunctionType)
    name = f"{function.__name__}_{next(_numbers)}"
    return FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)


_numbers = iter(range(1 << 30))


@dataclass
class Prepared:
    """The systems for one shape, compiled. first_ms: of the first call; failed: why a system is
    not there."""

    inputs: list[Tensor]
    calls: dict[str, Callable[[], Any]] = field(default_factory=dict)
    first_ms: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)


def prepare(operator: Operator, dynamic: Mapping[str, Function], shape: Shape) -> Prepared:
    """Calls every system once on a shape, and holds the results against float64."""
    inputs = operator.inputs(shape, seed=1)
    own = Prepared(inputs)
    exact = _tensors(operator.function(*(t.double() for t in inputs)))
    for name, build in SYSTEMS.items():
        call = dynamic[name] if name in dynamic else build(fresh(operator.function))
        torch.cuda.synchronize()
        start = time.perf_counter()
        try:
            found = _tensors(call(*inputs))
            torch.cuda.synchronize()
        except Exception as error:
            own.failed[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        own.first_ms[name] = (time.perf_counter() - start) * 1e3
        own.errors[name] = max(
            float((f.double() - e).abs().max() / e.abs().max())
            for f, e in zip(found, exact, strict=True)
        )
        if not own.errors[name] < TOLERANCE:
            own.failed[name] = f"wrong, by {own.errors[name]:.1e}"
            continue
        own.calls[name] = functools.partial(call, *inputs)
    return own


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def measure(operator: Operator, shape: Shape, own: Prepared, workers: int) -> dict[str, Any]:
    """Times what was prepared: an entry of the section `device_operators`."""
    call_us = in_turns(own.calls)
    wall_us = in_turns(own.calls, turns=3, clock=wall_microseconds)
    graphs = {}
    # As many calls for every system: what a replay costs beside its kernels is shared by them.
    count = int(min(max(200.0 / min(call_us.values(), default=1.0), 2), 20))
    for name, call in own.calls.items():
        try:
            graphs[name] = _captured(call, count)
        except RuntimeError as error:
            own.failed[f"{name} in a graph"] = str(error)[:300]
    device_us = in_turns({n: g.replay for n, g in graphs.items()})
    device_us = {n: t / count for n, t in device_us.items()}
    compile_ms = {n: max(own.first_ms[n] - call_us[n] * 1e-3, 0.0) for n in own.calls}
    return {
        "operator": operator.name,
        "shape": list(shape),
        "dtype": str(DTYPE).removeprefix("torch."),
        "call_us": call_us,
        "wall_us": wall_us,
        "device_us": device_us,
        "compile_ms": compile_ms,
        "compiling_processes": workers,
        "max_rel_error": own.errors,
        "failed": own.failed,
    }


def microseconds(call: Callable[[], Any], calls: int) -> float:
    """Of a call, between two events around `calls` of them in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / calls


def wall_microseconds(call: Callable[[], Any], calls: int) -> float:
    """Of a call by the host's clock: `calls` of them in a row, and the wait for the last one."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / calls


def in_turns(
    calls: Mapping[str, Callable[[], Any]],
    turns: int = TURNS,
    turn_us: float = TURN_US,
    clock: Callable[[Callable[[], Any], int], float] = microseconds,
) -> dict[str, float]:
    """The median microseconds of each by `clock`, measured in turns of about `turn_us`."""
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = int(min(max(turn_us / microseconds(call, 3), 3), 100))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            found[name].append(clock(call, counts[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def _captured(call: Callable[[], Any], count: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of so many calls in a row, whose replay is the time of their kernels."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph


def _work(
    name: str, wanted: Sequence[Shape], seconds: float, workers: int, pipe: Connection
) -> None:
    """A process: compiles an operator's shapes while there is time, waits, then times them."""
    operator, start = OPERATORS[name], time.perf_counter()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.force_disable_caches = True
    torch._dynamo.config.recompile_limit = 1000
    prepared: dict[Shape, Prepared] = {}
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        square = torch.zeros(64, 64, device=DEVICE, dtype=DTYPE)
        square @ square  # the library loads
        dynamic = {n: SYSTEMS[n](fresh(operator.function)) for n in ("inductor-dynamic", "vtc")}
        for shape in wanted:
            if time.perf_counter() - start > seconds:
                break
            prepared[shape] = prepare(operator, dynamic, shape)
        given = {str(w.message) for w in caught if issubclass(w.category, FallbackWarning)}
        pipe.send({"shapes": len(prepared), "warnings": sorted(given), "eager": counters.eager,
                   "captures": counters.captures})  # fmt: skip
        pipe.recv()
        for shape, own in prepared.items():
            pipe.send(measure(operator, shape, own, workers))
        pipe.send(None)


def _guarded(*args: Any) -> None:
    try:
        _work(*args)
    except Exception:  # the process that waits for this one is told, whatever it is
        args[-1].send({"error": traceback.format_exc()})
        raise


def sweep(
    wanted: Mapping[str, Sequence[Shape]], seconds: float, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Entries of `device_operators` for the shapes, of which those are left out that are not
    compiled within `seconds`."""
    context = multiprocessing.get_context("spawn")
    running = {}
    for name, own in wanted.items():
        here, there = context.Pipe()
        args = (name, list(own), seconds, len(wanted), there)
        process = context.Process(target=_guarded, args=args, daemon=True)
        process.start()
        there.close()
        running[name] = process, here
    for name, (_, pipe) in running.items():
        progress(f"{name}: {_received(pipe)}")
    for name, (process, pipe) in running.items():
        try:
            pipe.send("your turn")
            while isinstance(entry := _received(pipe), dict) and "error" not in entry:
                yield entry
        except OSError as error:
            entry = {"error": repr(error)}
        if entry is not None:
            progress(f"{name}: {entry['error']}")
        process.join(10)


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return {"error": "the process has ended"}

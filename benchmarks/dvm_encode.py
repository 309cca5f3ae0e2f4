"""How long it takes to encode a known program for a new shape, and a function's first call."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx

from vtc.graph.capture import capture
from vtc.lowering.dvm import lower
from vtc.runtime import dvm, dvm_compile

SHAPES = 3000
FRESH = 7  # captures of a function, each lowered anew
LARGEST = 4096


def matmul_bias_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x @ w + b)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def if_else_add(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, x + y, x - y)


def addmm(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(b, x, w)


def chain_of_20(x: Tensor, y: Tensor) -> Tensor:
    for k in range(5):
        x = torch.relu(x * (k + 1.5) + y) - x
    return x


OPERATORS: Mapping[str, tuple[Callable[..., Tensor], Sequence[tuple[int, ...]]]] = {
    "matmul_bias_gelu": (matmul_bias_gelu, [(24, 48), (48, 80), (80,)]),
    "layer_norm": (layer_norm, [(24, 48), (48,), (48,)]),
    "softmax": (softmax, [(24, 48)]),
    "if_else_add": (if_else_add, [(24, 48), (24, 48)]),
    "addmm": (addmm, [(80,), (24, 48), (48, 80)]),
    "chain_of_20": (chain_of_20, [(24, 48), (24, 48)]),
}


def measure(name: str) -> dict[str, Any]:
    """An operator's entry of the section `encode_us`."""
    calls = [_first_call(name) for _ in range(FRESH)]
    programs, times = zip(*calls, strict=True)
    encode = _encode_times(programs[-1])
    return {
        "median": statistics.median(encode),
        "p99": sorted(encode)[math.ceil(0.99 * len(encode)) - 1],
        "shapes": len(encode),
        **{key: statistics.median(t[key] for t in times) for key in times[0]},
        "first_call_max_ms": max(t["first_call_ms"] for t in times),
    }


def _first_call(name: str) -> tuple[dvm.Program, dict[str, float]]:
    """The first call of a function that was never seen before: its program, and the time it took
    from the captured graph on."""
    function, shapes = OPERATORS[name]
    inputs = [torch.randn(s) for s in shapes]
    programs: list[dvm.Program] = []
    first: dict[str, float] = {}

    def backend(graph_module: fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        captured = capture(graph_module, example, branches=True)
        real = [int(e) if isinstance(e, torch.SymInt) else e for e in example]
        start = time.perf_counter()
        plan = lower(captured)
        lowered = time.perf_counter()
        programs.append(dvm.Program(plan, dvm.native_machine()))
        loaded = time.perf_counter()
        programs[-1](*real)
        first.update(
            lower_ms=(lowered - start) * 1e3,
            load_ms=(loaded - lowered) * 1e3,
            first_call_ms=(time.perf_counter() - start) * 1e3,
        )
        return programs[-1]

    torch._dynamo.reset()
    gc.collect()  # what earlier captures left
    with torch.no_grad():
        found = dvm_compile.dynamic(function, backend)(*inputs)
        torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-4)
    return programs[0], first


def _encode_times(program: dvm.Program) -> list[float]:
    """Microseconds to encode, one random choice of sizes after another."""
    machine, draw = program.machines[0], random.Random(0)
    count = len(machine.module.symbols)
    choices = [[draw.randint(2, LARGEST) for _ in range(count)] for _ in range(SHAPES)]
    for sizes in choices[:100]:
        machine.encode(sizes)
    gc.collect()
    times = []
    for sizes in choices[100:]:
        start = time.perf_counter_ns()
        machine.encode(sizes)
        times.append((time.perf_counter_ns() - start) * 1e-3)
    return times

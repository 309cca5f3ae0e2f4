"""The device's bandwidth as dvm_gpu.py measures it, and what the host pays for a launch."""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dvm_gpu_operators import SYSTEMS, in_turns
from torch.nn import functional

import vtc
from vtc.lowering.settings import Settings
from vtc.program.module import Module
from vtc.runtime import dvm_compile
from vtc.vm.device import DeviceMachine
from vtc.vm.image import image_of
from vtc.vm.machine import Machine, native_module

ROWS, COLUMNS = 32768, 4096


@dataclass(frozen=True)
class Operator:
    """A function of tensors; `tensors` arguments [rows, columns], then `vectors` of [columns].

    moved: tensors of [rows, columns] that it reads and writes at least.
    """

    name: str
    run: Callable[..., Any]
    tensors: int
    vectors: int
    moved: int


def _norm_add(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x + y
    return z, functional.rms_norm(z, (z.shape[-1],), w, 1e-6)


OPERATORS = (
    Operator("copy", lambda x: x.clone(), 1, 0, 2),
    Operator("add", lambda x, y: x + y, 2, 0, 3),
    Operator("swiglu", lambda x, y: functional.silu(x) * y, 2, 0, 3),
    Operator("gelu", lambda x: functional.gelu(x, approximate="tanh"), 1, 0, 2),
    Operator("rmsnorm_add", _norm_add, 2, 1, 4),
    Operator("layernorm", lambda x, w, b: functional.layer_norm(x, (x.shape[-1],), w, b), 1, 2, 2),
    Operator("softmax", lambda x: torch.softmax(x, -1), 1, 0, 2),
)


def arguments(own: Operator, rows: int, columns: int, device: str = "cuda") -> list[torch.Tensor]:
    """Random arguments in bf16."""
    made = [torch.randn(rows, columns, device=device) for _ in range(own.tensors)]
    made += [torch.randn(columns, device=device) for _ in range(own.vectors)]
    return [a.bfloat16() for a in made]


def same(got: Any, expected: Any) -> None:
    """Raises AssertionError unless the results agree as far as bf16 goes."""
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)


def bandwidth(own: Operator, peers: Sequence[str]) -> dict[str, Any]:
    """TB/s at 32768x4096 in bf16, of what must be moved: an entry of the section `bandwidth`.

    A system whose result is wrong is not timed.
    """
    args = arguments(own, ROWS, COLUMNS)
    calls, failed = {}, {}
    torch._dynamo.reset()
    with torch.no_grad():
        for name in peers:
            system = SYSTEMS[name](own.run)
            try:
                same(system(*args), own.run(*args))
            except AssertionError as error:
                failed[name] = str(error)
                continue
            calls[name] = functools.partial(system, *args)
        times = in_turns(calls, turns=7, turn_us=4000.0)
    moved = own.moved * ROWS * COLUMNS * 2
    return {
        "operator": own.name,
        "us": times,
        "tb_per_s": {n: moved / t / 1e6 for n, t in times.items()},
        "failed": failed,
    }


def _module_of(own: Operator, device: str, machine: Callable[[Module], Any]) -> Module:
    """The operator's module, for every number of rows and columns."""
    made: list[Module] = []

    def keep(module: Module) -> Any:
        made.append(module)
        return machine(module)

    settings = Settings("latency", vtc.Options(), engine="dvm")

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        return dvm_compile.compile_graph(graph, list(inputs), settings, keep)

    torch._dynamo.reset()
    with torch.no_grad():
        dvm_compile.dynamic(own.run, backend)(*arguments(own, 48, 96, device))
    return made[0]


def _device_machine(module: Module) -> DeviceMachine:
    return DeviceMachine(module, torch.device("cuda", 0))


def encode(own: Operator, shapes: int) -> dict[str, Any]:
    """Microseconds to encode a known program for a new shape, with tiles for a device."""
    draw = random.Random(0)
    module = _module_of(own, "cpu", Machine)
    encoder = native_module().Encoder(image_of(module))
    times = []
    for _ in range(shapes):
        sizes = [draw.randint(2, 4096) for _ in module.symbols]
        start = time.perf_counter_ns()
        encoder.encode(sizes, True)
        times.append((time.perf_counter_ns() - start) / 1000)
    return {"operator": own.name, "encode_us": statistics.median(times[shapes // 10 :])}


def host(own: Operator, shapes: int = 300) -> dict[str, Any]:
    """Microseconds on the host, where a known program is encoded for a new shape and launched: an
    entry of the section `host`."""
    module = _module_of(own, "cuda", _device_machine)
    machine = _device_machine(module)
    # Addresses that any of the shapes fits behind.
    room = torch.zeros(1 << 24, device="cuda")
    pointers = [0 if b.kind == "temporary" else room.data_ptr() for b in module.buffers]
    encoding, both = [], []
    for n in range(shapes):
        sizes = [64 + n + 8 * k for k in range(len(module.symbols))]
        start = time.perf_counter_ns()
        program = machine.encode(sizes)
        middle = time.perf_counter_ns()
        program.run(pointers, ())
        both.append((time.perf_counter_ns() - start) / 1000)
        encoding.append((middle - start) / 1000)
        torch.cuda.synchronize()
    return {
        "operator": own.name,
        "encode_us": statistics.median(encoding),
        "encode_and_launch_us": statistics.median(both),
        "encode_and_launch_p90_us": statistics.quantiles(both, n=10)[-1],
    }

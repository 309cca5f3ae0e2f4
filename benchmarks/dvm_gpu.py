"""The DVM on a CUDA device: bandwidth, operators over shapes, and what the host pays.

    python benchmarks/dvm_gpu.py bandwidth --json FILE
    python benchmarks/dvm_gpu.py host --json FILE
    python benchmarks/dvm_gpu.py encode    # no GPU needed

Every time of the device is taken between two events around many calls, in turns with the peers; see
benchmarks/README.md.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn import functional

import vtc
from vtc.lowering.settings import Settings
from vtc.program.module import Module
from vtc.runtime import dvm_compile
from vtc.vm.device import DeviceMachine
from vtc.vm.image import image_of
from vtc.vm.machine import Machine, native_module

ROWS, COLUMNS = 32768, 4096
app = typer.Typer(add_completion=False)


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


def systems(run: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The operator by each system."""
    torch._dynamo.reset()
    return {
        "eager": run,
        "inductor": torch.compile(run, dynamic=False),
        "inductor-dynamic": torch.compile(run, dynamic=True),
        "vtc": vtc.compile(run, engine="dvm"),
    }


def microseconds(call: Callable[[], Any], calls: int) -> float:
    """Of a call, over `calls` of them in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / calls


def in_turns(calls: dict[str, Callable[[], Any]], turns: int, each: int) -> dict[str, float]:
    """The median microseconds of each, measured in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(turns):
        for name, call in calls.items():
            found[name].append(microseconds(call, each))
    return {name: statistics.median(times) for name, times in found.items()}


def same(got: Any, expected: Any) -> None:
    """Raises AssertionError unless the results agree as far as bf16 goes."""
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)


@app.command()
def bandwidth(
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    turns: int = 7,
    each: int = 10,
) -> None:
    """TB/s of operators at 32768x4096 in bf16, of what they must move."""
    rows = []
    for own in OPERATORS:
        args = arguments(own, ROWS, COLUMNS)
        calls = {}
        for name, system in systems(own.run).items():
            with torch.no_grad():
                same(system(*args), own.run(*args))
            calls[name] = functools.partial(system, *args)
        with torch.no_grad():
            times = in_turns(calls, turns, each)
        moved = own.moved * ROWS * COLUMNS * 2
        rows.append(
            {
                "operator": own.name,
                "microseconds": times,
                "tb_per_s": {n: moved / t / 1e6 for n, t in times.items()},
            }
        )
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
        torch.cuda.empty_cache()
    record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n")


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


@app.command()
def encode(shapes: int = 2000) -> None:
    """Microseconds to encode a known program for a new shape, with tiles for a device."""
    draw = random.Random(0)
    for own in OPERATORS[1:]:
        module = _module_of(own, "cpu", Machine)
        encoder = native_module().Encoder(image_of(module))
        times = []
        for _ in range(shapes):
            sizes = [draw.randint(2, 4096) for _ in module.symbols]
            start = time.perf_counter_ns()
            encoder.encode(sizes, True)
            times.append((time.perf_counter_ns() - start) / 1000)
        row = {"operator": own.name, "encode_us": statistics.median(times[shapes // 10 :])}
        sys.stdout.write(json.dumps(row) + "\n")


@app.command()
def host(json_file: Annotated[Path | None, typer.Option("--json")] = None) -> None:
    """Microseconds on the host: a known program encoded for a new shape and launched."""
    rows = []
    for own in OPERATORS[1:]:
        module = _module_of(own, "cuda", _device_machine)
        machine = _device_machine(module)
        # Addresses that any of the shapes fits behind.
        room = torch.zeros(1 << 22, device="cuda")
        pointers = [0 if b.kind == "temporary" else room.data_ptr() for b in module.buffers]
        encoding, both = [], []
        for n in range(300):
            sizes = [64 + n + 8 * k for k in range(len(module.symbols))]
            start = time.perf_counter_ns()
            program = machine.encode(sizes)
            middle = time.perf_counter_ns()
            program.run(pointers, ())
            both.append(time.perf_counter_ns() - start)
            encoding.append(middle - start)
            torch.cuda.synchronize()
        rows.append(
            {
                "operator": own.name,
                "encode_us": statistics.median(encoding) / 1000,
                "encode_and_launch_us": statistics.median(both) / 1000,
            }
        )
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
    record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n")


@app.callback()
def main() -> None:
    """Measures the DVM on a CUDA device."""


if __name__ == "__main__":
    app()

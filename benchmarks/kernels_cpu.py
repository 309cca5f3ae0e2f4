"""Where a model's call on the DVM spends its time, kernel by kernel.

    python benchmarks/kernels_cpu.py shufflenet [--batch 4] [--calls 200] [--top 40] [--record]

Of each kernel the median time over the calls, its share, the arithmetic of its anchor as GFLOP/s
and of the peak, and the least bytes that it must move as GB/s. With --record their sums by kind
go to results/cpu-kernels.json.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch._dynamo
import typer
from rich.console import Console
from rich.table import Table

from vtc.bench.records import versions
from vtc.bench.suite import Request
from vtc.lowering.settings import Settings
from vtc.options import Options
from vtc.program.module import Module
from vtc.program.sizes import size_value
from vtc.program.tile import Access, Contraction, Convolution, TileKernel, operands
from vtc.runtime import dvm_compile
from vtc.vm.machine import Encoded, Machine

RESULTS = Path(__file__).parent / "results" / "cpu-kernels.json"
console = Console(width=150)


@dataclass
class Timed:
    """An encoded module whose runs note the nanoseconds of each kernel, if `on`."""

    encoded: Encoded
    module: Module
    known: dict[str, int]
    watch: Watch
    times: list[dict[str, int]] = field(default_factory=list)

    @property
    def used(self) -> Sequence[bool]:
        return self.encoded.used

    def run(self, pointers: Sequence[int], params: Sequence[float]) -> None:
        if self.watch.on:
            self.times.append(self.encoded.timed(pointers, params))
        else:
            self.encoded.run(pointers, params)


@dataclass
class Watch:
    """Makes machines whose programs are timed while `on`."""

    on: bool = False
    timed: list[Timed] = field(default_factory=list)

    def machine(self, module: Module) -> _Machine:
        return _Machine(self, module, Machine(module))


@dataclass(frozen=True)
class _Machine:
    watch: Watch
    module: Module
    machine: Machine

    def encode(self, sizes: Sequence[int]) -> Timed:
        known = dict(zip(self.module.symbols, sizes, strict=True))
        made = Timed(self.machine.encode(sizes), self.module, known, self.watch)
        self.watch.timed.append(made)
        return made


def work(kernel: TileKernel, module: Module, known: dict[str, int]) -> tuple[float, float, str]:
    """Floating-point operations of the anchor, bytes that are touched at least once, sizes."""
    sizes = [size_value(s, known) for s in kernel.sizes]
    points = math.prod(sizes)

    def moved(access: Access, more: Sequence[int] = ()) -> float:
        extent = size_value(module.buffers[access.buffer].extent, known)
        strides = [size_value(s, known) for s in access.stride]
        count = math.prod(n for n, s in zip([*sizes, *more], strides, strict=False) if s != 0)
        return float(min(extent, count) * module.buffers[access.buffer].dtype.itemsize)

    flops, total = 0.0, sum(moved(i.access) for i in kernel.body if i.access is not None)
    text = "x".join(map(str, sizes))
    anchor = kernel.anchor
    if anchor is not None:
        own = anchor.constant
        more: list[int] = []
        if isinstance(own, Contraction):
            more = [size_value(own.k, known)]
        elif isinstance(own, Convolution):
            taps = [size_value(w.taps, known) for w in own.windows]
            depth = sum(size_value(p.k, known) for p in own.parts)
            more = [*taps, depth]
            strides = [size_value(w.stride, known) for w in own.windows]
            text += f" taps {'x'.join(map(str, taps))}/{'x'.join(map(str, strides))}"
        else:
            more = [size_value(own.length, known)]
            points *= 2
        text += f" k {more[-1]}"
        flops = 2.0 * points * math.prod(more)
        packed = own.packed if isinstance(own, Contraction) else None
        total += sum(moved(a, more) for a in operands(own) if a is not packed)
    return flops, total, text


def kind(kernel: TileKernel, module: Module, known: dict[str, int]) -> str:
    """What a kernel is there for."""
    anchor = kernel.anchor
    if anchor is None:
        words = ("load", "store", "const", "iota", "cast")
        moves = all(i.op in words for i in kernel.body)
        return "movement" if moves else "pointwise work, pooling and norms"
    own = anchor.constant
    if isinstance(own, Contraction):
        return "products"
    if not isinstance(own, Convolution):
        return "attention"
    if all(size_value(w.taps, known) == 1 for w in own.windows):
        return "1x1 convolutions"
    channels = sum(size_value(p.k, known) for p in own.parts)
    return "depthwise convolutions" if channels == 1 else "convolutions with windows"


def record(case: dict[str, Any]) -> None:
    """Puts a case into the result file, in the place of the one of its model and batch."""
    found = json.loads(RESULTS.read_text())["kernels"] if RESULTS.exists() else []
    others = [c for c in found if (c["model"], c["batch"]) != (case["model"], case["batch"])]
    ordered = sorted([*others, case], key=lambda c: (c["model"], c["batch"]))
    RESULTS.write_text(json.dumps({"kernels": ordered}, indent=1) + "\n")


def peak_gflops() -> float:
    """What a large product of PyTorch reaches, float32."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    best = min(_seconds(lambda: a @ b) for _ in range(10))
    return 2 * 1536**3 / best / 1e9


def read_gbytes() -> float:
    """Bytes a second that a sum of 256 MiB reads."""
    x = torch.ones(64 << 20)
    return x.numel() * 4 / min(_seconds(x.sum) for _ in range(5)) / 1e9


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(
    model: str,
    batch: Annotated[int, typer.Option()] = 1,
    calls: Annotated[int, typer.Option()] = 200,
    top: Annotated[int, typer.Option(help="Kernels shown, the longest first.")] = 30,
    in_order: Annotated[bool, typer.Option("--in-order", help="All, as they run.")] = False,
    recorded: Annotated[bool, typer.Option("--record", help="Into the result file.")] = False,
) -> None:
    """Time every kernel of a built-in model."""
    watch = Watch()
    settings = Settings("latency", Options(), engine="dvm")
    backend = functools.partial(dvm_compile.compile_graph, settings=settings, machine=watch.machine)
    with torch.no_grad():
        case = Request(model, batch=batch).build()
        torch._dynamo.reset()
        run = dvm_compile.dynamic(case.model, backend)

        def call() -> None:
            case.reset()
            run(*case.args, **case.kwargs)

        start = time.perf_counter()
        call()
        first = time.perf_counter() - start
        for _ in range(10):
            call()
        whole = [_seconds(call) * 1e3 for _ in range(calls)]
        watch.on = True
        for _ in range(calls):
            call()
    peak, bandwidth = peak_gflops(), read_gbytes()
    rows = []
    kinds: dict[str, dict[str, float]] = {}
    for timed in watch.timed:
        for kernel in timed.module.kernels() if timed.times else ():
            ms = statistics.median(t[kernel.name] for t in timed.times) / 1e6
            rows.append((ms, kernel.name, *work(kernel, timed.module, timed.known)))
            own = kinds.setdefault(
                kind(kernel, timed.module, timed.known), {"kernels": 0, "ms": 0.0, "gflop": 0.0}
            )
            for key, value in (("kernels", 1), ("ms", ms), ("gflop", rows[-1][2] / 1e9)):
                own[key] += value
    total = sum(row[0] for row in rows)
    table = Table(title=f"{model}, batch {batch}")
    for name in ("kernel", "domain", "ms", "share", "GFLOP/s", "of peak", "GB/s"):
        table.add_column(name, justify="left" if name in ("kernel", "domain") else "right")
    chosen = rows if in_order else sorted(rows, reverse=True)[:top]
    for ms, name, flops, moved, text in chosen:
        rate = flops / ms / 1e6 if ms else 0.0
        table.add_row(
            name[:48], text, f"{ms:.4f}", f"{ms / total:.1%}", f"{rate:.0f}",
            f"{rate / peak:.0%}", f"{moved / ms / 1e6 if ms else 0:.1f}",
        )  # fmt: skip
    console.print(table)
    flops = sum(row[2] for row in rows)
    whole.sort()
    median, tenth = whole[len(whole) // 2], whole[len(whole) // 10]
    if recorded:
        record(
            {
                "model": model,
                "batch": batch,
                "call_ms": median,
                "call_p10_ms": tenth,
                "kinds": kinds,
                "product_gflops": peak,
                "sum_gb_s": bandwidth,
                "versions": versions(),
            }
        )
    console.print(
        f"{len(rows)} kernels, {total:.3f} ms timed one by one; a call {median:.3f} ms "
        f"(p10 {tenth:.3f}); first call {first:.2f} s"
    )
    console.print(
        f"{flops / 1e9:.2f} GFLOP at {flops / total / 1e6:.0f} GFLOP/s, where a large product has "
        f"{peak:.0f}; a sum reads {bandwidth:.1f} GB/s"
    )


if __name__ == "__main__":
    typer.run(main)

"""Single convolutions of the vision models on the DVM, each with the operators behind it.

    python benchmarks/convolutions_cpu.py [--calls 300]

A layer runs between two small products, so that its input and output lie as they do in a model; in
the caches they are warm, unlike in one. Of each the median and first decile in microseconds, its
arithmetic as GFLOP/s and the least bytes that it must move as GB/s, and its error against eager
PyTorch as a part of the largest output.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from typing import Annotated

import torch
import torch._dynamo
import typer
from kernels_cpu import Watch, peak_gflops, work
from rich.console import Console
from rich.table import Table
from torch import nn

from vtc.lowering.settings import Settings
from vtc.options import Options
from vtc.runtime import dvm_compile

console = Console(width=120)
SMALL = 8  # channels in front of a layer and behind it


@dataclass(frozen=True)
class Layer:
    """A convolution with batch norm and an activation over a size x size image."""

    inputs: int
    outputs: int
    size: int
    taps: int = 1
    stride: int = 1
    groups: int = 1
    activation: type[nn.Module] = nn.Identity

    def model(self) -> nn.Module:
        padding = self.taps // 2
        own = nn.Conv2d(self.inputs, self.outputs, self.taps, self.stride, padding,
                        groups=self.groups, bias=False)  # fmt: skip
        front = nn.Identity() if self.inputs == 3 else nn.Conv2d(SMALL, self.inputs, 1)
        behind = nn.Conv2d(self.outputs, SMALL, 1)
        norm = nn.BatchNorm2d(self.outputs)
        return nn.Sequential(front, own, norm, self.activation(), behind).eval()

    def __str__(self) -> str:
        name = self.activation.__name__.lower()
        groups = f" groups {self.groups}" if self.groups > 1 else ""
        window = f"{self.taps}x{self.taps}/{self.stride}"
        return f"{self.inputs} -> {self.outputs}, {self.size}, {window}{groups}, {name}"


LAYERS = [
    # ShuffleNet-v2
    Layer(3, 24, 224, 3, 2, activation=nn.ReLU),
    Layer(58, 58, 28, activation=nn.ReLU),
    Layer(58, 58, 28, 3, groups=58),
    Layer(116, 116, 14, activation=nn.ReLU),
    Layer(232, 232, 7, activation=nn.ReLU),
    # EfficientViT-B1
    Layer(32, 128, 56, activation=nn.Hardswish),
    Layer(128, 128, 56, 3, groups=128, activation=nn.Hardswish),
    Layer(64, 64, 112, 3, 2, groups=64, activation=nn.Hardswish),
    Layer(256, 256, 28, 3, groups=256, activation=nn.Hardswish),
    Layer(128, 512, 14, activation=nn.Hardswish),
    Layer(384, 384, 14, 5, groups=384),
    Layer(256, 1024, 7, activation=nn.Hardswish),
    # YOLO11n
    Layer(3, 16, 320, 3, 2, activation=nn.SiLU),
    Layer(16, 32, 160, 3, 2, activation=nn.SiLU),
    Layer(16, 8, 80, 3, activation=nn.SiLU),
    Layer(8, 16, 80, 3, activation=nn.SiLU),
    Layer(64, 64, 40, 3, activation=nn.SiLU),
    Layer(32, 16, 40, 3, activation=nn.SiLU),
    Layer(128, 128, 20, 3, 2, activation=nn.SiLU),
    Layer(64, 64, 10, 3, activation=nn.SiLU),
]


def measure(layer: Layer, calls: int) -> tuple[list[float], float, float, float]:
    """Sorted microseconds of the layer's kernel, FLOP, bytes, and the error of the model."""
    torch.manual_seed(0)
    model, watch = layer.model(), Watch()
    settings = Settings("latency", Options(), engine="dvm")
    backend = functools.partial(dvm_compile.compile_graph, settings=settings, machine=watch.machine)
    channels = 3 if layer.inputs == 3 else SMALL
    with torch.no_grad():
        torch._dynamo.reset()
        x = torch.randn(1, channels, layer.size, layer.size)
        run, want = dvm_compile.dynamic(model, backend), model(x)
        error = float((run(x) - want).abs().max() / want.abs().max())
        for _ in range(20):
            run(x)
        watch.on = True
        for _ in range(calls):
            run(x)
    (timed,) = (t for t in watch.timed if t.times)
    kernels = list(timed.module.kernels())
    kernel = kernels[0 if layer.inputs == 3 else 1]
    flops, moved, _ = work(kernel, timed.module, timed.known)
    return sorted(t[kernel.name] / 1e3 for t in timed.times), flops, moved, error


def main(calls: Annotated[int, typer.Option()] = 300) -> None:
    """Time every layer."""
    peak = peak_gflops()
    table = Table(title=f"convolutions, where a large product has {peak:.0f} GFLOP/s")
    for name in ("layer", "us", "p10", "GFLOP/s", "of peak", "GB/s", "error"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for layer in LAYERS:
        times, flops, moved, error = measure(layer, calls)
        us = statistics.median(times)
        rate = flops / us / 1e3
        table.add_row(str(layer), f"{us:.1f}", f"{times[len(times) // 10]:.1f}", f"{rate:.0f}",
                      f"{rate / peak:.0%}", f"{moved / us / 1e3:.1f}", f"{error:.0e}")  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    typer.run(main)

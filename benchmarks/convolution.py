"""Convolutions of the image models on one GPU: every candidate of ours against PyTorch's.

    python benchmarks/convolution.py [--models yolo11] [--batch 1] [--cudnn-seconds 60]

Each layer (convolution, bias or batch norm, activation) is replayed from a CUDA graph that holds it
several times over rotating inputs. PyTorch's time is that of its channels-last convolution without
bias, and of the one pointwise kernel behind it that TorchInductor makes of bias and activation.
Results are written after every layer; a layer that is in the file is not measured again unless
--again is given.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F  # noqa: N812
import typer

from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, Launch, Window
from vtc.kernels.convolution_bare import bare_launches
from vtc.kernels.convolution_build import (
    ACTIVATIONS,
    channel_map,
    image_tensor,
    of_tensors,
    plain_tensor,
)
from vtc.kernels.convolution_dot import dot_kernels
from vtc.kernels.convolution_text import Kernel
from vtc.kernels.cudnn import cudnn_launches
from vtc.kernels.depthwise import depthwise_kernels
from vtc.kernels.epilogue import Body
from vtc.kernels.pooling import Pooling, pooling_kernels

RESULTS = Path(__file__).parent / "results" / "convolution.json"
ROTATED_BYTES = 128 << 20
"""Inputs and outputs that one graph passes over: more than the cache holds."""


@dataclass(frozen=True)
class Layer:
    """A layer of a model at its usual image size, and how often the model has it.

    slices: are input and output channel slices of tensors twice as wide, as behind a split?
    """

    model: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    groups: int
    size: int
    count: int
    slices: bool = False

    @property
    def key(self) -> str:
        where = " slices" if self.slices else ""
        return (
            f"{self.model} {self.inputs}->{self.outputs} k{self.kernel} s{self.stride} "
            f"g{self.groups} {self.size}x{self.size}{where}"
        )


def _layers(model: str, rows: str) -> list[Layer]:
    found = []
    for row in rows.strip().splitlines():
        inputs, outputs, kernel, stride, groups, size, count, *more = row.split()
        numbers = map(int, (inputs, outputs, kernel, stride, groups, size, count))
        found.append(Layer(model, *numbers, slices=bool(more)))
    return found


# channels in and out, kernel, stride, groups, image size, how often in the model
LAYERS = [
    *_layers(
        "shufflenet",
        """
        3 24 3 2 1 224 1
        24 24 3 2 24 56 1
        58 58 3 2 58 56 1
        58 58 3 1 58 28 3
        116 116 3 2 116 28 2
        116 116 3 1 116 14 7
        232 232 3 1 232 7 3
        58 58 1 1 1 28 7 slices
        """,
    ),
    *_layers(
        "efficientvit",
        """
        3 24 3 2 1 512 1
        24 24 3 1 24 256 1
        96 96 3 2 96 256 1
        192 192 3 1 192 128 2
        384 384 3 1 384 64 3
        384 384 3 2 384 64 1
        576 576 5 1 576 32 4
        576 576 1 1 18 32 4
        768 768 3 1 768 32 4
        1152 1152 5 1 1152 16 6
        1152 1152 1 1 36 16 6
        1536 1536 3 1 1536 16 6
        """,
    ),
    *_layers(
        "yolo11",
        """
        3 32 3 2 1 640 1
        32 64 3 2 1 320 1
        32 16 3 1 1 160 1 slices
        16 32 3 1 1 160 1
        128 128 3 2 1 160 1
        64 32 3 1 1 80 2 slices
        32 64 3 1 1 80 2
        256 256 3 2 1 80 1
        64 64 3 1 1 40 5
        256 512 3 2 1 40 1
        128 128 3 1 1 20 8
        128 64 3 1 1 80 1
        64 64 3 1 1 80 1
        128 128 3 1 128 80 2
        256 256 3 1 256 40 1
        512 512 3 1 512 20 1
        """,
    ),
]
ACTIVATION = {"shufflenet": "relu", "efficientvit": "hardswish", "yolo11": "silu"}


@dataclass
class Problem:
    """One layer with rotating sets of tensors."""

    convolution: Convolution
    sets: list[list[torch.Tensor]]


def problem(layer: Layer, batch: int) -> Problem:
    """The layer in half precision, channels-last, its weight packed as freezing packs it."""
    padding = layer.kernel // 2
    window = Window((layer.kernel,) * 2, (layer.stride,) * 2, (padding,) * 2)
    out_size = window.outputs(layer.size, layer.size)
    wide = 2 if layer.slices else 1
    pixels = layer.size**2 * layer.inputs + out_size[0] ** 2 * layer.outputs
    copies = max(1, min(16, ROTATED_BYTES // (2 * batch * pixels * wide)))
    inner = layer.inputs // layer.groups
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    weight = torch.randn(layer.outputs, inner, layer.kernel, layer.kernel, **kind)
    weight *= (inner * layer.kernel**2) ** -0.5
    if inner == 1:
        weight = weight.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    else:
        weight = weight.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(layer.outputs, **kind)
    sets, convolution = [], None
    for _ in range(copies):
        x = torch.randn(batch, layer.size, layer.size, layer.inputs * wide, **kind)
        out = torch.empty(batch, *out_size, layer.outputs * wide, **kind)
        convolution, tensors = of_tensors(
            x.permute(0, 3, 1, 2)[:, : layer.inputs],
            weight,
            out.permute(0, 3, 1, 2)[:, : layer.outputs],
            window,
            groups=layer.groups,
            bias=bias,
            activation=ACTIVATION[layer.model],
        )
        sets.append(tensors)
    assert convolution is not None
    return Problem(convolution, sets)


def replayed(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds a call: calls one after another in a CUDA graph, the median of its replays."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    rounds = max(1, 20 // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    times = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(100_000)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / (rounds * len(calls)))
    return statistics.median(times[1:])


def compile_ahead(kernels: Sequence[tuple[Kernel, Sequence[torch.Tensor]]]) -> None:
    """Compile kernels on all cores, so that the timing waits for none."""

    def warm(pair: tuple[Kernel, Sequence[torch.Tensor]]) -> None:
        kernel, tensors = pair
        torch.cuda.set_device(0)
        more = [torch.float32, torch.int32] if kernel.partial_sums else []
        options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
        kernel.function.warmup(*tensors, *more, grid=kernel.grid, **options)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(warm, kernels))


def pointwise(problem: Problem, activation: str) -> list[Kernel]:
    """Bias and activation by themselves, out of place: a window of one pixel with that epilogue."""
    output = problem.convolution.output
    out, bias = problem.sets[0][2], problem.sets[0][3]
    dense = torch.empty(out.shape, dtype=out.dtype, device=out.device).contiguous(
        memory_format=torch.channels_last
    )
    body = Body()
    value = body.scalar("add", body.product(), body.load(channel_map(output, 2)))
    body.store(ACTIVATIONS[activation](body, value), IndexMap.identity(output, 1))
    tensors = (image_tensor(dense), image_tensor(dense), plain_tensor(bias))
    source = IndexMap.identity(output, 0)
    return pooling_kernels(Pooling("mean", output, source, Window((1, 1)), body.build(), tensors))


def torch_times(problem: Problem, layer: Layer, kernels: Sequence[Kernel]) -> tuple[float, float]:
    """(PyTorch's convolution, the pointwise kernel behind it), us."""
    window = problem.convolution.window
    weight = problem.sets[0][1]
    if layer.inputs > layer.groups:
        weight = weight.contiguous(memory_format=torch.channels_last)
    else:
        weight = weight.contiguous()
    images = [s[0].contiguous(memory_format=torch.channels_last) for s in problem.sets]

    def convolve(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, None, window.stride, window.padding, 1, layer.groups)

    convolution = replayed([lambda x=x: convolve(x) for x in images])
    outs = [convolve(x).contiguous(memory_format=torch.channels_last) for x in images]
    bias = problem.sets[0][3]
    behind = min(
        replayed([lambda o=o, k=k: k.launch()([o, o, bias]) for o in outs]) for k in kernels
    )
    return convolution, behind


def measure(
    problem: Problem, layer: Layer, launches: Sequence[Launch]
) -> tuple[dict[str, float], list[str]]:
    """(us by candidate, refused or wrong candidates)."""
    tensors = problem.sets[0]
    expected = reference(problem, layer)
    times, refused = {}, []
    for launch in launches:
        tensors[2].zero_()
        try:
            launch(tensors)
            wrong = float((tensors[2].float() - expected).abs().max() / expected.abs().max())
            if not wrong < 5e-3:
                refused.append(f"{launch.name}: off by {wrong:.1e}")
                continue
            times[launch.name] = replayed([lambda s=s, f=launch: f(s) for s in problem.sets])
        except RuntimeError as error:
            refused.append(f"{launch.name}: {str(error).splitlines()[0][:100]}")
            torch.cuda.synchronize()
    return times, refused


def reference(problem: Problem, layer: Layer) -> torch.Tensor:
    """The layer in float32."""
    window = problem.convolution.window
    x, weight, _, bias = (t.float() for t in problem.sets[0])
    y = F.conv2d(x, weight, bias, window.stride, window.padding, 1, layer.groups)
    activate: Callable[[torch.Tensor], torch.Tensor] = {
        "relu": F.relu,
        "hardswish": F.hardswish,
        "silu": F.silu,
    }[ACTIVATION[layer.model]]
    return activate(y)


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds.")] = 1e9,
    cudnn_seconds: Annotated[float, typer.Option(help="Seconds for building plans.")] = 1e9,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure the layers and write the result file."""
    started = time.perf_counter()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    chosen = models.split(",") if models else list(ACTIVATION)
    held = json.loads(output.read_text()) if output.exists() else {"layers": {}}
    held["device"] = torch.cuda.get_device_name()
    held["torch"] = torch.__version__
    building = 0.0
    for size in map(int, batch.split(",")):
        work = [
            layer
            for layer in LAYERS
            if layer.model in chosen and (again or f"b{size} {layer.key}" not in held["layers"])
        ]
        problems = {layer: problem(layer, size) for layer in work}
        own = {
            layer: depthwise_kernels(p.convolution) + dot_kernels(p.convolution)
            for layer, p in problems.items()
        }
        behind = {layer: pointwise(p, ACTIVATION[layer.model]) for layer, p in problems.items()}
        ahead: list[tuple[Kernel, Sequence[torch.Tensor]]] = []
        for layer, p in problems.items():
            s = p.sets[0]
            ahead += [(k, s) for k in own[layer]]
            ahead += [(k, [s[2], s[2], s[3]]) for k in behind[layer]]
        compile_ahead(ahead)
        print(f"b{size}: {len(ahead)} kernels, {time.perf_counter() - started:.0f} s", flush=True)
        for layer, p in problems.items():
            if time.perf_counter() - started > seconds:
                print("out of time", flush=True)
                return
            before = time.perf_counter()
            plans = []
            if building < cudnn_seconds and layer.groups == 1:
                plans = cudnn_launches(p.convolution, p.sets[0])
                plans += bare_launches(p.convolution, p.sets[0])
            building += time.perf_counter() - before
            times, refused = measure(p, layer, [*(k.launch() for k in own[layer]), *plans])
            convolution, pointwise_us = torch_times(p, layer, behind[layer])
            held["layers"][f"b{size} {layer.key}"] = row = {
                "count": layer.count,
                "torch_us": round(convolution, 2),
                "torch_pointwise_us": round(pointwise_us, 2),
                "candidates_us": {k: round(v, 2) for k, v in sorted(times.items())},
                "refused": refused,
                "plan_seconds": round(time.perf_counter() - before, 2) if plans else 0.0,
            }
            output.write_text(json.dumps(held, indent=1) + "\n")
            print(summary(f"b{size} {layer.key}", row), flush=True)


def summary(name: str, row: dict[str, Any]) -> str:
    """One line of a layer."""

    def best(words: str | tuple[str, ...]) -> str:
        found = {k: v for k, v in row["candidates_us"].items() if k.startswith(words)}
        if not found:
            return "-"
        fastest = min(found, key=found.__getitem__)
        return f"{found[fastest]:.1f} ({fastest}, of {len(found)})"

    return (
        f"{name}: torch {row['torch_us']:.1f}+{row['torch_pointwise_us']:.1f} "
        f"triton {best(('depthwise', 'dot'))} library {best(('cudnn', 'aten'))} "
        f"refused {len(row['refused'])} {row['refused'][:1]}"
    )


if __name__ == "__main__":
    typer.run(main)

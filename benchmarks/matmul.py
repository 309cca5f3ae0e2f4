"""Times the matmul family's candidates against PyTorch's libraries on one CUDA device.

Decoding shapes of Llama-3-8B and Gemma-2-9B at 1 and 16 rows (bf16), and 1x1 convolutions of
ShuffleNet-v2 and EfficientViT-B2 at batch 1 and 16 (fp16, NHWC). Every figure is the time of one
call in a CUDA graph of several, whose weights (and activations, of convolutions) rotate through
more memory than the cache holds. Results go into results/matmul.json.

    python benchmarks/matmul.py --only llama --budget 150
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import conv2d

from vtc.index import IndexMap, Layout, Piece, axes
from vtc.index.strided import contiguous_strides
from vtc.kernels.epilogue import Body, Tensor
from vtc.kernels.matmul import Launch, Matmul, Part
from vtc.kernels.matmul_candidates import candidates
from vtc.kernels.matmul_text import build
from vtc.program.dtypes import DType

RESULTS = Path(__file__).parent / "results" / "matmul.json"
ROTATED_BYTES = 256 << 20
REPLAYS = 12

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A matmul, the shapes of its tensors, which of them rotate, and what PyTorch would run.

    bytes_moved: what must be read and written once. peers: functions of the tensors of a call that
    compute the same, by name.
    """

    name: str
    matmul: Matmul
    shapes: tuple[tuple[int, ...], ...]
    rotated: tuple[int, ...]
    peers: dict[str, Callable[[Tensors], Any]]
    bytes_moved: int

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [t.dtype.torch_dtype for t in self.matmul.tensors]


class _Description:
    """Tensors of a case while it is written down."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.shapes: list[tuple[int, ...]] = []

    def tensor(self, *shape: int) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def whole(self, number: int) -> IndexMap:
        return IndexMap.identity(self.shapes[number], number)

    def transposed(self, number: int) -> IndexMap:
        return IndexMap.permute(self.shapes[number], (1, 0), number)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(self.dtype, Layout(s, contiguous_strides(s))) for s in self.shapes)


def linear(name: str, m: int, n: int, k: int, *, residual: bool) -> Case:
    """x @ w^T (+ residual)."""
    d = _Description(DType.BF16)
    x, w, r, out = d.tensor(m, k), d.tensor(n, k), d.tensor(m, n), d.tensor(m, n)
    body = Body()
    value = body.product()
    if residual:
        value = body.scalar("add", value, body.load(d.whole(r)))
    body.store(value, d.whole(out))
    matmul = Matmul(
        (),
        m,
        k,
        d.whole(x),
        (Part(n, (d.transposed(w),), body.build()),),
        d.tensors(),
    )

    def bare(t: Tensors) -> None:
        torch.mm(t[x], t[w].T, out=t[out])

    def added(t: Tensors) -> None:
        torch.addmm(t[r], t[x], t[w].T, out=t[out])

    peers = {"cublas": added if residual else bare}
    moved = 2 * (n * k + m * k + m * n)
    return Case(f"{name} b{m}", matmul, tuple(d.shapes), (w,), peers, moved)


def gated(name: str, m: int, n: int, k: int, activation: str) -> Case:
    """act(x @ gate^T) * (x @ up^T), the two weights where they are."""
    d = _Description(DType.BF16)
    x, gate, up, out = d.tensor(m, k), d.tensor(n, k), d.tensor(n, k), d.tensor(m, n)
    body = Body()
    g, u = body.product(0), body.product(1)
    if activation == "silu":
        g = body.scalar("mul", g, body.scalar("sigmoid", g))
    else:
        cube = body.scalar("mul", body.scalar("mul", g, g), g)
        inner = body.scalar("fma", cube, body.const(0.044715), g)
        inner = body.scalar("mul", inner, body.const(0.7978845608028654))
        one = body.scalar("add", body.scalar("tanh", inner), body.const(1.0))
        g = body.scalar("mul", body.scalar("mul", g, body.const(0.5)), one)
    body.store(body.scalar("mul", g, u), d.whole(out))
    part = Part(n, (d.transposed(gate), d.transposed(up)), body.build())
    matmul = Matmul((), m, k, d.whole(x), (part,), d.tensors())

    def two(t: Tensors) -> None:
        torch.mm(t[x], t[gate].T)
        torch.mm(t[x], t[up].T)

    moved = 2 * (2 * n * k + m * k + m * n)
    peers = {"cublas twice, without the activation": two}
    return Case(f"{name} b{m}", matmul, tuple(d.shapes), (gate, up), peers, moved)


def projections(name: str, m: int, k: int, heads: int, groups: int, width: int) -> Case:
    """Query, key and value in one launch: rotary embedding, key and value into cache slots."""
    d = _Description(DType.BF16)
    context, position, half = 128, 77, width // 2
    x = d.tensor(m, k)
    weights = [d.tensor(h * width, k) for h in (heads, groups, groups)]
    cosine, sine = d.tensor(m, width), d.tensor(m, width)
    query = d.tensor(m, heads * width)
    keys, values = (d.tensor(m, groups, context, width) for _ in range(2))
    i, j = axes(2)

    def part(weight: int, count: int, out: Callable[[int], IndexMap]) -> Part:
        n = count * half
        rows, columns = axes(2)
        rights = tuple(
            IndexMap.single((k, n), [columns // half * width + columns % half + s, rows], weight)
            for s in (0, half)
        )
        body = Body()
        low, high = body.product(0), body.product(1)
        angles = [
            body.load(IndexMap.single((m, n), [i, j % half + s], table))
            for table in (cosine, sine)
            for s in (0, half)
        ]
        first = body.scalar("mul", low, angles[0])
        first = body.scalar("sub", first, body.scalar("mul", high, angles[2]))
        second = body.scalar("mul", high, angles[1])
        second = body.scalar("add", second, body.scalar("mul", low, angles[3]))
        body.store(first, out(0))
        body.store(second, out(half))
        return Part(n, rights, body.build())

    def in_query(shift: int) -> IndexMap:
        index = [i, j // half * width + j % half + shift]
        return IndexMap.single((m, heads * half), index, query)

    def in_cache(cache: int, size: int, shift: int) -> IndexMap:
        index = [i, j // size, position, j % size + shift]
        return IndexMap.single((m, groups * size), index, cache)

    body = Body()
    body.store(body.product(), in_cache(values, width, 0))
    parts = (
        part(weights[0], heads, in_query),
        part(weights[1], groups, lambda shift: in_cache(keys, half, shift)),
        Part(groups * width, (d.transposed(weights[2]),), body.build()),
    )
    matmul = Matmul((), m, k, d.whole(x), parts, d.tensors())

    def three(t: Tensors) -> None:
        for weight in weights:
            torch.mm(t[x], t[weight].T)

    n = (heads + 2 * groups) * width
    peers = {"cublas three times, without rotary embedding and stores": three}
    moved = 2 * (n * k + m * k + m * n)
    return Case(f"{name} b{m}", matmul, tuple(d.shapes), tuple(weights), peers, moved)


def convolution(name: str, batch: int, side: int, inputs: int, outputs: int) -> Case:
    """A 1x1 convolution with bias and ReLU, NHWC."""
    d = _Description(DType.F16)
    rows = batch * side * side
    x, w, b = d.tensor(rows, inputs), d.tensor(outputs, inputs), d.tensor(outputs)
    out = d.tensor(rows, outputs)
    matmul = _pointwise_convolution(d, rows, d.whole(x), inputs, w, b, d.whole(out))

    def library(t: Tensors) -> None:
        image = t[x].view(batch, side, side, inputs).permute(0, 3, 1, 2)
        torch.relu_(conv2d(image, t[w].view(outputs, inputs, 1, 1)))

    moved = 2 * (rows * (inputs + outputs) + inputs * outputs)
    peers = {"torch convolution + one pointwise kernel": library}
    return Case(f"{name} b{batch}", matmul, tuple(d.shapes), (x, out), peers, moved)


def shuffled(name: str, batch: int, side: int, half: int) -> Case:
    """ShuffleNet: the second half of the shuffled concat of two tensors, then a 1x1 convolution."""
    d = _Description(DType.F16)
    rows = batch * side * side
    a, b = d.tensor(rows, half), d.tensor(rows, half)
    w, bias = d.tensor(half, half), d.tensor(half)
    out = d.tensor(rows, half)
    i, j = axes(2)
    joined = IndexMap(
        (rows, 2 * half),
        [
            Piece((0, 0), (rows, half), a, (i, j)),
            Piece((0, half), (rows, 2 * half), b, (i, j - half)),
        ],
    )
    # Channel c of the shuffled tensor is channel c % 2 * half + c // 2 of the joined one.
    mixed = IndexMap.single((rows, 2 * half), [i, j % 2 * half + j // 2]).compose({0: joined})
    second = mixed.restrict((0, half), (rows, 2 * half))
    matmul = _pointwise_convolution(d, rows, second, half, w, bias, d.whole(out))

    def library(t: Tensors) -> None:
        both = torch.cat([t[a], t[b]], 1).view(rows, 2, half).transpose(1, 2)
        image = both.reshape(rows, 2 * half)[:, half:].contiguous()
        image = image.view(batch, side, side, half).permute(0, 3, 1, 2)
        torch.relu_(conv2d(image, t[w].view(half, half, 1, 1)))

    moved = 2 * (rows * 2 * half + half * half)
    peers = {"concat, shuffle, torch convolution + one pointwise kernel": library}
    return Case(f"{name} b{batch}", matmul, tuple(d.shapes), (a, b, out), peers, moved)


def _pointwise_convolution(
    d: _Description, rows: int, left: IndexMap, inputs: int, w: int, bias: int, out: IndexMap
) -> Matmul:
    outputs = out.shape[1]
    body = Body()
    row = IndexMap.single((rows, outputs), [axes(2)[1]], bias)
    value = body.scalar("add", body.product(), body.load(row))
    body.store(body.scalar("maximum", value, body.const(0.0)), out)
    part = Part(outputs, (d.transposed(w),), body.build())
    return Matmul((), rows, inputs, left, (part,), d.tensors())


def cases() -> list[Case]:
    """All cases, the largest first."""
    found: list[Case] = []
    for m in (1, 16):
        found += [
            linear("llama head 4096x128256", m, 128256, 4096, residual=False),
            gated("llama gate-up 4096x14336", m, 14336, 4096, "silu"),
            linear("llama down 14336x4096", m, 4096, 14336, residual=True),
            projections("llama qkv 4096", m, 4096, 32, 8, 128),
            linear("llama out 4096x4096", m, 4096, 4096, residual=True),
            gated("gemma gate-up 3584x14336", m, 14336, 3584, "gelu"),
            linear("gemma down 14336x3584", m, 3584, 14336, residual=True),
            projections("gemma qkv 3584", m, 3584, 16, 8, 256),
            linear("gemma out 4096x3584", m, 3584, 4096, residual=True),
        ]
    for batch in (1, 16):
        found += [
            convolution("shufflenet 28x28 58-58", batch, 28, 58, 58),
            convolution("shufflenet 14x14 116-116", batch, 14, 116, 116),
            convolution("shufflenet 7x7 232-232", batch, 7, 232, 232),
            convolution("shufflenet 7x7 464-1024", batch, 7, 464, 1024),
            shuffled("shufflenet 28x28 shuffle 58-58", batch, 28, 58),
            shuffled("shufflenet 14x14 shuffle 116-116", batch, 14, 116),
            convolution("efficientvit 128x128 48-192", batch, 128, 48, 192),
            convolution("efficientvit 64x64 96-384", batch, 64, 96, 384),
            convolution("efficientvit 32x32 192-1152", batch, 32, 192, 1152),
            convolution("efficientvit 16x16 1536-384", batch, 16, 1536, 384),
        ]
    return found


def operands(case: Case) -> list[Tensors]:
    """The tensors of each call of the rotation."""
    dtypes = case.dtypes
    size = sum(torch.Size(case.shapes[n]).numel() * dtypes[n].itemsize for n in case.rotated)
    count = max(1, min(64, -(-ROTATED_BYTES // size)))
    k = case.matmul.k

    def made(number: int) -> torch.Tensor:
        scale = k**-0.5 if len(case.shapes[number]) > 1 else 1.0
        value = torch.randn(case.shapes[number], device="cuda", dtype=dtypes[number])
        return value.mul_(scale)

    fixed = [made(n) for n in range(len(case.shapes))]
    return [fixed] + [
        [made(n) if n in case.rotated else fixed[n] for n in range(len(fixed))]
        for _ in range(count - 1)
    ]


def microseconds(call: Callable[[Tensors], Any], rotation: Sequence[Tensors]) -> float:
    """The median time of one call in a captured graph of all calls of the rotation."""
    calls = list(rotation) * max(1, 8 // len(rotation))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(calls[0])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for tensors in calls:
            call(tensors)
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(times) * 1000 / len(calls)


def measure(case: Case) -> dict[str, Any]:
    """The record of a case: every candidate and every peer."""
    rotation = operands(case)
    peers = {name: round(microseconds(run, rotation), 2) for name, run in case.peers.items()}
    times: dict[str, float] = {}
    for config in candidates(case.matmul):
        launch = build(case.matmul, config)
        try:
            times[str(config)] = round(microseconds(launch, rotation), 2)
        except Exception as error:  # one tiling that the device refuses is no reason to stop
            times[f"{config}: {type(error).__name__}: {str(error)[:80]}"] = float("inf")
    best = min(times, key=times.__getitem__)
    peer = min(peers.values())
    moved = case.bytes_moved
    return {
        "case": case.name,
        "bytes": moved,
        "best": best,
        "microseconds": times[best],
        "terabytes_per_second": round(moved / times[best] / 1e6, 3),
        "peers": peers,
        "speedup": round(peer / times[best], 3),
        "candidates": dict(sorted(times.items(), key=lambda item: item[1])),
    }


def copy_bandwidth() -> float:
    """Terabytes a second, read and written, of a pointwise kernel over 1 GiB."""
    source = torch.zeros(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    time_us = microseconds(lambda _: torch.add(source, 1.0, out=target), [[]])
    return 2 * source.nbytes / time_us / 1e6


def _compile(name: str, config: int) -> None:
    case = next(c for c in cases() if c.name == name)
    found: Launch = build(case.matmul, candidates(case.matmul)[config])
    found.compile()


def compile_all(chosen: Sequence[Case], workers: int, seconds: float) -> None:
    """Compiles every candidate in a pool, into Triton's cache."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [
            pool.submit(_compile, case.name, k)
            for case in chosen
            for k in range(len(candidates(case.matmul)))
        ]
        _, late = wait(jobs, timeout=seconds)
        for job in late:
            job.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--budget", type=float, default=600, help="seconds for measuring")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    chosen = [c for c in cases() if arguments.only in c.name]
    begin = time.perf_counter()
    compile_all(chosen, arguments.workers, arguments.budget / 2)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    records: list[dict[str, Any]] = []
    for case in chosen:
        if time.perf_counter() - begin > arguments.budget:
            print(f"stopped before {case.name}: the budget is spent")
            break
        record = measure(case)
        records.append(record)
        peers = " ".join(f"{t:.1f}" for t in record["peers"].values())
        print(
            f"{record['case']:40s} {record['microseconds']:8.1f} us {record['best']:42s}"
            f" {record['terabytes_per_second']:6.2f} TB/s  peer {peers}  x{record['speedup']:.2f}",
            flush=True,
        )
        torch.cuda.empty_cache()
    document = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "copy_terabytes_per_second": round(copy_bandwidth(), 3),
        "records": records,
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

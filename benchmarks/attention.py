"""Decode attention by itself: our kernels, PyTorch's and flex_attention, on one CUDA device.

    python benchmarks/attention.py [--cases llama3-b16] [--tune] [--flash3 LIBRARY]

Each call is one query a sequence on a cache of 4,096 keys. Calls are captured in a CUDA graph, on
operands that are used in turn so that none is found in a cache, and the replays are timed by
events. Bandwidth counts keys and values once. --tune times every tiling that the kernels accept
within reason, to revise what `vtc.kernels.attention_tiling` lists. --flash3 takes the library
of FlashAttention-3 as vLLM's wheel ships it (vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so). Every
system's answer is compared with float64 before it is timed.
"""

from __future__ import annotations

import datetime
import importlib.util
import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import triton
import typer
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from vtc.kernels.attention_tiling import Shape, Tiling, as_argument, candidates

RESULTS = Path(__file__).parent / "results" / "attention.json"
ROTATED_BYTES = 512 * 2**20
CALLS = 24
REPLAYS = 15


@dataclass(frozen=True)
class Case:
    """Widths of one model's attention at one batch size."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    dim: int
    softcap: float | None = None
    context: int = 4096

    @property
    def bytes(self) -> int:
        return 2 * self.batch * self.kv_heads * self.context * self.dim * 2

    def operands(self) -> list[list[Tensor]]:
        """query, key, value and a mask that shows everything, several times."""
        count = max(1, min(CALLS, ROTATED_BYTES // self.bytes))
        made = []
        for _ in range(count):
            sizes = [(self.heads, 1), *[(self.kv_heads, self.context)] * 2]
            tensors = [
                torch.randn(self.batch, h, n, self.dim, device="cuda", dtype=torch.bfloat16)
                for h, n in sizes
            ]
            mask = torch.ones(1, 1, 1, self.context, device="cuda", dtype=torch.bool)
            made.append([*tensors, mask])
        return made


CASES = [
    Case("llama3-b1", 1, 32, 8, 128),
    Case("llama3-b16", 16, 32, 8, 128),
    Case("gemma2-b1", 1, 16, 8, 256, 50.0),
    Case("gemma2-b16", 16, 16, 8, 256, 50.0),
]


def replayed(call: Callable[..., Any], sets: list[list[Tensor]]) -> float:
    """Microseconds of one call within a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            call(*sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        for k in range(CALLS):
            call(*sets[k % len(sets)])
    samples = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(samples[3:])


def ours(case: Case, tiling: Tiling, *, masked: bool) -> Callable[..., Tensor]:
    def call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return torch.ops.vtc.attention(
            query,
            key,
            value,
            mask if masked else None,
            softcap=case.softcap,
            tiling=as_argument(tiling),
        )

    return call


def sdpa(*, masked: bool) -> Callable[..., Tensor]:
    def call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, mask if masked else None, enable_gqa=True
        )

    return call


def flex(case: Case) -> Callable[..., Tensor]:
    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return case.softcap * torch.tanh(score / case.softcap)

    def everything(_: Tensor, __: Tensor, ___: Tensor, key: Tensor) -> Tensor:
        return key < case.context

    score = capped if case.softcap else None
    blocks = create_block_mask(everything, None, None, 1, case.context, device="cuda")

    def call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return flex_attention(
            query, key, value, score_mod=score, block_mask=blocks, enable_gqa=True
        )

    return torch.compile(call)


def flashinfer(case: Case) -> Callable[..., Tensor] | None:
    """FlashInfer's decode kernel, one sequence, where the package is installed."""
    if case.batch != 1 or importlib.util.find_spec("flashinfer") is None:
        return None
    decode = importlib.import_module("flashinfer").single_decode_with_kv_cache

    def call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return decode(
            query[0, :, 0], key[0], value[0], kv_layout="HND", logits_soft_cap=case.softcap
        )

    return call


def flash3(case: Case) -> Callable[..., Tensor] | None:
    """FlashAttention-3, where its library is loaded. It reads the cache through its strides."""
    if not hasattr(torch.ops._vllm_fa3_C, "fwd"):
        return None
    forward = torch.ops._vllm_fa3_C.fwd
    counts = {"device": "cuda", "dtype": torch.int32}
    starts = torch.arange(case.batch + 1, **counts)
    lengths = torch.full((case.batch,), case.context, **counts)
    pages = torch.arange(case.batch, **counts)[:, None]

    def call(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        # The library takes sequences of any lengths: a sequence's cache is one page, read through
        # its strides. Splits and packing of heads are its own choice.
        given: dict[int, Any] = {
            0: query[:, :, 0],
            1: key.transpose(1, 2),
            2: value.transpose(1, 2),
            7: starts,
            11: lengths,
            12: 1,
            13: case.context,
            14: pages,
            23: case.dim**-0.5,
            24: False,  # causal
            25: -1,  # window to the left
            26: -1,  # and to the right
            27: case.softcap or 0.0,
            28: True,  # rotary tables interleaved: there are none
            30: 0,  # splits
            32: 0,  # processors left free
            34: 1,  # ranks
            35: 0,  # rank
        }
        found = forward(*[given.get(k) for k in range(37)])
        return found[0][:, :, None]

    return call


def error(case: Case, call: Callable[..., Tensor], operands: list[Tensor]) -> float:
    """The largest difference from float64, relative to the largest value."""
    query, key, value, _ = (t.double() for t in operands)
    repeats = case.heads // case.kv_heads
    key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
    scores = query @ key.mT * case.dim**-0.5
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    expected = scores.softmax(-1) @ value
    with torch.no_grad():
        found = call(*operands).reshape(expected.shape).double()
    return float((found - expected).abs().max() / expected.abs().max())


def tilings(case: Case, processors: int, *, tune: bool) -> list[Tiling]:
    shape = Shape(case.batch, case.heads, case.kv_heads, 1, case.context, case.dim)
    if not tune:
        return list(candidates(shape, processors))
    forms = [(32, 4, 3), (32, 4, 4), (32, 4, 5), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3)]
    forms += [(128, 4, 2), (128, 8, 2), (128, 8, 3), (16, 4, 5), (32, 2, 4)]
    pairs = case.batch * case.kv_heads
    splits = {max(1, -(-waves * processors // pairs)) for waves in (1, 2, 3, 4, 6, 8, 12)}
    return [
        Tiling(16, n, s, warps, stages)
        for (n, warps, stages), s in itertools.product(forms, sorted(splits))
        if n * case.dim * 4 * max(1, stages - 1) <= 200 * 1024 and s <= case.context // n
    ]


def main(
    cases: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    tune: Annotated[bool, typer.Option("--tune", help="Time many tilings.")] = False,
    seconds: Annotated[float, typer.Option(help="Longest time for tuning one case.")] = 20.0,
    library: Annotated[
        Path | None, typer.Option("--flash3", help="Library of FlashAttention-3.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure decode attention."""
    if library is not None:
        torch.ops.load_library(str(library))
    names = [n for n in cases.split(",") if n]
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if not names or case.name in names:
            rows += measure(case, processors, tune=tune, seconds=seconds)
    record = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "rows": rows,
    }
    output.write_text(json.dumps(record, indent=2) + "\n")


def measure(case: Case, processors: int, *, tune: bool, seconds: float) -> list[dict[str, Any]]:
    sets = case.operands()
    times: dict[Tiling, float] = {}
    begun = datetime.datetime.now()
    for tiling in tilings(case, processors, tune=tune):
        if (datetime.datetime.now() - begun).total_seconds() > seconds:
            break
        try:
            times[tiling] = replayed(ours(case, tiling, masked=False), sets)
        except triton.runtime.errors.OutOfResources:
            continue
    ranked = sorted(times, key=times.__getitem__)
    for tiling in ranked[: 12 if tune else 3]:
        print(f"{case.name}  {times[tiling]:8.2f} us  {tiling}")
    best = ranked[0]
    calls: dict[str, Callable[..., Any] | None] = {
        f"vtc ({best})": ours(case, best, masked=False),
        "vtc, bool mask": ours(case, best, masked=True),
        "flex_attention": flex(case),
        "flashinfer": flashinfer(case),
        "flash_attention_3": flash3(case),
    }
    if case.softcap is None:
        calls |= {"sdpa": sdpa(masked=False), "sdpa, bool mask": sdpa(masked=True)}
    rows = []
    for name, call in calls.items():
        if call is None:
            continue
        try:
            off = error(case, call, sets[0])
            microseconds = replayed(call, sets)
        except Exception as problem:
            print(f"{case.name}  {name}: {type(problem).__name__}: {str(problem)[:200]}")
            continue
        bandwidth = case.bytes / microseconds * 1e-6
        print(f"{case.name}  {name}: {microseconds:.2f} us, {bandwidth:.2f} TB/s, error {off:.1e}")
        measured = {"us": microseconds, "TB/s": bandwidth, "max_rel_error": off}
        rows.append({"case": asdict(case), "system": name, **measured})
    return rows


if __name__ == "__main__":
    typer.run(main)

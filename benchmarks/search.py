"""Greedy against exhaustive search, by measured region costs and whole, on four real blocks.

    python benchmarks/search.py

Writes benchmarks/results/search.json: for each block the cost of both plans by regions, their gap,
the number of measurements, and the median time of both compiled plans, timed in turns.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import vtc
from vtc.compiler import compile_records
from vtc.lowering import timing

RESULTS = Path(__file__).parent / "results" / "search.json"
Block = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def c3k2() -> Block:
    """A C3K2 block of YOLO11 (64 channels at 80 x 80)."""

    def block(x, w1, w2, w3, w4):  # type: ignore[no-untyped-def]
        parts = list(F.silu(F.conv2d(x, w1)).chunk(2, 1))
        inner = F.silu(F.conv2d(F.silu(F.conv2d(parts[-1], w2, padding=1)), w3, padding=1))
        parts.append(parts[-1] + inner)
        return F.silu(F.conv2d(torch.cat(parts, 1), w4))

    r = torch.randn
    return block, (r(1, 64, 80, 80), r(64, 64, 1, 1), r(32, 32, 3, 3), r(32, 32, 3, 3),
                   r(64, 96, 1, 1))  # fmt: skip


def efficientvit_attention() -> Block:
    """The linear attention of EfficientViT on 256 tokens, two scales."""

    def block(qkv, other, w):  # type: ignore[no-untyped-def]
        joined = torch.cat([qkv, other], 1)
        b = joined.shape[0]
        heads = joined.reshape(b, -1, 48, 256).transpose(-1, -2)
        q, k, v = heads.chunk(3, -1)
        q, k, v = F.relu(q), F.relu(k), F.pad(v, (0, 1), value=1.0)
        out = q @ (k.transpose(-1, -2) @ v)
        out = out[..., :-1] / (out[..., -1:] + 1e-5)
        return F.conv2d(out.transpose(-1, -2).reshape(b, -1, 16, 16), w)

    r = torch.randn
    return block, (r(1, 384, 16, 16), r(1, 384, 16, 16), r(128, 256, 1, 1))


def shufflenet_unit() -> Block:
    """A stride-1 unit of ShuffleNet-v2 (116 channels at 28 x 28)."""

    def block(x, w1, w2, w3):  # type: ignore[no-untyped-def]
        kept, branch = x.chunk(2, 1)
        branch = F.relu(F.conv2d(branch, w1))
        branch = F.relu(F.conv2d(F.conv2d(branch, w2, padding=1, groups=58), w3))
        y = torch.cat([kept, branch], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)

    r = torch.randn
    return block, (r(1, 116, 28, 28), r(58, 58, 1, 1), r(58, 1, 3, 3), r(58, 58, 1, 1))


def llama_attention() -> Block:
    """Grouped-query attention of a decode step over two caches of 1024 entries."""

    def block(q, k, v, keys, values, position):  # type: ignore[no-untyped-def]
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        b, h, s, d = keys.shape
        wide_k = keys[:, :, None].expand(b, h, 4, s, d).reshape(b, 4 * h, s, d)
        wide_v = values[:, :, None].expand(b, h, 4, s, d).reshape(b, 4 * h, s, d)
        out = F.scaled_dot_product_attention(q, wide_k, wide_v)
        return out.transpose(1, 2).reshape(b, 1, -1)

    r = torch.randn
    return block, (r(4, 32, 1, 64), r(4, 8, 1, 64), r(4, 8, 1, 64), r(4, 8, 1024, 64),
                   r(4, 8, 1024, 64), torch.tensor([1000]))  # fmt: skip


def measure(name: str, build: Callable[[], Block]) -> dict[str, Any]:
    """One block: both searches from one empty cache of measurements, both plans timed in turns."""
    torch.manual_seed(0)
    block, args = build()
    plans, reports = [], {}
    cache = Path(tempfile.mkdtemp())
    for search in ("greedy", "exhaustive"):
        torch._dynamo.reset()
        options = vtc.Options(
            search=search,  # type: ignore[arg-type]
            verify=False,
            profile_budget_s=300,
            cache_dir=cache,
        )
        reports[search] = compile_records(block, args, {}, options=options)[0]
        torch._dynamo.reset()
        compiled = vtc.compile(block, options=options)
        with torch.no_grad():
            compiled(*(a.clone() for a in args))
        plans.append(compiled)
    with torch.no_grad():
        greedy_us, best_us = timing.interleaved(plans, list(args), [])
    shutil.rmtree(cache)
    stats = reports["exhaustive"].search
    return {
        "block": name,
        "gap": stats.gap,
        "profiles": reports["greedy"].search.profiles + stats.profiles,
        "search_s": stats.seconds,
        "greedy_us": greedy_us,
        "exhaustive_us": best_us,
        "virtual": reports["greedy"].movement.virtual,
    }


def main() -> None:
    """Measure the four blocks and write the result file."""
    builders = (c3k2, efficientvit_attention, shufflenet_unit, llama_attention)
    rows = [measure(build.__name__, build) for build in builders]
    for row in rows:
        print(row)
    record = {
        "device": f"cpu, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "vtc": vtc.__version__},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "blocks": rows,
    }
    RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What a bad choice of virtual tensors costs, and that the search does not make it.

    python benchmarks/forced.py [--device cuda] [--blocks c3k2,llama_attention]

Of each block of `search.py`, four plans are timed whole, in turns on a CPU and as replays of CUDA
graphs on a GPU: nothing virtual; what the search chooses by its measurements; and two that are
forced, as many edges as are legal together, those that store first and those that load first.
On a GPU the blocks are in half precision. Writes results/forced.json after each block: microseconds
of each plan, how many edges it has, and what it costs by the search's measurements. A block that is
there for the device already is not measured again unless --again is given.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from search import Block, c3k2, efficientvit_attention, llama_attention, shufflenet_unit

import vtc
from vtc.bench.records import versions
from vtc.graph.capture import capture
from vtc.graph.program import Program
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.check import check
from vtc.lowering.homes import Unschedulable
from vtc.lowering.implement import implemented
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.profile import ProfiledCost
from vtc.runtime.executable import Executable
from vtc.virtual import cost, search
from vtc.virtual.strategy import Strategy

RESULTS = Path(__file__).parent / "results" / "forced.json"
BLOCKS: tuple[Callable[[], Block], ...] = (
    c3k2,
    efficientvit_attention,
    shufflenet_unit,
    llama_attention,
)


def captured(
    block: Callable[..., Any], args: tuple[torch.Tensor, ...]
) -> tuple[Program, list[Any]]:
    found = []

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append((capture(graph_module, list(inputs)), list(inputs)))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(block, backend=backend, dynamic=False)(*(a.clone() for a in args))
    ((program, inputs),) = found
    return program, inputs


def forced(plan: Plan, first: str) -> Strategy:
    """Edges added one by one while they are legal, those of direction `first` before the others."""
    edges = plan.vtog.numbered
    chosen = NOTHING
    for edge in sorted(range(len(edges)), key=lambda k: edges[k].direction != first):
        if plan.checker.legal(chosen | {edge}).ok and _schedulable(plan, chosen | {edge}):
            chosen |= {edge}
    return chosen


def _schedulable(plan: Plan, strategy: Strategy) -> bool:
    try:
        plan.schedule(strategy)
    except Unschedulable:
        return False
    return True


def measure(build: Callable[[], Block], device: str, budget: float) -> dict[str, Any]:
    torch.manual_seed(0)
    block, args = build()
    half = torch.float16 if device.startswith("cuda") else torch.float32
    moved = (a.to(device, half if a.is_floating_point() else a.dtype) for a in args)
    program, inputs = captured(block, tuple(moved))
    plan = Plan.of(program)
    model = cost.GPU if device.startswith("cuda") else cost.CPU
    static = cost.StaticCost(plan.graph, plan.vtog, plan.engine, model, "latency")
    with tempfile.TemporaryDirectory() as folder:
        options = vtc.Options(cache_dir=Path(folder), profile_budget_s=budget)
        cache = ProfileCache(options.cache_dir, plan.device)
        pricing = ProfiledCost(plan, static, options, cache, lambda _: None)
        found = search.greedy(plan.graph, plan.vtog, plan.engine, pricing)
        plans = {
            "nothing": NOTHING,
            "searched": found.strategy,
            "stores": forced(plan, "store"),
            "loads": forced(plan, "load"),
        }
        costs = {name: pricing.cost(strategy) for name, strategy in plans.items()}
    calls = []
    for strategy in plans.values():
        schedule = plan.schedule(strategy)
        check(schedule, program)
        steps = implemented(schedule.steps, program, freeze=False)
        calls.append(Executable(schedule, steps, len(inputs), program.constants))
    with torch.no_grad():
        if device.startswith("cuda"):  # launched one by one, the host would be what is timed
            times = [timing.replayed(call, [inputs]) for call in calls]
        else:
            times = timing.interleaved(calls, inputs, [i for i, _ in program.updates])
    row: dict[str, Any] = {"block": build.__name__}
    for (name, strategy), time in zip(plans.items(), times, strict=True):
        row[name] = {
            "us": round(time, 1),
            "edges": len(strategy),
            "searched_cost_us": round(costs[name], 1),
        }
    pairs = itertools.combinations(plans.items(), 2)
    row["same"] = [f"{a} = {b}" for (a, one), (b, other) in pairs if one == other]
    return row


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    blocks: Annotated[str, typer.Option(help="Names, separated by commas; all by default.")] = "",
    budget: Annotated[float, typer.Option(help="Seconds of measuring a block's regions.")] = 40.0,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Time forced plans against the searched one."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    found = json.loads(output.read_text()) if output.exists() else {}
    rows = found.get("blocks", []) if found.get("device") == name else []
    wanted = [b for b in BLOCKS if not blocks or b.__name__ in blocks.split(",")]
    for build in wanted:
        if not again and any(row["block"] == build.__name__ for row in rows):
            continue
        rows = [row for row in rows if row["block"] != build.__name__]
        rows.append(measure(build, device, budget))
        Console().print(rows[-1])
        output.parent.mkdir(parents=True, exist_ok=True)
        record = {"device": name, "versions": versions(), "blocks": rows}
        output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

"""The CUDA figures: every built-in model at batch 1 and 16, in half precision.

    python benchmarks/gpu.py [--cases llama3:1,yolo11:16] [--peers eager,inductor]
    python benchmarks/gpu.py --cases llama3:1,llama3:16 --layers 32 --peers inductor,inductor-best \
        --variants grouped_heads --brief
    CUDA_VISIBLE_DEVICES=0 python benchmarks/gpu.py --share 1/2 &
    CUDA_VISIBLE_DEVICES=1 python benchmarks/gpu.py --share 2/2; wait

Each case is written to benchmarks/results/gpu-models.json as soon as it is measured, and one that
is there already is not measured again unless --again is given: a run that was cut short goes on
where it stopped. Several processes may write that file at once. Beside it, gpu-details.json has the
kernels of one call of each system, what vtc measured for its profiles and how long it takes to
compile the model again, what a case must at least move and compute, and the device's rates.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from cases import Plan, console, merge, run
from filelock import FileLock
from limits import Rates, needed

from vtc.bench import records
from vtc.bench.observe import Kernel
from vtc.bench.peers import Settings, fresh_compiler, prepare
from vtc.bench.suite import Request
from vtc.options import Options, check_objective

RESULTS = Path(__file__).parent / "results" / "gpu-models.json"
SHARES = {
    "1/2": "llama3:1,llama3:16,shufflenet:1,efficientvit:16,yolo11:1",
    "2/2": "gemma2:1,gemma2:16,shufflenet:16,efficientvit:1,yolo11:16",
}
"""Halves that take about as long."""
DEFAULT_LAYERS = 4


def main(
    cases: Annotated[str, typer.Option(help="As model:batch, separated by commas.")] = "",
    share: Annotated[str, typer.Option(help="1/2 or 2/2: half of the cases.")] = "",
    peers: Annotated[
        str, typer.Option(help="Systems to compare with.")
    ] = "eager,inductor,inductor-best",
    device: Annotated[str, typer.Option(help="cuda or cuda:N.")] = "cuda",
    objective: Annotated[str, typer.Option(help="latency, memory or bytes.")] = "latency",
    layers: Annotated[int, typer.Option(help="Of language models; 0: the default.")] = 0,
    seconds: Annotated[float, typer.Option(help="Seconds of timing a case.")] = 3.0,
    variants: Annotated[
        str, typer.Option(help="Stock variants that inductor-best tries; all by default.")
    ] = "",
    brief: Annotated[
        bool, typer.Option("--brief", help="Do not compile each model a second time.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
    take: Annotated[
        list[Path] | None, typer.Option("--merge", help="Only merge these result files.")
    ] = None,
) -> None:
    """Measure the built-in models on a GPU."""
    if take:
        for path in take:
            merge(output, records.read(path))
            _merge_details(output, _read(_beside(path)))
        return
    if share and share not in SHARES:
        raise typer.BadParameter(f"a share is one of {', '.join(SHARES)}")
    wanted = SHARES.get(share, cases or ",".join(SHARES.values()))
    pairs = [case.partition(":")[::2] for case in wanted.split(",")]
    names = ",".join(dict.fromkeys(model for model, _ in pairs))
    batches = ",".join(dict.fromkeys(batch for _, batch in pairs))
    plan = Plan.of(names, batches, peers, device, [False], seconds)
    check_objective(objective)
    tried = tuple(name for name in variants.split(",") if name)
    settings = Settings(objective=objective, variants=tried)  # type: ignore[arg-type]
    requests = [
        Request(model, int(batch), device, layers=layers or None, settings=settings)
        for model, batch in pairs
    ]
    _merge_details(output, {"rates": asdict(Rates.measured(torch.device(device)))})
    details = _Details(output, brief)
    run(plan, output, again, requests, details.add)


def name_of(case: Mapping[str, Any]) -> str:
    """What the details of a case are kept by: model, batch, and what departs from the default."""
    name, config = f"{case['model']} b{case['batch']}", case["config"]
    if config["layers"] not in (None, DEFAULT_LAYERS):
        name += f", {config['layers']} layers"
    return name if config["objective"] == "latency" else f"{name} {config['objective']}"


class _Details:
    """Writes what is known of each case beyond its rows."""

    def __init__(self, output: Path, brief: bool) -> None:
        self.output, self.brief, self.profiles = output, brief, _profiles()

    def add(self, request: Request, kernels: dict[str, list[Kernel]], case: dict[str, Any]) -> None:
        profiles = _profiles()
        found = {
            "needed": _tried(lambda: asdict(needed(request))),
            "profiles": profiles - self.profiles,
            "compiled_again_s": None if self.brief else _tried(lambda: _compiled_again(request)),
            "kernels": {name: _listed(listed) for name, listed in kernels.items()},
        }
        self.profiles = profiles
        name = name_of(case)
        _merge_details(self.output, {"cases": {name: found}})


def _tried(figure: Callable[[], Any]) -> Any:
    """A figure beside the case, None where it cannot be had: the other cases go on."""
    try:
        return figure()
    except Exception as error:
        console.print(f"{type(error).__name__}: {error}", markup=False)
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _compiled_again(request: Request) -> float | None:
    """Seconds of the first call of a model compiled anew, with everything on disk that the first
    compilation left there."""
    case = request.build()
    with torch.no_grad(), fresh_compiler():
        return prepare("vtc", case, request.settings).first_call_s


def _listed(kernels: Sequence[Kernel]) -> list[list[Any]]:
    """Name, calls, microseconds in all."""
    return [[k.name[:120], k.calls, round(k.microseconds, 2)] for k in kernels]


def _profiles() -> int:
    """How many measurements the profile cache holds."""
    return sum(1 for _ in (Options.from_env().cache_dir / "profile").rglob("*.json"))


def _beside(output: Path) -> Path:
    return output.with_name(output.name.replace("models", "details"))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _merge_details(output: Path, new: dict[str, Any]) -> None:
    path = _beside(output)
    with FileLock(f"{path}.lock"):
        found = _read(path)
        merged = {**found, **new, "cases": {**found.get("cases", {}), **new.get("cases", {})}}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(main)

"""What a model's first call costs beyond its capture, and how soon a saved model answers; on a CPU.

    python benchmarks/first_call.py [--models shufflenet,llama3]

Each model has a process of its own, in which nothing was compiled before. With engine="dvm":

first_call_s    the first call, from the user's function to the answer
capture_s       of it Dynamo's trace, the graph as functional ATen, guards, and the collection of
                what they leave: Dynamo's compilation of the frame without the two below
lower_s         the captured graph to tile programs
program_s       programs verified and handed to the encoder, and the calling function written
run_s           sizes encoded, weights packed, the first run
beyond_s        the last three: the first call without its capture
load_s          in another process, after imports: `vtc.load` of the exported and saved model
answer_s        the same, and the first call of it

Written to results/cpu-first-call.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import vtc
from vtc.bench.models import build
from vtc.bench.records import versions
from vtc.runtime import dvm_compile

RESULTS = Path(__file__).parent / "results" / "cpu-first-call.json"
MODELS = ("shufflenet", "efficientvit", "yolo11", "llama3", "gemma2")


class Timed:
    """A function in the place of `owner.name` that adds up the seconds of its calls."""

    def __init__(self, owner: Any, name: str) -> None:
        stock: Callable[..., Any] = getattr(owner, name)
        self.seconds = 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return stock(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(owner, name, timed)


def first_call(model: str) -> dict[str, float]:
    """The parts of the first call, in seconds."""
    case = build(model)
    frame = Timed(dvm_compile._Traced, "__call__")
    lower, program = Timed(dvm_compile, "lower"), Timed(dvm_compile, "Program")
    compiled = vtc.compile(case.model, engine="dvm")
    case.reset()
    with torch.no_grad():
        start = time.perf_counter()
        case.call(compiled)
        total = time.perf_counter() - start
    run = total - frame.seconds
    return {
        "first_call_s": total,
        "capture_s": frame.seconds - lower.seconds - program.seconds,
        "lower_s": lower.seconds,
        "program_s": program.seconds,
        "run_s": run,
        "beyond_s": lower.seconds + program.seconds + run,
    }


def save(model: str, path: str) -> dict[str, float]:
    """Saves the exported model."""
    case = build(model)
    with torch.no_grad():
        vtc.save(vtc.export(case.model, case.args, case.kwargs, engine="dvm"), path)
    return {"file_mib": Path(path).stat().st_size / (1 << 20)}


def load(model: str, path: str) -> dict[str, float]:
    """Seconds until a saved model is there, and until it has answered."""
    case = build(model)
    case.reset()
    with torch.no_grad():
        start = time.perf_counter()
        restored = vtc.load(path)
        loaded = time.perf_counter() - start
        case.call(restored)
        return {"load_s": loaded, "answer_s": time.perf_counter() - start}


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "first_call": first_call,
    "save": save,
    "load": load,
}


def _alone(part: str, *args: str) -> dict[str, Any]:
    """A part in a process of its own; what it says is the last line that it prints."""
    command = [sys.executable, __file__, "--part", part, *(f"--given={a}" for a in args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        first = max(k for k, line in enumerate(said) if "Error" in line)
        return {f"{part}_refused": " ".join(said[first:])}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(MODELS),
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
    part: Annotated[str, typer.Option(hidden=True)] = "",
    given: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure first calls and loads."""
    if part:
        print(json.dumps(PARTS[part](*(given or []))))
        return
    found = json.loads(output.read_text()) if output.exists() else {"models": {}}
    for model in models.split(","):
        own = _alone("first_call", model)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.vtc")
            own |= _alone("save", model, path)
            if "save_refused" not in own:
                own |= _alone("load", model, path)
        Console().print(model, own)
        found["models"][model] = own
        found["machine"] = versions()
        output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

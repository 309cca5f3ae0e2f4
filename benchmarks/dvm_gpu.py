"""The DVM on a CUDA device: bandwidth, the host's share, operators over shapes, models.

    python benchmarks/dvm_gpu.py bandwidth
    python benchmarks/dvm_gpu.py host
    python benchmarks/dvm_gpu.py shapes [--only gelu,matmul] [--seconds 200]
    python benchmarks/dvm_gpu.py models [--only mmoe]
    python benchmarks/dvm_gpu.py tables
    python benchmarks/dvm_gpu.py encode    # no GPU needed

Each writes its section of benchmarks/results/gpu-dvm.json as it goes; `shapes` and `models` measure
what is not there yet. Every time of the device is taken between two events around many calls, in
turns with the peers; see benchmarks/README.md.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import dvm_gpu_bandwidth
import dvm_gpu_models
import dvm_gpu_operators
import dvm_gpu_tables
import typer

from vtc.bench import records

RESULTS = Path(__file__).parent / "results" / "gpu-dvm.json"
SECTIONS = ("bandwidth", "host", "device_operators", "sequences")
app = typer.Typer(add_completion=False)
Only = Annotated[str, typer.Option(help="Operators or models, separated by commas.")]
Output = Annotated[Path, typer.Option(help="Result file.")]
Again = Annotated[bool, typer.Option("--again", help="Measure what is there already.")]


def say(what: Any) -> None:
    """A line on the standard error, where progress goes."""
    sys.stderr.write((what if isinstance(what, str) else json.dumps(what)) + "\n")


class File:
    """The result file, written after each measurement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cases = {case["model"]: case for case in records.read(path)}
        found = records.read_sections(path)
        self.sections = {name: {key(name, e): e for e in found.get(name, [])} for name in SECTIONS}

    def add(self, section: str, entry: dict[str, Any]) -> None:
        self.sections[section][key(section, entry)] = entry
        sections = {name: list(entries.values()) for name, entries in self.sections.items()}
        sections["machine"] = records.versions()
        records.write(self.path, self.cases.values(), sections)
        say(entry)

    def has(self, section: str, *own: Any) -> bool:
        return own in self.sections[section]


def key(section: str, entry: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two entries of a section the same measurement."""
    if section == "sequences":
        return (entry["model"],)
    shape = (tuple(entry["shape"]),) if "shape" in entry else ()
    return (entry["operator"], *shape)


def chosen(only: str) -> Callable[[str], bool]:
    """Is a name among those asked for?"""
    names = {name for name in only.split(",") if name}
    return lambda name: not names or name in names


@app.command()
def bandwidth(
    only: Only = "",
    peers: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(
        dvm_gpu_operators.SYSTEMS
    ),
    output: Output = RESULTS,
) -> None:
    """TB/s of operators at 32768x4096 in bf16, of what they must move."""
    file, wanted = File(output), chosen(only)
    for own in dvm_gpu_bandwidth.OPERATORS:
        if wanted(own.name):
            file.add("bandwidth", dvm_gpu_bandwidth.bandwidth(own, peers.split(",")))


@app.command()
def host(only: Only = "", output: Output = RESULTS) -> None:
    """Microseconds on the host: a known program encoded for a new shape and launched."""
    file, wanted = File(output), chosen(only)
    for own in dvm_gpu_bandwidth.OPERATORS[1:]:
        if wanted(own.name):
            file.add("host", dvm_gpu_bandwidth.host(own))


@app.command()
def encode(shapes: int = 2000) -> None:
    """Microseconds to encode a known program for a new shape, with tiles for a device."""
    for own in dvm_gpu_bandwidth.OPERATORS[1:]:
        sys.stdout.write(json.dumps(dvm_gpu_bandwidth.encode(own, shapes)) + "\n")


@app.command()
def shapes(
    only: Only = "",
    seconds: Annotated[float, typer.Option(help="Compile nothing after so long.")] = 1e9,
    count: Annotated[int, typer.Option(help="Shapes an operator.")] = dvm_gpu_operators.COUNT,
    again: Again = False,
    output: Output = RESULTS,
) -> None:
    """Operators over shapes, most of them unaligned; a process an operator compiles."""
    file, asked = File(output), chosen(only)
    wanted = {
        name: own
        for name, operator in dvm_gpu_operators.OPERATORS.items()
        if asked(name)
        and (
            own := [
                s
                for s in dvm_gpu_operators.shapes(operator, count)
                if again or not file.has("device_operators", name, s)
            ]
        )
    }
    for entry in dvm_gpu_operators.sweep(wanted, seconds, say):
        file.add("device_operators", entry)


@app.command()
def models(
    only: Only = "",
    minutes: Annotated[float, typer.Option(help="Begin nothing after so long.")] = 1e9,
    again: Again = False,
    output: Output = RESULTS,
) -> None:
    """Models over random pairs of batch and length, from cold and steady."""
    file, asked, start = File(output), chosen(only), time.perf_counter()
    for name in dvm_gpu_models.MODELS:
        late = time.perf_counter() - start > 60 * minutes
        if not asked(name) or late or (not again and file.has("sequences", name)):
            continue
        case, entry = dvm_gpu_models.measure(name, say)
        file.cases[name] = case
        file.add("sequences", entry)


@app.command()
def tables(output: Output = RESULTS) -> None:
    """What the result file says, as tables."""
    sys.stdout.write(dvm_gpu_tables.text(json.loads(output.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    app()

"""The DVM's figures on a CPU: encoding, operators by size, models over changing sizes.

    python benchmarks/dvm.py [--parts encode,operators,models] [--only gelu,softmax] [--minutes 3]

Each measurement is written to benchmarks/results/cpu-dvm.json as soon as it is there, and what is
in the file is not measured again unless --again is given: a run that was cut short, or that
--minutes ended, goes on where it stopped. benchmarks/dvm_page.py makes docs/dvm.md of the file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import dvm_encode
import dvm_models
import dvm_operators
import typer
from rich.console import Console

from vtc.bench import records

RESULTS = Path(__file__).parent / "results" / "cpu-dvm.json"
PARTS = ("encode", "operators", "models")
console = Console(width=160)


class File:
    """The result file, written after each measurement."""

    def __init__(self, path: Path, note: str) -> None:
        self.path = path
        self.cases = {case["model"]: case for case in records.read(path)}
        found = records.read_sections(path)
        self.note = note or found.get("machine", {}).get("note", "")
        self.encode: dict[str, Any] = found.get("encode_us", {})
        self.operators = {_key(e): e for e in found.get("operators", [])}
        self.sequences = {e["model"]: e for e in found.get("sequences", [])}

    def write(self) -> None:
        sections = {
            "machine": records.versions() | ({"note": self.note} if self.note else {}),
            "encode_us": self.encode,
            "operators": [self.operators[k] for k in sorted(self.operators)],
            "sequences": list(self.sequences.values()),
        }
        records.write(self.path, self.cases.values(), sections)

    def add_operator(self, entry: dict[str, Any]) -> None:
        self.operators[_key(entry)] = entry
        self.write()
        console.print(
            f"{entry['operator']} {entry['shape']}: "
            + ", ".join(f"{k[:-3]} {v:.1f}" for k, v in entry.items() if k.endswith("us") and v)
        )


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    names = [operator.name for operator in dvm_operators.OPERATORS]
    band = list(dvm_operators.BANDS).index(entry["band"])
    return names.index(entry["operator"]), band, *entry["shape"]


def main(
    parts: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(PARTS),
    only: Annotated[str, typer.Option(help="Operators or models, separated by commas.")] = "",
    minutes: Annotated[float, typer.Option(help="Begin nothing after so long.")] = 1e9,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there already.")] = False,
    note: Annotated[str, typer.Option(help="What a reader must know of the machine.")] = "",
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Measure the DVM on this machine's CPU."""
    file = File(output, note)
    if note:
        file.write()
    deadline = time.perf_counter() + 60 * minutes
    names = {name for name in only.split(",") if name}

    def wanted(name: str, there: bool) -> bool:
        chosen = not names or name in names
        return chosen and (again or not there) and time.perf_counter() < deadline

    if "encode" in parts:
        for name in dvm_encode.OPERATORS:
            if wanted(name, name in file.encode):
                file.encode[name] = entry = dvm_encode.measure(name)
                file.write()
                console.print(name, entry)
    if "operators" in parts:
        for operator in dvm_operators.OPERATORS:
            shapes = [
                (band, shape)
                for band, several in dvm_operators.BANDS.items()
                for shape in several
                if again
                or _key({"operator": operator.name, "band": band, "shape": list(shape)})
                not in file.operators
            ]
            if shapes and wanted(operator.name, there=False):
                dvm_operators.measure(operator, shapes, file.add_operator)
    if "models" in parts:
        for name in dvm_models.MODELS:
            if wanted(name, name in file.sequences):
                case, entry = dvm_models.measure(name, console.log)
                file.cases[name], file.sequences[name] = case, entry
                file.write()
                console.print(entry)


if __name__ == "__main__":
    typer.run(main)

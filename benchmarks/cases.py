"""Runs a list of cases into one result file; cpu.py and gpu.py say which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console

from vtc.bench import records, suite
from vtc.bench.models import MODELS, check_device
from vtc.bench.observe import Kernel
from vtc.bench.peers import Settings, check_systems
from vtc.bench.tables import notes_of, table_of
from vtc.bench.timing import Effort
from vtc.errors import UnknownModelError, VtcError

console = Console(width=180)


@dataclass(frozen=True)
class Plan:
    """The cases to measure: the product of models, batches and freezing, with peers for each."""

    models: Sequence[str]
    batches: Sequence[int]
    peers: Sequence[str]
    device: str
    frozen: Sequence[bool]
    effort: Effort

    @classmethod
    def of(
        cls,
        models: str,
        batches: str,
        peers: str,
        device: str,
        frozen: Sequence[bool],
        seconds: float,
    ) -> Plan:
        """From command line texts. Raises `VtcError` for a name that there is not."""
        names = [name for name in models.split(",") if name] or list(MODELS)
        for name in names:
            if name not in MODELS:
                raise UnknownModelError(name, MODELS)
        check_device(device)
        systems = check_systems([name for name in peers.split(",") if name])
        numbers = [int(number) for number in batches.split(",")]
        return cls(names, numbers, systems, device, frozen, Effort(seconds=seconds))

    def requests(self) -> Iterator[suite.Request]:
        for model in self.models:
            for batch in self.batches:
                for freeze in self.frozen:
                    settings = Settings(freeze=freeze)
                    yield suite.Request(model, batch, self.device, settings=settings)


Details = Callable[[suite.Request, dict[str, list[Kernel]], dict[str, Any]], None]
"""Receives what the result file has no place for: the request, kernels by system, the case."""


def run(
    plan: Plan,
    output: Path,
    again: bool,
    requests: Sequence[suite.Request] | None = None,
    details: Details | None = None,
) -> None:
    """Measure the plan's cases, or those given, writing the file after each one.

    Several processes may write the same file, each its own cases.
    """
    done = {_short_key(case) for case in records.read(output)}
    for request in plan.requests() if requests is None else requests:
        settings = request.settings
        key = (request.model, request.batch, request.device, settings.freeze, settings.objective)
        key = (*key, _layers(request))
        if key in done and not again:
            console.print(f"{key}: in {output.name} already")
            continue
        start = time.perf_counter()
        kernels: dict[str, list[Kernel]] = {}
        try:
            case = suite.bench(request, plan.peers, plan.effort, console.print, kernels)
        except VtcError as error:  # a missing package, say: the other models go on
            console.print(f"{key}: {error}", markup=False)
            continue
        merge(output, [case])
        if details is not None:
            details(request, kernels, case)
        console.print(table_of(case))
        for note in notes_of(case):
            console.print(note, markup=False, highlight=False)
        console.print(f"{key}: {time.perf_counter() - start:.0f} s in all")


def merge(output: Path, cases: Iterable[dict[str, Any]]) -> None:
    """Put cases into a result file in the place of those with the same key."""
    with FileLock(f"{output}.lock"):
        found = {records.case_key(case): case for case in records.read(output)}
        found |= {records.case_key(case): case for case in cases}
        models = list(MODELS)
        ordered = sorted(found.values(), key=lambda c: (models.index(c["model"]), c["batch"] or 0))
        records.write(output, ordered)


def _short_key(case: dict[str, object]) -> tuple[object, ...]:
    config = case["config"]
    assert isinstance(config, dict)
    return (
        *(case[name] for name in ("model", "batch", "device")),
        *(config[name] for name in ("freeze", "objective", "layers")),
    )


def _layers(request: suite.Request) -> int | None:
    """The layers that a request's case has; None for a model that does not count them."""
    model = MODELS[request.model]
    widths = (model.cuda if request.device.startswith("cuda") else model.cpu).get("widths")
    return request.layers or (widths.layers if widths else None)

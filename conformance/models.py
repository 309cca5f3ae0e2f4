"""Runs real models through vtc: at least 60 of transformers, timm and torchvision.

    python conformance/models.py --engine dvm          compiled once, called with two batch sizes
    python conformance/models.py --engine inductor     planned and compiled by Inductor
    python conformance/models.py --filter timm/        the models with that in their name

Each model has random weights and a reduced size, and is compiled on inputs other than those that it
is judged on. A result is right if it is as far from float64 as eager PyTorch's is, as
`torch._dynamo.utils.same` measures it. Verdicts go to the folder `--state` one by one; a run that
is stopped, by `--seconds` or otherwise, goes on from there.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import importlib.util
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch._dynamo.utils
import typer
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import vtc.compiler
from dynamo import leave_guards_untimed
from journal import Journal, part, spread, watched
from model_zoo import Model, build, models
from vtc.errors import FallbackWarning
from vtc.options import Options
from vtc.runtime import dvm_compile
from vtc.virtual.record import GraphReport

leave_guards_untimed()

TOLERANCE = 1e-4
LIBRARIES = ("torch", "transformers", "timm", "torchvision")
QUICK = {"cost": "static", "verify": False}


@dataclass(frozen=True)
class Verdict:
    """What became of a model.

    status: "right", "wrong", "refused", or "skipped" where eager PyTorch cannot run it. graphs:
    those that Dynamo captured. operators: movement operators; moving_before, moving_after: those
    of them that are kernels in eager PyTorch, and the kernels that still move data. fallbacks: what
    does not run on the engine.
    """

    model: str
    status: str
    reason: str = ""
    graphs: int = 0
    operators: int = 0
    moving_before: int = 0
    moving_after: int = 0
    fallbacks: tuple[str, ...] = ()
    compile_s: float = 0.0


def main(
    engine: Annotated[str, typer.Option(help="dvm or inductor.")] = "dvm",
    filter: Annotated[str, typer.Option(help="Only models with this in their name.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    seconds: Annotated[float, typer.Option(help="Begin no model after this long.")] = 0,
    state: Annotated[Path, typer.Option(help="The folder of verdicts.")] = Path("models"),
    again: Annotated[
        bool, typer.Option("--again", help="Judge once more what was not right or fell back.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write the score.")] = None,
    share: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run models and print a score."""
    if share:
        until = time.monotonic() + seconds if seconds else float("inf")
        chosen = [m for m in models().values() if filter in m.name]
        work(part(chosen, share), Journal(state, share), engine, until)
        return
    if again:
        Journal(state).forget(
            lambda row: row.get("status", "right") != "right" or bool(row.get("fallbacks"))
        )
    spread(state, jobs, seconds, crash)
    verdicts, versions = read(Journal(state))
    print(dict(Counter(v.status for v in verdicts)))
    if output is not None:
        output.write_text(text(verdicts, engine, versions))


def work(chosen: Sequence[Model], journal: Journal, engine: str, until: float) -> None:
    """Verdicts of the models that have none yet."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    known = {v.model for v in read(journal)[0]}
    there = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    journal.append({name: importlib.import_module(name).__version__ for name in there})
    for model in chosen:
        if model.name in known:
            continue
        if time.monotonic() > until:
            return
        journal.append({"begun": model.name})
        with watched():
            verdict = judge(model, engine)
        journal.append(asdict(verdict))
        print(line(verdict), flush=True)


def crash(begun: Any, code: int) -> dict[str, Any]:
    return asdict(Verdict(begun, "wrong", f"the process ended with {code}"))


def read(journal: Journal) -> tuple[list[Verdict], dict[str, str]]:
    """Verdicts, and the versions of PyTorch and the libraries."""
    found, versions = {}, dict[str, set[str]]()
    for row in journal.rows():
        if "torch" in row:
            for name, version in row.items():
                versions.setdefault(name, set()).add(version)
        elif "begun" not in row:
            row["fallbacks"] = tuple(row["fallbacks"])
            found[row["model"]] = Verdict(**row)
    return list(found.values()), {n: ", ".join(sorted(known)) for n, known in versions.items()}


# One model.


def judge(model: Model, engine: str) -> Verdict:
    """Never raises for what the model or the engine does."""
    try:
        own = build(model)
        calls = [*arguments(model, (2, 2, 3) if engine == "dvm" else (2, 2))]
        with torch.no_grad():
            own(**calls[0])
            wants = [own(**call) for call in calls[1:]]
    except Exception as error:
        return Verdict(model.name, "skipped", f"eager: {line_of(error)}")
    precise = [in_float64(own, call) for call in calls[1:]]
    torch._dynamo.reset()
    records: list[GraphReport] = []
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            started = time.perf_counter()
            compiled = compile_with(own, engine, records)
            with torch.no_grad():
                compiled(**calls[0])
                took = time.perf_counter() - started
                gots = [compiled(**call) for call in calls[1:]]
        except Exception as error:
            cause = getattr(error, "inner_exception", None) or error
            return Verdict(model.name, "refused", line_of(cause))
    fallbacks = tuple(
        dict.fromkeys(
            f"{w.message.what}: {w.message.reason}"
            for w in given
            if isinstance(w.message, FallbackWarning)
        )
    )
    reason = next((r for r in map(differs, gots, wants, precise) if r), "")
    moved = [r.movement for r in records]
    return Verdict(
        model.name, "wrong" if reason else "right", reason, len(records),
        sum(m.operators for m in moved), sum(m.kernels_before for m in moved),
        sum(m.kernels_after for m in moved), fallbacks, round(took, 1),
    )  # fmt: skip


def compile_with(model: nn.Module, engine: str, records: list[GraphReport]) -> Any:
    """As `vtc.compile` does it, with the reports kept."""
    own = "dvm" if engine == "dvm" else "auto"
    objective = "latency" if engine == "dvm" else "bytes"
    settings = vtc.compiler._settings(own, objective, Options.of(QUICK))
    backend = vtc.compiler.Backend(dataclasses.replace(settings, records=records))
    if engine == "dvm":
        return dvm_compile.dynamic(model, backend)
    return torch.compile(model, backend=backend, dynamic=False)


def arguments(model: Model, batches: Sequence[int]) -> Iterator[dict[str, Any]]:
    for seed, batch in enumerate(batches):
        torch.manual_seed(1 + seed)
        yield model.inputs(batch)


def in_float64(model: nn.Module, call: dict[str, Any]) -> Any:
    wide = copy.deepcopy(model).double()
    own = pytree.tree_map_only(Tensor, lambda a: a.double() if a.is_floating_point() else a, call)
    try:
        with torch.no_grad():
            return wide(**own)
    except Exception:  # code that names float32
        return None


def differs(got: Any, want: Any, precise: Any) -> str:
    """How a result is not what eager PyTorch gives; empty if it is."""
    leaves, expected = pytree.tree_leaves(got), pytree.tree_leaves(want)
    exact = pytree.tree_leaves(precise)
    if len(leaves) != len(expected):
        return f"{len(leaves)} results, {len(expected)} in eager"
    for k, (one, two) in enumerate(zip(leaves, expected, strict=True)):
        if not isinstance(two, Tensor):
            if one != two:
                return f"result {k} is {one}, {two} in eager"
            continue
        if (one.dtype, one.shape, one.stride()) != (two.dtype, two.shape, two.stride()):
            return (
                f"result {k} is {one.dtype} {tuple(one.shape)} {one.stride()}, "
                f"{two.dtype} {tuple(two.shape)} {two.stride()} in eager"
            )
        three = exact[k] if k < len(exact) and isinstance(exact[k], Tensor) else None
        same = (
            torch._dynamo.utils.same(two, one, three, tol=TOLERANCE, equal_nan=True)
            if two.is_floating_point()
            else torch.equal(one, two)
        )
        if not same:
            gap = (one.double() - two.double()).abs().max().item()
            return f"result {k} differs by {gap:.3g}"
    return ""


def line_of(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}"


# The score.


def line(verdict: Verdict) -> str:
    moved = f"{verdict.operators} movement operators, kernels "
    moved += f"{verdict.moving_before} -> {verdict.moving_after}"
    more = "; ".join((verdict.reason, *verdict.fallbacks)).strip("; ")
    return f"{verdict.model}: {verdict.status}, {moved}, {verdict.compile_s} s {more}"


def text(verdicts: Sequence[Verdict], engine: str, versions: dict[str, str]) -> str:
    """JSON with one line for each model."""
    counts = Counter(v.status for v in verdicts)
    judged = [v for v in verdicts if v.status != "skipped"]
    head = {
        "suite": "models",
        "engine": engine,
        "versions": versions,
        "models": len(judged),
        **counts,
        "without_fallback": sum(v.status == "right" and not v.fallbacks for v in judged),
    }
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    rows = ",\n".join(
        f"  {json.dumps(compact(v))}" for v in sorted(verdicts, key=lambda v: v.model)
    )
    return "{\n" + ",\n".join(lines) + f',\n "cases": [\n{rows}\n ]\n}}\n'


def compact(verdict: Verdict) -> dict[str, Any]:
    return {k: v for k, v in asdict(verdict).items() if v not in ("", ()) and k != "compile_s"}


if __name__ == "__main__":
    typer.run(main)

"""The command line: `vtc models`, `vtc explain MODEL`, `vtc bench MODEL`, `vtc dis MODEL`.

A user's mistake ends in one sentence and exit code 1; VTC_DEBUG=1 shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import torch
import typer
from rich.console import Console
from rich.table import Table

import vtc
from vtc.bench import listing, records, suite
from vtc.bench.models import MODELS, check_device
from vtc.bench.peers import PEERS, Settings, check_systems
from vtc.bench.tables import notes_of, table_of
from vtc.bench.timing import Effort, Progress
from vtc.errors import InvalidOptionError, UnknownChoiceError
from vtc.options import Engine, Objective, Search, check_engine, check_objective

app = typer.Typer(
    name="vtc",
    help=(
        "VTC, a tensor compiler for PyTorch inference that eliminates data movement.\n\n"
        "MODEL is a built-in name (see `vtc models`), an ONNX file whose name ends in .onnx, or "
        "module:factory, a callable that returns (model, args) or (model, args, kwargs); it gets "
        "`batch`, `device` and `dtype` if it has parameters of these names."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()
# Progress goes to stderr, so that stdout can be piped.
status_console = Console(stderr=True)

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{', '.join(MODELS)}, FILE.onnx or module:factory.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
SizeOption = Annotated[
    int | None, typer.Option("--size", help="Image height and width in pixels (image models).")
]
LayersOption = Annotated[
    int | None, typer.Option("--layers", help="Number of layers (language models).")
]
ContextOption = Annotated[
    int | None, typer.Option("--context", help="Tokens in the cache (language models).")
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="float32, float16 or bfloat16. Default: float32 on a CPU."),
]
EngineOption = Annotated[str, typer.Option("--engine", help="auto, inductor or dvm.")]
ObjectiveOption = Annotated[str, typer.Option("--objective", help="latency, memory or bytes.")]
FreezeOption = Annotated[
    bool, typer.Option("--freeze/--no-freeze", help="Pack and fold the weights.")
]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result file (docs/results-schema.md)."),
]


def _version(shown: bool) -> None:
    if shown:
        print(f"vtc {vtc.__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def models(json: JsonOption = None) -> None:
    """List the built-in models with their default sizes."""
    _check_writable(json)
    table = Table(title="Built-in models (random weights)")
    for heading in ("name", "model", "from", "default on a CPU", "default on CUDA"):
        table.add_column(heading)
    cases = []
    for model in MODELS.values():
        table.add_row(model.name, model.title, model.source, _sizes(model.cpu), _sizes(model.cuda))
        for device, sizes in (("cpu", model.cpu), ("cuda", model.cuda)):
            dtype = "float32" if device == "cpu" else str(model.cuda_dtype).removeprefix("torch.")
            widths = sizes.get("widths")
            config = records.Config(
                size=sizes.get("size"),
                layers=widths.layers if widths else None,
                context=widths.context if widths else None,
                dtype=dtype,
            )
            cases.append(records.CaseRecord(model.name, None, device, config).to_dict())
    out.print(table)
    _write(json, cases)


def _sizes(defaults: Mapping[str, Any]) -> str:
    widths = defaults.get("widths")
    if widths is None:
        return f"{defaults['variant']}, {defaults['size']} pixels"
    return f"{widths.layers} layers, context {widths.context}, {widths}"


@app.command()
def explain(
    model: ModelArgument,
    batch: Annotated[int, typer.Option("--batch", help="Batch size.")] = 1,
    device: DeviceOption = "cpu",
    objective: ObjectiveOption = "latency",
    search: Annotated[str, typer.Option("--search", help="greedy or exhaustive.")] = "greedy",
    size: SizeOption = None,
    layers: LayersOption = None,
    context: ContextOption = None,
    dtype: DtypeOption = None,
    engine: EngineOption = "auto",
    freeze: FreezeOption = False,
    json: JsonOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained page.")
    ] = None,
) -> None:
    """Compile a model and show what became of each of its movement operators."""
    method = _search(search)
    _check_writable(json, html)
    request = suite.Request(
        model,
        batch=batch,
        device=device,
        dtype=dtype,
        size=size,
        layers=layers,
        context=context,
        settings=_settings(engine, objective, freeze),
    )
    with _progress(f"building {model}") as progress:
        report, record = suite.explain(request, method, progress)
    out.print(report)
    _write(json, [record])
    if html is not None:
        report.save(html)
        status_console.print(f"page written to {html}")


@app.command()
def bench(
    model: ModelArgument,
    batch: Annotated[
        str, typer.Option("--batch", metavar="N[,N]", help="Batch sizes, separated by commas.")
    ] = "1",
    device: DeviceOption = "cpu",
    peers: Annotated[
        str,
        typer.Option(
            "--peers", metavar="NAME[,NAME]", help=f"Systems to compare with: {', '.join(PEERS)}."
        ),
    ] = "eager,inductor",
    size: SizeOption = None,
    layers: LayersOption = None,
    context: ContextOption = None,
    dtype: DtypeOption = None,
    engine: EngineOption = "auto",
    objective: ObjectiveOption = "latency",
    freeze: FreezeOption = False,
    max_autotune: Annotated[
        bool, typer.Option("--max-autotune", help="Let inductor-best autotune (minutes).")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Seconds of timing for each batch size.")
    ] = 20.0,
    json: JsonOption = None,
) -> None:
    """Time vtc against its peers in interleaved pairs, and check every result against float64."""
    systems = check_systems(_names(peers))
    settings = _settings(engine, objective, freeze, max_autotune)
    check_device(device)
    _check_writable(json)
    cases: list[dict[str, Any]] = []
    for number in _batches(batch):
        request = suite.Request(
            model,
            batch=number,
            device=device,
            dtype=dtype,
            size=size,
            layers=layers,
            context=context,
            settings=settings,
        )
        with _progress(f"building {model}") as progress:
            record = suite.bench(request, systems, Effort(seconds=seconds), progress)
        cases.append(record)
        out.print(table_of(record))
        for line in notes_of(record):
            out.print(line, markup=False, highlight=False)
        _write(json, cases)


@app.command()
def dis(
    model: ModelArgument,
    batch: Annotated[int, typer.Option("--batch", help="Batch size.")] = 1,
    size: SizeOption = None,
    layers: LayersOption = None,
    context: ContextOption = None,
    dtype: DtypeOption = None,
    shape: Annotated[
        str,
        typer.Option(
            "--shape", metavar="SYMBOL=N[,...]", help="Other values for size symbols, as s0=7."
        ),
    ] = "",
) -> None:
    """Show the bytecode that one call of a model runs on the DVM, kernel by kernel."""
    sizes = _sizes_of(shape)
    request = suite.Request(
        model, batch=batch, dtype=dtype, size=size, layers=layers, context=context
    )
    with _progress(f"building {model}"):
        text = listing.programs(request, sizes)
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _sizes_of(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in _names(text)]
    if any(not symbol or not number.isdecimal() for symbol, _, number in pairs):
        raise InvalidOptionError("--shape", text, "SYMBOL=NUMBER, separated by commas")
    return {symbol.strip(): int(number) for symbol, _, number in pairs}


def _settings(engine: str, objective: str, freeze: bool, max_autotune: bool = False) -> Settings:
    check_engine(engine)
    check_objective(objective)
    return Settings(cast(Engine, engine), cast(Objective, objective), freeze, max_autotune)


def _search(search: str) -> Search:
    choices = get_args(Search)
    if search not in choices:
        raise UnknownChoiceError("search", search, choices)
    return cast(Search, search)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _batches(text: str) -> list[int]:
    try:
        batches = [int(part) for part in _names(text)]
    except ValueError:
        batches = []
    if not batches or min(batches) < 1:
        raise InvalidOptionError("batch", text, "whole numbers from 1, separated by commas")
    return batches


def _check_writable(*paths: Path | None) -> None:
    """Raises `InvalidOptionError` before any work whose result could not be written."""
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        while not folder.exists():
            folder = folder.parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InvalidOptionError("--json or --html", str(path), "a file that can be written")


def _write(path: Path | None, cases: Sequence[Mapping[str, Any]]) -> None:
    if path is not None:
        try:
            records.write(path, cases)
        except OSError as error:
            raise InvalidOptionError("--json", str(path), f"another file: {error}") from error
        status_console.print(f"results written to {path}")


@contextmanager
def _progress(first: str) -> Iterator[Progress]:
    """Shows on stderr what is being done: one line that changes, or many without a terminal."""
    if not status_console.is_terminal:
        yield lambda message: status_console.print(message, highlight=False)
        return
    with status_console.status(first) as status:
        yield status.update


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `vtc`."""
    warnings.formatwarning = _one_line
    try:
        app(args=None if arguments is None else list(arguments), prog_name="vtc")
    except Exception as error:  # whatever fails, the user gets a sentence
        if os.environ.get("VTC_DEBUG") == "1":
            raise
        sentence = str(error) if isinstance(error, vtc.errors.VtcError) else _sentence(error)
        status_console.print(f"error: {sentence}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)


def _sentence(error: Exception) -> str:
    """The first line of an error that is not ours, and how to see the rest."""
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first} (VTC_DEBUG=1 shows the traceback)"


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"{category.__name__}: {message}\n"


if __name__ == "__main__":
    main()

"""Holds the interpreters against the meaning of generated tile programs.

    PYTHONPATH=tests python -m vm.conformance --seeds 20000 [--first 0] [--large] [--json FILE]

Each seed gives a module with tensors (`program.generate`). It is evaluated, with a bound for every
element (`program.bounds` has the rules), encoded, and its words are run by the reference
interpreter and by the native one, on memory with guards around every buffer. Exit code 1 if any
element is off. A seed that ends the process is named as a crash: seeds run in worker processes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from program.bounds import bounded
from program.generate import Case, generate
from vtc.program import evaluate as evaluator
from vtc.program.module import Module
from vtc.program.sizes import size_value
from vtc.vm import reference
from vtc.vm.machine import Machine

CHUNK = 100
GUARD = 64
INTERPRETERS = ("reference", "native")


@dataclass(frozen=True)
class Mismatch:
    """What differs: elements of a buffer, or an error."""

    seed: int
    interpreter: str
    what: str


@dataclass
class Outcome:
    """Sums over seeds. Elements: all that were compared, bit-equal ones, and those left out."""

    seeds: int = 0
    errors: int = 0
    elements: int = 0
    exact: int = 0
    skipped: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.seeds += other.seeds
        self.errors += other.errors
        self.elements += other.elements
        self.exact += other.exact
        self.skipped += other.skipped
        self.mismatches += other.mismatches
        self.refused += other.refused


@dataclass
class Memory:
    """The tensors of a case inside of guards that nothing may write."""

    whole: list[torch.Tensor | None]
    tensors: list[torch.Tensor | None]

    @staticmethod
    def of(case: Case) -> Memory:
        whole: list[torch.Tensor | None] = []
        tensors: list[torch.Tensor | None] = []
        for number, tensor in enumerate(case.tensors):
            if tensor is None:
                whole.append(None)
                tensors.append(None)
                continue
            count = tensor.numel()
            # Some buffers are not aligned to vectors, as slices of tensors are not. Outputs, which
            # may hold temporaries, are aligned to 8 bytes.
            step = 8 if case.module.buffers[number].kind == "output" else 1
            start = GUARD + (case.seed + number) % 3 * step
            whole.append(torch.full((count + 2 * GUARD + 16,), 1, dtype=tensor.dtype))
            tensors.append(whole[-1][start : start + count])
            tensors[-1].copy_(tensor)
        return Memory(whole, tensors)

    def overrun(self) -> Iterator[int]:
        """Buffers around which something was written."""
        for number, (whole, tensor) in enumerate(zip(self.whole, self.tensors, strict=True)):
            if whole is not None and tensor is not None:
                tensor.fill_(1)
                if not bool((whole == 1).all()):
                    yield number


def compare(expected: torch.Tensor, found: torch.Tensor, bound: torch.Tensor | None) -> Difference:
    """Element by element; NaN equals NaN and 0 equals -0 where the bound allows an error."""
    if expected.is_floating_point():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.itemsize]
        same = (expected.view(bits) == found.view(bits)) | (expected.isnan() & found.isnan())
    else:
        same = expected == found
    if bound is None:
        return Difference(~same, torch.zeros_like(same))
    skipped = bound.isinf()
    a, b = expected.double(), found.double()
    near = ((a - b).abs() <= bound) | ((a == b) & (bound > 0))
    return Difference(~(same | near | skipped), skipped)


@dataclass(frozen=True)
class Difference:
    wrong: torch.Tensor
    skipped: torch.Tensor


def check(
    seed: int,
    interpreters: Sequence[str] = INTERPRETERS,
    large: bool = False,
    make: Callable[[Module], Any] = Machine,
    may_refuse: bool = False,
) -> Outcome:
    """One seed against all interpreters, encoded by `make(module).encode(sizes)`.

    may_refuse: a module that the machine has no instructions for is counted, and is no mismatch.
    """
    case = generate(seed, large)
    outcome = Outcome(seeds=1)
    expected = Memory.of(case)
    raised = False
    bounds: list[torch.Tensor | None] = []
    try:
        bounds = bounded(case.module, case.sizes, expected.tensors, case.params)
    except IndexError:
        raised = True
    outcome.errors += raised
    optional = not raised and _dead_lookup(case)
    try:
        encoded = make(case.module).encode(list(case.sizes.values()))
    except Exception as error:  # whatever the encoder refuses is a mismatch
        if may_refuse and isinstance(error, NotImplementedError):  # beyond the machine: EncodeError
            outcome.refused.append(str(error))
            return outcome
        outcome.mismatches.append(Mismatch(seed, "encoder", f"{type(error).__name__}: {error}"))
        return outcome
    written = None if raised else _written(case, expected)
    for name in interpreters:
        memory = Memory.of(case)
        run = _RUN[name]
        stopped, wrong = _failure(lambda: run(encoded, memory, case), raised, optional)  # noqa: B023
        if wrong is None and not stopped:
            wrong = _judge(case, expected, memory, bounds, written, outcome)
        if wrong is None:
            wrong = next((f"writes around buffer {n}" for n in memory.overrun()), None)
        if wrong is not None:
            outcome.mismatches.append(Mismatch(seed, name, wrong))
    return outcome


def _reference(encoded: object, memory: Memory, case: Case) -> None:
    reference.run(encoded.words, memory.tensors, case.params)  # type: ignore[attr-defined]


def _native(encoded: object, memory: Memory, case: Case) -> None:
    pointers = [0 if t is None else t.data_ptr() for t in memory.tensors]
    encoded.run(pointers, list(case.params))  # type: ignore[attr-defined]


_RUN: dict[str, Callable[[object, Memory, Case], None]] = {
    "reference": _reference,
    "native": _native,
}


def _failure(run: Callable[[], None], wanted: bool, optional: bool) -> tuple[bool, str | None]:
    """Whether a run raised IndexError, and what is wrong about how it ended."""
    try:
        run()
    except IndexError as error:
        return True, None if wanted or optional else f"IndexError: {error}"
    except Exception as error:  # any other error is a mismatch
        return False, f"{type(error).__name__}: {error}"
    return False, "no IndexError for an index out of range" if wanted else None


def _dead_lookup(case: Case) -> bool:
    """Is an index out of range of which only values depend that nothing stores?

    Whether an interpreter looks there is its own business.
    """
    everything = patch.object(evaluator, "_wanted", lambda kernel: set(range(len(kernel.body))))
    try:
        with everything:
            evaluator.evaluate(case.module, case.sizes, Memory.of(case).tensors, case.params)
    except IndexError:
        return True
    return False


def _written(case: Case, expected: Memory) -> list[torch.Tensor | None]:
    """Which elements of each output are stored: what is in the others is nobody's business, since
    temporaries may have been there. They are as before, whatever that was."""
    other = Memory.of(case)
    outputs = [buffer.kind == "output" for buffer in case.module.buffers]
    for output, tensor in zip(outputs, other.tensors, strict=True):
        if output and tensor is not None:
            tensor.copy_(_inverted(tensor))
    evaluator.evaluate(case.module, case.sizes, other.tensors, case.params)
    return [
        _bits(a) == _bits(b) if output and a is not None and b is not None else None
        for output, a, b in zip(outputs, expected.tensors, other.tensors, strict=True)
    ]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.clone().view(bits[tensor.itemsize])


def _inverted(tensor: torch.Tensor) -> torch.Tensor:
    """Other bits for each element."""
    if tensor.dtype is torch.bool:
        return ~tensor
    return (~_bits(tensor)).view(tensor.dtype)


def _judge(
    case: Case,
    expected: Memory,
    found: Memory,
    bounds: list[torch.Tensor | None],
    written: list[torch.Tensor | None] | None,
    outcome: Outcome,
) -> str | None:
    for number, buffer in enumerate(case.module.buffers):
        a, b = expected.tensors[number], found.tensors[number]
        if a is None or b is None:
            continue
        extent = size_value(buffer.extent, case.sizes)
        stored = None if written is None else written[number]
        if stored is not None:
            b = torch.where(stored, b, a)
        difference = compare(a[:extent], b[:extent], bounds[number])
        outcome.elements += extent
        bound = bounds[number]
        outcome.exact += extent if bound is None else int((bound == 0).sum())
        outcome.skipped += int(difference.skipped.sum())
        if bool(difference.wrong.any()):
            at = int(difference.wrong.nonzero()[0])
            allowed = 0.0 if bound is None else float(bound[at])
            return (
                f"{buffer.name}[{at}] of {buffer.dtype}[{extent}]: {a[at].item()!r} expected, "
                f"{b[at].item()!r} found, {allowed:.3g} allowed; {int(difference.wrong.sum())} "
                f"elements are off"
            )
    return None


def check_many(
    seeds: Sequence[int], interpreters: Sequence[str] = INTERPRETERS, large: bool = False
) -> Outcome:
    """The sum of `check` over seeds."""
    torch.set_num_threads(1)
    outcome = Outcome()
    for seed in seeds:
        outcome.add(check(seed, interpreters, large))
    return outcome


def checked(
    seeds: range, interpreters: Sequence[str], workers: int, large: bool
) -> Iterator[Outcome]:
    """Outcomes of chunks of seeds, run in worker processes."""
    size = CHUNK // 10 if large else CHUNK
    chunks = [seeds[n : n + size] for n in range(0, len(seeds), size)]
    done = 0
    while done < len(chunks):
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            waiting = [pool.submit(check_many, list(c), interpreters, large) for c in chunks[done:]]
            try:
                for future in waiting:
                    yield future.result()
                    done += 1
                continue
            except BrokenProcessPool:
                pass
        yield _crashed(chunks[done], interpreters, large)
        done += 1


def _crashed(chunk: range, interpreters: Sequence[str], large: bool) -> Outcome:
    """The chunk again, each seed in a process of its own."""
    outcome = Outcome()
    for seed in chunk:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            try:
                outcome.add(pool.submit(check, seed, interpreters, large).result())
            except BrokenProcessPool:
                outcome.seeds += 1
                outcome.mismatches.append(Mismatch(seed, "native", "the process crashes"))
    return outcome


def main(
    seeds: Annotated[int, typer.Option(help="How many programs.")] = 20000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    interpreters: Annotated[str, typer.Option(help="Separated by commas.")] = "reference,native",
    large: Annotated[bool, typer.Option(help="Programs that threads share.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the outcome.")] = None,
    show: Annotated[bool, typer.Option(help="Print the modules of mismatches.")] = False,
) -> None:
    """Check generated programs; exit code 1 if any is off."""
    out, names, start = Console(), interpreters.split(","), time.time()
    total = Outcome()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("programs", total=seeds)
        for outcome in checked(range(first, first + seeds), names, workers, large):
            total.add(outcome)
            progress.update(task, advance=outcome.seeds)
            for mismatch in outcome.mismatches:
                progress.console.print(str(mismatch), markup=False, highlight=False, soft_wrap=True)
    for mismatch in total.mismatches if show else []:
        case = generate(mismatch.seed, large)
        out.print(f"seed {mismatch.seed} at {case.sizes}\n{case.module}", markup=False)
    seconds = time.time() - start
    out.print(
        f"{total.seeds} programs, {total.errors} with an index out of range, in {seconds:.0f} s: "
        f"{total.elements} elements compared, {total.exact} to the bit, {total.skipped} left out; "
        f"{len(total.mismatches)} mismatches"
    )
    if json_file is not None:
        record = {
            **asdict(total),
            "first": first,
            "large": large,
            "interpreters": names,
            "seconds": seconds,
        }
        json_file.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(total.mismatches))


if __name__ == "__main__":
    typer.run(main)

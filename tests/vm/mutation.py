"""Damages valid programs and gives them to the validator; what it accepts is run.

    PYTHONPATH=tests python -m vm.mutation --programs 200 [--first 0]

The last line is a JSON object with counts. A crash is the end of the process: the test runs this in
a process of its own, and the last seed is in the output.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import typer

from program.generate import generate
from vtc.vm import _native, isa
from vtc.vm.machine import Machine

MUTANTS = 40
SPECIAL = (0, 1, 2, 255, 256, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**62, isa.MAGIC)
MAX_BYTES = 1 << 24
MAX_POINTS = 1 << 16


def mutants(words: list[int], rng: random.Random) -> Iterator[list[int]]:
    """Programs that differ from a valid one: bits, words, cuts, copies; lengths made to fit."""
    for _ in range(MUTANTS):
        new = list(words)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(new))
            kind = rng.randrange(6)
            if kind == 0:
                new[at] ^= 1 << rng.randrange(64)
            elif kind == 1:
                new[at] = rng.choice(SPECIAL)
            elif kind == 2:
                new[at] = (new[at] + rng.choice((-1, 1, 8, -8))) % 2**64
            elif kind == 3:
                new[at] = new[rng.randrange(len(new))]
            elif kind == 4:
                del new[at : at + rng.randint(1, 4)]
            else:
                new[at:at] = new[at : at + rng.randint(1, 4)]
            if not new:
                new = [0]
        if len(new) > 1 and rng.random() < 0.8:
            new[1] = len(new)
        yield new
    yield words[: rng.randrange(len(words))]
    yield [rng.getrandbits(64) for _ in range(rng.randint(0, 64))]
    yield []


def points(words: list[int]) -> int:
    """About how much work a valid program is: points of kernels, times contracted lengths."""
    at, total = isa.HEAD_WORDS + isa.BUFFER_WORDS * (words[4] & 0xFFFF), 0
    while True:
        op = isa.BY_NUMBER[isa.field(words[at], "op")]
        if op.name == "END":
            return total
        if op.name != "KERNEL":
            at += isa.field(words[at], "length")
            continue
        kernel = isa.decode_kernel(words, at)
        inner = 1
        for start in (kernel.prologue, kernel.body):
            for place, own in isa.instructions(words, start):
                if own.name in ("MATMUL", "ATTENTION"):
                    inner = max(inner, words[place + 1], words[place + 2] % 2**32)
                if own.name == "MERGE":
                    inner = max(inner, words[place + 4])
        total += math.prod(max(1, n) for n in kernel.sizes) * inner
        at = kernel.end


def attempt(words: list[int]) -> str:
    """ "refused", "too large" to be run here, or "run"."""
    try:
        program = _native.Program.from_words(np.array(words, dtype=np.uint64))
    except ValueError:
        return "refused"
    buffers = words[4] & 0xFFFF
    room = [8 * n + 64 for n in program.extents]
    large = sum(room) + program.arena_bytes + words[3] > MAX_BYTES or points(words) > MAX_POINTS
    backward = any(True for _ in _jumps_back(words))
    if large or backward:
        return "too large"
    memory = [np.zeros(n, dtype=np.uint8) for n in room]
    params = [0.0] * (words[4] >> 16 & 0xFFFF)
    program.run([m.ctypes.data for m in memory[:buffers]], params, 1)
    return "run"


def _jumps_back(words: list[int]) -> Iterator[int]:
    """Steps that go back, which a validator should refuse: such a program may have no end."""
    at = isa.HEAD_WORDS + isa.BUFFER_WORDS * (words[4] & 0xFFFF)
    while (op := isa.BY_NUMBER[isa.field(words[at], "op")]).name != "END":
        if op.name in ("JUMP", "BRANCH") and words[at + (1 if op.name == "JUMP" else 2)] <= at:
            yield at
        is_kernel = op.name == "KERNEL"
        at = isa.decode_kernel(words, at).end if is_kernel else at + isa.field(words[at], "length")


def main(
    programs: Annotated[int, typer.Option(help="How many programs are damaged.")] = 200,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
) -> None:
    """Feed damaged programs to the validator."""
    counts = {"refused": 0, "too large": 0, "run": 0}
    for seed in range(first, first + programs):
        typer.echo(f"seed {seed}")
        case = generate(seed)
        words = [int(w) for w in Machine(case.module).encode(list(case.sizes.values())).words]
        assert attempt(words) != "refused"
        for mutant in mutants(words, random.Random(seed)):
            counts[attempt(mutant)] += 1
    typer.echo(json.dumps(counts))


if __name__ == "__main__":
    typer.run(main)

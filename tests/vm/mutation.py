"""Damages valid programs and gives them to the validator; what it accepts is run, and must leave
alone what lies around its buffers.

Damage is done to any word, or to the numbers of an access alone, which become ones that addresses
wrap at; runtime indices are such numbers too.

    PYTHONPATH=tests python -m vm.mutation --programs 200 [--first 0]

The last line is a JSON object with counts. A crash is the end of the process: the test runs this in
a process of its own, and the last seed is in the output.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from program.generate import generate
from vtc.program.dtypes import DType
from vtc.vm import _native, decode, isa
from vtc.vm.machine import Machine

MUTANTS = 40
FAR_MUTANTS = 40
SPECIAL = (0, 1, 2, 255, 256, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**62, isa.MAGIC)
FAR = (2**61, 2**62, 2**63, 2**63 - 1, 2**63 + 1, -(2**61), -(2**62), 2**32)
ACCESSING = ("LOAD", "STORE", "BIND", "MATMUL", "ATTENTION", "CONVOLUTION")
MAX_BYTES = 1 << 24
MAX_POINTS = 1 << 16
GUARD = 1 << 12
"""Bytes on either side of a buffer that must stay as they are."""


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


def far_number(rng: random.Random) -> int:
    """A number that, times a coordinate or an element's size, may wrap into the small ones."""
    if rng.random() < 0.5:
        return (rng.choice(FAR) + rng.choice((-8, 0, 0, 0, 8))) % 2**64
    return rng.choice((1, -1)) * (2**64 // rng.randint(2, 40) + rng.randint(-1, 1)) % 2**64


def far_mutants(words: list[int], rng: random.Random) -> Iterator[list[int]]:
    """Programs with an access that has far offsets, strides, sizes and bounds."""
    accesses = [
        numbers_of_access(words, place, op)
        for kernel in kernels(words)
        for start in (kernel.prologue, kernel.body)
        for place, op in decode.instructions(words, start)
        if op.name in ACCESSING
    ]
    rare = [kinds for kinds in accesses if len(kinds) > 2]  # with terms or masks
    for _ in range(FAR_MUTANTS if accesses else 0):
        new = list(words)
        kinds = rng.choice(rare if rare and rng.random() < 0.5 else accesses)
        for kind in rng.choices(kinds, k=rng.choice((1, 2, 3))):
            new[rng.choice(kind)] = far_number(rng)
        yield new


def numbers_of_access(words: list[int], at: int, op: isa.Op) -> list[range]:
    """The positions of the numbers of an instruction's access by what they are: the offset, the
    strides, the terms, the masks; of the larger instructions all together."""
    end = at + decode.length_at(words, at)
    first = at + {"LOAD": 2, "STORE": 2, "BIND": 1}.get(op.name, 0)
    if first == at:
        return [range(at + 1, end)]
    strides, terms = words[first] >> 40 & 0xFF, words[first] >> 16 & 0xFF
    bounds = (first + 1, first + 2, first + 2 + strides, first + 2 + strides + 3 * terms, end)
    return [r for r in itertools.starmap(range, itertools.pairwise(bounds)) if r]


def kernels(words: list[int]) -> Iterator[decode.KernelWords]:
    """The kernels of a valid program."""
    for at, op in steps(words):
        if op.name == "KERNEL":
            yield decode.kernel(words, at)


def steps(words: list[int]) -> Iterator[tuple[int, isa.Op]]:
    """(position, step) of a valid program, to its END."""
    at = isa.HEAD_WORDS + isa.BUFFER_WORDS * (words[4] & 0xFFFF)
    while True:
        op = isa.BY_NUMBER[isa.field(words[at], "op")]
        yield at, op
        if op.name == "END":
            return
        is_kernel = op.name == "KERNEL"
        at = decode.kernel(words, at).end if is_kernel else at + isa.field(words[at], "length")


def points(words: list[int]) -> int:
    """About how much work a valid program is: points of kernels, times contracted lengths."""
    total = 0
    for kernel in kernels(words):
        inner = 1
        for start in (kernel.prologue, kernel.body):
            for place, own in decode.instructions(words, start):
                if own.name in ("MATMUL", "ATTENTION"):
                    inner = max(inner, words[place + 1], words[place + 2] % 2**32)
                if own.name == "MERGE":
                    inner = max(inner, words[place + 4])
        total += math.prod(max(1, n) for n in kernel.sizes) * inner
    return total


def attempt(words: list[int], rng: random.Random) -> str:
    """ "refused", "too large" to be run here, or "run"."""
    try:
        program = _native.Program.from_words(np.array(words, dtype=np.uint64))
    except ValueError:
        return "refused"
    types = [isa.TYPES[words[at] & 0xFF] for at in heads_of_buffers(words)]
    sizes = [n * dtype.itemsize for n, dtype in zip(program.extents, types, strict=True)]
    large = sum(sizes) + program.arena_bytes + words[3] > MAX_BYTES or points(words) > MAX_POINTS
    if large or jumps_back(words):
        return "too large"
    memory = [np.full(size + 2 * GUARD, 0xA5, dtype=np.uint8) for size in sizes]
    for held, dtype in zip(memory, types, strict=True):
        held[GUARD:-GUARD] = contents(held.size - 2 * GUARD, dtype, rng)
    params = [0.0] * (words[4] >> 16 & 0xFFFF)
    program.run([m.ctypes.data + GUARD for m in memory], params, 1)
    for held in memory:
        assert (held[:GUARD] == 0xA5).all(), "written in front of a buffer"
        assert (held[-GUARD:] == 0xA5).all(), "written behind a buffer"
    return "run"


def heads_of_buffers(words: list[int]) -> range:
    """The positions of what is said of each buffer of a valid program."""
    end = isa.HEAD_WORDS + isa.BUFFER_WORDS * (words[4] & 0xFFFF)
    return range(isa.HEAD_WORDS, end, isa.BUFFER_WORDS)


def contents(size: int, dtype: DType, rng: random.Random) -> NDArray[np.uint8]:
    """The bytes of a buffer: none set, or, where indices may be read, far numbers among others."""
    if dtype not in (DType.I32, DType.I64) or rng.random() < 0.5:
        return np.zeros(size, dtype=np.uint8)
    count = size // dtype.itemsize
    numbers = [rng.choice((far_number(rng), rng.randrange(8))) for _ in range(count)]
    held = np.array(numbers, dtype=np.uint64).astype(f"u{dtype.itemsize}")
    return held.view(np.uint8)


def jumps_back(words: list[int]) -> bool:
    """Is there a step that goes back? A validator should refuse it: such a program may have no
    end."""
    places = {"JUMP": 1, "BRANCH": 2}
    return any(op.name in places and words[at + places[op.name]] <= at for at, op in steps(words))


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
        rng = random.Random(seed)
        assert attempt(words, rng) != "refused"
        for mutant in (*mutants(words, rng), *far_mutants(words, rng)):
            counts[attempt(mutant, rng)] += 1
    typer.echo(json.dumps(counts))


if __name__ == "__main__":
    typer.run(main)

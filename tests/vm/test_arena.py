"""Where temporaries are: in the arena, or in the memory of outputs that are not yet written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from program.building import Kernel, module
from program.generate import generate
from vm import conformance
from vm.running import encoded, native, with_threads
from vtc.errors import VtcError
from vtc.program.dtypes import DType
from vtc.program.module import Branch, Buffer, BufferKind, Module, Step
from vtc.program.tile import operands
from vtc.vm import decode, isa, machine
from vtc.vm.decode import BufferWords

pytestmark = pytest.mark.skipif(machine._native is None, reason="the native module is not built")

F32 = DType.F32


def chain(kinds: Sequence[BufferKind], extents: Sequence[int]) -> Module:
    """Buffer n + 1 is computed from buffer n: each element twice the one before, or the first."""
    buffers = [
        Buffer(f"b{n}", kind, F32, extent)
        for n, (kind, extent) in enumerate(zip(kinds, extents, strict=True))
    ]
    steps = []
    for n in range(1, len(buffers)):
        kernel = Kernel(f"k{n}", (extents[n],))
        value = kernel.load(n - 1, 1 if extents[n] <= extents[n - 1] else 0)
        kernel.store(n, kernel.op("add", value, value), 1)
        steps.append(kernel)
    return module(*steps, buffers=buffers)


def places(made: Module, *sizes: int) -> list[BufferWords]:
    return decode.buffers([int(w) for w in encoded(made, *sizes).words])


# Which bytes are in use when.


def touched(steps: Sequence[Step]) -> Iterator[set[int]]:
    """The buffers that each step touches, branches as all of their arms at once."""
    for step in steps:
        if isinstance(step, Branch):
            yield {step.predicate}.union(*touched([*step.then, *step.otherwise]))
            continue
        found = {i.access.buffer for i in step.body if i.access is not None}
        yield found.union(a.buffer for i in step.body for a in operands(i.constant))


def clashes(made: Module, own: Sequence[BufferWords]) -> list[tuple[int, int]]:
    """Pairs of buffers that are needed at the same time and share bytes. An output is needed from
    the first step that touches it on, an input always."""
    uses = list(touched(made.steps))
    life = {}
    for b, declared in enumerate(made.buffers):
        steps = [n for n, found in enumerate(uses) if b in found]
        if declared.kind == "input":
            life[b] = range(len(uses))
        elif steps:
            life[b] = range(steps[0], len(uses) if declared.kind == "output" else steps[-1] + 1)

    def memory(b: int) -> tuple[int, int, int]:
        room = {"callers": b, "arena": -1, "hosted": own[b].host}[own[b].kind]
        return room, own[b].offset, own[b].offset + own[b].bytes

    found = []
    for a in life:
        for b in life:
            (room, low, high), (other, begin, end) = memory(a), memory(b)
            together = max(life[a].start, life[b].start) < min(life[a].stop, life[b].stop)
            shared = room == other and max(low, begin) < min(high, end)
            if a < b and together and shared:
                found.append((a, b))
    return found


def test_what_is_needed_at_the_same_time_shares_no_byte_in_generated_programs() -> None:
    hosted = 0
    for seed in range(600):
        case = generate(seed)
        try:
            program = machine.Machine(case.module).encode(list(case.sizes.values()))
        except (NotImplementedError, VtcError):
            continue
        own = decode.buffers([int(w) for w in program.words])
        machine.validate(program.words)
        assert clashes(case.module, own) == [], seed
        for declared, placed in zip(case.module.buffers, own, strict=True):
            assert (placed.kind == "callers") == (declared.kind != "temporary")
            if placed.kind == "hosted":
                hosted += 1
                assert case.module.buffers[placed.host].kind == "output"
    assert hosted > 50


def test_shared_bytes_are_found() -> None:
    made = chain(["input", "temporary", "temporary", "output"], [64, 64, 64, 32])
    own = places(made)
    assert clashes(made, own) == []
    assert clashes(made, [replace(b, offset=0) for b in own]) == [(1, 2)]
    hosted = replace(own[2], kind="hosted", host=3, offset=0)
    assert clashes(made, [*own[:2], hosted, own[3]]) == [(2, 3)]


def hosted_seeds(count: int) -> Iterator[int]:
    """Seeds of generated programs with a temporary in an output."""
    for seed in range(10_000):
        case = generate(seed)
        if not any(b.kind == "temporary" for b in case.module.buffers):
            continue
        try:
            program = machine.Machine(case.module).encode(list(case.sizes.values()))
        except (NotImplementedError, VtcError):
            continue
        if any(b.kind == "hosted" for b in decode.buffers([int(w) for w in program.words])):
            yield seed
            count -= 1
            if count == 0:
                return


def test_programs_with_temporaries_in_outputs_give_what_they_mean() -> None:
    """The reference interpreter sets the bytes of temporaries to garbage before it starts."""
    for seed in hosted_seeds(40):
        assert conformance.check(seed).mismatches == [], seed


# Bytes.


def test_temporaries_before_an_output_are_in_it() -> None:
    made = chain(["input", "temporary", "temporary", "temporary", "output"], [64] * 4 + [256])
    program = encoded(made)
    assert program.arena_bytes == 256  # the last is read when the output is written
    assert [b.kind for b in places(made)] == ["callers", "hosted", "hosted", "arena", "callers"]
    x = torch.randn(64)
    (found,) = native(made, [x])
    assert bool((found == 16 * x[0]).all())


def test_an_output_that_is_written_holds_nothing_else() -> None:
    made = chain(["input", "output", "temporary", "temporary", "output"], [64, 64, 64, 64, 16])
    assert [b.kind for b in places(made)] == ["callers", "callers", "arena", "arena", "callers"]


def test_an_input_holds_no_temporaries_though_it_is_written() -> None:
    made = chain(["input", "temporary", "temporary", "input"], [64, 64, 64, 4096])
    assert {b.kind for b in places(made)} == {"callers", "arena"}


@pytest.mark.parametrize(("room", "kind"), [(63, "arena"), (64, "hosted")])
def test_a_temporary_must_fit(room: int, kind: str) -> None:
    made = chain(["input", "temporary", "temporary", "output"], [64, 64, 16, room])
    assert places(made)[1].kind == kind


def test_temporaries_of_any_type_may_be_in_an_output() -> None:
    kinds: list[BufferKind] = ["input", "temporary", "temporary", "temporary", "output"]
    dtypes = [F32, DType.F64, DType.F64, F32, F32]
    a, b, c = (Kernel(name, (32,)) for name in "abc")
    a.store(1, a.cast(a.load(0, 1), DType.F64), 1)
    value = b.load(1, 1, dtype=DType.F64)
    b.store(2, b.op("mul", value, value), 1)
    c.store(3, c.cast(c.load(2, 1, dtype=DType.F64), F32), 1)
    d = Kernel("d", (32,))
    d.store(4, d.load(3, 1), 1)
    buffers = [
        Buffer(f"b{n}", kind, dtype, 32 if n < 4 else 160)
        for n, (kind, dtype) in enumerate(zip(kinds, dtypes, strict=True))
    ]
    made = module(a, b, c, d, buffers=buffers)
    assert [p.kind for p in places(made)][1:3] == ["hosted", "hosted"]
    x = torch.randn(32)
    (found,) = native(made, [x])
    torch.testing.assert_close(found[:32], (x.double() ** 2).float())


def test_large_temporaries_first_leave_no_gaps() -> None:
    """In the order of the program the third does not fit below the second, where the first was."""
    lines = [2, 1, 3]
    extents = [16 * n for n in lines]
    made = chain(["input", *["temporary"] * len(extents), "output"], [16, *extents, 1])
    most = max(a + b for a, b in pairwise(extents)) * F32.itemsize
    assert encoded(made).arena_bytes == most


def test_results_with_temporaries_in_outputs_do_not_depend_on_threads() -> None:
    n = 50_000
    made = chain(["input", *["temporary"] * 4, "output", "temporary", "output"], [n] * 8)
    assert sum(b.kind == "hosted" for b in places(made)) >= 4
    x = torch.randn(n)
    for found in with_threads(lambda: torch.stack(native(made, [x]))):
        assert torch.equal(found, torch.stack([x * 32, x * 128]))


# What is refused.


def program_with_a_host() -> list[int]:
    made = chain(["input", "temporary", "temporary", "output"], [64, 64, 64, 64])
    words = [int(w) for w in encoded(made).words]
    assert decode.buffers(words)[1].kind == "hosted"
    return words


AT = isa.HEAD_WORDS + isa.BUFFER_WORDS  # of the hosted temporary
DAMAGE = {
    "another temporary": (AT, lambda w: (w & 0xFFFF) | 2 << 16),
    "itself": (AT, lambda w: (w & 0xFFFF) | 1 << 16),
    "no buffer": (AT, lambda w: (w & 0xFFFF) | 9 << 16),
    "no kind": (AT, lambda w: w | 3 << 8),
    "behind the end": (AT + 2, lambda _: 64),
    "in front": (AT + 2, lambda _: 2**64 - 64),
    "larger than the host": (AT + 1, lambda w: w + 1),
    "a smaller host": (AT + 2 * isa.BUFFER_WORDS + 1, lambda w: w - 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_the_validator_refuses_temporaries_outside_of_their_host(name: str) -> None:
    words = program_with_a_host()
    machine.validate(np.array(words, dtype=np.uint64))
    place, change = DAMAGE[name]
    words[place] = change(words[place])
    with pytest.raises(ValueError, match="malformed program"):
        machine.validate(np.array(words, dtype=np.uint64))


def test_an_output_with_temporaries_in_it_must_be_aligned() -> None:
    made = chain(["input", "temporary", "temporary", "output"], [64, 64, 64, 64])
    program = encoded(made)
    x, y = torch.randn(64), torch.empty(66)
    with pytest.raises(ValueError, match="not aligned"):
        program.run([x.data_ptr(), 0, 0, y.data_ptr() + 4])
    bound = program.bind([x.data_ptr(), 0, 0, 0], [3])
    with pytest.raises(ValueError, match="not aligned"):
        bound([y.data_ptr() + 4])
    bound([y.data_ptr() + 8])
    assert torch.equal(y[2:], 8 * x)

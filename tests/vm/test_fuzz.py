"""Generated programs: the evaluator, the reference interpreter and the native one agree.

`PYTHONPATH=tests python -m vm.conformance --seeds 20000` is the long form of this.
"""

import pytest
import torch

from program.generate import generate
from vm import conformance
from vtc.vm import decode, isa, machine

pytestmark = pytest.mark.skipif(machine._native is None, reason="the native module is not built")


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_interpreters_agree(first):
    outcome = conformance.check_many(range(first, first + 100))
    assert outcome.mismatches == []
    assert outcome.exact > outcome.elements / 2
    assert outcome.skipped < outcome.elements / 10


def test_interpreters_agree_on_what_threads_share():
    outcome = conformance.check_many(range(25), large=True)
    assert outcome.mismatches == []
    words = [
        machine.Machine(case.module).encode(list(case.sizes.values())).words
        for case in (generate(seed, large=True) for seed in range(25))
    ]
    assert any(int(w[4]) >> 48 & 1 for w in words)
    named = {op.name for w in words for op in instructions_of([int(x) for x in w])}
    assert {"SPILL", "MERGE"} <= named


# 2571: parts of a convolution whose right operands move along different dimensions, one not at all.
@pytest.mark.parametrize("seed", [2571])
def test_programs_that_were_off_once(seed: int) -> None:
    assert conformance.check(seed).mismatches == []


def instructions_of(words):
    at = isa.HEAD_WORDS + isa.BUFFER_WORDS * (words[4] & 0xFFFF)
    while (op := isa.BY_NUMBER[isa.field(words[at], "op")]).name != "END":
        if op.name != "KERNEL":
            at += isa.field(words[at], "length")
            continue
        kernel = decode.kernel(words, at)
        for start in (kernel.prologue, kernel.body):
            yield from (own for _, own in decode.instructions(words, start))
        at = kernel.end


def test_a_wrong_element_is_found(monkeypatch):
    """An interpreter that changes one element of each output a little is caught every time."""

    def wrong(encoded, memory, case):
        conformance._reference(encoded, memory, case)
        for buffer, tensor in zip(case.module.buffers, memory.tensors, strict=True):
            if buffer.kind == "output" and tensor is not None and tensor.numel():
                at = int(tensor.double().abs().nan_to_num(-1, -1, -1).argmax())
                tensor[at] = ~tensor[at] if tensor.dtype is torch.bool else tensor[at] + 1

    monkeypatch.setitem(conformance._RUN, "wrong", wrong)
    caught = [bool(conformance.check(seed, ["wrong"]).mismatches) for seed in range(40)]
    assert sum(caught) > 25


def test_what_is_written_around_a_buffer_is_found():
    case = generate(0)
    memory = conformance.Memory.of(case)
    assert list(memory.overrun()) == []
    memory = conformance.Memory.of(case)
    memory.whole[0][0] = 0
    assert list(memory.overrun()) == [0]


@pytest.mark.parametrize("seed", range(300, 312))
def test_one_machine_serves_every_size(seed):
    """Sizes other than those that a module was made for give valid programs as well."""
    case = generate(seed)
    own = machine.Machine(case.module)
    for sizes in ([0] * len(case.sizes), [1] * len(case.sizes), list(case.sizes.values())):
        machine.validate(own.encode(sizes).words)

"""Convolutions on the native machine and the reference interpreter against float64."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from vm.convolving import (
    BEHIND,
    CASES,
    Case,
    convolution,
    expected,
    in_memory,
    operands,
    written,
)
from vm.running import encoded, native, with_threads
from vtc.program.dtypes import DType
from vtc.program.evaluate import evaluate
from vtc.vm import decode, isa, reference
from vtc.vm.dis import disassemble
from vtc.vm.machine import validate


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution_in_slices(case: Case) -> None:
    given = operands(case)
    (found,) = native(convolution(case), in_memory(case, given))
    want = expected(case, given)
    torch.testing.assert_close(written(case, found), want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_do_not_depend_on_the_number_of_threads(case: Case) -> None:
    made, given = convolution(case), in_memory(case, operands(case))
    results = with_threads(lambda: native(made, given)[0])
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F64])
@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[6], CASES[8], CASES[14]], ids=str)
def test_a_convolution_of_other_types(case: Case, dtype: DType) -> None:
    given = operands(case, dtype.torch_dtype)
    (found,) = native(convolution(case, dtype), given)
    rtol, atol = {DType.BF16: (8e-3, 1e-2), DType.F16: (1e-3, 2e-3)}.get(dtype, (1e-12, 1e-12))
    torch.testing.assert_close(written(case, found), expected(case, given), rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", [c for c in CASES if c.ci < 20], ids=str)
def test_the_words_mean_what_the_module_does(case: Case) -> None:
    made, given = convolution(case), operands(case)
    words = encoded(made).words
    validate(words)
    results = []
    for run in (lambda t: reference.run(words, t), lambda t: evaluate(made, {}, t)):
        out = torch.ones(made.buffers[3].extent)
        run([*in_memory(case, given), out])
        results.append(written(case, out))
    for result in results:
        torch.testing.assert_close(result, expected(case, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[9], CASES[14]], ids=str)
@pytest.mark.parametrize("short", [0, 1])
def test_an_operand_that_is_too_short_is_not_encoded(case: Case, short: int) -> None:
    made = convolution(case)
    buffers = list(made.buffers)
    # The last element of the operand is read: channels behind it are not.
    behind = (0 if case.planar else BEHIND, 0)[short]
    if case.planar and short == 0:
        behind = BEHIND * case.size[1] * case.size[2]
    enough = int(buffers[short].extent) - behind
    buffers[short] = replace(buffers[short], extent=enough)
    encoded(replace(made, buffers=tuple(buffers)))
    buffers[short] = replace(buffers[short], extent=enough - 1)
    # What the encoder raises for a program that it does not take.
    with pytest.raises(NotImplementedError, match="outside of its buffer"):
        encoded(replace(made, buffers=tuple(buffers)))


def test_a_window_beyond_its_input_is_refused() -> None:
    made = convolution(Case(4, 8))
    words = encoded(made).words
    steps = isa.HEAD_WORDS + isa.BUFFER_WORDS * len(made.buffers)
    code = decode.instructions(words, decode.kernel(words, steps).body)
    at = next(at for at, op in code if op.name == "CONVOLUTION")
    digits = len(decode.convolution(words, at).digits)
    extent = at + 6 + 3 * digits + 4
    assert words[extent] == 9
    words[extent] = 10
    with pytest.raises(ValueError, match="outside of its buffer"):
        validate(words)


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 64, size=(1, 10, 10), panels=True),
        Case(32, 64, size=(1, 20, 20), panels=True),
        Case(116, 116, groups=116, size=(1, 14, 14)),
        Case(58, 58, groups=58, size=(1, 28, 28)),
        Case(58, 58, taps=1, pad=0, size=(1, 28, 28), panels=True),
        Case(116, 116, taps=1, pad=0, size=(1, 14, 14), panels=True),
    ],
    ids=str,
)
def test_two_threads_find_even_shares(case: Case) -> None:
    words = encoded(convolution(case)).words
    rows = case.output()[0] * case.output()[1]
    (span,) = re.findall(rf"=({rows})/([0-9]+)", disassemble(words))
    tasks = -(-rows // int(span[1]))
    first = min(tasks // 2 * int(span[1]), rows)
    assert max(first, rows - first) <= 0.53 * rows

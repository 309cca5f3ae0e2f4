"""Every movement pattern, compiled: the same as eager, and inputs updated as eager updates them."""

from __future__ import annotations

import pytest
import torch

from arguments import fresh
from compiling import (
    Compilations,
    assert_like,
    compiled,
    in_float64,
    other_values,
    quick_and_strict,
)
from patterns.movement_patterns import ALIASING, PATTERNS

pytestmark = quick_and_strict


@pytest.mark.parametrize("name", [*PATTERNS, *ALIASING])
@torch.no_grad()
def test_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations(monkeypatch)
    fn, (args,) = {**PATTERNS, **ALIASING}[name]()
    call = compiled(fn)
    answers = []
    for given in (args, other_values(args), other_values(args)):
        precise, precise_args = in_float64(fn, given)
        mine, own = fresh(given), fresh(given)
        want, got = fn(*mine), call(*own)
        assert_like(got, want, precise)
        assert_like(own, mine, precise_args)
        answers.append((got, want, precise))
    assert compilations.count == 1
    for answer in answers:  # later calls have not written into earlier answers
        assert_like(*answer)

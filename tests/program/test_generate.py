"""Generated programs are valid and varied, one for each seed; bounds are right and tight."""

import collections

import pytest
import torch

from program import bounds as bounds_module
from program.bounds import bounded
from program.generate import generate
from vtc.program import evaluate as evaluator
from vtc.program.dtypes import DType
from vtc.program.evaluate import evaluate
from vtc.program.scalars import REDUCTIONS, SCALARS

SEEDS = range(400)


def clones(case):
    return [None if t is None else t.clone() for t in case.tensors]


def attempt(run):
    try:
        run()
    except IndexError as error:
        return str(error)
    return None


def test_a_seed_gives_one_case():
    for seed in range(20):
        a, b = generate(seed), generate(seed)
        assert str(a.module) == str(b.module)
        assert a.sizes == b.sizes
        for x, y in zip(a.tensors, b.tensors, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def test_programs_run_and_use_everything():
    seen = collections.Counter()
    outside = 0
    for seed in SEEDS:
        case = generate(seed)
        outside += (
            attempt(
                lambda: evaluate(case.module, case.sizes, clones(case), case.params)  # noqa: B023
            )
            is not None
        )
        seen.update(str(b.dtype) for b in case.module.buffers)
        seen.update(b.kind for b in case.module.buffers)
        seen.update(f"size {n}" for n in case.sizes.values())
        for kernel in case.module.kernels():
            seen.update(f"rank {len(kernel.sizes)}" for _ in [0])
            for instr in kernel.body:
                seen[instr.op] += 1
                seen[f"{instr.op} {instr.constant}"] += instr.op in ("reduce", "scan")
                access = instr.access
                if access is not None:
                    seen["mask"] += bool(access.mask)
                    seen["term"] += bool(access.terms)
                    seen["negative stride"] += any(str(s).startswith("-") for s in access.stride)
    assert 0 < outside < len(SEEDS) // 10
    wanted = {*SCALARS, *map(str, DType), "load", "store", "const", "param", "iota", "cast",
              "matmul", "attention", "convolution", "input", "output", "temporary", "mask", "term",
              "negative stride", "size 0", "size 1"}  # fmt: skip
    wanted |= {f"reduce {name}" for name in REDUCTIONS} | {f"rank {n}" for n in range(5)}
    wanted |= {f"scan {name}" for name in ("sum", "prod", "max", "min")}
    assert wanted <= set(+seen)


@pytest.fixture
def nudged(monkeypatch):
    """An evaluator whose inexact operators are a little off, and whose sums are folded in f32."""

    def nudge(value, amount):
        if not value.is_floating_point():
            return value
        eps = torch.finfo(value.dtype).eps
        sign = torch.where(torch.rand(value.shape) < 0.5, -1.0, 1.0)
        return torch.where(value.isfinite(), value * (1 + amount * eps * sign), value).to(
            value.dtype
        )

    class Row:
        def __init__(self, row, amount):
            self.row, self.amount = row, amount

        def evaluate(self, *args):
            return nudge(self.row.evaluate(*args), self.amount)

    def apply(amount):
        rows = {n: r if n in bounds_module.EXACT or n in ("pow", "fma") else Row(r, amount)
                for n, r in SCALARS.items()}  # fmt: skip
        monkeypatch.setattr(evaluator, "SCALARS", rows)

    torch.manual_seed(0)
    return apply


def off(case, wanted, bounds):
    """Elements of the evaluator as it now is that are outside of the bounds of what is wanted."""
    found = clones(case)
    evaluate(case.module, case.sizes, found, case.params)
    count = 0
    for a, b, bound in zip(wanted, found, bounds, strict=True):
        if a is None:
            continue
        bound = torch.zeros(a.numel(), dtype=torch.float64) if bound is None else bound
        a, b = (t[: bound.numel()].double() for t in (a, b))
        same = (a == b) | (a.isnan() & b.isnan())
        count += int((~(same | ((a - b).abs() <= bound) | bound.isinf())).sum())
    return count


def test_bounds_hold_for_what_is_a_little_off_and_show_what_is_more(nudged):
    cases = []
    compared = skipped = 0
    for seed in SEEDS:
        case, wanted = generate(seed), None
        wanted = clones(case)
        try:
            errors = bounded(case.module, case.sizes, wanted, case.params)
        except IndexError:
            continue
        cases.append((case, wanted, errors))
        for tensor, error in zip(wanted, errors, strict=True):
            if tensor is not None:
                compared += tensor.numel()
                skipped += 0 if error is None else int(error.isinf().sum())
    assert skipped < 0.1 * compared
    nudged(2)
    assert [c.seed for c, wanted, errors in cases if off(c, wanted, errors)] == []
    nudged(200)
    assert sum(bool(off(c, wanted, errors)) for c, wanted, errors in cases) > len(cases) // 10

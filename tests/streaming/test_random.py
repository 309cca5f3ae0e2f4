"""Random eager programs with views, updates, reads and deaths, with a stream and without.

PYTHONPATH=tests python -m streaming.test_random 1000    # more seeds than the suite runs
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import vtc

Step = Callable[[list[Tensor]], Any]


def only(_: Any) -> None:
    """A step that gives nothing."""


UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh, torch.sigmoid, torch.neg, torch.relu, torch.abs, torch.cos, torch.square,
    lambda x: x * 0.5, lambda x: x + 0.25, lambda x: 1 - x, lambda x: x.clamp(-1, 1),
    lambda x: x.to(torch.bfloat16).float(), lambda x: x.softmax(-1), lambda x: x.clone(),
    lambda x: torch.where(x > 0, x, x * 0.1), lambda x: x.contiguous(), lambda x: x.half().float(),
)  # fmt: skip
FOLDS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.sum(-1, keepdim=True) * 0.1, lambda x: x.mean(0, keepdim=True),
    lambda x: x.amax(-1, keepdim=True), lambda x: x.sum() * 0.01,
)  # fmt: skip
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add, torch.mul, torch.sub, torch.maximum, torch.minimum,
    lambda x, y: torch.where(x > y, x, y),
)  # fmt: skip
UPDATES: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x.mul_(0.5), lambda x: x.add_(0.125), lambda x: x.neg_(), lambda x: x.tanh_(),
    lambda x: x.zero_(), lambda x: x.fill_(0.75), lambda x: x.clamp_(-0.5, 0.5),
)  # fmt: skip
READS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: x.flatten().sort()[0],
)  # fmt: skip


def step_of(own: random.Random, values: list[Tensor]) -> Step:
    """A random step that values of these layouts allow."""
    i = own.randrange(len(values))
    x = values[i]
    kind = own.choice(["unary", "unary", "binary", "binary", "fold", "view", "view", "update",
                       "update2", "read", "drop", "join"])  # fmt: skip
    alike = [k for k, v in enumerate(values) if v.shape == x.shape]
    j = own.choice(alike)
    if kind == "fold" and x.dim() and x.numel():
        f = own.choice(FOLDS)
        return lambda v: v.append(f(v[i]))
    if kind == "binary":
        g = own.choice(BINARY)
        return lambda v: v.append(g(v[i], v[j]))
    if kind == "view" and x.dim():
        return view_of(own, i, x)
    if kind == "update":
        u = own.choice(UPDATES)
        return lambda v: only(u(v[i]))
    if kind == "update2" and i != j:
        w = own.choice([Tensor.add_, Tensor.copy_, Tensor.mul_])
        return lambda v: only(w(v[i], v[j].clone()))
    if kind == "read" and own.random() < 0.3:
        read = own.choice(READS)
        return lambda v: read(v[i])
    if kind == "drop" and len(values) > 4:
        return lambda v: only(v.pop(i))
    if kind == "join" and x.dim():
        d = own.randrange(x.dim())
        return lambda v: v.append(torch.cat([v[i], v[j]], d))
    h = own.choice(UNARY) if x.dim() else torch.tanh
    return lambda v: v.append(h(v[i]))


def view_of(own: random.Random, i: int, x: Tensor) -> Step:
    d = own.randrange(x.dim())
    size = x.shape[d]
    low = own.randrange(size) if size else 0
    high, by = own.randint(low, size), own.choice([1, 1, 2])
    views: list[Callable[[Tensor], Tensor]] = [
        lambda t: t.transpose(0, -1),
        lambda t: t.narrow(d, low, high - low),
        lambda t: t[(slice(None),) * d + (slice(low, high, by),)],
        lambda t: t.unsqueeze(d),
        lambda t: t.reshape(-1),
        lambda t: t.detach(),
        lambda t: t.expand(2, *t.shape).sum(0),
    ]
    if size:
        views.append(lambda t: t.select(d, low))
        views.append(lambda t: t.unbind(d)[low])
    if size % 2 == 0 and size:
        views.append(lambda t: t.chunk(2, d)[1])
        views.append(lambda t: t.unflatten(d, (2, -1)))
    chosen = own.choice(views)
    return lambda v: v.append(chosen(v[i]))


def program(seed: int) -> tuple[list[Tensor], list[Step], list[Any], list[Tensor]]:
    """Inputs, steps, and what eager PyTorch reads and leaves."""
    own = random.Random(seed)
    torch.manual_seed(seed)
    shapes = [tuple(own.choice([1, 2, 3, 4, 6, 9]) for _ in range(own.randint(1, 3)))] * 2
    shapes.append(tuple(own.choice([1, 2, 5, 8]) for _ in range(2)))
    inputs = [torch.randn(s) for s in shapes]
    values, steps, reads = [t.clone() for t in inputs], [], []
    for _ in range(own.randint(4, 30)):
        step = step_of(own, values)
        try:
            reads.append(step(values))
        except RuntimeError:  # an update of what overlaps itself, a view that cannot be
            continue
        steps.append(step)
        if values[-1].numel() > 4000:
            values.pop()
            steps.append(lambda v: only(v.pop()))
    return inputs, steps, [x for x in reads if x is not None], values


def laid_out(x: Tensor) -> list[int]:
    """The strides that elements show."""
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n != 1]


@torch.no_grad()
def differs(seed: int) -> str | None:
    """What a stream gets wrong in one program."""
    inputs, steps, reads, expected = program(seed)
    values = [t.clone() for t in inputs]
    with vtc.stream():
        found = [x for step in steps if (x := step(values)) is not None]
    if any(getattr(v, "_real", v) is None for v in values):
        return "a value is still pending"
    for name, ours, theirs in (("read", found, reads), ("value", values, expected)):
        for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            one, other = torch.as_tensor(a), torch.as_tensor(b)
            if one.numel() and laid_out(one) != laid_out(other):
                return f"{name} {n} has strides {one.stride()}, not {other.stride()}"
            # Half precision rounds to either side of a tie.
            if not torch.allclose(one, other, rtol=1e-2, atol=1e-2, equal_nan=True):
                return f"{name} {n} is off by {(one - other).abs().max()}"
            if (one - other).abs().median() > 1e-5:
                return f"{name} {n} is off by {(one - other).abs().median()} in the middle"
    return None


@pytest.mark.parametrize("first", range(0, 40, 10))
@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
def test_random_programs_are_as_without_a_stream(first: int) -> None:
    wrong = {seed: what for seed in range(first, first + 10) if (what := differs(seed))}
    assert not wrong


if __name__ == "__main__":
    found = {seed: what for seed in range(int(sys.argv[1])) if (what := differs(seed))}
    sys.stdout.write(f"{sys.argv[1]} programs, {len(found)} off {found}\n")
    sys.exit(bool(found))

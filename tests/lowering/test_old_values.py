"""Which regions read the value that an updated input had before."""

from __future__ import annotations

import pytest
import torch

from vtc.graph.capture import capture
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.scheduler import _Scheduler


def replaced(x, y):
    x.copy_(y)
    z = x @ x
    x.add_(1)
    return (z,)


def covered(x, y):
    x[:].copy_(y)
    z = x.t() @ x
    x.add_(1)
    return (z,)


def partly(x, y):
    x[1:].copy_(y[1:])
    z = x @ x
    x.add_(1)
    return (z,)


def viewed(x, y):
    z = x.t() @ y
    x.copy_(y)
    return (z,)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(replaced, False), (covered, False), (partly, True), (viewed, True)],
)
def test_what_a_copy_replaces_is_not_read(function, expected: bool) -> None:
    """By the maps of what leads to a region: data that an update replaces whole is none of them."""
    inputs = [torch.randn(4, 4), torch.randn(4, 4)]
    plan = Plan.of(capture(torch.fx.symbolic_trace(function), inputs))
    scheduler = _Scheduler(plan.homes(NOTHING), ())
    regions = [r for r in scheduler.grouping.regions if any("matmul" in n.name for n in r.nodes)]
    readers = scheduler.readers.get(scheduler.program.inputs[0], [])
    assert [region in readers for region in regions] == [expected]

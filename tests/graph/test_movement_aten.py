"""Every ATen rule of the movement table against the operator itself, on random arguments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph.movement_checks import check, traced
from graph.movement_strategies import Draw
from graph.movement_strategies_indexed import ARGUMENTS, COMPUTE
from vtc.graph.movement import TABLE, is_movement_target
from vtc.graph.rules_space import exact_ratio

aten = torch.ops.aten
EXAMPLES = 25
OPERATORS = [(e, op) for e in TABLE for op in (*e.aten, *e.parts)]

# With some arguments these are compute: values that broadcast, storage beyond the source, padding
# of patches, ratios that floating point does not keep.
SOMETIMES = {
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.im2col.default,
    aten.pixel_unshuffle.default,
    aten.take_along_dim.default,
    *(op for _, op in OPERATORS if "upsample_nearest" in str(op)),
}


def test_every_rule_has_random_arguments():
    assert {op for _, op in OPERATORS} == set(ARGUMENTS)


@pytest.mark.parametrize(("entry", "op"), OPERATORS, ids=[str(op) for _, op in OPERATORS])
def test_rule_equals_operator(entry, op):
    seen = []

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        args, kwargs = ARGUMENTS[op](Draw(data.draw))
        found = check(op, *args, **kwargs)
        for movement in found:
            assert movement is not None or op in SOMETIMES
            if movement is None:
                continue
            assert movement.operator == entry.name
            assert movement.load is None or "A" in entry.directions
            assert not any(movement.store) or "B" in entry.directions
            seen.append(movement)

    run()
    assert seen
    if "A" in entry.directions:
        assert any(m.load is not None for m in seen)
    if "B" in entry.directions:
        assert any(s is not None for m in seen for s in m.store)


@pytest.mark.parametrize("name", COMPUTE)
def test_what_is_not_movement_is_compute(name):
    op, args, *kwargs = COMPUTE[name]
    assert check(op, *args, **(kwargs[0] if kwargs else {})) == [None]


def test_only_operators_with_parts_are_targets():
    (part, _), *_ = traced(aten.split.Tensor, torch.zeros(4), 2, 0)
    assert is_movement_target(part.args[0])
    assert not is_movement_target(part)
    ((node, _),) = traced(aten.t.default, torch.zeros(4))
    assert not is_movement_target(node)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_upsampling_is_movement_only_where_floating_point_is_exact(dtype):
    """PyTorch's own index, for many ratios, against the exact ratio that the rule uses."""
    inexact = 0
    for size in range(1, 9):
        x = torch.arange(size, dtype=dtype).reshape(1, 1, size)
        calls = [(out, None) for out in range(1, 61)]
        calls += [(int(size * f), f) for f in (1.0, 2.0, 3.0, 5.0, 7.0, 41.0, 1.5, 2.6, 0.75)]
        for out, scale in calls:
            if not out:
                continue
            read = aten.upsample_nearest1d.default(x, [out], scale).flatten().long()
            if exact_ratio(size, out, scale):
                assert read.tolist() == [i * size // out for i in range(out)], (size, out, scale)
            else:
                inexact += 1
    assert inexact

"""Every form of step runs without a copy: as generated code shows, and the profiler."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, randn
from torch._inductor.utils import run_and_get_code

from lowering.graphs import GRAPHS
from lowering.harness import Captured, capture_function
from vtc.lowering.check import check
from vtc.lowering.implement import implement
from vtc.lowering.schedule import Schedule, Step
from vtc.runtime.executable import Executable
from vtc.virtual.vtog import Edge


def planned(
    fn: Callable[..., Any], args: tuple[Any, ...], choose: Callable[[Edge], bool]
) -> tuple[Captured, Schedule]:
    """The schedule of the strategy of the edges that `choose` takes."""
    case = capture_function(fn, args)
    strategy = frozenset(k for k, e in enumerate(case.plan.vtog.edges) if choose(e))
    assert case.plan.checker.legal(strategy).ok
    schedule = case.plan.schedule(strategy)
    check(schedule, case.program)
    return case, schedule


@dataclass(frozen=True)
class Code:
    """What Inductor's wrapper calls: generated kernels, library kernels, allocations."""

    kernels: list[str]
    calls: list[str]
    allocations: list[tuple[int, ...]]


def generated(step: Step, case: Captured) -> Code:
    """The code of a step, compiled for the CPU."""
    with torch._inductor.config.patch(force_disable_caches=True):
        _, sources = run_and_get_code(lambda: implement(step, case.program, freeze=False))
    (source,) = sources
    body = source[source.index("def call(") : source.index("return (", source.index("def call("))]
    sizes = re.findall(r"empty_strided_cpu\(\(([^()]*)\)", body)
    return Code(
        re.findall(r"^\s+(cpp_fused_\w+)\(", body, re.MULTILINE),
        re.findall(r"(?:extern_kernels|aten)\.(\w+)[.\w]*\(", body),
        [tuple(int(n) for n in size.split(",") if n.strip()) for size in sizes],
    )


def stored(edge: Edge) -> bool:
    return edge.direction == "store"


def nothing(edge: Edge) -> bool:
    return False


def test_pointwise_results_go_straight_into_their_slices() -> None:
    case, schedule = planned(
        lambda x, y, w: torch.cat([x.exp(), y.sin()], 1) @ w,
        (randn(32, 16), randn(32, 24), randn(40, 8)),
        stored,
    )
    code = generated(schedule.steps[0], case)
    assert len(code.kernels) == 1
    assert code.calls == []
    assert code.allocations == []


def test_a_residual_copy_is_fused_with_what_is_computed_beside_it() -> None:
    case, schedule = planned(
        lambda x, y, w: torch.cat([x.exp(), y], 1) @ w,
        (randn(32, 16), randn(32, 24), randn(40, 8)),
        lambda e: e.tensor == "exp" and stored(e),
    )
    assert [len(s.stores) for s in schedule.steps] == [2, 0]
    code = generated(schedule.steps[0], case)
    assert len(code.kernels) == 1
    assert code.calls == []
    assert code.allocations == []


def test_the_whole_graph_as_one_step_is_stock_inductor() -> None:
    case, schedule = planned(
        lambda x, y: torch.cat([x.exp(), y], 1).sum(1), (randn(32, 16), randn(32, 24)), nothing
    )
    (step,) = schedule.steps
    assert not schedule.buffers
    whole = replace(step, graph=case.program.graph_module)
    assert generated(step, case) == generated(whole, case)


def test_a_cache_is_updated_in_place() -> None:
    def f(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(1, at, x * 2)
        return cache[:, :7].sum(-1)

    args = (randn(4, 64, 16), randn(4, 1, 16), torch.tensor([5]))
    case, schedule = planned(f, args, nothing)
    (step,) = schedule.steps
    code = generated(step, case)
    assert len(code.kernels) == 1
    assert code.calls == []
    assert code.allocations == [(4, 7)], "no second cache"


def test_attention_reads_the_caches_heads_where_they_are() -> None:
    fn, args = GRAPHS["key_and_value_caches"]()
    case, schedule = planned(fn, args, lambda e: e.tensor.startswith("clone") and not stored(e))
    (step,) = schedule.steps
    assert [n.meta["repeats"] for n in step.graph.graph.nodes if "repeats" in n.meta] == [3]
    code = generated(step, case)
    assert len(code.kernels) == 1
    assert code.calls == ["_scaled_dot_product_flash_attention_for_cpu"]
    assert code.allocations == []


# Library steps store into a view of a base: no copy, no allocation.

LIBRARIES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mm": (
        lambda x, w, v: torch.cat([x.mm(w), x.mm(v)], 1).relu(),
        (randn(8, 6), randn(6, 4), randn(6, 5)),
    ),
    "matmul": (
        lambda x, w, v: torch.cat([x @ w, x @ v], -1).relu(),
        (randn(2, 4, 6), randn(6, 4), randn(6, 5)),
    ),
    "linear": (
        lambda x, w, v: torch.cat([F.linear(x, w), F.linear(x, v)], -1).relu(),
        (randn(2, 4, 6), randn(4, 6), randn(5, 6)),
    ),
    "bmm": (
        lambda x, w, v: torch.cat([x.bmm(w), x.bmm(v)], -1).relu(),
        (randn(3, 4, 6), randn(3, 6, 4), randn(3, 6, 5)),
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_kernel_writes_its_slice(name: str) -> None:
    fn, args = LIBRARIES[name]
    case, schedule = planned(fn, args, stored)
    steps = [s for s in schedule.steps if s.implementation == "library"]
    assert len(steps) == 2
    (buffer,) = schedule.buffers
    base = torch.full(buffer.shape, torch.nan)
    for step in steps:
        call, _ = implement(step, case.program, freeze=False)
        operands = [operand(o, args, base) for o in step.operands]
        with torch.no_grad(), torch.profiler.profile() as profiler:
            call(*operands)
        names = {event.name for event in profiler.events()}
        assert names & {"aten::mm", "aten::bmm"}
        assert not names & {"aten::copy_", "aten::clone", "aten::empty", "aten::resize_"}
    torch.testing.assert_close(base.relu(), fn(*args))


def operand(place: Any, args: tuple[Any, ...], base: Tensor) -> Tensor:
    whole: Tensor = args[place.source] if place.kind == "input" else base
    if place.view is None:
        return whole
    return whole.as_strided(place.view.shape, place.view.stride, place.view.offset)


def both_views(a: Tensor) -> tuple[Tensor, ...]:
    """Views of what is computed behind a stored tensor, whose strides are that tensor's."""
    v = a.relu()
    w = torch.stack([v, v], 3)
    u = v.select_scatter(v[:, 0] + 1, 1, 0)
    return w, u[None], u[1:], u.view(2, -1), u.chunk(2)[0]


def test_outputs_that_share_memory_do_so_whatever_strides_a_step_reads() -> None:
    case, schedule = planned(
        both_views, (randn(2, 3, 7),), lambda e: stored(e) and (e.tensor, e.source) == ("relu", 0)
    )
    steps = [(s.graph.forward, s) for s in schedule.steps]
    value = randn(2, 3, 7)
    run = Executable(schedule, steps, 1, case.program.constants)
    _, *ours = run(value)
    _, *theirs = both_views(value)
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert got.stride() == expected.stride()
    assert len({t.untyped_storage().data_ptr() for t in ours}) == 1

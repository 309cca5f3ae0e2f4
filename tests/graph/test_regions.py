"""Grouping: every operator in one region, and regions that can run one after another."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from patterns.movement_patterns import ALIASING, PATTERNS
from vtc.graph.capture import capture
from vtc.graph.movement import is_movement_target
from vtc.graph.program import Program, is_tensor
from vtc.graph.regions import Grouping, Region, group
from vtc.kernels.operators import can_join

aten = torch.ops.aten


def captured(fn: Callable[..., Any], args: tuple[Any, ...]) -> Program:
    found: list[Program] = []

    def backend(graph_module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        found.append(capture(graph_module, examples))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=backend, fullgraph=True)(*args)
    return found[0]


UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.exp,
    torch.sin,
    torch.t,
    lambda t: t.flip(0),
    lambda t: t.softmax(-1),
    lambda t: t.sum(0, keepdim=True).expand(4, 4),
    lambda t: t.reshape(2, 8).reshape(4, 4),
    lambda t: torch.cat([t[:2], t[:2]]),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.mm,
    lambda a, b: torch.cat([a[:2], b[2:]]),
    lambda a, b: torch.stack([a, b])[1],
]


def random_function(seed: int) -> Callable[..., Any]:
    """A graph of pointwise work, reductions, matmuls and movement on 4 x 4 matrices."""
    draw = random.Random(seed)
    calls = []
    for made in range(2, 16):
        ops = UNARY if draw.random() < 0.5 else BINARY
        operands = [draw.randrange(made) for _ in range(1 if ops is UNARY else 2)]
        calls.append((draw.choice(ops), operands))
    returned = draw.randrange(2, 16)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x, y]
        for op, operands in calls:
            values.append(op(*[values[k] for k in operands]))
        return values[-1], values[returned]

    return f


def check_grouping(program: Program, grouping: Grouping) -> None:
    nodes = program.nodes
    compute = [n for n in nodes if n not in program.movements and not is_movement_target(n)]
    members = [n for r in grouping.regions for n in r.nodes if n not in program.movements]
    members = [n for n in members if not is_movement_target(n)]
    assert sorted(members, key=nodes.index) == compute, "every compute operator in one region"
    assert len(set(members)) == len(members)
    for region in grouping.regions:
        assert list(region.nodes) == sorted(region.nodes, key=nodes.index)
        assert region.name in {n.name for n in region.nodes}
        assert all(grouping.region_of[n] is region for n in region.nodes if n in members)
        check_reads_and_writes(program, grouping, region)
        assert is_convex(region, nodes), f"{region.name} has a path that leaves it and comes back"
    check_order(program, grouping)


def check_reads_and_writes(program: Program, grouping: Grouping, region: Region) -> None:
    inside = set(region.nodes)
    reads = {o for n in region.nodes for o in n.all_input_nodes} - inside
    assert set(region.reads) == reads
    finals = {v for _, v in program.updates} | set(program.outputs)
    for node in region.nodes:
        if node not in grouping.region_of or not is_tensor(node):
            continue
        used = any(u not in inside for u in node.users)
        if used or node in finals:
            assert node in region.writes


def is_convex(region: Region, nodes: list[fx.Node]) -> bool:
    """No value goes from the region through other nodes back into it."""
    inside, behind = set(region.nodes), set()
    for node in nodes:
        sources = set(node.all_input_nodes)
        if node in inside:
            if sources & behind:
                return False
        elif sources & (inside | behind):
            behind.add(node)
    return True


def check_order(program: Program, grouping: Grouping) -> None:
    """Every step comes after those that make what it reads."""
    done: set[fx.Node] = set(program.inputs)

    def ready(node: fx.Node) -> bool:
        if node in done:
            return True
        made = node in grouping.region_of or node in grouping.movements
        return not made and all(map(ready, node.all_input_nodes))

    for step in grouping.steps:
        if isinstance(step, Region):
            assert all(map(ready, step.reads)), f"{step.name} runs too early"
            done |= {n for n in step.nodes if n in grouping.region_of}
        else:
            assert all(map(ready, step.all_input_nodes)), f"{step.name} runs too early"
            done.add(step)
    assert [s for s in grouping.steps if isinstance(s, Region)] == list(grouping.regions)
    assert {s for s in grouping.steps if not isinstance(s, Region)} == set(grouping.movements)


@pytest.mark.parametrize("name", [*PATTERNS, *ALIASING])
def test_patterns(name: str) -> None:
    fn, arguments = {**PATTERNS, **ALIASING}[name]()
    program = captured(fn, arguments[0])
    check_grouping(program, group(program, can_join))


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int) -> None:
    program = captured(random_function(seed), (torch.randn(4, 4), torch.randn(4, 4)))
    check_grouping(program, group(program, can_join))


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_engines_that_join_everything_or_nothing(seed: int, answer: bool) -> None:
    program = captured(random_function(seed), (torch.randn(4, 4), torch.randn(4, 4)))
    grouping = group(program, lambda producer, consumer: answer)
    check_grouping(program, grouping)
    if not answer:
        assert all(sum(n in grouping.region_of for n in r.nodes) == 1 for r in grouping.regions)


def test_pointwise_work_joins_the_anchor_before_it() -> None:
    program = captured(
        lambda x, w: torch.mm(x, w).relu().mul(2).sum(), (torch.randn(4, 4), torch.randn(4, 4))
    )
    (region,) = group(program, can_join).regions
    assert region.name == "mm"
    assert len(region.nodes) == 4


def test_movement_between_two_operators_of_a_region_is_inside_it() -> None:
    program = captured(lambda x: x.exp().t().flip(0).sin(), (torch.randn(4, 3),))
    grouping = group(program, can_join)
    (region,) = grouping.regions
    assert [n.name for n in region.nodes] == ["exp", "t", "flip", "sin"]
    assert not grouping.movements


def test_a_cycle_through_another_region_is_not_closed() -> None:
    """exp -> mm -> add and exp -> add: add joins mm, never exp."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x.exp()
        return y + torch.mm(y, w)

    grouping = group(captured(f, (torch.randn(4, 4), torch.randn(4, 4))), can_join)
    assert [[n.name for n in r.nodes] for r in grouping.regions] == [["exp"], ["mm", "add"]]

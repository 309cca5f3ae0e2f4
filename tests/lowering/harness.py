"""From a function to its schedules: capture through Dynamo, random legal strategies, eager runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from arguments import fresh
from lowering.graphs import GRAPHS, Graph
from patterns.movement_patterns import ALIASING, PATTERNS
from vtc.graph.capture import capture
from vtc.graph.program import Program
from vtc.lowering.homes import Unschedulable
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.schedule import Schedule
from vtc.runtime.executable import Executable
from vtc.virtual.strategy import Strategy

NAMES = [*PATTERNS, *ALIASING, *GRAPHS]


@dataclass(eq=False)
class Captured:
    """A function as planned. `call` runs it with `run` in the place of its one graph."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    program: Program
    plan: Plan
    call: Callable[..., Any]
    run: Callable[..., Any]

    def schedules(self, count: int) -> Iterator[tuple[Strategy, Schedule]]:
        """The schedule without virtual tensors, and those of up to `count` random strategies."""
        for strategy in {NOTHING: None, **dict.fromkeys(self.strategies(count))}:
            try:
                yield strategy, self.plan.schedule(strategy)
            except Unschedulable:
                assert strategy, "the empty strategy can always be scheduled"

    def strategies(self, count: int) -> Iterator[Strategy]:
        """Legal strategies: loads before stores, stores before loads, then random ones, some of a
        few edges and some that no edge can be added to."""
        edges = list(range(len(self.plan.vtog.edges)))
        loads = {k for k in edges if self.plan.vtog.edges[k].direction == "load"}
        for first in (loads, set(edges) - loads):
            yield self._grown(sorted(edges, key=lambda k: k not in first), len(edges))
        for seed in range(count):
            draw = random.Random(seed)
            draw.shuffle(edges)
            yield self._grown(edges, draw.choice([1, 2, 3, len(edges)]))

    def _grown(self, edges: list[int], limit: int) -> Strategy:
        """The first edges that are legal together, at most `limit`."""
        strategy = NOTHING
        for edge in edges:
            if len(strategy) < limit and self.plan.checker.legal(strategy | {edge}).ok:
                strategy |= {edge}
        return strategy


def build(name: str) -> Graph:
    """The function and the arguments of a pattern or graph, with fixed random values."""
    torch.manual_seed(0)
    if name in GRAPHS:
        return GRAPHS[name]()
    fn, arguments = {**PATTERNS, **ALIASING}[name]()
    return fn, arguments[0]


def capture_function(fn: Callable[..., Any], args: tuple[Any, ...]) -> Captured:
    """Capture a function that Dynamo makes one graph of."""
    found: list[Captured] = []

    def backend(graph_module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        if not found:  # Dynamo compiles again after a reset, for the same program
            program = capture(graph_module, examples)
            found.append(
                Captured(fn, args, program, Plan.of(program), torch.compile, graph_module.forward)
            )

        def latest(*inputs: Any) -> Any:
            return found[0].run(*inputs)

        return latest

    torch._dynamo.reset()
    call = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    with torch.no_grad():
        call(*fresh(args))
    (captured,) = found
    captured.call = call
    return captured


@cache
def captured(name: str) -> Captured:
    return capture_function(*build(name))


def eager(schedule: Schedule, program: Program) -> Executable:
    """The schedule with the graph of every step run by eager PyTorch."""
    steps = [(step.graph.forward, step) for step in schedule.steps]
    return Executable(schedule, steps, len(program.inputs))

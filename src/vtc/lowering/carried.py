"""Residual copies that a kernel of ours carries along: where a step only moves values, and the last
of them comes from our kernel, the kernel stores them all.

    before: a = kernel(x);  moved = generated(clone(shuffle(cat([kept, a]))))
    after:  moved = kernel(x, kept)                  which stores a and kept where they go

The kept part has the shape of what the kernel computes, so that each of its points moves one more
element. Two halves that a shuffle of two groups interleaves are stored as one
(`kernels/interleave.py`). Whether that is faster than a kernel of its own is measured.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Protocol

from torch import fx

from vtc.graph.movement import is_movement_target, movement_of
from vtc.lowering.described import described
from vtc.lowering.description import Undescribed
from vtc.lowering.schedule import Operand, Schedule, Step

logger = logging.getLogger(__name__)

EQUAL = 1.02
"""Of two ways that are as fast within this the copy is carried: it is a kernel less."""


class Measure(Protocol):
    """Times of steps in microseconds."""

    def prepare(self, steps: Sequence[Step]) -> None:
        """Compile the kernels of all steps at once."""

    def microseconds(self, step: Step) -> float:
        """By the fastest kernel of ours."""

    def generated(self, step: Step) -> float:
        """As TorchInductor compiles it."""


def carried(schedule: Schedule, measure: Measure) -> Schedule:
    """The schedule with those copies carried for which that is faster; itself without any."""
    pairs = _pairs(schedule)
    measure.prepare([joined for _, _, joined in pairs])
    steps: list[Step | None] = list(schedule.steps)
    for carrier, copy, joined in pairs:
        kernel, moved = schedule.steps[carrier], schedule.steps[copy]
        together = measure.microseconds(joined)
        apart = measure.microseconds(kernel) + measure.generated(moved)
        logger.debug(
            "%s carries %s: %.2f us, not %.2f us", kernel.name, moved.name, together, apart
        )
        if together <= EQUAL * apart:
            steps[carrier], steps[copy] = joined, None
    return dataclasses.replace(schedule, steps=tuple(s for s in steps if s is not None))


def joined_steps(schedule: Schedule) -> list[Step]:
    """The kernels with a copy that `carried` would time, to be compiled ahead."""
    return [joined for _, _, joined in _pairs(schedule)]


def _pairs(schedule: Schedule) -> list[tuple[int, int, Step]]:
    """The numbers of a kernel's step and of a copy's that it can carry, and both as one step. No
    kernel carries two copies."""
    made = {name: k for k, step in enumerate(schedule.steps) for name in step.results}
    found, taken = [], set()
    for number, step in enumerate(schedule.steps):
        if not _only_moves(step):
            continue
        sources = [made[str(o.source)] for o in step.operands if o.kind == "result"]
        carrier = max(sources, default=number)
        if carrier in taken or schedule.steps[carrier].implementation != "kernel":
            continue
        if not _early(step, schedule.steps[carrier:number]):
            continue
        joined = _joined(schedule, carrier, number)
        try:
            described(joined)
        except Undescribed as reason:
            logger.debug("%s is not carried: %s", step.name, reason)
            continue
        taken.add(carrier)
        found.append((carrier, number, joined))
    return found


def _only_moves(step: Step) -> bool:
    """Does a generated step nothing but give moved values?"""
    calls = [n for n in step.graph.graph.nodes if n.op == "call_function"]
    return (
        step.implementation == "inductor"
        and not step.stores
        and bool(step.results)
        and all(is_movement_target(n) or movement_of(n) is not None for n in calls)
    )


def _early(step: Step, between: Sequence[Step]) -> bool:
    """Can a step run ahead of these? They write nothing that it reads."""
    written = {(o.kind, o.source) for s in between for o in (s.operands[k] for k in s.stores)}
    return not any((o.kind, o.source) in written for o in step.operands)


def _joined(schedule: Schedule, carrier: int, copy: int) -> Step:
    """Both steps as one, which gives what others read of either."""
    kernel, moved = schedule.steps[carrier], schedule.steps[copy]
    graph, operands = fx.Graph(), list(kernel.operands)
    env: dict[fx.Node, fx.Node] = {}
    for node in kernel.graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = graph.node_copy(node)
    places = [n for n in moved.graph.graph.nodes if n.op == "placeholder"]
    (end,) = kernel.graph.graph.find_nodes(op="output")
    inner = dict(zip(kernel.results, end.args[0], strict=True))
    held = {o: env[n] for o, n in zip(kernel.operands, list(env), strict=True)}
    read = list(zip(moved.operands, places, strict=True))
    for operand, node in read:
        if operand.kind == "result" and operand.source in inner and operand.view is None:
            continue
        if operand in held:
            env[node] = held[operand]
            continue
        env[node] = graph.node_copy(node)
        env[node].target = env[node].name
        operands.append(operand)
    _copied(kernel.graph.graph, graph, env)
    for operand, node in read:
        if node not in env:
            env[node] = env[inner[str(operand.source)]]
    _copied(moved.graph.graph, graph, env)
    (last,) = moved.graph.graph.find_nodes(op="output")
    others = [s for k, s in enumerate(schedule.steps) if k not in (carrier, copy)]
    read_by_others = {str(o.source) for s in others for o in s.operands if o.kind == "result"}
    read_by_others |= {str(o.source) for o in schedule.outputs if isinstance(o, Operand)}
    results = [n for n in kernel.results if n in read_by_others]
    values = [env[inner[n]] for n in results] + [env[n] for n in last.args[0]]
    graph.output(tuple(values))
    module = fx.GraphModule({}, graph)
    return dataclasses.replace(
        kernel,
        graph=module,
        operands=tuple(operands),
        results=(*results, *moved.results),
        regions=(*kernel.regions, *moved.regions),
    )


def _copied(source: fx.Graph, target: fx.Graph, env: dict[fx.Node, fx.Node]) -> None:
    """Copy what a graph computes, in order."""
    for node in source.nodes:
        if node.op not in ("placeholder", "output"):
            env[node] = target.node_copy(node, env.__getitem__)

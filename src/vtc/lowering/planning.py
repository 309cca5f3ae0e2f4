"""The captured program as planning sees it: names, shapes, index maps."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from torch import fx

from vtc.graph.program import Program, is_parameter, is_tensor, returned_tensors, value_of
from vtc.graph.regions import Grouping, Region
from vtc.kernels.operators import flops
from vtc.virtual.plan import PlanGraph, PlanMovement, PlanRegion, PlanStep, PlanTensor


def plan_graph(program: Program, grouping: Grouping) -> PlanGraph:
    """The PlanGraph of a grouped program. Sizes must be concrete."""
    first_constant = len(program.inputs) - len(program.constants)
    updated = {program.inputs[i].name: value.name for i, value in program.updates}
    outputs = [
        o.name for k, o in enumerate(program.outputs) if is_tensor(o) and k not in program.aliases
    ]
    returned = {n.name for n in returned_tensors(program)}
    tensors = {}
    for i, node in enumerate(program.inputs):
        if is_tensor(node):
            kind: Literal["input", "updated", "constant"] = "input"
            if node.name in updated:
                kind = "updated"
            elif i >= first_constant or is_parameter(node):
                kind = "constant"
            tensors[node.name] = _tensor(node, kind, outputs, returned)
    steps: list[PlanStep] = []
    for step in grouping.steps:
        if isinstance(step, Region):
            for node in step.writes:
                tensors[node.name] = _tensor(node, "internal", outputs, returned)
            steps.append(
                PlanRegion(
                    step.name,
                    tuple(n.name for n in step.reads if is_tensor(n)),
                    tuple(n.name for n in step.writes),
                    sum(map(flops, step.nodes)),
                )
            )
        else:
            bound = program.movements[step]
            tensors[step.name] = _tensor(step, "internal", outputs, returned)
            steps.append(
                PlanMovement(
                    step.name,
                    bound.movement,
                    tuple(n.name for n in bound.sources),
                    tuple(n.name for n in bound.lookups),
                )
            )
    return PlanGraph(tensors, tuple(steps), updated, tuple(dict.fromkeys(outputs)))


def _tensor(
    node: fx.Node,
    kind: Literal["input", "updated", "constant", "internal"],
    outputs: Collection[str],
    returned: Collection[str],
) -> PlanTensor:
    value = value_of(node)
    return PlanTensor(
        node.name,
        tuple(value.shape),
        tuple(value.stride()),
        value.element_size(),
        kind,
        node.name in outputs,
        node.name in returned,
    )

"""The independent checker: a schedule is carried out on element identities before it is compiled.

It knows nothing of how a schedule was made. Memory is simulated (inputs, arena, results of steps,
with their real strides), the steps' graphs are walked in order, and every operand of every compute
operator must hold the elements that the captured program gives it.

The rules, as errors name them: (i) an element is not where it is read; (ii) an element is read that
nothing stored; (iii) two stores of one step overlap; (iv) a read sees another version of an updated
input, or a step reads what it stores into; (v) an input that the program does not update is
written, or an updated one is not left with its last version; "contract": a step does not compute
what the program does, or is called with operands that it is not made for.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from vtc.graph.program import InputView, Program, is_tensor, value_of
from vtc.lowering.identities import Identities
from vtc.lowering.memory import Memory, computes, dtype_of, fail, place_of, placeholders
from vtc.lowering.schedule import Operand, Schedule, View
from vtc.lowering.step_check import StepRun
from vtc.lowering.storage import overlap, shared

logger = logging.getLogger(__name__)
aten = torch.ops.aten

LIMIT = 2**29
"""Elements beyond which a program is not simulated (4 bytes each, at most twice)."""


def check(schedule: Schedule, program: Program) -> None:
    """Raise PlanCheckError unless `schedule` computes what `program` does, element by element.

    A program with symbolic sizes has one step and no arena, and is not simulated; nor is one of
    more than LIMIT elements.
    """
    if program.symbolic:
        return
    tokens, tables = _read_whole(schedule, program)
    elements = _elements(program, tokens | tables)
    if elements > LIMIT:
        logger.debug("schedule not checked: it has %d elements, more than %d", elements, LIMIT)
        return
    memory = Memory(schedule, program, Identities(program, tokens, tables))
    for step in schedule.steps:
        StepRun(memory, step).run()
    _check_updates(memory)
    _check_outputs(memory, schedule)


def _elements(program: Program, small: set[fx.Node]) -> int:
    total = 0
    for node in program.graph_module.graph.nodes:
        bound = program.movements.get(node)
        if is_tensor(node) and node not in small and not (bound and bound.movement.view):
            total += value_of(node).numel()
    return total


def _read_whole(schedule: Schedule, program: Program) -> tuple[set[fx.Node], set[fx.Node]]:
    """Inputs that only compute operators read, in the program and in every step; and inputs that
    embeddings read too."""
    readers: dict[int, list[tuple[fx.Node, fx.Node]]] = {}
    for i, node in enumerate(program.inputs):
        readers[i] = [(node, user) for user in node.users]
    stored = {i for i, _ in program.updates}
    viewed = {alias.input for alias in program.aliases.values()}
    for step in schedule.steps:
        for operand, node in zip(step.operands, placeholders(step), strict=False):
            if operand.kind == "input":
                readers[int(operand.source)] += [(node, user) for user in node.users]
                if operand.view is not None:
                    viewed.add(int(operand.source))
    tokens, tables = set(), set()
    for i, uses in readers.items():
        rest = [(n, u) for n, u in uses if not computes(u, program)]
        if i in viewed | stored or not is_tensor(program.inputs[i]):
            continue
        if not rest:
            tokens.add(program.inputs[i])
        elif all(u.target is aten.embedding.default and u.args[1] is not n for n, u in rest):
            tables.add(program.inputs[i])
    return tokens, tables


def _check_updates(memory: Memory) -> None:
    for number, node in memory.updates.items():
        name = memory.program.inputs[number].name
        memory.same(
            memory.values["input", number],
            memory.reference.values[node],
            "(v)",
            f"after the last step, updated input {name}",
        )


def _check_outputs(memory: Memory, schedule: Schedule) -> None:
    if len(schedule.outputs) != len(memory.program.outputs):
        fail("contract", "the schedule returns another number of values than the program")
    found = [_output(memory, o) for o in schedule.outputs]
    for k, (out, value) in enumerate(zip(memory.program.outputs, found, strict=True)):
        if not isinstance(out, fx.Node):
            if value is not out and value != out:
                fail("contract", f"output {k} is {value}, not {out}")
            continue
        alias = memory.program.aliases.get(k)
        if alias is not None and alias.input not in memory.updates:
            continue  # what eager PyTorch itself says
        expected, place = memory.reference.values[out], schedule.outputs[k]
        memory.same(value, expected, memory.rule_of(value), f"output {k} ({out.name})")
        if isinstance(place, Operand) and memory.dtypes.get(place_of(place)) != dtype_of(out):
            fail("contract", f"output {k} ({out.name}) has another dtype")
    _check_sharing(memory, found)


def _output(memory: Memory, out: Any) -> Any:
    if isinstance(out, Operand):
        return memory.operand(out, "the return")
    if isinstance(out, InputView):
        view = View(out.size, out.stride, out.offset)
        return memory.viewed(memory.values["input", out.input], view, "the returned view")
    return out


def _check_sharing(memory: Memory, found: Sequence[Any]) -> None:
    """Outputs share memory with inputs and with each other only where eager's do."""
    names = [
        o.name if isinstance(o, fx.Node) and k not in memory.program.aliases else None
        for k, o in enumerate(memory.program.outputs)
    ]
    own = {
        k: (value, memory.reference.values[memory.program.outputs[k]])
        for k, value in enumerate(found)
        if names[k] is not None and isinstance(value, Tensor)
    }
    for (k, (value, expected)), i in itertools.product(own.items(), memory.updates):
        held = memory.values["input", i]
        if isinstance(held, Tensor) and overlap(value, held):
            original = memory.reference.values[memory.program.inputs[i]]
            if not shared(expected, original):
                name = memory.program.inputs[i].name
                fail("(v)", f"output {k} ({names[k]}) lies in updated input {name}")
    for (k, (value, a)), (n, (other, b)) in itertools.combinations(own.items(), 2):
        if overlap(value, other) and not shared(a, b):
            fail("(v)", f"outputs {k} ({names[k]}) and {n} ({names[n]}) share memory")

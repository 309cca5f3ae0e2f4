"""Simulated memory: where a schedule keeps the identities of elements."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from vtc import errors
from vtc.graph.movement import is_movement_target
from vtc.graph.program import Program, value_of
from vtc.lowering.identities import POISON, Identities
from vtc.lowering.schedule import Operand, Schedule, Step, View
from vtc.lowering.storage import extent_of, identical, shared

Place = tuple[str, int | str]


class Memory:
    """Inputs, buffers and results as views of storages, beside what the program has in them."""

    def __init__(self, schedule: Schedule, program: Program, reference: Identities) -> None:
        self.program, self.reference = program, reference
        self.updates = dict(program.updates)
        self.values: dict[Place, Any] = {}
        self.dtypes: dict[Place, torch.dtype] = {}
        self.written = {
            (s.operands[k].kind, s.operands[k].source) for s in schedule.steps for k in s.stores
        }
        for i, node in enumerate(program.inputs):
            self.keep(("input", i), reference.values[node], dtype_of(node))
        for buffer in schedule.buffers:
            extent = extent_of(buffer.shape, buffer.stride)
            storage = torch.full((extent,), POISON, dtype=torch.int32)
            value = storage.as_strided(buffer.shape, buffer.stride)
            self.keep(("buffer", buffer.name), value, buffer.dtype)

    def keep(self, place: Place, value: Any, dtype: torch.dtype | None) -> None:
        if isinstance(value, Tensor) and place in self.written:
            storage = value.untyped_storage().clone()
            value = torch.empty(0, dtype=value.dtype).set_(
                storage, value.storage_offset(), value.shape, value.stride()
            )
        self.values[place] = value
        if dtype is not None:
            self.dtypes[place] = dtype

    def operand(self, operand: Operand, reader: str) -> Any:
        """The view of memory that an operand is."""
        place = operand.kind, operand.source
        if place not in self.values:
            fail("(ii)", f"{reader} reads {operand} before it is made")
        value = self.values[place]
        if operand.view is None or not isinstance(value, Tensor):
            return value
        return self.viewed(value, operand.view, f"{reader}: {operand}")

    def viewed(self, value: Tensor, view: View, what: str) -> Tensor:
        start = value.storage_offset() + view.offset
        end = start + extent_of(view.shape, view.stride)
        size = value.untyped_storage().nbytes() // value.element_size()
        if start < 0 or end > size or min(view.stride, default=0) < 0:
            fail("contract", f"{what} lies outside of its storage")
        return value.as_strided(view.shape, view.stride, start)

    def same(self, found: Any, expected: Any, rule: str, what: str) -> None:
        """Raise where memory holds other elements than it should: (ii) where it holds none."""
        if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
            if found is not expected:
                fail("contract", f"{what} is not the value of the program")
            return
        if found.shape != expected.shape:
            shapes = f"{list(found.shape)}, not {list(expected.shape)}"
            fail("contract", f"{what} has shape {shapes}")
        if identical(found, expected) or torch.equal(found, expected):
            return
        wrong = found != expected
        unset = wrong & (found == POISON)
        if unset.any():
            rule, wrong = "(ii)", unset
        at = tuple(wrong.nonzero()[0].tolist())
        holds, needs = (self.reference.describe(int(t[at])) for t in (found, expected))
        fail(rule, f"{what} holds {holds} at {list(at)}, where the program has {needs}")

    def rule_of(self, value: Any) -> str:
        """The rule that a wrong value in this memory breaks: (iv) where versions differ."""
        for number in self.updates:
            held = self.values["input", number]
            if isinstance(value, Tensor) and isinstance(held, Tensor) and shared(value, held):
                return "(iv)"
        return "(i)"


def fail(rule: str, reason: str) -> NoReturn:
    raise errors.PlanCheckError(rule, reason)


def place_of(operand: Operand) -> Place:
    return operand.kind, operand.source


def dtype_of(node: Any) -> torch.dtype | None:
    """The dtype of a node's tensor; that of its operand where the step made it without one."""
    while isinstance(node, fx.Node):
        value = value_of(node)
        if value is not None:
            return value.dtype if isinstance(value, Tensor) else None
        node = node.args[0] if node.args else None
    return None


def placeholders(step: Step) -> list[fx.Node]:
    return [n for n in step.graph.graph.nodes if n.op == "placeholder"]


def computes(node: fx.Node, program: Program) -> bool:
    """A compute operator of the program, or a step's copy of one."""
    origin = node.meta.get("origin", node)
    return (
        node.op == "call_function"
        and origin.graph is program.graph_module.graph
        and origin not in program.movements
        and not is_movement_target(origin)
    )

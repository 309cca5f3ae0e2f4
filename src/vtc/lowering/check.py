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
import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from vtc import errors
from vtc.graph.movement import is_movement_target
from vtc.graph.program import InputView, Program, is_tensor, value_of
from vtc.lowering.identities import POISON, Identities, arguments, moved
from vtc.lowering.schedule import Operand, Schedule, Step, View
from vtc.lowering.storage import alike, extent_of, identical, overlap, shared

logger = logging.getLogger(__name__)
aten = torch.ops.aten

LIMIT = 2**29
"""Elements beyond which a program is not simulated (4 bytes each, at most twice)."""

Place = tuple[str, int | str]


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
    _Simulation(schedule, program, Identities(program, tokens, tables)).run()


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
    viewed = set()
    for step in schedule.steps:
        for operand, node in zip(step.operands, _placeholders(step), strict=False):
            if operand.kind == "input":
                readers[int(operand.source)] += [(node, user) for user in node.users]
                if operand.view is not None:
                    viewed.add(int(operand.source))
    tokens, tables = set(), set()
    for i, uses in readers.items():
        rest = [(n, u) for n, u in uses if not _computes(u, program)]
        if i in viewed or not is_tensor(program.inputs[i]):
            continue
        if not rest:
            tokens.add(program.inputs[i])
        elif all(u.target is aten.embedding.default and u.args[1] is not n for n, u in rest):
            tables.add(program.inputs[i])
    return tokens, tables


def _computes(node: fx.Node, program: Program) -> bool:
    """A compute operator of the program, or a step's copy of one."""
    origin = node.meta.get("origin", node)
    return (
        node.op == "call_function"
        and origin.graph is program.graph_module.graph
        and origin not in program.movements
        and not is_movement_target(origin)
    )


def _placeholders(step: Step) -> list[fx.Node]:
    return [n for n in step.graph.graph.nodes if n.op == "placeholder"]


class _Simulation:
    """Memory by input, buffer and result, and what the program says that it should hold."""

    def __init__(self, schedule: Schedule, program: Program, reference: Identities) -> None:
        self.schedule, self.program, self.reference = schedule, program, reference
        self.updates = dict(program.updates)
        self.memory: dict[Place, Any] = {}
        self.dtypes: dict[Place, torch.dtype] = {}
        self.written = {
            (s.operands[k].kind, s.operands[k].source) for s in schedule.steps for k in s.stores
        }
        for i, node in enumerate(program.inputs):
            self._keep(("input", i), reference.values[node], _dtype(node))
        for buffer in schedule.buffers:
            extent = extent_of(buffer.shape, buffer.stride)
            storage = torch.full((extent,), POISON, dtype=torch.int32)
            memory = storage.as_strided(buffer.shape, buffer.stride)
            self._keep(("buffer", buffer.name), memory, buffer.dtype)

    def _keep(self, place: Place, value: Any, dtype: torch.dtype | None) -> None:
        if isinstance(value, Tensor) and place in self.written:
            storage = value.untyped_storage().clone()
            value = torch.empty(0, dtype=value.dtype).set_(
                storage, value.storage_offset(), value.shape, value.stride()
            )
        self.memory[place] = value
        if dtype is not None:
            self.dtypes[place] = dtype

    def run(self) -> None:
        for step in self.schedule.steps:
            _StepRun(self, step).run()
        for number, node in self.program.updates:
            self.same(
                self.memory["input", number], self.reference.values[node], "(v)",
                f"after the last step, updated input {self.program.inputs[number].name}",
            )  # fmt: skip
        self._check_outputs()

    # Operands.

    def operand(self, operand: Operand, reader: str) -> Any:
        """The view of memory that an operand is."""
        place = operand.kind, operand.source
        if place not in self.memory:
            fail("(ii)", f"{reader} reads {operand} before it is made")
        value = self.memory[place]
        if operand.view is None or not isinstance(value, Tensor):
            return value
        return self._viewed(value, operand.view, f"{reader}: {operand}")

    def _viewed(self, value: Tensor, view: View, what: str) -> Tensor:
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
            held = self.memory["input", number]
            if isinstance(value, Tensor) and isinstance(held, Tensor) and shared(value, held):
                return "(iv)"
        return "(i)"

    # Outputs.

    def _check_outputs(self) -> None:
        if len(self.schedule.outputs) != len(self.program.outputs):
            fail("contract", "the schedule returns another number of values than the program")
        found = [self._output(o) for o in self.schedule.outputs]
        for k, (out, value) in enumerate(zip(self.program.outputs, found, strict=True)):
            if not isinstance(out, fx.Node):
                if value is not out and value != out:
                    fail("contract", f"output {k} is {value}, not {out}")
                continue
            expected, place = self.reference.values[out], self.schedule.outputs[k]
            self.same(value, expected, self.rule_of(value), f"output {k} ({out.name})")
            if isinstance(place, Operand) and self.dtypes.get(_place(place)) != _dtype(out):
                fail("contract", f"output {k} ({out.name}) has another dtype")
        self._check_sharing(found)

    def _output(self, out: Any) -> Any:
        if isinstance(out, Operand):
            return self.operand(out, "the return")
        if isinstance(out, InputView):
            view = View(out.size, out.stride, out.offset)
            return self._viewed(self.memory["input", out.input], view, "the returned view")
        return out

    def _check_sharing(self, found: Sequence[Any]) -> None:
        """Outputs share memory with inputs and with each other only where eager's do."""
        names = [
            o.name if isinstance(o, fx.Node) and k not in self.program.aliases else None
            for k, o in enumerate(self.program.outputs)
        ]
        own = {
            k: (value, self.reference.values[self.program.outputs[k]])
            for k, value in enumerate(found)
            if names[k] is not None and isinstance(value, Tensor)
        }
        for (k, (value, expected)), i in itertools.product(own.items(), self.updates):
            held = self.memory["input", i]
            if isinstance(held, Tensor) and overlap(value, held):
                original = self.reference.values[self.program.inputs[i]]
                if not shared(expected, original):
                    name = self.program.inputs[i].name
                    fail("(v)", f"output {k} ({names[k]}) lies in updated input {name}")
        for (k, (value, a)), (n, (other, b)) in itertools.combinations(own.items(), 2):
            if overlap(value, other) and not shared(a, b):
                fail("(v)", f"outputs {k} ({names[k]}) and {n} ({names[n]}) share memory")


class _StepRun:
    """One step on identities."""

    def __init__(self, simulation: _Simulation, step: Step) -> None:
        self.simulation, self.step = simulation, step
        self.reference = simulation.reference
        self.values: dict[fx.Node, Any] = {}
        self.placeholders = _placeholders(step)

    def run(self) -> None:
        step, simulation = self.step, self.simulation
        if len(self.placeholders) != len(step.operands):
            fail("contract", f"{step.name} takes {len(self.placeholders)} operands")
        for node, operand in zip(self.placeholders, step.operands, strict=True):
            self.values[node] = simulation.operand(operand, step.name)
            self._check_placeholder(node, operand)
        self._check_overlaps()
        for node in step.graph.graph.nodes:
            if node.op == "output":
                self._results(node)
            elif node.op != "placeholder":
                self.values[node] = self._value(node)

    def _results(self, output: fx.Node) -> None:
        values = output.args[0]
        if not isinstance(values, list | tuple) or len(values) != len(self.step.results):
            fail("contract", f"{self.step.name} does not return {', '.join(self.step.results)}")
        for name, node in zip(self.step.results, values, strict=True):
            if isinstance(node, fx.Node):
                self.simulation._keep(("result", name), self.values[node], _dtype(node))

    def _check_placeholder(self, node: fx.Node, operand: Operand) -> None:
        """The example that the step is compiled with is like what it is called with."""
        example = value_of(node)
        if not isinstance(example, Tensor):
            return
        what = f"{self.step.name} is compiled for {operand} with"
        expected: Any = self.values[node]
        if operand.kind == "input" and operand.view is None:
            expected = value_of(self.simulation.program.inputs[int(operand.source)])
        if tuple(example.shape) != tuple(expected.shape):
            fail("contract", f"{what} shape {tuple(example.shape)}, not {tuple(expected.shape)}")
        if operand.kind != "result" and not alike(example, expected):
            fail("contract", f"{what} strides {example.stride()}, not {expected.stride()}")
        dtype = self.simulation.dtypes.get(_place(operand))
        if example.dtype != dtype:
            fail("contract", f"{what} {example.dtype}, not {dtype}")

    def _check_overlaps(self) -> None:
        """Inductor compiles for operands of which none that is stored into overlaps another; a
        library kernel may not even read the view that it stores into."""
        step = self.step
        library = step.implementation == "library"
        tensors = [self.values[n] for n in self.placeholders]
        live = self._live()
        for k in step.stores:
            operand = step.operands[k]
            if operand.kind == "input" and operand.source not in self.simulation.updates:
                fail("(v)", f"{step.name} stores into {operand}, which the program does not update")
            for n, other in enumerate(tensors):
                stored = n in step.stores
                if not isinstance(other, Tensor) or not overlap(tensors[k], other):
                    continue
                if n != k and stored:
                    fail("(iii)", f"{step.name} stores into {operand} and {step.operands[n]}")
                if (n != k or library) and self.placeholders[n] in live:
                    reads = f"reads {step.operands[n]} and stores into {operand}"
                    fail("(iv)", f"{step.name} {reads}, which overlap")

    def _live(self) -> set[fx.Node]:
        """The nodes whose values reach a compute operator, a store or a result."""
        movements = self.simulation.program.movements
        live: set[fx.Node] = set()
        stack: list[fx.Node] = []
        for node in self.step.graph.graph.nodes:
            if node.target is aten.copy_.default:
                stack.append(node.args[1])
            elif node.op == "output" or _computes(node, self.simulation.program):
                last = len(node.args) - (self.step.implementation == "library")
                reads = node.args if node.op == "output" else (*node.args[:last], node.kwargs)
                stack += [n for n in pytree.tree_leaves(reads) if isinstance(n, fx.Node)]
        while stack:
            node = stack.pop()
            if node in live:
                continue
            live.add(node)
            if "origin" in node.meta or node.target is not aten.full_like.default:
                stack += moved(node, movements.get(node.meta.get("origin", node)))
        return live

    # Operators.

    def _value(self, node: fx.Node) -> Any:
        if node.target is aten.copy_.default:
            return self._store(node.args[0], self.values[node.args[1]], _dtype(node.args[1]))
        if node.target is aten.full_like.default and "origin" not in node.meta:
            like, fill = node.args
            return torch.full_like(self.values[like], self.reference.fill(fill))
        origin = node.meta.get("origin")
        if origin is None and "repeats" in node.meta:
            return None  # a part of a call on grouped heads: checked with its last part
        if origin is None:
            return self._move(node, node)
        if node.target is operator.getitem and not isinstance(self.values[node.args[0]], fx.Node):
            return self.values[node.args[0]][node.args[1]]
        if origin in self.simulation.program.movements or is_movement_target(origin):
            return self._move(node, origin)
        if self.step.implementation == "library":
            return self._library(node, origin)
        if "repeats" in node.meta:
            self._grouped(node, origin)
        else:
            self._check_call(node, origin)
        return self.reference.values[origin]

    def _move(self, node: fx.Node, origin: fx.Node) -> Any:
        bound = self.simulation.program.movements.get(origin)
        reference = self.reference

        def index(value: Any, table: fx.Node) -> None:
            self._same(value, reference.values[table], f"{node.name} reads {table.name}, which")

        args, kwargs = arguments(node, bound, self.values.__getitem__, reference.indices, index)
        try:
            return reference.move(node.target, args, kwargs, bound)
        except (RuntimeError, TypeError, IndexError) as error:
            reason = str(error).splitlines()[0]
            fail("contract", f"{node.name} of {self.step.name} does not run: {reason}")

    def _store(self, target: Any, value: Any, dtype: torch.dtype | None) -> Tensor:
        step = self.step
        numbers = [k for k in step.stores if self.placeholders[k] is target]
        if not numbers:
            fail("contract", f"{step.name} stores into {target}, which is not among its stores")
        operand, memory = step.operands[numbers[0]], self.values[target]
        if memory.shape != value.shape:
            shapes = f"{list(value.shape)} into {list(memory.shape)}"
            fail("contract", f"{step.name} stores {shapes} at {operand}")
        if dtype != self.simulation.dtypes.get(_place(operand)):
            fail("contract", f"{step.name} stores {dtype} into {operand}")
        memory.copy_(value.clone())
        return memory

    def _library(self, node: fx.Node, origin: fx.Node) -> None:
        *reads, target = node.args
        self._pairs(origin.name, reads, [a for a in origin.args if isinstance(a, fx.Node)])
        value = self.reference.values[origin]
        self._store(target, value.reshape(self.values[target].shape), _dtype(origin))

    def _check_call(self, node: fx.Node, origin: fx.Node) -> None:
        """The same operator with the same arguments, on the elements that the program gives it."""
        if node.target is not origin.target:
            fail("contract", f"{node.name} runs {node.target}, not {origin.target}")
        found, expected = (pytree.arg_tree_leaves(*n.args, **n.kwargs) for n in (node, origin))
        self._pairs(origin.name, found, expected)

    def _pairs(self, name: str, found: Sequence[Any], expected: Sequence[Any]) -> None:
        if len(found) != len(expected):
            fail("contract", f"{name} has {len(found)} arguments in {self.step.name}")
        for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            what = f"argument {k} of {name} in {self.step.name}"
            if isinstance(ours, fx.Node) and isinstance(theirs, fx.Node):
                self._same(self.values[ours], self.reference.values[theirs], what)
            elif ours is not theirs and ours != theirs:
                fail("contract", f"{what} is {ours}, not {theirs}")

    def _same(self, found: Any, expected: Any, what: str) -> None:
        if isinstance(expected, tuple):
            for one, other in zip(found, expected, strict=True):
                self._same(one, other, what)
            return
        self.simulation.same(found, expected, self.simulation.rule_of(found), what)

    def _grouped(self, node: fx.Node, origin: fx.Node) -> None:
        """A call on heads that are not repeated; see `libraries.grouped_call`."""
        repeats = node.meta["repeats"]
        if node.target is origin.target:
            if node.kwargs != {**origin.kwargs, "enable_gqa": True}:
                fail("contract", f"{origin.name} is called with {dict(node.kwargs)}")
            given, grouped = list(node.args), {1, 2}
        else:
            product = node.args[0]
            left, right = product.args
            given, grouped = [left.args[0], right], {1}
            *batch, heads, rows, inner = self.values[given[0]].shape
            merged = [*batch, heads // repeats, repeats * rows, inner]
            if list(left.args[1]) != merged:
                fail("contract", f"{origin.name} does not merge the rows of its {repeats} heads")
        for k, (ours, theirs) in enumerate(zip(given, origin.args, strict=True)):
            what = f"argument {k} of {origin.name} in {self.step.name}"
            if not isinstance(ours, fx.Node):
                if ours != theirs:
                    fail("contract", f"{what} is {ours}, not {theirs}")
                continue
            value = self.values[ours]
            if k in grouped:
                value = value.repeat_interleave(repeats, dim=-3)
            self._same(value, self.reference.values[theirs], what)


def fail(rule: str, reason: str) -> NoReturn:
    raise errors.PlanCheckError(rule, reason)


def _place(operand: Operand) -> Place:
    return operand.kind, operand.source


def _dtype(node: Any) -> torch.dtype | None:
    """The dtype of a node's tensor; that of its operand where the step made it without one."""
    while isinstance(node, fx.Node):
        value = value_of(node)
        if value is not None:
            return value.dtype if isinstance(value, Tensor) else None
        node = node.args[0] if node.args else None
    return None

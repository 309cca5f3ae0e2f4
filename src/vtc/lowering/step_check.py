"""One step of a schedule carried out on element identities, operator by operator."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from vtc.graph.movement import is_movement_target
from vtc.graph.program import value_of
from vtc.lowering.identities import arguments, moved
from vtc.lowering.memory import Memory, computes, dtype_of, fail, place_of, placeholders
from vtc.lowering.schedule import Operand, Step
from vtc.lowering.storage import alike, overlap

aten = torch.ops.aten


class StepRun:
    """One step on identities."""

    def __init__(self, memory: Memory, step: Step) -> None:
        self.memory, self.step = memory, step
        self.reference = memory.reference
        self.values: dict[fx.Node, Any] = {}
        self.placeholders = placeholders(step)

    def run(self) -> None:
        step, memory = self.step, self.memory
        if len(self.placeholders) != len(step.operands):
            fail("contract", f"{step.name} takes {len(self.placeholders)} operands")
        for node, operand in zip(self.placeholders, step.operands, strict=True):
            self.values[node] = memory.operand(operand, step.name)
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
                self.memory.keep(("result", name), self.values[node], dtype_of(node))

    def _check_placeholder(self, node: fx.Node, operand: Operand) -> None:
        """The example that the step is compiled with is like what it is called with."""
        example = value_of(node)
        if not isinstance(example, Tensor):
            return
        what = f"{self.step.name} is compiled for {operand} with"
        expected: Any = self.values[node]
        if operand.kind == "input" and operand.view is None:
            expected = value_of(self.memory.program.inputs[int(operand.source)])
        if tuple(example.shape) != tuple(expected.shape):
            fail("contract", f"{what} shape {tuple(example.shape)}, not {tuple(expected.shape)}")
        if operand.kind != "result" and not alike(example, expected):
            fail("contract", f"{what} strides {example.stride()}, not {expected.stride()}")
        dtype = self.memory.dtypes.get(place_of(operand))
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
            if operand.kind == "input" and operand.source not in self.memory.updates:
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
        movements = self.memory.program.movements
        live: set[fx.Node] = set()
        stack: list[fx.Node] = []
        for node in self.step.graph.graph.nodes:
            if node.target is aten.copy_.default:
                stack.append(node.args[1])
            elif node.op == "output" or computes(node, self.memory.program):
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
            return self._store(node.args[0], self.values[node.args[1]], dtype_of(node.args[1]))
        if node.target is aten.full_like.default and "origin" not in node.meta:
            like, fill = node.args
            return torch.full_like(self.values[like], self.reference.fill(fill))
        origin = node.meta.get("origin")
        if origin is None and ("repeats" in node.meta or "transposed" in node.meta):
            return None  # a part of a call that is made another way: checked with its last part
        if origin is None:
            return self._move(node, node)
        if node.target is operator.getitem and not isinstance(self.values[node.args[0]], fx.Node):
            return self.values[node.args[0]][node.args[1]]
        if origin in self.memory.program.movements or is_movement_target(origin):
            return self._move(node, origin)
        if self.step.implementation == "library":
            return self._library(node, origin)
        if "repeats" in node.meta:
            self._grouped(node, origin)
        elif "transposed" in node.meta:
            self._transposed(node, origin)
        else:
            self._check_call(node, origin)
        return self.reference.values[origin]

    def _move(self, node: fx.Node, origin: fx.Node) -> Any:
        bound = self.memory.program.movements.get(origin)
        reference = self.reference

        def index(value: Any, table: fx.Node) -> None:
            if value_of(origin).numel() == 0:
                return  # no element depends on it
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
        operand, held = step.operands[numbers[0]], self.values[target]
        if held.shape != value.shape:
            shapes = f"{list(value.shape)} into {list(held.shape)}"
            fail("contract", f"{step.name} stores {shapes} at {operand}")
        if dtype != self.memory.dtypes.get(place_of(operand)):
            fail("contract", f"{step.name} stores {dtype} into {operand}")
        held.copy_(value.clone())
        return held

    def _library(self, node: fx.Node, origin: fx.Node) -> None:
        *reads, target = node.args
        self._pairs(origin.name, reads, [a for a in origin.args if isinstance(a, fx.Node)])
        value = self.reference.values[origin]
        self._store(target, value.reshape(self.values[target].shape), dtype_of(origin))

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
        self.memory.same(found, expected, self.memory.rule_of(found), what)

    def _transposed(self, node: fx.Node, origin: fx.Node) -> None:
        """A linear operator with the weight on the left; see `libraries.transposed_call`."""
        rows, product = node.meta["transposed"]
        given = [rows.args[0], product.args[0]]
        given += [node.args[1]] if node.target is aten.add.Tensor else []
        expected = [a for a in origin.args if a is not None]
        for k, (ours, theirs) in enumerate(zip(given, expected, strict=True)):
            what = f"argument {k} of {origin.name} in {self.step.name}"
            self._same(self.values[ours], self.reference.values[theirs], what)

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

"""Programs bound to their weights: what stays from call to call is looked up once.

A program whose sizes are all known, and whose weights are constants of the graph (they are frozen,
or the model is exported), runs the same words on the same addresses in each call, but for its
arguments and results. A call is then one native check that no weight has changed, the allocation
of what the program makes, and the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vtc import errors
from vtc.lowering.dvm.plan import CPU, ModuleStep, Plan
from vtc.runtime.dvm import Program, counters
from vtc.runtime.dvm_text import Writer, allocated, stage_symbols
from vtc.runtime.prepack import Copy
from vtc.runtime.signature import TensorFacts
from vtc.runtime.unchanged import watch
from vtc.vm.machine import Bound as BoundCall
from vtc.vm.machine import Encoded, Machine


def can_be_bound(program: Program) -> bool:
    """Are all sizes of the program known, on a CPU, and its machine the native one?"""
    plan = program.plan
    modules = [s for s in plan.steps if isinstance(s, ModuleStep)]
    return (
        plan.device == CPU
        and not plan.symbols
        and not any(stage_symbols(plan, step) for step in modules)
        and all(isinstance(m, Machine) for m in program.machines.values())
    )


@dataclass(frozen=True, eq=False)
class _State:
    """Calls of the modules' programs, as of the weights that `unchanged` looks at. copies: the
    prepacked operands that they read."""

    unchanged: Callable[[], bool]
    calls: tuple[BoundCall, ...]
    copies: tuple[Copy, ...]


class Bound:
    """A program that can be bound, called on the graph's inputs but for the constants.

    Weights that were changed in place, or lie elsewhere, are packed and bound again before the next
    call: a change is seen by address and layout, and by the version of those that are packed; the
    others are read where they lie. `names` are those of the first constants, the weights; raises
    WeightsChangedError for one that got another shape, layout, dtype or device.
    """

    def __init__(self, program: Program, names: Sequence[str]) -> None:
        self.program, self.plan = program, program.plan
        self.names = tuple(names)
        self.facts = tuple(map(TensorFacts.of, self.plan.constants[: len(names)]))
        self.encodings: dict[int, Encoded] = {}
        self.state: _State | None = None
        writer = _BoundWriter(self.plan)
        self.source, names_used = writer.text()
        self.open = writer.open
        names_used["counters"] = counters
        exec(compile(self.source, "<vtc bound program>", "exec"), names_used)
        self.run: Callable[..., tuple[Any, ...]] = names_used["run"]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        state = self.state
        if state is None or not state.unchanged():
            try:
                state = self.renewed()
            except NotImplementedError:
                # What cannot be encoded, the program runs otherwise.
                return self.program(*inputs)
        return self.run(state.calls, *inputs)

    def renewed(self) -> _State:
        """The state as of the weights now."""
        with self.program.lock:
            if self.state is not None and self.state.unchanged():
                return self.state
            self.state = None  # it may keep copies that nobody needs
            for k in self.program.machines.keys() - self.encodings:
                self.encodings[k] = self.program.machines[k].encode(())  # type: ignore[assignment]
                counters.encodes += 1
            unchanged = self._watch()  # from here on a change is seen by the next call
            weights = zip(self.names, self.plan.constants, self.facts, strict=False)
            for name, weight, facts in weights:
                if TensorFacts.of(weight) != facts:
                    raise errors.WeightsChangedError(name)
            copies: dict[int, Copy] = {}
            calls = tuple(self._bound(k, copies) for k in self.program.machines)
            self.state = _State(unchanged, calls, tuple(copies.values()))
            return self.state

    def _watch(self) -> Callable[[], bool]:
        plan = self.plan
        packed = {
            number
            for k, encoded in self.encodings.items()
            for own in self._prepacked(k, encoded)
            for number in self.program.operands[own].numbers
        }
        counted = [plan.inputs + k in packed for k in range(len(plan.constants))]
        own = zip(plan.constants, counted, strict=True)
        if any(packed and tensor.is_inference() for tensor, packed in own):
            return lambda: False  # inference tensors count no versions
        return watch(plan.constants, counted)

    def _prepacked(self, k: int, encoded: Encoded) -> Iterator[int]:
        """The numbers of the operands that an encoding uses."""
        step = self.plan.steps[k]
        assert isinstance(step, ModuleStep)
        for number, used in zip(step.spaces, encoded.used, strict=True):
            if used and number is not None and self.plan.spaces[number].kind == "prepacked":
                yield self.plan.spaces[number].number

    def _bound(self, k: int, copies: dict[int, Copy]) -> BoundCall:
        """The program of step `k` at the addresses of its weights; `copies` gets what it reads."""
        step, plan = self.plan.steps[k], self.plan
        assert isinstance(step, ModuleStep)
        encoded = self.encodings[k]
        pointers = [0] * len(step.spaces)
        for b, (number, used) in enumerate(zip(step.spaces, encoded.used, strict=True)):
            if number is None or b in self.open[k]:
                continue
            space = plan.spaces[number]
            if space.kind == "input":
                pointers[b] = plan.constants[space.number - plan.inputs].data_ptr()
            elif used:
                pointers[b] = self._copy(space.number, copies).tensor.data_ptr()
        return encoded.bind(pointers, self.open[k])

    def _copy(self, number: int, copies: dict[int, Copy]) -> Copy:
        if number not in copies:
            operand = self.program.operands[number]
            constants = [self.plan.constants[n - self.plan.inputs] for n in operand.numbers]
            copies[number] = operand.copy(constants)
        return copies[number]


class _BoundWriter(Writer):
    """The text of `run(calls, *inputs)`. open: for each module step its buffers that a call brings
    or makes."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.parameters = ["calls", *self.parameters]
        self.open: dict[int, list[int]] = {}

    def _module(self, k: int, step: ModuleStep) -> None:
        for number in allocated(step):
            space = self.plan.spaces[number]
            self._allocated(number, self._tuple(space.shape), self._tuple(space.stride))
        self.open[k] = [b for b, n in enumerate(step.spaces) if n is not None and self._is_open(n)]
        spaces = [step.spaces[b] for b in self.open[k]]
        pointers = "".join(f"{self._address(n)}, " for n in spaces if n is not None)
        self.lines.append(f"calls[{len(self.open) - 1}](({pointers}))")
        self._updated(step)

    def _is_open(self, number: int) -> bool:
        space = self.plan.spaces[number]
        return space.kind == "made" or (space.kind == "input" and space.number < self.plan.inputs)

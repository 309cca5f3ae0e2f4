"""Running a DVM plan: sizes in, a known encoding out, one call for each module.

A call's sizes are looked up in a table of encodings; a new size is encoded, which is integer
arithmetic. Outputs are allocated with eager PyTorch's strides, updated inputs are written in place.
The function that does it is written out as text once a plan (`Program.source`).
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vtc import errors
from vtc.lowering.dvm.plan import CPU, ModuleStep, Plan
from vtc.program.module import Module
from vtc.program.sizes import size_value
from vtc.program.verify import verify
from vtc.runtime.dvm_text import (
    Writer,
    allocated,
    prepacked,
    stage_symbols,
    weights_of,
)
from vtc.runtime.prepack import Operand, Watched
from vtc.vm import machine
from vtc.vm.device import DeviceMachine

# Encodings that are kept of one module; the oldest are dropped.
KEPT = 1024


class Encoded(Protocol):
    """A module at known sizes."""

    @property
    def used(self) -> Sequence[bool]:
        """For each buffer, whether the program touches it."""

    def run(self, pointers: Sequence[int], params: Sequence[float]) -> None:
        """Runs it on one address a buffer, 0 for temporaries."""


class Machine(Protocol):
    """A module ready to be encoded."""

    def encode(self, sizes: Sequence[int]) -> Encoded:
        """The module at these values of its symbols."""


@dataclass
class Counters:
    """What was done since the start of the process, for tests and reports.

    captures: graphs lowered; encodes: modules encoded for a new tuple of sizes; packs: prepacked
    operands computed; compilations: machine code compiled, which this engine never does; eager:
    operators run as eager PyTorch; replays: calls that replayed a CUDA graph, which runs encodings
    and operators that are not counted.
    """

    captures: int = 0
    encodes: int = 0
    packs: int = 0
    compilations: int = 0
    eager: int = 0
    replays: int = 0

    def reset(self) -> None:
        self.captures = self.encodes = self.packs = self.compilations = self.eager = 0
        self.replays = 0


counters = Counters()


def native_machine(device: torch.device = CPU) -> Callable[[Module], Machine]:
    """The machine that runs modules on a device. Raises EngineUnavailableError where it is not
    built."""
    machine.instruction_set()
    if device.type == "cuda":
        return functools.partial(DeviceMachine, device=device)
    return machine.Machine


class Program:
    """A plan as a callable on the graph's inputs. Raises ProgramError for a malformed module.

    A call whose sizes the machine cannot encode runs by `eager`, with a warning; only if an input
    that the graph updates was written by then is the encoder's NotImplementedError raised.
    """

    def __init__(
        self,
        plan: Plan,
        make: Callable[[Module], Machine],
        eager: Callable[..., Any] | None = None,
    ) -> None:
        self.plan, self.eager = plan, eager
        modules = {k: s.module for k, s in enumerate(plan.steps) if isinstance(s, ModuleStep)}
        for module in modules.values():
            verify(module)
        self.machines = {k: make(module) for k, module in modules.items()}
        # Operands of one form share a module, which is encoded once.
        encode = functools.cache(lambda module: make(module).encode(()))
        self.operands = [Operand(own, encode, self._count_pack) for own in plan.prepacked]
        self.lock = threading.Lock()
        counters.captures += 1
        self.source, names = Writer(plan).text()
        names.update({f"prepare{k}": self._preparer(k) for k in self.machines})
        names["counters"] = counters
        exec(compile(self.source, "<vtc program>", "exec"), names)
        self.run: Callable[..., tuple[Any, ...]] = names["run"]
        warn_of(plan)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        try:
            return self.run(*args)
        except _NotEncoded as failure:
            cause = failure.__cause__
            if self.eager is None or failure.step > first_update(self.plan):
                # An input has its new value: eager PyTorch would update it twice.
                raise NotImplementedError(str(cause)) from failure  # the encoder's
            warning = errors.FallbackWarning("a call", str(cause), "eager PyTorch")
            warnings.warn(warning, stacklevel=2)
            found: tuple[Any, ...] = self.eager(*args)
            return found

    @staticmethod
    def _count_pack() -> None:
        counters.packs += 1

    @property
    def prepacked_bytes(self) -> int:
        """What is kept of prepacked operands now."""
        return sum(o.own.bytes * len(o.copies) for o in self.operands)

    def _preparer(self, k: int) -> Callable[[dict[Any, Any], tuple[int, ...]], Any]:
        """What a module's step needs for new sizes: its encoding, and the tensors to allocate."""
        step = self.plan.steps[k]
        assert isinstance(step, ModuleStep)
        module, own = step.module, self.machines[k]
        made = [self.plan.spaces[n] for n in allocated(step)]
        names = stage_symbols(self.plan, step)
        packed = prepacked(self.plan, step)
        order = weights_of(self.plan, step)
        lock = threading.Lock()

        def prepare(memo: dict[Any, Any], values: tuple[int, ...]) -> Any:
            known = dict(zip(names, values, strict=True))
            try:
                encoded = own.encode([known[s] for s in module.symbols])
            except NotImplementedError as error:  # the encoder's, of what is beyond a machine
                raise _NotEncoded(k) from error
            counters.encodes += 1
            layouts = [
                tuple(size_value(n, known) for n in part)
                for space in made
                for part in (space.shape, space.stride)
            ]
            watched: tuple[Watched, ...] = ()
            if packed:
                wanted = [
                    self.operands[number] if used else None
                    for number, used in zip(packed, encoded.used, strict=False)
                ]
                watched = (Watched(wanted, order, self.lock),)
            found = (encoded.run, *watched, *layouts)
            with lock:  # threads may meet new sizes at once
                if len(memo) >= KEPT:
                    memo.pop(next(iter(memo)))
                memo[values] = found
            return found

        return prepare


class _NotEncoded(Exception):  # noqa: N818 - a finding about a call's sizes
    """The module of step `step` cannot be encoded for these sizes."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def first_update(plan: Plan) -> int:
    """The first step that writes an input."""
    for k, step in enumerate(plan.steps):
        if isinstance(step, ModuleStep):
            inputs = [n is not None and plan.spaces[n].kind == "input" for n in step.spaces]
            kernels = step.module.kernels()
            if any(
                i.op == "store" and i.access and inputs[i.access.buffer]
                for kernel in kernels
                for i in kernel.body
            ):
                return k
    return len(plan.steps)


def warn_of(plan: Plan) -> None:
    """One warning an operator that runs eagerly though its result's size is known."""
    for name in dict.fromkeys(plan.eager):
        if name not in plan.splits:
            reason = "the DVM has no kernel for it"
            warnings.warn(errors.FallbackWarning(name, reason, "eager PyTorch"), stacklevel=4)

"""Running a DVM plan: sizes in, a known encoding out, one call for each module.

A call's sizes are looked up in a table of encodings; a new size is encoded, which is integer
arithmetic. Outputs are allocated with eager PyTorch's strides, updated inputs are written in place.
The function that does it is written out as text once a plan (`Program.source`).
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from vtc import errors
from vtc.index import Size
from vtc.lowering.dvm.plan import CPU, EagerStep, ModuleStep, Plan, ScalarRef, TensorRef
from vtc.program.module import Module
from vtc.program.sizes import size_value
from vtc.program.verify import verify
from vtc.runtime.prepack import Operand, Watched
from vtc.vm import machine
from vtc.vm.device import DeviceMachine

# Where an empty tensor is said to be; nothing is read or written there.
NOWHERE = torch.empty(64, dtype=torch.uint8)

# What Inductor's code allocates with, past the dispatcher; None in releases that lack it.
ALLOCATE = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)

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
    operators run as eager PyTorch.
    """

    captures: int = 0
    encodes: int = 0
    packs: int = 0
    compilations: int = 0
    eager: int = 0

    def reset(self) -> None:
        self.captures = self.encodes = self.packs = self.compilations = self.eager = 0


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
    that the graph updates was written by then is NotImplementedError raised.
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
        self.source, names = _Writer(plan).text()
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
                raise NotImplementedError(str(cause)) from failure
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
            except NotImplementedError as error:
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


def allocated(step: ModuleStep) -> list[int]:
    """The spaces that the module is the first to write."""
    return [
        space
        for buffer, space in zip(step.module.buffers, step.spaces, strict=True)
        if buffer.kind == "output" and space is not None
    ]


def updates(plan: Plan, step: ModuleStep) -> list[int]:
    """The spaces of the caller's tensors that a module writes."""
    stores = (i.access for k in step.module.kernels() for i in k.body if i.op == "store")
    spaces = (step.spaces[b] for b in sorted({a.buffer for a in stores if a is not None}))
    return [n for n in spaces if n is not None and plan.spaces[n].kind == "input"]


def prepacked(plan: Plan, step: ModuleStep) -> list[int]:
    """The numbers of the prepacked operands of a module, whose buffers are its first."""
    kinds = [None if n is None else plan.spaces[n] for n in step.spaces]
    found = [s.number for s in kinds if s is not None and s.kind == "prepacked"]
    assert all(s is not None and s.kind == "prepacked" for s in kinds[: len(found)])
    return found


def weights_of(plan: Plan, step: ModuleStep) -> list[int]:
    """The inputs from which the prepacked operands of a module are computed."""
    sources = (n for k in prepacked(plan, step) for n in plan.prepacked[k].sources)
    return sorted({n for n in sources if n >= 0})


def stage_symbols(plan: Plan, step: ModuleStep) -> list[str]:
    """The symbols that a module and the tensors it allocates depend on, sorted."""
    found = set(step.module.symbols)
    for number in allocated(step):
        space = plan.spaces[number]
        for size in (*space.shape, *space.stride):
            if isinstance(size, sympy.Expr):
                found |= {str(s) for s in size.free_symbols}
    return sorted(found)


class _Writer:
    """The text of `run(*inputs)`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: list[str] = []
        self.defined: set[int] = set()
        self.sized: set[str] = set()
        self.bounds = list(plan.bounds)
        self.laid_out = laid_out(plan)
        self.plain = plan.device.type == "cpu" and ALLOCATE is not None
        self.names: dict[str, Any] = {
            "empty_strided": ALLOCATE if self.plain else torch.empty_strided,
            "as_strided": torch.as_strided,
            "device": plan.device,
            "math": math,  # these two in printed sizes
            "torch": torch,
        }
        self.printer = PythonPrinter()
        # What an eager call gives may itself start inside its storage; what is allocated does not.
        self.views = {
            number
            for step in plan.steps
            if isinstance(step, EagerStep)
            for _, number in step.results
        }

    def text(self) -> tuple[str, dict[str, Any]]:
        plan = self.plan
        for k, constant in enumerate(plan.constants):
            self.names[f"a{plan.inputs + k}"] = constant
        for name, number, (kind, d) in plan.symbols:
            read = {
                "value": "",
                "size": f".shape[{d}]",
                "stride": f".stride({d})",
                "offset": ".storage_offset()",
            }
            self.lines.append(f"{name} = a{number}{read[kind]}")
            self.sized.add(name)
        self._bounds()
        for number in plan.unwritten:
            space = plan.spaces[number]
            self._allocated(number, self._tuple(space.shape), self._tuple(space.stride))
        for k, step in enumerate(plan.steps):
            if isinstance(step, ModuleStep):
                self._module(k, step)
            else:
                self._eager(k, step)
                self._bounds()
        outputs = "".join(f"{self._argument(o)}, " for o in plan.outputs)
        parameters = ", ".join(f"a{i}" for i in range(plan.inputs))
        body = "\n    ".join([*self.lines, f"return ({outputs})"])
        return f"def run({parameters}):\n    {body}\n", self.names

    def _bounds(self) -> None:
        """The bounds of slices whose sizes are known by now, in the order of the program."""
        while self.bounds and self.bounds[0].needs <= self.sized:
            own = self.bounds.pop(0)
            given = (own.size, own.start, own.end, own.step)
            values = ", ".join("None" if v is None else self._size(v) for v in given)
            self.names["slice_bounds"] = slice_bounds
            self.lines.append(f"{own.begin}, {own.length} = slice_bounds({values})")
            self.sized |= {own.begin, own.length}

    def _module(self, k: int, step: ModuleStep) -> None:
        made = allocated(step)
        names = stage_symbols(self.plan, step)
        key = "".join(f"{n}, " for n in names)
        self.names[f"memo{k}"] = {}
        self.lines.append(f"key = ({key})")
        self.lines.append(f"known = memo{k}.get(key) or prepare{k}(memo{k}, key)")
        targets = "".join(f"shape{n}, stride{n}, " for n in made)
        packed = prepacked(self.plan, step)
        self.lines.append(f"call, {'packed, ' if packed else ''}{targets}= known")
        for number in made:
            self._allocated(number, f"shape{number}", f"stride{number}")
        pointers = ""
        if packed:
            # Held while the call runs, so that the copies stay.
            weights = "".join(f"a{n}, " for n in weights_of(self.plan, step))
            self.lines.append(f"ready = packed(({weights}))")
            pointers = "*ready.pointers, "
        pointers += "".join(
            "0, " if n is None else f"{self._address(n)}, " for n in step.spaces[len(packed) :]
        )
        self.lines.append(f"call(({pointers}), ())")
        updated = "".join(f"{self._space(n)}, " for n in updates(self.plan, step))
        if updated:
            # As PyTorch's own in-place operators do: whoever watches the tensor is to know.
            self.names["increment_version"] = torch.autograd.graph.increment_version
            self.lines.append(f"increment_version(({updated}))")

    def _allocated(self, number: int, shape: str, stride: str) -> None:
        self.defined.add(number)
        self.names[f"dtype{number}"] = self.plan.spaces[number].dtype.torch_dtype
        rest = f"dtype{number}"
        if not self.plain:
            rest = f"dtype={rest}, device=device"
        self.lines.append(f"t{number} = empty_strided({shape}, {stride}, {rest})")

    def _eager(self, k: int, step: EagerStep) -> None:
        self.names[f"call{k}"] = step.target
        args = [self._argument(a) for a in step.args]
        args += [f"{name}={self._argument(a)}" for name, a in step.kwargs.items()]
        self.lines.append(f"r{k} = call{k}({', '.join(args)})")
        self.lines.append("counters.eager += 1")
        for part, number in step.results:
            value = f"r{k}" if part is None else f"r{k}[{part}]"
            self.lines.append(f"t{number} = {value}")
            self.defined.add(number)
        for name, part, d in step.symbols:
            value = f"r{k}" if part is None else f"r{k}[{part}]"
            self.lines.append(f"{name} = {value}" if d < 0 else f"{name} = {value}.shape[{d}]")
            self.sized.add(name)
        for _, number in step.results:
            if number not in self.laid_out:
                continue
            space = self.plan.spaces[number]
            shape, stride = self._tuple(space.shape), self._tuple(space.stride)
            t, dtype = f"t{number}", f"dtype{number}"
            self.names[dtype] = space.dtype.torch_dtype
            self.lines.append(
                f"if {t}.stride() != {stride} or {t}.dtype is not {dtype} or {t}.shape != {shape}:"
            )
            self.lines.append(f"    {t} = planned({t}, {shape}, {stride}, {dtype}, {step.name!r})")
            self.names["planned"] = planned

    def _address(self, number: int) -> str:
        """The address of a space. An empty tensor has none, though its strides span elements."""
        space = self.plan.spaces[number]
        text = f"{self._space(number)}.data_ptr()"
        if space.kind != "input" or all(isinstance(s, int) for s in space.shape):
            return text
        self.names["nowhere"] = NOWHERE.data_ptr()
        return f"{text} or nowhere"

    def _space(self, number: int) -> str:
        space = self.plan.spaces[number]
        if space.kind == "input":
            return f"a{space.number}"
        if number not in self.defined:  # no kernel writes a tensor without elements
            self._allocated(number, self._tuple(space.shape), self._tuple(space.stride))
        return f"t{number}"

    def _argument(self, value: Any) -> str:
        if isinstance(value, TensorRef):
            return self._tensor(value)
        if isinstance(value, ScalarRef):
            return f"{self._space(value.space)}.item()"
        if isinstance(value, sympy.Basic):
            return f"({self.printer.doprint(value)})"
        if isinstance(value, list | tuple):
            inner = "".join(f"{self._argument(v)}, " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        name = f"constant{len(self.names)}"
        self.names[name] = value
        return name

    def _tensor(self, value: TensorRef) -> str:
        name = self._space(value.space)
        if value.view is None:
            return name
        shape, stride, offset = value.view
        start = self._size(offset)
        if self.plan.spaces[value.space].kind == "input" or value.space in self.views:
            start = f"{name}.storage_offset() + {start}"
        return f"as_strided({name}, {self._tuple(shape)}, {self._tuple(stride)}, {start})"

    def _tuple(self, values: Sequence[Size]) -> str:
        return f"({''.join(f'{self._size(v)}, ' for v in values)})"

    def _size(self, size: Size) -> str:
        return str(size) if isinstance(size, int) else f"({self.printer.doprint(size)})"


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """Where the slice `[start:end:step]` of `size` elements begins, and how many it has."""
    taken = range(size)[start:end:step]
    return taken.start, len(taken)


def laid_out(plan: Plan) -> set[int]:
    """The spaces whose layout something relies on: a kernel, or a view."""
    found: set[int] = set()

    def note(value: Any) -> Any:
        if isinstance(value, TensorRef) and value.view is not None:
            found.add(value.space)
        return value

    fx.node.map_aggregate(list(plan.outputs), note)
    for step in plan.steps:
        if isinstance(step, EagerStep):
            fx.node.map_aggregate((step.args, step.kwargs), note)
        else:
            found.update(n for n in step.spaces if n is not None)
    return found


def planned(
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    operator: str,
) -> torch.Tensor:
    """What an eager call gave, with the strides and the dtype that the plan was made for: PyTorch's
    fake tensors do not always say what its kernels do. Raises UnexpectedResultError for another
    shape."""
    if tensor.shape != shape:
        raise errors.UnexpectedResultError(operator, tuple(tensor.shape), shape)
    same = (s == 1 or a == b for s, a, b in zip(shape, tensor.stride(), stride, strict=True))
    if tensor.dtype is dtype and (0 in shape or all(same)):
        return tensor
    made = torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device)
    return made.copy_(tensor)

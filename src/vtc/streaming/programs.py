"""From a recorded path to a program that runs: found by its structure, or lowered once.

A structure may have several programs: each was lowered under what it took for granted of the sizes
at hand (its guards), and the first whose guards hold is used.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from vtc import errors
from vtc.graph.capture import capture
from vtc.lowering.dvm.hints import TooWide
from vtc.lowering.dvm.lower import lower
from vtc.lowering.dvm.plan import ModuleStep, Plan, TensorRef
from vtc.runtime.dvm import Program, native_machine
from vtc.streaming.structure import (
    Constant,
    Dim,
    Number,
    Own,
    Seen,
    Structure,
    refs_in,
    strides_pattern,
    structure_of,
)
from vtc.streaming.trace import Meta, Ref, State

aten = torch.ops.aten
# More structures than this, and all are forgotten.
KEPT = 4096

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program of a structure. symbols: where the values of its symbols come from: ("size", input,
    dimension), ("stride", input, dimension) or ("number", place, 0). holds: its guards, as a
    function of these values. kernels: how many it runs. shared: results in memory of an input or of
    another result, which eager PyTorch gives memory of their own."""

    program: Program
    symbols: tuple[tuple[str, int, int], ...]
    holds: Callable[..., bool]
    kernels: int
    shared: frozenset[int]

    def fits(self, structure: Structure) -> bool:
        try:
            return self.holds(*(_value(structure, *s) for s in self.symbols))
        except ZeroDivisionError:  # a guard with a quotient that is 0 now
            return False


@dataclass(frozen=True, eq=False)
class Ready:
    """A program with the numbers of a path. `numbers` follow the inputs in a call."""

    lowered: Lowered
    numbers: tuple[Any, ...]
    layouts: tuple[Meta, ...]

    @property
    def kernels(self) -> int:
        return self.lowered.kernels

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The stored tensors, laid out as PyTorch would have done."""
        found = list(self.lowered.program.run(*inputs, *self.numbers))
        for n, (tensor, layout) in enumerate(zip(found, self.layouts, strict=True)):
            if n in self.lowered.shared or tensor.stride() != layout.stride:
                made = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
                found[n] = made.copy_(tensor)
        return found


@dataclass(frozen=True, eq=False)
class Replay:
    """A path that the DVM cannot run, as the eager calls that were recorded."""

    path: tuple[State, ...]
    wanted: tuple[int, ...]
    kernels: int = 0

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        nodes: list[Tensor] = []

        def operand(ref: Ref) -> Tensor:
            return inputs[ref.number] if ref.is_input else nodes[ref.number]

        for state in self.path:
            own = state.operator
            assert own is not None
            args, kwargs = pytree.tree_map_only(Ref, operand, (own.args, own.kwargs))
            given = own.func(*args, **kwargs)
            if state.results:
                nodes += [given] if state.single else given
        return [nodes[n] for n in self.wanted]


@dataclass
class Programs:
    """The programs of all streams, by structure."""

    seen: dict[Any, Seen] = field(default_factory=dict)
    found: dict[Any, list[Lowered]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def ready(
        self, path: Sequence[State], wanted: tuple[int, ...], layouts: tuple[Meta, ...]
    ) -> tuple[Ready | Replay, bool]:
        """The program that stores the nodes `wanted`, and whether it was lowered just now."""
        structure = structure_of(path, wanted)
        with self.lock:
            if len(self.found) > KEPT:
                self.found.clear()
                self.seen.clear()
            seen = self.seen.setdefault(structure.key, Seen(list(structure.literals)))
            free = seen.changing(structure.literals)
            fixed = tuple(
                None if p in free else Constant(n) for p, n in enumerate(structure.literals)
            )
            several = self.found.setdefault((structure.key, fixed), [])
            lowered = next((one for one in several if one.fits(structure)), None)
            new = lowered is None
            if lowered is None:
                try:
                    lowered = _elsewhere(_lowered, structure, free, wanted)
                except Exception as error:  # a bug of ours must not lose the user's values
                    logger.debug("lowering failed", exc_info=True)
                    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                    told = errors.FallbackWarning("a stream's program", reason, "eager PyTorch")
                    warnings.warn(told, stacklevel=6)
                    return Replay(tuple(path), wanted), False
                several.append(lowered)
        with torch._C._DisableTorchDispatch():
            numbers = tuple(_passed(structure.literals[p]) for p in free)
        return Ready(lowered, numbers, layouts), new


def _elsewhere(function: Callable[..., Lowered], *args: Any) -> Lowered:
    """Calls the function on a new thread: in the middle of an operator the dispatcher is in a state
    that nothing can be traced in."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def _passed(number: float) -> Any:
    return number if isinstance(number, int) else torch.tensor(number, dtype=torch.float64)


def _value(structure: Structure, kind: str, number: int, dim: int) -> Any:
    if kind == "number":
        return structure.literals[number]
    meta = structure.inputs[number]
    return meta.shape[dim] if kind == "size" else meta.stride[dim]


def _lowered(structure: Structure, free: tuple[int, ...], wanted: tuple[int, ...]) -> Lowered:
    """Traces the structure on symbolic sizes, and lowers it."""
    sizes = _Sizes()
    with sizes.mode:
        fakes = [sizes.tensor(number, meta) for number, meta in enumerate(structure.inputs)]
        numbers = [sizes.number(place, structure.literals[place]) for place in free]
    module = _graph(structure, free, wanted)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = capture(module, [*fakes, *numbers])
        try:
            plan = lower(captured, rounded=True)
        except TooWide as error:
            raise errors.CaptureError("a stream", "a size of 0 or 1 stands for any") from error
        program = Program(plan, native_machine())
    kernels = sum(
        sum(1 for _ in step.module.kernels()) for step in plan.steps if isinstance(step, ModuleStep)
    )
    symbols = tuple(sizes.symbols.values())
    return Lowered(program, symbols, sizes.guards(), kernels, _shared(plan))


def _shared(plan: Plan) -> frozenset[int]:
    seen = {n for n, space in enumerate(plan.spaces) if space.kind == "input"}
    found = set()
    for number, output in enumerate(plan.outputs):
        if not isinstance(output, TensorRef) or output.space in seen:
            found.add(number)
        else:
            seen.add(output.space)
    return frozenset(found)


class _Sizes:
    """Symbols for the sizes, strides and numbers that change, and the guards of a trace."""

    def __init__(self) -> None:
        self.env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.symbols: dict[str, tuple[str, int, int]] = {}

    def symbol(self, value: int, kind: str, number: int, dim: int) -> Any:
        source = ConstantSource(f"{kind}_{number}_{dim}")
        made = self.env.create_symbol(value, source, DimDynamic.DYNAMIC, None)
        self.symbols[str(made)] = (kind, number, dim)
        return self.env.create_symintnode(made, hint=value, source=source)

    def tensor(self, number: int, meta: Meta) -> Tensor:
        shape = [
            n if n in (0, 1) else self.symbol(n, "size", number, d)
            for d, n in enumerate(meta.shape)
        ]
        form, order = strides_pattern(meta)
        stride: list[Any] = [0] * len(shape)
        if form == "dense":
            step: Any = 1
            for d in order:
                stride[d] = step
                step = step * (shape[d] if meta.shape[d] else 1)
        else:
            for d, s in enumerate(meta.stride):
                stride[d] = s if s in (0, 1) else self.symbol(s, "stride", number, d)
        return torch.empty_strided(shape, stride, dtype=meta.dtype)

    def number(self, place: int, value: int | float) -> Any:
        if isinstance(value, float):
            return torch.empty((), dtype=torch.float64)
        return self.symbol(value, "number", place, 0)

    def guards(self) -> Callable[..., bool]:
        """What was taken for granted, as a function of the symbols' values."""
        printer = PythonPrinter()
        known = set(self.symbols)
        texts = []
        for guard in self.env.guards:
            assert {str(s) for s in guard.expr.free_symbols} <= known
            texts.append(f"({printer.doprint(guard.expr)})")
        source = f"lambda {', '.join(self.symbols)}: {' and '.join(texts) or 'True'}"
        return eval(source, {"math": math})


def size_of(tensor: Tensor, dim: int) -> int:
    """A size that tracing sees as one of the tensor, where `aten.sym_size` would be a constant."""
    return tensor.shape[dim]


def _graph(structure: Structure, free: tuple[int, ...], wanted: tuple[int, ...]) -> fx.GraphModule:
    """The recorded calls as an FX graph on the inputs and the changing numbers."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"a{n}") for n in range(len(structure.inputs))]
    numbers: dict[int, Any] = {}
    for place in free:
        given = graph.placeholder(f"n{place}")
        is_float = isinstance(structure.literals[place], float)
        numbers[place] = graph.call_function(aten.item.default, (given,)) if is_float else given
    nodes: list[fx.Node] = []

    def built(value: Any, first: Any) -> Any:
        if isinstance(value, Ref):
            return inputs[value.number] if value.is_input else nodes[value.number]
        if isinstance(value, Own):
            return graph.call_function(size_of, (first, value.dim))
        if isinstance(value, Dim):
            return graph.call_function(size_of, (inputs[value.number], value.dim))
        if isinstance(value, Number):
            return numbers.get(value.place, structure.literals[value.place])
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, tuple):
            return [built(v, first) for v in value]
        return value

    for func, args, kwargs, count in structure.calls:
        first = built(next(refs_in((args, kwargs))), None)
        own_args = tuple(built(a, first) for a in args)
        own_kwargs = {name: built(v, first) for name, v in kwargs}
        call = graph.call_function(func, own_args, own_kwargs)
        if count is None:
            nodes.append(call)
        else:
            nodes += [graph.call_function(operator.getitem, (call, n)) for n in range(count)]
    graph.output(tuple(nodes[n] for n in wanted))
    return fx.GraphModule({}, graph)

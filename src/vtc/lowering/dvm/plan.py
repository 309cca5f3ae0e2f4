"""A lowered program: modules of kernels and eager calls in order, over buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sympy
import torch
from torch import fx

from vtc.index import Size
from vtc.program.dtypes import DType
from vtc.program.module import Module

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Space:
    """A piece of memory while kernels are made: whose it is, and how it is laid out.

    kind: "input", the caller's tensor `number`; "prepacked", the plan's prepacked operand
    `number`; "made", one that the program or an eager call makes.
    """

    kind: Literal["input", "prepacked", "made"]
    dtype: DType
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    number: int = 0


@dataclass(frozen=True)
class TensorRef:
    """A view of a space: sizes, strides and offset in elements; None for all of it as it is."""

    space: int
    view: tuple[tuple[Size, ...], tuple[Size, ...], Size] | None = None


@dataclass(frozen=True)
class ScalarRef:
    """The number that a space of one element holds."""

    space: int


def references(values: Any) -> list[TensorRef | ScalarRef]:
    """What nested values hold of spaces."""
    found: list[TensorRef | ScalarRef] = []

    def collect(value: Any) -> Any:
        if isinstance(value, TensorRef | ScalarRef):
            found.append(value)
        return value

    fx.node.map_aggregate(values, collect)
    return found


@dataclass(frozen=True, eq=False)
class EagerStep:
    """An operator that runs as eager PyTorch.

    args and kwargs hold TensorRefs and Sizes. results: (place, space) of each tensor result, place
    None for the only one. symbols: the size symbols that the results tell: name, place of the
    result, and the dimension (-1: the result is the number itself).
    """

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[int | None, int], ...]
    symbols: tuple[tuple[str, int | None, int], ...]


@dataclass(frozen=True)
class SliceBounds:
    """The symbols `begin` and `length` of a slice `[start:end:step]` of a dimension of `size`
    elements, for bounds of unknown sign or order: they count from the end, and are clamped, as in
    Python."""

    begin: str
    length: str
    size: Size
    start: Size | None
    end: Size | None
    step: int

    @property
    def needs(self) -> frozenset[str]:
        """The symbols that have to be known before."""
        given = (self.size, self.start, self.end)
        return frozenset(str(s) for g in given if isinstance(g, sympy.Expr) for s in g.free_symbols)


@dataclass(frozen=True, eq=False)
class ModuleStep:
    """Kernels as one program; `spaces` gives the space of each buffer that is no temporary."""

    module: Module
    spaces: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Prepacked:
    """A tensor that depends on weights alone: contiguous, computed by `module` and then kept.

    sources: for each buffer of the module the number of the graph input that it is; -1 for the
    result and for temporaries.
    """

    module: Module
    sources: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: DType

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Plan:
    """What a call does. `symbols` says where the size symbols of the inputs come from: the number
    of the input, and ("value", 0), ("size", d), ("stride", d) or ("offset", 0). outputs:
    TensorRefs, ScalarRefs, Sizes and constants. splits: eager operators that the program is meant
    to be cut at, because the size of what they give depends on data, or because a library runs them
    best. bounds: those of slices, each computed as soon as its sizes are known. device: where all
    tensors are.
    """

    inputs: int
    symbols: tuple[tuple[str, int, tuple[str, int]], ...]
    spaces: tuple[Space, ...]
    steps: tuple[ModuleStep | EagerStep, ...]
    outputs: tuple[Any, ...]
    constants: tuple[torch.Tensor, ...] = ()
    splits: frozenset[str] = frozenset()
    prepacked: tuple[Prepacked, ...] = ()
    bounds: tuple[SliceBounds, ...] = ()
    device: torch.device = CPU

    @cached_property
    def unwritten(self) -> tuple[int, ...]:
        """Spaces that are used and that no step writes: they have no elements."""
        held = [r.space for r in references(self.outputs)]
        written: set[int] = set()
        for step in self.steps:
            if isinstance(step, EagerStep):
                held += [r.space for r in references((step.args, step.kwargs))]
                written.update(space for _, space in step.results)
            else:
                buffers = zip(step.module.buffers, step.spaces, strict=True)
                written |= {n for b, n in buffers if b.kind == "output" and n is not None}
        return tuple(
            n for n in dict.fromkeys(held) if self.spaces[n].kind == "made" and n not in written
        )

    @property
    def eager(self) -> tuple[str, ...]:
        """The operators that run as eager PyTorch."""
        return tuple(s.name for s in self.steps if isinstance(s, EagerStep))

    @property
    def copies(self) -> int:
        """Kernels that only move data."""
        kernels = [
            kernel
            for step in self.steps
            if isinstance(step, ModuleStep)
            for kernel in step.module.kernels()
        ]
        moving = {"load", "store", "const", "iota"}
        return sum(all(i.op in moving for i in kernel.body) for kernel in kernels)

    def __str__(self) -> str:
        lines = []
        for number, own in enumerate(self.prepacked):
            lines.append(f"prepacked p{number}: {own.dtype}{list(own.shape)}\n{own.module}")
        for step in self.steps:
            if isinstance(step, EagerStep):
                lines.append(f"eager {step.name}")
            else:
                lines.append(str(step.module))
        return "\n".join(lines)

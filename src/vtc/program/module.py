"""A model as one program: kernels in order over numbered buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from vtc.index.sizes import Size
from vtc.program.dtypes import DType
from vtc.program.tile import (
    Access,
    Attention,
    Contraction,
    Convolution,
    Instr,
    TileKernel,
    size_text,
)

BufferKind = Literal["input", "output", "temporary"]


@dataclass(frozen=True)
class Buffer:
    """A piece of memory: `extent` elements of `dtype`.

    An input is the caller's tensor, from its first element; an output is allocated by the caller,
    and what is in it before counts for nothing; a temporary lives in the module's arena, or in an
    output's memory until that is written.
    """

    name: str
    kind: BufferKind
    dtype: DType
    extent: Size


@dataclass(frozen=True)
class Branch:
    """Run `then` if the bool at element 0 of buffer `predicate` is true, else `otherwise`.

    The predicate is read when the branch is reached: by then an earlier kernel has stored it.
    """

    predicate: int
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


Step = TileKernel | Branch


@dataclass(frozen=True)
class Module:
    """Kernels over buffers.

    symbols: the size symbols, in the order in which their values are given at encoding. params: how
    many runtime scalars (f64 values, given at each run) the kernels use.
    """

    symbols: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    params: int = 0

    def kernels(self) -> Iterator[TileKernel]:
        """Every kernel, those in branches included, in program order."""
        yield from _kernels(self.steps)

    def __str__(self) -> str:
        names = tuple(b.name for b in self.buffers)
        lines = [f"module({', '.join(self.symbols)})"]
        lines += [f"  {b.kind} {b.name}: {b.dtype}[{b.extent}]" for b in self.buffers]
        lines += _steps_text(self.steps, names, "  ")
        return "\n".join(lines)


def _kernels(steps: tuple[Step, ...]) -> Iterator[TileKernel]:
    for step in steps:
        if isinstance(step, TileKernel):
            yield step
        else:
            yield from _kernels(step.then)
            yield from _kernels(step.otherwise)


def _steps_text(steps: tuple[Step, ...], names: tuple[str, ...], indent: str) -> list[str]:
    lines = []
    for step in steps:
        if isinstance(step, TileKernel):
            lines += [indent + line for line in kernel_text(step, names)]
            continue
        lines.append(f"{indent}if {names[step.predicate]}[0]")
        lines += _steps_text(step.then, names, indent + "  ")
        lines.append(f"{indent}else")
        lines += _steps_text(step.otherwise, names, indent + "  ")
    return lines


def kernel_text(kernel: TileKernel, names: tuple[str, ...]) -> list[str]:
    """The lines of a kernel."""
    sizes = [
        size_text(size) + ("*" if d in kernel.reduced else "")
        for d, size in enumerate(kernel.sizes)
    ]
    lines = [f"kernel {kernel.name} over [{', '.join(sizes)}]"]
    for number, instr in enumerate(kernel.body):
        lines.append("  " + _instr_text(number, instr, names))
    return lines


def _instr_text(number: int, instr: Instr, names: tuple[str, ...]) -> str:
    args = ", ".join(f"%{a}" for a in instr.args)
    if instr.op == "store":
        assert instr.access is not None
        return f"store {instr.access.text(names)} = {args}"
    parts = [instr.op, str(instr.dtype)]
    if instr.access is not None:
        parts.append(instr.access.text(names))
    if instr.constant is not None:
        parts.append(_constant_text(instr.constant, names))
    if args:
        parts.append(("else " if instr.op == "load" else "") + args)
    return f"%{number} = {' '.join(parts)}"


def _constant_text(constant: object, names: tuple[str, ...]) -> str:
    if isinstance(constant, Convolution):
        return _convolution_text(constant, names)
    if not isinstance(constant, Contraction | Attention):
        return str(constant)
    parts = []
    for name, value in ((f.name, getattr(constant, f.name)) for f in fields(constant)):
        if isinstance(value, Access):
            parts.append(f"{name}={value.text(names)}")
        elif value is not None and value is not False and name != "dtype":
            parts.append(f"{name}={value}")
    return " ".join(parts)


def _convolution_text(own: Convolution, names: tuple[str, ...]) -> str:
    """`i1: 3 taps, stride 2, dilation 1, pad 1 of 56 | x[...] * w[...] k=24 + ...`; behind the
    dimensions of the domain come those of windows, and the channel."""
    windows = [
        f"{'0' if w.dim is None else f'i{w.dim}'}: {w.taps} taps, stride {w.stride}, "
        f"dilation {w.dilation}, pad {w.pad} of {w.extent}"
        for w in own.windows
    ]
    parts = [f"{p.left.text(names)} * {p.right.text(names)} k={p.k}" for p in own.parts]
    panels = [] if own.panel is None else [f"panels {own.panel}"]
    return " | ".join([*windows, *panels, " + ".join(parts)])

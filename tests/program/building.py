"""Tile programs written by hand: a kernel an instruction at a time, and modules of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vtc.index.sizes import Size
from vtc.program.dtypes import DType
from vtc.program.evaluate import evaluate
from vtc.program.module import Buffer, Module, Step
from vtc.program.scalars import SCALARS
from vtc.program.sizes import size_value
from vtc.program.tile import Access, Attention, Bound, Contraction, Instr, Panel, Term, TileKernel
from vtc.program.verify import verify


@dataclass
class Kernel:
    """A kernel being written; every method appends one instruction and gives its number."""

    name: str
    sizes: tuple[Size, ...]
    reduced: tuple[int, ...] = ()
    body: list[Instr] = field(default_factory=list)

    def emit(self, op: str, *args: int, dtype: DType = DType.F32, **more: Any) -> int:
        self.body.append(Instr(op, tuple(args), dtype, **more))
        return len(self.body) - 1

    def load(
        self,
        buffer: int,
        *stride: Size,
        offset: Size = 0,
        dtype: DType = DType.F32,
        other: int | None = None,
        terms: tuple[Term, ...] = (),
        mask: tuple[Bound, ...] = (),
    ) -> int:
        access = Access(buffer, offset, stride, terms, mask)
        args = () if other is None else (other,)
        return self.emit("load", *args, dtype=dtype.compute, access=access)

    def store(
        self,
        buffer: int,
        value: int,
        *stride: Size,
        offset: Size = 0,
        terms: tuple[Term, ...] = (),
        mask: tuple[Bound, ...] = (),
    ) -> int:
        access = Access(buffer, offset, stride, terms, mask)
        return self.emit("store", value, dtype=self.body[value].dtype, access=access)

    def const(self, value: Any, dtype: DType = DType.F32) -> int:
        return self.emit("const", dtype=dtype, constant=value)

    def param(self, number: int, dtype: DType = DType.F32) -> int:
        return self.emit("param", dtype=dtype, constant=number)

    def iota(self, dim: int) -> int:
        return self.emit("iota", dtype=DType.I64, constant=dim)

    def cast(self, value: int, dtype: DType) -> int:
        return self.emit("cast", value, dtype=dtype.compute, constant=dtype)

    def op(self, name: str, *args: int) -> int:
        """A scalar operator; its dtype is that of the last operand, or bool."""
        result = DType.BOOL if SCALARS[name].result == "bool" else self.body[args[-1]].dtype
        return self.emit(name, *args, dtype=result)

    def reduce(self, name: str, value: int) -> int:
        place = name in ("argmax", "argmin")
        dtype = DType.I64 if place else self.body[value].dtype
        return self.emit("reduce", value, dtype=dtype, constant=name)

    def scan(self, name: str, value: int) -> int:
        return self.emit("scan", value, dtype=self.body[value].dtype, constant=name)

    def matmul(
        self,
        left: Access,
        right: Access,
        k: Size,
        dtype: DType = DType.F32,
        packed: Access | None = None,
        panel: Panel | None = None,
    ) -> int:
        product = Contraction(left, right, k, dtype, packed, panel)
        return self.emit("matmul", dtype=dtype.compute, constant=product)

    def attention(self, own: Attention, dtype: DType = DType.F32) -> int:
        return self.emit("attention", dtype=dtype.compute, constant=own)

    def done(self) -> TileKernel:
        return TileKernel(self.name, self.sizes, frozenset(self.reduced), tuple(self.body))


def buffer(name: str, dtype: DType, extent: Size) -> Buffer:
    """Inputs are named x..., temporaries t..., everything else is an output."""
    kind = "input" if name.startswith("x") else "temporary" if name.startswith("t") else "output"
    return Buffer(name, kind, dtype, extent)


def module(
    *steps: Kernel | Step, buffers: list[Buffer], symbols: tuple[str, ...] = (), params: int = 0
) -> Module:
    """A verified module."""
    done = tuple(s.done() if isinstance(s, Kernel) else s for s in steps)
    made = Module(symbols, tuple(buffers), done, params)
    verify(made)
    return made


def outcome(
    made: Module,
    tensors: list[torch.Tensor | None],
    sizes: dict[str, int] | None = None,
    params: tuple[float, ...] = (),
) -> list[torch.Tensor]:
    """The outputs of the evaluator, in the order of buffers; `tensors` holds the inputs."""
    given = iter(tensors)
    all_tensors: list[torch.Tensor | None] = []
    for own in made.buffers:
        extent = size_value(own.extent, sizes or {})
        if own.kind == "input":
            all_tensors.append(next(given))
        elif own.kind == "output":
            all_tensors.append(torch.zeros(extent, dtype=own.dtype.torch_dtype))
        else:
            all_tensors.append(None)
    evaluate(made, sizes or {}, all_tensors, params)
    return [
        t
        for b, t in zip(made.buffers, all_tensors, strict=True)
        if b.kind == "output" and t is not None
    ]

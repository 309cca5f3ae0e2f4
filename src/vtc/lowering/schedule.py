"""The schedule: an arena of physical tensors and an ordered list of steps over views of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from vtc.graph.program import value_of

Implementation = Literal["inductor", "library", "kernel", "eager"]


@dataclass(frozen=True)
class Buffer:
    """An arena tensor, allocated at each call before the step that writes it first."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name}: {dtype}{list(self.shape)} stride {self.stride} on {self.device}"


@dataclass(frozen=True)
class View:
    """Sizes, strides and offset of an operand within its source, in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def __str__(self) -> str:
        return f"[{list(self.shape)}, stride {self.stride}, offset {self.offset}]"


@dataclass(frozen=True)
class Form:
    """Where an output's elements lie in its storage. Outputs of one `storage`, a number that means
    nothing by itself, are views of one tensor."""

    storage: int
    view: View


@dataclass(frozen=True)
class Symbol:
    """A symbol's value at a call: the input itself, a size of it, a stride or its offset."""

    input: int
    kind: Literal["value", "size", "stride", "offset"]
    dim: int = 0


@dataclass(frozen=True)
class Operand:
    """What a step reads or writes: an input, an arena buffer, or the result of an earlier step.

    `source` is the number of an input, the name of a buffer, or the name of a result.
    """

    kind: Literal["input", "buffer", "result"]
    source: int | str
    view: View | None = None

    def __str__(self) -> str:
        name = f"input{self.source}" if self.kind == "input" else str(self.source)
        return f"{name}{self.view or ''}"


@dataclass(frozen=True)
class Step:
    """One implementation over views of the arena.

    `graph` takes `operands` in order, stores into those numbered in `stores` by `copy_`, and
    returns a tuple, named by `results`. `regions` names what it computes. A library step's graph
    is one call.
    """

    name: str
    implementation: Implementation
    graph: fx.GraphModule
    operands: tuple[Operand, ...]
    stores: tuple[int, ...]
    results: tuple[str, ...]
    regions: tuple[str, ...]

    def __str__(self) -> str:
        reads = [str(o) for i, o in enumerate(self.operands) if i not in self.stores]
        writes = [str(self.operands[i]) for i in self.stores]
        made = ", ".join(self.results)
        text = f"{self.name} ({self.implementation}): reads {', '.join(reads)}"
        text += f"; stores into {', '.join(writes)}" if writes else ""
        return text + (f"; makes {made}" if made else "")


@dataclass(frozen=True)
class Schedule:
    """Steps in order. `outputs` holds an Operand, or a plain value that is returned as it is.

    `symbols` says how a call's inputs give each symbol of a size. `forms` are the places that eager
    PyTorch gives results among the outputs, by the number of the output, where they are known.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    names: dict[int, str] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    forms: dict[int, Form] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = ["arena:", *(f"  {b}" for b in self.buffers)] if self.buffers else []
        lines += ["steps:", *(f"  {s}" for s in self.steps)]
        return "\n".join([*lines, "return " + ", ".join(map(str, self.outputs))])


def signature(step: Step) -> str:
    """What decides a step's cost, as a key: its operators and its operands' layouts."""
    names: dict[fx.Node, str] = {}
    lines = []
    for node in step.graph.graph.nodes:
        names[node] = f"%{len(names)}"
        if node.op == "placeholder":
            value = value_of(node)
            if isinstance(value, torch.Tensor):
                start = value.storage_offset() % 16
                text = f"{value.dtype} {tuple(value.shape)} {value.stride()} {start}"
            else:
                text = repr(value)
            lines.append(f"{names[node]} {text}")
        else:
            arguments = fx.map_arg((node.args, node.kwargs), lambda n: names[n])
            lines.append(f"{names[node]} {node.target} {arguments}")
    lines.append(f"stores {step.stores}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

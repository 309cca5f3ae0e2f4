"""What an executable has to know of the captured program to return what eager PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch

from vtc.graph.program import Program, value_of
from vtc.graph.strides import known, numbers
from vtc.lowering.schedule import Form, Operand, Symbol, View


def symbols(program: Program) -> dict[str, Symbol]:
    """Where a call's inputs have the value of each symbol."""
    found: dict[str, Symbol] = {}
    for number, node in enumerate(program.inputs):
        for size, symbol in _sizes(number, value_of(node)):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                found.setdefault(str(size.node.expr), symbol)
    return found


def _sizes(number: int, value: Any) -> Iterator[tuple[Any, Symbol]]:
    """The sizes that an input tells, and how it does."""
    if not isinstance(value, torch.Tensor):
        yield value, Symbol(number, "value")
        return
    yield from ((n, Symbol(number, "size", d)) for d, n in enumerate(value.shape))
    yield from ((n, Symbol(number, "stride", d)) for d, n in enumerate(value.stride()))
    yield value.storage_offset(), Symbol(number, "offset")


def forms(program: Program, outputs: Sequence[Any]) -> dict[int, Form]:
    """The places that the results among the outputs have in eager PyTorch, where they are numbers.

    Outputs that share storage with one that is no result, or has no place, get none either.
    """
    found: dict[int, Form] = {}
    refused: set[int] = set()
    for k, (node, output) in enumerate(zip(program.outputs, outputs, strict=True)):
        value = value_of(node) if isinstance(output, Operand) else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        storage = value.untyped_storage()._cdata
        if output.kind != "result" or not known(value) or value.is_conj() or value.is_neg():
            refused.add(storage)
            continue
        (offset,) = numbers((value.storage_offset(),))
        if isinstance(offset, int):
            view = View(numbers(value.shape), numbers(value.stride()), offset)
            found[k] = Form(storage, view)
        else:
            refused.add(storage)
    return {k: form for k, form in found.items() if form.storage not in refused}

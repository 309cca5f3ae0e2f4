"""Rules of operators that make tensors, and of those that mask by coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vtc.index import sizes
from vtc.lowering.dvm.nodes import Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, rule, static
from vtc.program.dtypes import DType

aten = torch.ops.aten


def _constant(value: Any) -> Callable[..., Node]:
    def lower(own: Lowering, *_: Any, **__: Any) -> Node:
        return own.graph.broadcast(own.graph.const(value, own.dtype), own.shape)

    return lower


rule(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)(_constant(0))


@rule(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def _empty(own: Lowering, *_: Any, **__: Any) -> Node:
    """What is in a new tensor is anybody's guess, but in deterministic mode, which fills it."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    if torch.are_deterministic_algorithms_enabled() and filled:
        raise Unsupported("a tensor that deterministic mode fills")
    return _constant(0)(own)


rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(_constant(1))


@rule(aten.full.default)
def _full(own: Lowering, shape: Any, value: Any, **_: Any) -> Node:
    return own.graph.broadcast(_scalar(own, value), own.shape)


@rule(aten.full_like.default)
def _full_like(own: Lowering, x: Node, value: Any, **_: Any) -> Node:
    return own.graph.broadcast(_scalar(own, value), own.shape)


@rule(aten.new_full.default)
def _new_full(own: Lowering, x: Node, shape: Any, value: Any, **_: Any) -> Node:
    return own.graph.broadcast(_scalar(own, value), own.shape)


@rule(aten.fill.Scalar, aten.fill.Tensor)
def _fill(own: Lowering, x: Node, value: Any) -> Node:
    return own.graph.broadcast(_scalar(own, value), own.shape)


@rule(aten.scalar_tensor.default)
def _scalar_tensor(own: Lowering, value: Any, **_: Any) -> Node:
    return _scalar(own, value)


def _scalar(own: Lowering, value: Any) -> Node:
    """A number as a value of the result's dtype."""
    return own.graph.cast(own.operand(value, own.dtype), own.dtype)


@rule(aten.arange.start_step)
def _arange(own: Lowering, start: Any, end: Any, step: Any = 1, **_: Any) -> Node:
    return _sequence(own, start, step)


rule(aten.arange.default)(lambda own, end, **_: _sequence(own, 0, 1))
rule(aten.arange.start)(lambda own, start, end, **_: _sequence(own, start, 1))


def _sequence(own: Lowering, start: Any, step: Any) -> Node:
    wide = own.dtype.compute
    places = own.graph.cast(own.graph.iota(own.shape, 0), wide)
    scaled = own.op("mul", places, own.operand(step, wide)) if step != 1 else places
    found = own.op("add", scaled, own.operand(start, wide)) if start != 0 else scaled
    return own.graph.cast(found, own.dtype)


@rule(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def _linspace(own: Lowering, start: Any, end: Any, steps: Any, **_: Any) -> Node:
    return own.graph.cast(_even(own, start, end, steps), own.dtype)


@rule(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def _logspace(own: Lowering, start: Any, end: Any, steps: Any, base: Any = 10.0, **_: Any) -> Node:
    if isinstance(steps, int) and steps < 2:
        place = own.operand(start, DType.F64)  # which PyTorch does not round here
        found = own.op("pow", own.number(static(base), place), place)
        return own.graph.broadcast(own.graph.cast(found, own.dtype), own.shape)
    places = _even(own, start, end, steps)
    return own.graph.cast(own.op("pow", own.number(static(base), places), places), own.dtype)


def _even(own: Lowering, start: Any, end: Any, steps: Any) -> Node:
    """`steps` numbers from start to end, from the nearer one as PyTorch counts; both are numbers of
    the result's dtype."""
    wide = own.dtype.compute if own.dtype.is_float else DType.F64
    first, last = (own.graph.cast(_scalar(own, x), wide) for x in (start, end))
    if isinstance(steps, int) and steps < 2:
        return own.graph.broadcast(first, own.shape)
    place = own.graph.iota(own.shape, 0)
    gaps = own.graph.const(sizes.sub(steps, 1), DType.I64)
    left = own.graph.cast(own.op("sub", gaps, place), wide)
    step = own.op("div", own.op("sub", last, first), own.graph.cast(gaps, wide))
    low = own.op("add", first, own.op("mul", step, own.graph.cast(place, wide)))
    high = own.op("sub", last, own.op("mul", step, left))
    half = own.graph.const(sizes.floor_div(steps, 2), DType.I64)
    return own.op("select", own.op("lt", place, half), low, high)


def _below(own: Lowering, x: Node, diagonal: Any) -> Node:
    """column - row <= diagonal, over the last two dimensions."""
    rows, columns = x.shape[-2:]
    row = own.graph.iota((rows, 1), 0)
    column = own.graph.iota((1, columns), 1)
    limit = own.op("add", row, own.operand(diagonal, DType.I64))
    return own.op("le", column, limit)


@rule(aten.tril.default)
def _tril(own: Lowering, x: Node, diagonal: Any = 0) -> Node:
    zero = own.graph.const(False if x.dtype is DType.BOOL else 0, x.dtype.compute)
    return own.tagged(own.op("select", _below(own, x, diagonal), x, zero))


@rule(aten.triu.default)
def _triu(own: Lowering, x: Node, diagonal: Any = 0) -> Node:
    limit = own.op("sub", own.operand(diagonal, DType.I64), own.graph.const(1, DType.I64))
    zero = own.graph.const(False if x.dtype is DType.BOOL else 0, x.dtype.compute)
    return own.tagged(own.op("select", _below(own, x, limit), zero, x))


@rule(aten.eye.default, aten.eye.m)
def _eye(own: Lowering, *_: Any, **__: Any) -> Node:
    rows, columns = own.shape
    equal = own.op("eq", own.graph.iota((rows, 1), 0), own.graph.iota((1, columns), 1))
    return own.graph.cast(equal, own.dtype)


@rule(aten.one_hot.default)
def _one_hot(own: Lowering, x: Node, classes: Any = -1) -> Node:
    if isinstance(classes, int) and classes < 0:
        raise Unsupported("one_hot without a number of classes")
    # Indices out of range are errors in eager PyTorch; here they give a row of zeros.
    places = own.graph.iota((own.shape[-1],), 0)
    index = own.graph.reshape(x, [*x.shape, 1])
    return own.graph.cast(own.op("eq", index, places), DType.I64)

"""Values that are known while a model is traced: shapes, axes, sizes and small constants.

ONNX computes shapes with tensors (Shape -> Gather -> Concat -> Reshape). An imported model computes
them with Python numbers instead, so that a static shape stays static under Dynamo and a dynamic one
becomes a symbol, and no shape ever depends on the data of a tensor. A tensor takes part again where
an operator needs one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

LARGEST = 64
"""The most elements of a value that operators compute with in Python."""


class Host(NamedTuple):
    """A tensor as Python numbers: elements in row-major order, the shape, and the dtype.

    Elements are int (perhaps symbolic), float or bool.
    """

    values: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


Value = Any
"""What flows between operators: a Tensor, a Host, a list of them (a sequence), or None."""


def vector(values: Iterable[Any], dtype: torch.dtype = torch.int64) -> Host:
    held = tuple(values)
    return Host(held, (len(held),), dtype)


def scalar(value: Any, dtype: torch.dtype = torch.int64) -> Host:
    return Host((value,), (), dtype)


def constant(value: Host) -> Host:
    """The value itself, as the result of a call."""
    return value


def all_host(*values: Value) -> bool:
    return all(isinstance(v, Host) for v in values)


def computable(*values: Value) -> bool:
    """Whether arithmetic on the values is done on Python numbers: all are, and so few that a model
    cannot make them more and more."""
    if not all_host(*values):
        return False
    return math.prod(broadcast_shapes(*(v.shape for v in values))) <= LARGEST


def of_tensor(tensor: Tensor) -> Host:
    return Host(tuple(tensor.reshape(-1).tolist()), tuple(tensor.shape), tensor.dtype)


# From one kind to the other.


def tensor(value: Value, like: Tensor | None = None) -> Any:
    """The value as a tensor, or list of tensors, on the device of `like`."""
    if isinstance(value, list):
        return [tensor(v, like) for v in value]
    if not isinstance(value, Host):
        return value
    device = None if like is None else like.device
    if len(value.values) == 1:
        # A fill rather than a literal: generated code then holds the number itself.
        return torch.full(value.shape, value.values[0], dtype=value.dtype, device=device)
    made = torch.tensor(value.values, dtype=value.dtype, device=device)
    return made if len(value.shape) == 1 else made.reshape(value.shape)


def tensors(*values: Value) -> list[Any]:
    """The values as tensors, on the device of the first that is one already."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    return [tensor(v, like) for v in values]


def numbers(value: Value) -> list[Any]:
    """The elements as Python numbers. Reading them from a tensor waits for the device, and ends the
    graph under Dynamo."""
    if isinstance(value, Host):
        return list(value.values)
    return list(value.reshape(-1).tolist())


def ints(value: Value) -> list[int]:
    return numbers(value)


def optional_ints(value: Value) -> list[int] | None:
    return None if value is None else numbers(value)


def number(value: Value, default: Any = None) -> Any:
    """The one element of a value, `default` for one that is absent."""
    return default if value is None else numbers(value)[0]


def operand(value: Value, other: Value) -> Any:
    """A second operand of arithmetic with the tensor `other`: a Python number where a Host has one
    element and its rank does not decide the rank of the result."""
    if not isinstance(value, Host):
        return value
    if len(value.values) == 1 and len(value.shape) <= other.dim():
        return value.values[0]
    return tensor(value, other)


# Arithmetic.


def broadcast_shapes(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that all broadcast to (numpy's rule); sizes may be symbolic."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            result[d] = size if result[d] == 1 else result[d]
    return tuple(result)


def elementwise(fn: Callable[..., Any], *operands: Host, dtype: torch.dtype) -> Host:
    """`fn` on each element of the operands, which broadcast. Integers wrap around as int64 does."""
    shape = broadcast_shapes(*(o.shape for o in operands))
    columns = [expand(o, shape) for o in operands]
    return Host(tuple(wrapped(fn(*row)) for row in zip(*columns, strict=True)), shape, dtype)


def wrapped(value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return (value + 2**63) % 2**64 - 2**63
    return value


def expand(value: Host, shape: Sequence[int]) -> list[Any]:
    """The elements of `value` broadcast to `shape`, in row-major order."""
    if value.shape == tuple(shape):
        return list(value.values)
    padded = (1,) * (len(shape) - len(value.shape)) + value.shape
    steps = [0 if s == 1 else t for s, t in zip(padded, strides(padded), strict=True)]
    return [value.values[offset(at, steps)] for at in positions(shape)]


def positions(shape: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(s) for s in shape)))


def strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def offset(at: Sequence[int], steps: Sequence[int]) -> int:
    return sum(i * s for i, s in zip(at, steps, strict=True))


def truncated(a: Any, b: Any) -> Any:
    """Integer division as in C: towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def cast(value: Host, dtype: torch.dtype) -> Host:
    kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
    return Host(tuple(kind(v) for v in value.values), value.shape, dtype)


def is_static(value: Value) -> bool:
    """True for a Host without symbols."""
    return isinstance(value, Host) and not any(isinstance(v, torch.SymInt) for v in value.values)

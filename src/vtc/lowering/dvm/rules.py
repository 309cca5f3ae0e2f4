"""What lowering rules are made of: the registry, and how arguments become nodes.

A rule writes one ATen operator as nodes. It gets the operator's arguments with tensors and changing
floats as Nodes and integers as Sizes, and `Lowering`, which knows the result's fake value. It
raises Unsupported for arguments that it has no nodes for; the operator is then decomposed, or runs
as eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from vtc.index import Size, sizes
from vtc.lowering.dvm.graph import Graph
from vtc.lowering.dvm.nodes import Node, Shape, Unsupported, Weak
from vtc.program.dtypes import DType
from vtc.program.scalars import SCALARS

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
# PyTorch's arithmetic on bools, as logic.
_OF_BOOLS = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for ATen overloads."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def dtype_of(dtype: torch.dtype) -> DType:
    """The DType, or Unsupported."""
    found = DType.of(dtype)
    if found is None:
        raise Unsupported(f"{dtype} values")
    return found


def shape_of(value: torch.Tensor) -> Shape:
    return tuple(map(sizes.as_size, value.shape))


@dataclass(frozen=True)
class Lowering:
    """One call being lowered: the graph, and the fake value of its result."""

    graph: Graph
    value: Any

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result."""
        value = self.value[0] if isinstance(self.value, tuple | list) else self.value
        if isinstance(value, torch.Tensor):
            return dtype_of(value.dtype)
        return DType.F64

    @property
    def shape(self) -> Shape:
        value = self.value[0] if isinstance(self.value, tuple | list) else self.value
        return shape_of(value) if isinstance(value, torch.Tensor) else ()

    def operand(self, x: Any, dtype: DType) -> Node:
        """A tensor, number or Size as a node that is computed as `dtype`.

        Half precision is computed in f32: a wider operand is not rounded to it first. But integers
        are, as the largest are infinite in it. An operand of a narrow integer type wraps.
        """
        if isinstance(x, Weak):
            x = x.node
        if isinstance(x, Node):
            wide = dtype if dtype.is_integer or x.dtype.is_integer else dtype.compute
            return x if x.dtype is dtype else self.graph.cast(x, wide)
        if isinstance(x, int) and dtype.is_integer and not isinstance(x, bool):
            x = wrapped(x, dtype)
        if isinstance(x, complex) or not (isinstance(x, bool | int | float) or is_size(x)):
            raise Unsupported(f"operand {x!r}")
        return self.graph.const(x, dtype.compute)

    def common(self, *xs: Any) -> DType:
        """The dtype that operands are compared in, by PyTorch's promotion."""
        return dtype_of(_result_type([_example(x) for x in xs]))

    def op(self, name: str, *operands: Node) -> Node:
        """A scalar operator on operands of one compute type."""
        return self.graph.scalar(name, *operands)

    def arith(self, name: str, *xs: Any) -> Node:
        """A scalar operator that gives a value of the result's dtype from operands cast to it."""
        dtype = self.dtype
        operands = [self.operand(x, dtype) for x in xs]
        if dtype is DType.BOOL:
            return self.graph.scalar(_OF_BOOLS.get(name, name), *operands)
        if dtype.is_integer and dtype is not dtype.compute:
            wide = [self.graph.cast(o, dtype.compute) for o in operands]
            return self.graph.cast(self.graph.scalar(name, *wide), dtype)
        return self.tagged(self.graph.scalar(name, *operands))

    def tagged(self, x: Node) -> Node:
        """x, computed in the result's compute type, as a value of the result's dtype: it is
        rounded where it is stored."""
        if x.dtype is self.dtype or x.dtype is not self.dtype.compute:
            return x
        if x.op in SCALARS and x.op != "cast":
            return self.graph.node(x.op, x.shape, self.dtype, x.operands, x.constant)
        return self.graph.cast(x, self.dtype)

    def number(self, value: float, like: Node) -> Node:
        """A constant of the node's compute type."""
        return self.graph.const(value, like.dtype.compute)


def wrapped(x: int, dtype: DType) -> int:
    """A number as an integer type holds it."""
    info = torch.iinfo(dtype.torch_dtype)
    return (x - info.min) % (info.max - info.min + 1) + info.min


def is_size(x: Any) -> bool:
    return isinstance(x, sympy.Expr)


def _example(x: Any) -> Any:
    """Something of x's category and dtype for `torch.result_type`."""
    if isinstance(x, Weak):
        return 1.0
    if isinstance(x, Node):
        shape = (1,) if x.shape else ()
        return torch.empty(shape, dtype=x.dtype.torch_dtype, device="meta")
    if isinstance(x, bool | int | float):
        return x
    if is_size(x):
        return 1
    raise Unsupported(f"operand {x!r}")


def _result_type(values: Sequence[Any]) -> torch.dtype:
    found = values[0]
    for value in values[1:]:
        both = torch.result_type(found, value)
        ranked = any(isinstance(v, torch.Tensor) and v.dim() for v in (found, value))
        found = torch.empty((1,) if ranked else (), dtype=both, device="meta")
    if isinstance(found, torch.Tensor):
        return found.dtype
    return torch.result_type(torch.empty((), dtype=torch.bool, device="meta"), found)


def dims_of(dim: Any, rank: int) -> list[int]:
    """Dimension numbers from 0, in order; all of them for None or nothing."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    given = [dim] if isinstance(dim, int) else list(dim)
    return sorted({d % rank if rank else 0 for d in given}) if rank else []


def static(x: Any) -> Any:
    """A number that is known now, or Unsupported."""
    if isinstance(x, Node | Weak) or is_size(x):
        raise Unsupported("a value that is not known before the call")
    return x


def total(shape: Sequence[Size]) -> Size:
    return sizes.product(shape)

"""Tensor expressions: what a captured graph computes, as a DAG of scalar operators, movement and
folds.

One node class. A rule of `rules_*.py` writes an ATen operator as nodes, which `graph.py` makes;
`fuse.py` cuts the DAG into kernels. Nothing here has storage, strides or an order.

| op | operands | constant |
|---|---|---|
| input | | number of the graph input |
| external | tensor arguments | (Call, number of the result) |
| const | | a number, or a Size |
| iota | | dimension whose coordinate it is, i64 |
| a scalar operator | broadcast against each other | |
| cast | one | the DType |
| move | sources, then lookups | Move |
| reduce, scan | one | Fold |
| matmul | left [..., m, k], right [..., k, n] | |
| attention | query, key, value, maybe mask | AttentionSpec |
| convolution | input [n, ..., ci], weight [co, ci / groups, ...] | ConvolutionSpec |
| scatter | base, values, then lookups | Scatter |
| arm | what the branch hands out, from one of its arms | (Conditional, number) |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from vtc.index import IndexMap, Size, sizes
from vtc.program.dtypes import DType

Shape = tuple[Size, ...]

# What is never computed twice: folds, anchors, and what only storage can hold.
PHYSICAL = ("input", "external", "scatter", "arm")
LARGE = 1 << 20


@dataclass(frozen=True, eq=False)
class Node:
    """A tensor expression; `cost` is about how many cycles a vector of it takes to compute anew,
    from memory, and `leaves` how many loads."""

    op: str
    shape: Shape
    dtype: DType
    operands: tuple[Node, ...] = ()
    constant: Any = None
    cost: int = 0
    leaves: int = 0
    depth: int = 0

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{self.op}:{self.dtype}[{shape}]"


@dataclass(frozen=True)
class Weak:
    """A changing Python number: it takes part in type promotion as one."""

    node: Node


@dataclass(frozen=True)
class Move:
    """A movement operator's load map over `sources` operands; its lookups number the rest.

    `stores` gives the homes of each source's elements in the result (None: unknown or several).
    view: eager PyTorch returns an alias.
    """

    load: IndexMap
    sources: int
    stores: tuple[IndexMap | None, ...]
    view: bool = False


@dataclass(frozen=True)
class Fold:
    """A reduction or scan over `dims`; a reduction keeps them with size 1."""

    name: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class AttentionSpec:
    """What an attention is besides its operands; see `program.tile.Attention`."""

    scale: float | None
    causal: bool


@dataclass(frozen=True)
class ConvolutionSpec:
    """One number a spatial dimension; the padding is that in front. Result: [n, ..., co]."""

    stride: tuple[Size, ...]
    padding: tuple[Size, ...]
    dilation: tuple[Size, ...]
    groups: int


@dataclass(frozen=True)
class Scatter:
    """Where each element of the values goes in the base."""

    store: IndexMap


@dataclass(frozen=True, eq=False)
class Call:
    """An operator that runs as eager PyTorch between kernels.

    args and kwargs hold Nodes for tensors and Sizes for symbolic integers. value: the fake value of
    its result, a tuple if it returns several. symbols: the size symbols that its results tell, see
    `plan.EagerStep`.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any
    origin: str
    symbols: tuple[tuple[str, int | None, int], ...] = ()

    def result(self, part: int | None) -> Any:
        """The fake value of one result; None is the only one."""
        return self.value if part is None else self.value[part]

    def tensors(self) -> tuple[Node, ...]:
        """Its tensor arguments."""
        found: list[Node] = []
        fx.node.map_aggregate((self.args, self.kwargs), lambda a: _collect(a, found))
        return tuple(found)


def _collect(value: Any, found: list[Node]) -> Any:
    if isinstance(value, Node | Weak):
        found.append(value.node if isinstance(value, Weak) else value)
    return value


@dataclass(frozen=True, eq=False)
class Conditional:
    """`torch.cond`: two arms that compute the same results from what is outside of them."""

    predicate: Node
    then: tuple[Node, ...]
    otherwise: tuple[Node, ...]


class Unsupported(Exception):  # noqa: N818 - an answer of a rule, not a failure
    """A rule has no nodes for these arguments."""


def contiguous(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides, in elements."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = sizes.mul(step, 1 if size == 0 else size)
    return tuple(reversed(strides))


def live_users(roots: Sequence[Node]) -> dict[Node, list[Node]]:
    """Each node that the roots need -> the nodes that use it."""
    users: dict[Node, list[Node]] = {}
    pending = list(roots)
    for root in roots:
        users.setdefault(root, [])
    while pending:
        node = pending.pop()
        for operand in dict.fromkeys(inputs_of(node)):
            if operand not in users:
                users[operand] = []
                pending.append(operand)
            users[operand].append(node)
    return users


def inputs_of(node: Node) -> tuple[Node, ...]:
    """Operands, and for a branch its predicate and what its arms give."""
    if node.op == "arm":
        own: Conditional = node.constant[0]
        return (own.predicate, *own.then, *own.otherwise)
    return node.operands


def reads(nodes: Sequence[Node], base: Node) -> bool:
    """Does any of the nodes depend on `base`?"""
    pending, seen = list(nodes), set[Node]()
    while pending:
        node = pending.pop()
        if node is base:
            return True
        if node not in seen:
            seen.add(node)
            pending += inputs_of(node)
    return False

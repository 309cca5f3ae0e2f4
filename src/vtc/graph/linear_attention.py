"""Recognising linear attention in a captured graph, and writing it as one operator.

    m = matmul(relu(q), matmul(transpose(relu(k)), pad(v, (0, 1), value=1)))   casts between
    m[..., :-1] / (m[..., -1:] + eps)                                          -> cast

as in EfficientViT (timm's LiteMLA). What lies between has no other use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vtc.graph import program as programs
from vtc.graph.attention import values_after
from vtc.graph.program import Program, is_tensor, value_of

aten = torch.ops.aten


@dataclass(frozen=True)
class LinearAttention:
    """One whose result is `node`; query and key (batch, heads, tokens, d), value alike.

    `absorbed` are the operators that it stands for beside `node`, in the order of the program.
    """

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    eps: float
    absorbed: tuple[fx.Node, ...]

    @property
    def operands(self) -> tuple[fx.Node, fx.Node, fx.Node]:
        return self.query, self.key, self.value


def find(program: Program) -> tuple[LinearAttention, ...]:
    """Every one of known sizes, in the order of the program."""
    kept = {value for _, value in program.updates}
    kept |= {o for o in program.outputs if isinstance(o, fx.Node)}
    order = {n: k for k, n in enumerate(program.graph_module.graph.nodes)}
    matched = (_Match(n, kept, order).found() for n in program.nodes)
    return tuple(m for m in matched if m is not None)


class _Match:
    """A walk back from a division; `taken` are the operators that it passed."""

    def __init__(self, node: fx.Node, kept: set[fx.Node], order: Mapping[fx.Node, int]) -> None:
        self.node, self.kept, self.order = node, kept, order
        self.taken: list[fx.Node] = []

    def found(self) -> LinearAttention | None:
        if self.node.target is not aten.div.Tensor or not all(map(is_tensor, self.node.args)):
            return None
        above, below = self.node.args
        eps = self._added(below)
        if eps is None or not self._sliced(above, 0, -1):
            return None
        column = below.args[0]
        if not self._sliced(column, -1, None) or column.args[0] is not above.args[0]:
            return None
        product = above.args[0]
        if not self._take(product, aten.matmul.default, users=2):
            return None
        query, sums = product.args
        if not self._take(sums, aten.matmul.default):
            return None
        query = self._relu(query)
        key = self._relu(sums.args[0], turned=True)
        value = self._padded(sums.args[1])
        if query is None or key is None or value is None:
            return None
        return self._made(query, key, value, eps)

    def _made(
        self, query: fx.Node, key: fx.Node, value: fx.Node, eps: float
    ) -> LinearAttention | None:
        node, operands = self.node, (query, key, value)
        if any(value_of(o).dim() != 4 or programs.has_symbol(o) for o in operands):
            return None
        dtype = value_of(query).dtype
        if value_of(node).dtype != dtype:  # rounded back at the end
            cast = next(iter(node.users)) if len(node.users) == 1 else None
            if cast is None or node in self.kept or not _is_cast(cast):
                return None
            self.taken.append(node)
            node = cast
        if value_of(node).dtype != dtype:
            return None
        absorbed = tuple(sorted(self.taken, key=self.order.__getitem__))
        return LinearAttention(node, query, key, value, eps, absorbed)

    def _take(self, node: Any, target: Any, users: int = 1) -> bool:
        """Is `node` this operator, with no other use? Then it is noted."""
        if not is_tensor(node) or node.target is not target:
            return False
        if len(node.users) != users or node in self.kept:
            return False
        self.taken.append(node)
        return True

    def _through(self, node: Any) -> Any:
        """What a cast reads."""
        while is_tensor(node) and _is_cast(node) and len(node.users) == 1:
            self.taken.append(node)
            node = node.args[0]
        return node

    def _added(self, node: fx.Node) -> float | None:
        if not self._take(node, aten.add.Tensor) or node.kwargs:
            return None
        eps = node.args[1]
        return float(eps) if isinstance(eps, int | float) and math.isfinite(eps) else None

    def _sliced(self, node: fx.Node, start: int, end: int | None) -> bool:
        """Is it `x[..., start:end]`?"""
        if not self._take(node, aten.slice.Tensor) or len(node.args) != 4 or node.kwargs:
            return False
        source, dim, low, high = node.args
        size = value_of(source).shape[-1]
        last = size if end is None else size + end
        given = [x + size if x < 0 else min(x, size) for x in (low, high)]
        return dim in (-1, value_of(source).dim() - 1) and given == [start % size, last]

    def _relu(self, node: Any, turned: bool = False) -> fx.Node | None:
        """What is rectified, after casts, and one matrix transpose where it is `turned`."""
        node = self._through(node)
        if turned:
            rank = value_of(node).dim() if is_tensor(node) else 0
            if not self._take(node, aten.transpose.int):
                return None
            if {d % rank for d in node.args[1:3]} != {rank - 2, rank - 1}:
                return None
            node = self._through(node.args[0])
        return node.args[0] if self._take(node, aten.relu.default) else None

    def _padded(self, node: Any) -> fx.Node | None:
        """What has a column of ones behind it."""
        node = self._through(node)
        for target in (aten.pad.default, aten.constant_pad_nd.default):
            if not self._take(node, target):
                continue
            source, pads, *rest = node.args
            mode, fill = (rest if target is aten.pad.default else ["constant", *rest]) or (0, 0)
            if list(pads) == [0, 1] and mode == "constant" and fill == 1 and not node.kwargs:
                return source
        return None


def _is_cast(node: fx.Node) -> bool:
    return node.target is aten._to_copy.default and set(node.kwargs) <= {"dtype"}


def rewrite(
    program: Program, chosen: Mapping[LinearAttention, Mapping[str, Any]], operator: Any
) -> Program:
    """`program` with each of `chosen` as a call of `operator` with the given further arguments.

    The graph is changed in place, and nodes keep their names. One whose result is read through a
    view that the operator's layout does not have stays as it is.
    """
    graph_module = program.graph_module
    for attention, options in chosen.items():
        node, old = attention.node, value_of(attention.node)
        kwargs = {"eps": attention.eps, **options}
        with old.fake_mode:
            new = operator(*map(value_of, attention.operands), **kwargs)
        values = values_after(node, new)
        if values is None or new.shape != old.shape:
            continue
        node.target, node.args, node.kwargs = operator, attention.operands, kwargs
        for changed, value in {node: new, **values}.items():
            changed.meta["val"] = value
        for absorbed in reversed(attention.absorbed):
            node.graph.erase_node(absorbed)
    graph_module.graph.lint()
    graph_module.recompile()
    return programs.build(graph_module, program.updates, program.constants, program.aliases)

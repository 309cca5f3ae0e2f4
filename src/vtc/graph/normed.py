"""Recognising a root-mean-square norm between matmuls, and writing it in two halves.

    before: x = r + linear(a, V);  n = w * (x * rsqrt(mean(x^2) + eps));  y = linear(n, W)
    after:  x = r + linear(a, V);  s = square_sums(x);  m = x * w
            y = normalized(linear(m, W), s)

The first half is stored by the kernel of the matmul in front of it, the second is a factor of each
row of those behind. `m` is rounded once where `n` was rounded, maybe twice: at the same exponents,
apart from the scale, so that it needs a type with the exponents of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vtc.graph import program as programs
from vtc.graph.program import Program, has_symbol, is_tensor, value_of

aten = torch.ops.aten

TYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Norm:
    """`node` is the norm of `rows` (..., n) with `weight` (n,), and only linears read it.

    absorbed: what is between the two, in order. `linears` are those that read the norm, `aliases`
    the other names under which they do.
    """

    node: fx.Node
    rows: fx.Node
    weight: fx.Node
    eps: float
    absorbed: tuple[fx.Node, ...]
    linears: tuple[fx.Node, ...]
    aliases: tuple[fx.Node, ...]

    @property
    def count(self) -> int:
        return int(value_of(self.rows).shape[-1])


def find(program: Program, is_behind: Callable[[fx.Node], bool]) -> tuple[Norm, ...]:
    """Every norm of rows for which `is_behind` holds (a matmul computes them, with what follows it
    point by point)."""
    kept = {v for _, v in program.updates}
    kept |= {o for o in program.outputs if isinstance(o, fx.Node)}
    found = (_norm(node, kept) for node in program.nodes)
    return tuple(n for n in found if n is not None and is_behind(n.rows))


def _norm(node: fx.Node, kept: set[fx.Node]) -> Norm | None:
    matcher = _Matcher(kept)
    try:
        return matcher.norm(node)
    except _Other:
        return None


class _Other(Exception):  # noqa: N818 - an answer, not a failure
    """The graph says something else here."""


class _Matcher:
    """Follows a norm from its result to the rows."""

    def __init__(self, kept: set[fx.Node]) -> None:
        self.kept = kept
        self.absorbed: list[fx.Node] = []

    def norm(self, node: fx.Node) -> Norm:
        if node.target is not aten.mul.Tensor or not is_tensor(node) or has_symbol(node):
            raise _Other
        names = [node]
        for name in names:
            names += [u for u in name.users if u.target is aten.alias.default]
        linears = tuple(u for name in names for u in name.users if u not in names)
        if self.kept.intersection(names) or not linears:
            raise _Other
        if not all(_reads_rows(u, names) for u in linears):
            raise _Other
        for weight, unit in _either(node):
            if self._is_weight(weight, node):
                rows, eps = self._unit(self._cast(unit, value_of(node).dtype))
                if value_of(rows).dtype is value_of(node).dtype is value_of(weight).dtype:
                    ordered = tuple(reversed(self.absorbed))
                    return Norm(node, rows, weight, eps, ordered, linears, tuple(names[1:]))
        raise _Other

    def _is_weight(self, weight: Any, node: fx.Node) -> bool:
        if not is_tensor(weight) or value_of(node).dtype not in TYPES:
            return False
        return tuple(value_of(weight).shape) == tuple(value_of(node).shape[-1:])

    def _unit(self, node: Any) -> tuple[fx.Node, float]:
        """The rows and eps of `x * rsqrt(mean(x^2) + eps)`."""
        self._take(node, aten.mul.Tensor)
        for rows, scale in _either(node):
            if is_tensor(scale) and scale.target is aten.rsqrt.default:
                eps = self._scale(scale, rows)
                return self._source(rows), eps
        raise _Other

    def _scale(self, scale: fx.Node, rows: fx.Node) -> float:
        self._take(scale, aten.rsqrt.default)
        (added,) = scale.args
        self._take(added, aten.add.Tensor)
        mean, eps = added.args[:2]
        if not isinstance(eps, int | float) or not math.isfinite(eps) or added.kwargs:
            raise _Other
        self._take(mean, aten.mean.dim)
        squares, dims, *keep = mean.args
        rank = value_of(rows).dim()
        if [d % rank for d in dims] != [rank - 1] or keep != [True] or mean.kwargs:
            raise _Other
        if is_tensor(squares) and squares.target is aten.pow.Tensor_Scalar:
            self._take(squares, aten.pow.Tensor_Scalar)
            if squares.args[0] is not rows or squares.args[1] != 2:
                raise _Other
        else:
            self._take(squares, aten.mul.Tensor)
            if set(squares.args) != {rows}:
                raise _Other
        return float(eps)

    def _source(self, rows: fx.Node) -> fx.Node:
        """What is cast to float32 for the norm: that alone reads the cast."""
        if value_of(rows).dtype is not torch.float32:
            raise _Other  # not the arithmetic of float32
        if rows.target is aten._to_copy.default and set(rows.kwargs) == {"dtype"}:
            if set(rows.users) <= {*self.absorbed} and rows not in self.kept:
                self.absorbed.append(rows)
                source: fx.Node = rows.args[0]
                return source
            raise _Other
        return rows

    def _cast(self, node: Any, dtype: torch.dtype) -> Any:
        if is_tensor(node) and node.target is aten._to_copy.default:
            self._take(node, aten._to_copy.default)
            if set(node.kwargs) != {"dtype"} or value_of(node).dtype is not dtype:
                raise _Other
            return node.args[0]
        return node

    def _take(self, node: Any, target: Any) -> None:
        """Note `node` if it is this operator, and only what is noted reads it."""
        if not is_tensor(node) or node.target is not target or node in self.kept:
            raise _Other
        if len(node.users) != 1:
            raise _Other
        self.absorbed.append(node)


def _either(node: fx.Node) -> Iterable[tuple[Any, Any]]:
    first, second = node.args[:2]
    return (first, second), (second, first)


def _reads_rows(user: fx.Node, names: Sequence[fx.Node]) -> bool:
    if user.target is not aten.linear.default or user.args[0] not in names:
        return False
    bias = user.args[2] if len(user.args) > 2 else user.kwargs.get("bias")
    return bias is None and user.args[1] not in names


def rewrite(
    program: Program, chosen: Sequence[Norm], width: int, square_sums: Any, normalized: Any
) -> Program:
    """`program` with each of `chosen` in two halves; sums of `width` columns each. The graph is
    changed in place."""
    for norm in chosen:
        _split(norm, width, square_sums, normalized)
    program.graph_module.graph.lint()
    program.graph_module.recompile()
    return programs.build(
        program.graph_module, program.updates, program.constants, program.aliases, program.storages
    )


def _split(norm: Norm, width: int, square_sums: Any, normalized: Any) -> None:
    graph = norm.node.graph

    def call(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        values = fx.map_arg(args, value_of)
        with value_of(norm.node).fake_mode:
            made.meta = {**norm.node.meta, "val": target(*values)}
        return made

    with graph.inserting_before(norm.node):
        sums = call(square_sums, norm.rows, width)
        weighted = call(aten.mul.Tensor, norm.rows, norm.weight)
    for linear in norm.linears:
        linear.replace_input_with(linear.args[0], weighted)
        users = list(linear.users)
        with graph.inserting_after(linear):
            scaled = call(normalized, linear, sums, norm.count, norm.eps)
        for user in users:
            user.replace_input_with(linear, scaled)
    for alias in reversed(norm.aliases):
        graph.erase_node(alias)
    graph.erase_node(norm.node)
    for absorbed in reversed(norm.absorbed):
        graph.erase_node(absorbed)

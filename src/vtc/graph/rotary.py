"""Recognising rotary embeddings in front of attention that stores its new keys.

q = x * cos + cat(-x[..., d/2:], x[..., :d/2]) * sin
k = y * cos + cat(-y[..., d/2:], y[..., :d/2]) * sin
out, keys, values = storing_attention(q, keys, values, k, v, places)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from vtc.graph import program as programs
from vtc.graph.program import Program, has_symbol, is_tensor, value_of
from vtc.index import IndexMap
from vtc.index.expr import axes

aten = torch.ops.aten


@dataclass(frozen=True)
class Rotation:
    """`source` (..., d) is rotated by `cos` and `sin`, alone to be read rotated. `absorbed` are the
    operators for it, in order."""

    source: fx.Node
    cos: fx.Node
    sin: fx.Node
    absorbed: tuple[fx.Node, ...]


@dataclass(frozen=True)
class RotatedAttention:
    """A call of `vtc::storing_attention` whose query and new keys are rotated by the same table."""

    node: fx.Node
    query: Rotation
    key: Rotation

    @property
    def operands(self) -> tuple[fx.Node | None, ...]:
        """Of the call that rotates by itself."""
        _, keys, values, _, new, places, *mask = self.node.args
        shown = mask[0] if mask else None
        table = self.query.cos, self.query.sin
        return self.query.source, keys, values, self.key.source, new, places, shown, *table

    @property
    def values(self) -> tuple[Tensor | None, ...]:
        """Fake values of the operands."""
        return tuple(None if o is None else value_of(o) for o in self.operands)

    @property
    def options(self) -> dict[str, Any]:
        return {k: self.node.kwargs[k] for k in ("scale", "softcap", "safe")}


def find(program: Program, storing: Any) -> tuple[RotatedAttention, ...]:
    """Every call of `storing` that is one."""
    found = []
    for node in program.nodes:
        if node.target is not storing or len(node.args) > 7:
            continue
        query, key = (_rotation(program, node.args[k]) for k in (0, 3))
        if query and key and query.cos is key.cos and query.sin is key.sin:
            found.append(RotatedAttention(node, query, key))
    return tuple(found)


def _rotation(program: Program, node: fx.Node) -> Rotation | None:
    """before: add(mul(x, cos), mul(cat([neg(x[..., h:]), x[..., :h]]), sin))"""
    if not _is(node, aten.add.Tensor):
        return None
    for straight, turned in _either(node):
        if not (_is(straight, aten.mul.Tensor) and _is(turned, aten.mul.Tensor)):
            continue
        for rows, cos in _either(straight):
            for cat, sin in _either(turned):
                between = _turned(program, cat, rows)
                if between is None or not (is_tensor(cos) and is_tensor(sin)):
                    continue
                if (value_of(node).shape, value_of(node).dtype) == _kind(rows):
                    absorbed = (*between, straight, turned, node)
                    return Rotation(rows, cos, sin, absorbed)
    return None


def _kind(rows: fx.Node) -> tuple[torch.Size, torch.dtype]:
    return value_of(rows).shape, value_of(rows).dtype


def _turned(program: Program, cat: Any, rows: Any) -> tuple[fx.Node, ...] | None:
    """The operators of cat([-rows[..., h:], rows[..., :h]], -1); None for another operator."""
    if not _is(cat, aten.cat.default) or not is_tensor(rows) or has_symbol(rows):
        return None
    parts, *dims = cat.args
    shape = tuple(value_of(rows).shape)
    if len(parts) != 2 or shape[-1] % 2 or value_of(cat).shape != value_of(rows).shape:
        return None
    if not dims or dims[0] % len(shape) != len(shape) - 1:
        return None
    negative, first = parts
    if not _is(negative, aten.neg.default):
        return None
    second, half = negative.args[0], shape[-1] // 2
    if not (_is_part(program, second, rows, half) and _is_part(program, first, rows, 0)):
        return None
    return second, negative, first, cat


def _is_part(program: Program, node: Any, rows: fx.Node, start: int) -> bool:
    """Is it rows[..., start : start + d / 2]?"""
    if not is_tensor(node) or len(node.users) != 1:
        return False
    bound = program.movements.get(node)
    if bound is None or bound.movement.load is None or bound.sources != (rows,):
        return False
    shape = tuple(value_of(rows).shape)
    part = (*shape[:-1], shape[-1] // 2)
    *outer, last = axes(len(shape))
    wanted = IndexMap.single(part, (*outer, last + start)).simplify()
    return bound.movement.load.simplify().pieces == wanted.pieces


def _is(node: Any, target: Any) -> bool:
    """This operator, read once?"""
    return is_tensor(node) and node.target is target and len(node.users) == 1 and not node.kwargs


def _either(node: fx.Node) -> Iterable[tuple[Any, Any]]:
    first, second = node.args[:2]
    return (first, second), (second, first)


def rewrite(
    program: Program, chosen: Mapping[RotatedAttention, Mapping[str, Any]], target: Any
) -> Program:
    """`program` with each of `chosen` as a call that rotates by itself, with the given further
    arguments. The graph is changed in place, and nodes keep their names."""
    for found, options in chosen.items():
        node = found.node
        kwargs = {**found.options, **options}
        with value_of(found.query.source).fake_mode:
            made = target(*found.values, **kwargs)
        node.args, node.kwargs = found.operands, kwargs
        node.meta["val"] = made
        for part in node.users:
            part.meta["val"] = made[part.args[1]]
        for absorbed in reversed((*found.query.absorbed, *found.key.absorbed)):
            node.graph.erase_node(absorbed)
    program.graph_module.graph.lint()
    program.graph_module.recompile()
    return programs.build(
        program.graph_module, program.updates, program.constants, program.aliases, program.storages
    )

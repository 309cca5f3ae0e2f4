"""Movement operators that Inductor does not know, written out by their maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from vtc.graph.movement import Movement
from vtc.graph.program import value_of
from vtc.index.affine import Affine, Div, Look
from vtc.index.piece import Fill

aten = torch.ops.aten


def writable(movement: Movement) -> bool:
    """Can the operator be written out? Its map must be one piece, of known size."""
    load = movement.load
    if load is None or len(load.pieces) != 1 or isinstance(load.pieces[0].source, Fill):
        return False
    return all(type(size) is int and size > 0 for size in movement.shape)


def write_out(graph: fx.Graph, node: fx.Node, movement: Movement, tensors: Sequence[Any]) -> Any:
    """The operator of `node` as indexing, which Inductor generates in the loop that reads it.

    `tensors` are the operator's tensor operands in the order of its arguments.

    before: mylib.reversed_columns(x)   with the map [i0, i1] = x[i1, 3 - i0]
    after:  x[i1, 3 - i0]               with i0 and i1 made by arange
    """
    writer = _Writer(graph, movement, tensors, value_of(node).device)
    (piece,) = movement.load.pieces if movement.load is not None else ()
    assert not isinstance(piece.source, Fill), f"{node.name} is a fill"
    source = tensors[movement.operands[piece.source]]
    made = writer.call(aten.index.Tensor, source, [writer.index(form) for form in piece.forms])
    return writer.call(aten.expand.default, made, list(movement.shape))


class _Writer:
    def __init__(
        self, graph: fx.Graph, movement: Movement, tensors: Sequence[Any], device: torch.device
    ) -> None:
        self.graph, self.movement, self.tensors, self.device = graph, movement, tensors, device
        self.axes: dict[int, Any] = {}

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def index(self, form: Affine) -> Any:
        """An int64 tensor that broadcasts to the values of an expression."""
        total = self.call(
            aten.full.default, [], int(form.const), dtype=torch.int64, device=self.device
        )
        for atom, coefficient in form.terms.items():
            value = self._atom(atom)
            total = self.call(
                aten.add.Tensor, total, self.call(aten.mul.Tensor, value, int(coefficient))
            )
        return total

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, int):
            return self._axis(atom)
        if isinstance(atom, Look):
            table = self.tensors[self.movement.lookups[atom.tensor]]
            return self.call(aten.index.Tensor, table, [self.index(a) for a in atom.args])
        argument, by = self.index(atom.arg), int(atom.by)
        if isinstance(atom, Div):
            return self.call(aten.div.Tensor_mode, argument, by, rounding_mode="floor")
        return self.call(aten.remainder.Scalar, argument, by)

    def _axis(self, dim: int) -> Any:
        """The coordinate `dim`, along that dimension of the result."""
        if dim not in self.axes:
            shape = self.movement.shape
            line = self.call(aten.arange.default, int(shape[dim]), device=self.device)
            self.axes[dim] = self.call(
                aten.reshape.default, line, [-1 if d == dim else 1 for d in range(len(shape))]
            )
        return self.axes[dim]

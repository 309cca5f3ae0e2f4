"""The movement table: one rule an operator, ONNX name and ATen names side by side.

`movement_of` answers for a node of a captured graph what it moves and how; `TABLE` holds the rules,
`register_movement` adds a user's own operator, and `python -m vtc.graph.movement` prints the table
as the documentation page.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from vtc.errors import MovementRegistrationError
from vtc.graph import (
    rules_concat,
    rules_gather,
    rules_pad,
    rules_scatter,
    rules_slice,
    rules_space,
    rules_strided,
    rules_view,
)
from vtc.graph.rules import Entry, Movement, Operand, Rule
from vtc.index import NotRepresentable, sizes

__all__ = [
    "TABLE",
    "BoundMovement",
    "Entry",
    "Movement",
    "Operand",
    "is_movement_target",
    "is_registered",
    "movement_of",
    "moves",
    "register_movement",
    "table_markdown",
]

TABLE: tuple[Entry, ...] = (
    *rules_view.ENTRIES,
    *rules_slice.ENTRIES,
    *rules_concat.ENTRIES,
    *rules_pad.ENTRIES,
    *rules_gather.ENTRIES,
    *rules_scatter.ENTRIES,
    *rules_space.ENTRIES,
    *rules_strided.ENTRIES,
)

_RULES: dict[OpOverload, Rule] = {op: rule for e in TABLE for op, rule in e.aten.items()}
_PARTS: dict[OpOverload, Rule] = {op: rule for e in TABLE for op, rule in e.parts.items()}
_REGISTERED: dict[OpOverload, Entry] = {}


@dataclass(frozen=True)
class BoundMovement:
    """A movement and the nodes it is about: its sources, and its runtime index tensors."""

    movement: Movement
    sources: tuple[fx.Node, ...]
    lookups: tuple[fx.Node, ...]


def movement_of(node: fx.Node) -> BoundMovement | None:
    """What `node` of a captured ATen graph moves, or None where it is a compute operator.

    An output of an operator that returns several (split, chunk, unbind) is a movement of its
    `getitem` node, whose source is the operator's input. Sizes are those of `node.meta["val"]`.
    An operator of the table is compute where it changes dtype or device, and where its rule cannot
    write its map: an index with a mask, a symbolic size that the rule has no answer for.
    """
    if node.op != "call_function":
        return None
    call, target, part = node, node.target, {}
    if target is operator.getitem and isinstance(node.args[0], fx.Node):
        call, part = node.args[0], {"part": node.args[1]}
        target = call.target
    rules = _PARTS if part else _RULES
    if not isinstance(target, OpOverload) or target not in rules or _unsupported(node):
        return None
    rule = rules[target]
    arguments = _Arguments(call)
    try:
        movement = rule(operand_of(node), *arguments.args, **arguments.kwargs, **part)
    except NotRepresentable:
        return None
    if movement is None:
        return None
    sources = tuple(arguments.tensors[k] for k in movement.operands)
    if any(not _alike(source, node) for source in sources):
        return None
    return BoundMovement(movement, sources, tuple(arguments.tensors[k] for k in movement.lookups))


def is_movement_target(node: fx.Node) -> bool:
    """True for an operator with several outputs whose `getitem` nodes are movements."""
    return node.op == "call_function" and node.target in _PARTS


def moves(operator: object) -> bool:
    """True for an operator of the table; its arguments may still make it compute."""
    return operator in _RULES or operator in _PARTS


def is_registered(node: fx.Node) -> bool:
    """True for an operator of a user's: engines know no more of it than its map."""
    return node.target in _REGISTERED


def operand_of(node: fx.Node) -> Operand:
    """The tensor of a node as rules see it."""
    value = value_of(node)
    shape, stride = (tuple(map(sizes.as_size, s)) for s in (value.shape, value.stride()))
    offset = sizes.as_size(value.storage_offset())
    return Operand(shape, stride, offset, value.dtype, value.device)


def value_of(node: fx.Node) -> Any:
    """The fake value of a node; for a constant that capture left without one, its attribute."""
    if "val" in node.meta or node.op != "get_attr":
        return node.meta.get("val")
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found


def _unsupported(node: fx.Node) -> bool:
    value = value_of(node)
    return not isinstance(value, torch.Tensor) or value.layout is not torch.strided


def _alike(source: fx.Node, node: fx.Node) -> bool:
    """A change of dtype or device is no movement, whatever else an operator does."""
    a, b = value_of(source), value_of(node)
    return bool(a.dtype == b.dtype and a.device == b.device)


class _Arguments:
    """A call's arguments in the order of the schema, and its tensors in the order met."""

    def __init__(self, call: fx.Node) -> None:
        self.tensors: list[fx.Node] = []
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        given = iter(call.args)
        for argument in call.target._schema.arguments:
            value = call.kwargs.get(argument.name, argument.default_value)
            if not argument.kwarg_only:
                value = next(given, value)
                self.args.append(self._read(value))
            else:
                self.kwargs[argument.name] = self._read(value)

    def _read(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._read(v) for v in value]
        if isinstance(value, fx.Node):
            held = value_of(value)
            if isinstance(held, torch.Tensor):
                self.tensors.append(value)
                return operand_of(value)
            value = held
        return sizes.as_size(value) if isinstance(value, torch.SymInt) else value


def register_movement(
    op: OpOverload | OpOverloadPacket | Any, rule: Rule, *, name: str, directions: str = "AB"
) -> None:
    """Make an operator of one's own a movement operator.

    `op` is an overload (`torch.ops.mylib.shuffle.default`), a packet with one overload, or what
    `torch.library.custom_op` returns. `rule(result, *args, **kwargs)` gets the output as an
    `Operand` (shape, strides, offset, dtype, device) and the operator's arguments in the order of
    its schema with tensors as Operands, and returns a `Movement`, or None for compute.
    `name` is shown in reports. `directions` says what the rule may give: "A" load maps, "B" store
    maps, or "AB". A later registration of the same operator replaces the earlier one.

    Raises `vtc.errors.MovementRegistrationError` for an operator that updates its arguments or
    does not return one tensor, and for one that is in the table already.
    """
    overload = _overload(op)
    label = str(overload)
    if overload in _RULES and overload not in _REGISTERED:
        raise MovementRegistrationError(label, "it is in the movement table already")
    schema = overload._schema
    if schema.is_mutable:
        raise MovementRegistrationError(label, "it updates an argument; give its functional form")
    if [str(r.type) for r in schema.returns] != ["Tensor"]:
        raise MovementRegistrationError(label, "it does not return exactly one tensor")
    if directions not in ("A", "B", "AB"):
        raise MovementRegistrationError(label, f"directions {directions!r} are not A, B or AB")
    if not callable(rule):
        raise MovementRegistrationError(label, f"its rule {rule!r} is not callable")
    _RULES[overload] = rule
    _REGISTERED[overload] = Entry(name, (), directions, "registered", rule, {overload: rule})


def _overload(op: Any) -> OpOverload:
    packet = getattr(op, "_opoverload", op)
    if isinstance(packet, OpOverloadPacket):
        overloads = packet.overloads()
        if len(overloads) != 1:
            raise MovementRegistrationError(
                str(packet), f"it has the overloads {', '.join(overloads)}; name one of them"
            )
        packet = getattr(packet, overloads[0])
    if not isinstance(packet, OpOverload):
        raise MovementRegistrationError(repr(op), "it is no operator of torch.ops")
    return packet


def entries() -> Iterator[Entry]:
    """The table, and after it what users registered."""
    yield from TABLE
    yield from _REGISTERED.values()


_PAGE = """\
# Movement operators

An operator whose every output element is one element of an input, or a fixed value, moves data and
computes nothing. VTC writes it as an index map and lets the operators around it read or write
through the map. *A*: the output is virtual on the input, and its readers load through the map.
*B*: an input is virtual on the output, and its producer stores through the map. A scatter's first
operand is updated: the output may live in its storage.

An operator whose dtype or device changes, or whose map cannot be written for its arguments, stays
a compute operator.
"""


def table_markdown() -> str:
    """The documentation page of the built-in table."""
    lines = [
        _PAGE,
        "| operator | ONNX | ATen | directions | what it moves |",
        "|---|---|---|---|---|",
    ]
    for entry in TABLE:
        names = [_short(op) for op in (*entry.aten, *entry.parts)]
        cells = [
            entry.name,
            ", ".join(entry.onnx) or "-",
            ", ".join(f"`{n}`" for n in names) or "-",
            entry.directions,
            entry.summary,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _short(op: OpOverload) -> str:
    """`aten.view.default` as `view`, `aten.slice.Tensor` as `slice.Tensor`."""
    return str(op).removeprefix("aten.").removesuffix(".default")


if __name__ == "__main__":
    sys.stdout.write(table_markdown())

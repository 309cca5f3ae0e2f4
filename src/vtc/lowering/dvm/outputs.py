"""What a program returns: tensors of their own, and views, as eager PyTorch returns them.

The fake tensors of the captured graph say which: a tensor belongs to the first one with the same
storage, an input or the result of an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._sympy.symbol import SymT, symbol_is_type

from vtc.graph.program import InputView, Program, value_of
from vtc.index import Size, sizes
from vtc.lowering.dvm.fuse import Fusion
from vtc.lowering.dvm.hints import anew
from vtc.lowering.dvm.memory import Home, View
from vtc.lowering.dvm.nodes import Call, Node, Unsupported, Weak
from vtc.lowering.dvm.plan import ScalarRef, Space, TensorRef
from vtc.lowering.dvm.storage import channels_last
from vtc.lowering.dvm.translation import Translation
from vtc.program.scalars import SCALARS


@dataclass(frozen=True)
class Output:
    """A returned value. `base` is the node whose tensor it is a view of, and `under` that tensor's
    fake; without a base the value is a number or None."""

    value: Any
    base: Node | None = None
    under: torch.Tensor | None = None


Operands = dict[tuple[Call, Node], tuple[Output, torch.Tensor]]
"""Operands of eager calls that return views of them: what tensors they are, and their fakes."""


def outputs_of(program: Program, own: Translation) -> tuple[list[Output], Operands]:
    """What is returned, and what eager calls return views of: such an operand has to be the tensor
    that it is in eager PyTorch, as the view may be returned.

    A node that is an input or another tensor of eager PyTorch's too is copied for its own.
    """
    owners = _owners(program)
    bases: dict[int, Node] = {}
    taken: dict[Node, int] = {}
    inputs: dict[Node, fx.Node] = {}
    for node in program.inputs:
        value = own.values[node]
        if isinstance(value, Node):
            storage = _storage(value_of(node))
            bases.setdefault(storage, value)
            taken[value], inputs[value] = storage, node

    def output(k: int, node: Any) -> Output:
        value = own.values[node] if isinstance(node, fx.Node) else node
        if isinstance(value, Weak):
            return Output(value, value.node)
        if not isinstance(value, Node) or k in program.aliases:
            return Output(value)
        fake = value_of(node)
        storage = _storage(fake)
        owner = owners[storage]
        origin = _viewed(value)
        if origin.op == "external" and origin is not own.values[owner]:
            under = own.fakes[origin]
            if _storage(under) == storage:
                return Output(value, origin, under)  # the call gives the view
        source = inputs.get(_source(value))
        if source is not None and _storage(value_of(source)) == storage:
            return Output(value, own.values[source], value_of(source))
        if storage not in bases:
            base = own.values[owner]
            if base.op == "external":
                taken.setdefault(base, _storage(own.fakes[base]))
            if taken.setdefault(base, storage) != storage:
                base = own.graph.copy(base)
            bases[storage] = base
        return Output(value, bases[storage], value_of(owner))

    operands: Operands = {}
    for node in program.nodes:
        made = own.values.get(node)
        if isinstance(made, Node) and made.op == "external":
            for argument in _viewed_operands(node):
                value = own.values[argument]
                if isinstance(value, Node):
                    key = made.constant[0], value
                    operands[key] = output(-1, argument), value_of(argument)
    return [output(k, node) for k, node in enumerate(program.outputs)], operands


def _viewed_operands(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operator's result shares storage with."""
    fakes = {n: value_of(n) for n in (node, *node.all_input_nodes)}
    storages = {n: _storage(f) for n, f in fakes.items() if isinstance(f, torch.Tensor)}
    return [
        n for n in node.all_input_nodes if node in storages and storages.get(n) == storages[node]
    ]


def _source(node: Node) -> Node:
    """What a chain of movement begins with."""
    while node.op == "move":
        node = node.operands[0]
    return node


def _viewed(node: Node) -> Node:
    """What a chain of views begins with."""
    while node.op == "move" and node.constant.view and len(node.operands) == 1:
        (node,) = node.operands
    return node


def _owners(program: Program) -> dict[int, fx.Node]:
    """The first node with each storage."""
    found: dict[int, fx.Node] = {}
    for node in (*program.inputs, *program.nodes):
        if isinstance(value_of(node), torch.Tensor):
            found.setdefault(_storage(value_of(node)), node)
    return found


def _storage(fake: torch.Tensor) -> int:
    return int(fake.untyped_storage()._cdata)


def give_homes(fusion: Fusion, outputs: Sequence[Output]) -> None:
    """Tensors of their own for what is returned, with eager PyTorch's strides. What convolutions
    read channels last, and the caller does not, has one beside its own."""
    for output in outputs:
        base, under = output.base, output.under
        if base is None or base in fusion.homes or base in fusion.also or base.op == "external":
            continue
        if under is None:
            fusion.home(base)
        else:
            stride = _sizes(under.stride())
            number = fusion.space(Space("made", base.dtype, base.shape, stride))
            home = Home(number, 0, stride)
            twice = (
                (base.op in SCALARS or base.op == "cast")
                and channels_last(stride) is None
                and fusion.wants_channels_last(base)
            )
            (fusion.also if twice else fusion.homes)[base] = home
        fusion.kept.add(base)


def returned_views(
    own: Translation, program: Program, outputs: Sequence[Output]
) -> dict[Node, View]:
    """Values that are returned as views of a returned tensor, as such views: an eager call gets
    them so, because what it gives may be a view of them."""
    found = {}
    for k, output in enumerate(outputs):
        under, value = output.under, output.value
        if not isinstance(value, Node) or output.base in (None, value) or under is None:
            continue
        view = _view(output, value_of(program.outputs[k]), own)
        if view is not None:
            found[value] = view
    return found


def operand_views(own: Translation, operands: Operands) -> dict[tuple[Call, Node], View]:
    """Operands of eager calls that return views of them, as the tensors of eager PyTorch."""
    views = {key: _view(output, fake, own) for key, (output, fake) in operands.items()}
    return {key: view for key, view in views.items() if view is not None}


def _view(output: Output, fake: torch.Tensor, own: Translation) -> View | None:
    base, under = output.base, output.under
    if base is None or under is None or fake.dtype is not under.dtype:
        return None
    start = sizes.sub(_size(fake.storage_offset()), _size(under.storage_offset()))
    if _told_nowhere(start, own):
        return None
    return View(base, _sizes(fake.shape), _sizes(fake.stride()), start)


def reference(own: Translation, fusion: Fusion, program: Program, k: int, output: Output) -> Any:
    """Where the k-th output is."""
    if k in program.aliases:
        view: InputView = program.aliases[k]
        input_node = own.values[program.inputs[view.input]]
        own_view = (_sizes(view.size), _sizes(view.stride), _size(view.offset))
        return TensorRef(fusion.homes[input_node].buffer, own_view)
    if output.base is None:
        return output.value
    home = fusion.also.get(output.base) or fusion.homes[output.base]
    if output.under is None:
        return ScalarRef(home.buffer)
    fake, under = value_of(program.outputs[k]), output.under
    shape, stride = _sizes(fake.shape), _sizes(fake.stride())
    start = sizes.sub(_size(fake.storage_offset()), _size(under.storage_offset()))
    if _told_nowhere(start, own):
        seen = fusion.view(output.value, output.base)
        if seen is None:
            anew()
            raise Unsupported("a view that begins where only its result tells")
        return seen
    space = fusion.spaces[home.buffer]
    if home.offset == start == 0 and (space.shape, space.stride) == (shape, stride):
        return TensorRef(home.buffer)
    return TensorRef(home.buffer, (shape, stride, sizes.add(home.offset, start)))


def _told_nowhere(start: Size, own: Translation) -> bool:
    """PyTorch makes a symbol of its own for where a slice from a data-dependent place begins."""
    symbols = () if isinstance(start, int) else start.free_symbols
    return any(symbol_is_type(s, SymT.UNBACKED_INT) and s not in own.known for s in symbols)


def _sizes(values: Sequence[Any]) -> tuple[Size, ...]:
    return tuple(map(_size, values))


def _size(value: Any) -> Size:
    return sizes.as_size(value)

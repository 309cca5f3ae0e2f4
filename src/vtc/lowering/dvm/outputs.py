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

from vtc.graph.program import InputView, Program, value_of
from vtc.index import Size, sizes
from vtc.lowering.dvm.body import Home
from vtc.lowering.dvm.fuse import Fusion
from vtc.lowering.dvm.nodes import Node, Weak
from vtc.lowering.dvm.plan import ScalarRef, Space, TensorRef
from vtc.lowering.dvm.translate import Translation


@dataclass(frozen=True)
class Output:
    """A returned value. `base` is the node whose tensor it is a view of, and `under` that tensor's
    fake; without a base the value is a number or None."""

    value: Any
    base: Node | None = None
    under: torch.Tensor | None = None


def outputs_of(program: Program, own: Translation) -> list[Output]:
    """A node that is an input or another tensor of eager PyTorch's too is copied for its own."""
    owners = _owners(program)
    bases: dict[int, Node] = {}
    taken: dict[Node, int] = {}
    for node in program.inputs:
        if isinstance(own.values[node], Node):
            storage = _storage(value_of(node))
            bases[storage], taken[own.values[node]] = own.values[node], storage

    def output(k: int, node: Any) -> Output:
        value = own.values[node] if isinstance(node, fx.Node) else node
        if isinstance(value, Weak):
            return Output(value, value.node)
        if not isinstance(value, Node) or k in program.aliases:
            return Output(value)
        fake = value_of(node)
        storage = _storage(fake)
        owner = owners[storage]
        if storage not in bases:
            base = own.values[owner]
            if taken.setdefault(base, storage) != storage:
                base = own.graph.copy(base)
            bases[storage] = base
        return Output(value, bases[storage], value_of(owner))

    return [output(k, node) for k, node in enumerate(program.outputs)]


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
    """Tensors of their own for what is returned, with eager PyTorch's strides."""
    for output in outputs:
        base, under = output.base, output.under
        if base is None or base in fusion.homes or base.op == "external":
            continue
        if under is None:
            fusion.home(base)
        else:
            stride = _sizes(under.stride())
            number = fusion.space(Space("made", base.dtype, base.shape, stride))
            fusion.homes[base] = Home(number, 0, stride)
        fusion.kept.add(base)


def reference(own: Translation, fusion: Fusion, program: Program, k: int, output: Output) -> Any:
    """Where the k-th output is."""
    if k in program.aliases:
        view: InputView = program.aliases[k]
        input_node = own.values[program.inputs[view.input]]
        own_view = (_sizes(view.size), _sizes(view.stride), _size(view.offset))
        return TensorRef(fusion.homes[input_node].buffer, own_view)
    if output.base is None:
        return output.value
    home = fusion.homes[output.base]
    if output.under is None:
        return ScalarRef(home.buffer)
    fake, under = value_of(program.outputs[k]), output.under
    shape, stride = _sizes(fake.shape), _sizes(fake.stride())
    start = sizes.sub(_size(fake.storage_offset()), _size(under.storage_offset()))
    space = fusion.spaces[home.buffer]
    if home.offset == start == 0 and (space.shape, space.stride) == (shape, stride):
        return TensorRef(home.buffer)
    return TensorRef(home.buffer, (shape, stride, sizes.add(home.offset, start)))


def _sizes(values: Sequence[Any]) -> tuple[Size, ...]:
    return tuple(map(_size, values))


def _size(value: Any) -> Size:
    return sizes.as_size(value)

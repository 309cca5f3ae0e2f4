"""A captured program -> a plan: modules of fused kernels, and eager calls between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx

from vtc import errors
from vtc.graph.program import InputView, Program, value_of
from vtc.index import IndexMap, Size, sizes
from vtc.lowering.dvm.body import Home
from vtc.lowering.dvm.fuse import Fusion
from vtc.lowering.dvm.modules import assemble
from vtc.lowering.dvm.nodes import Move, Node, Unsupported, Weak, contiguous, live_users, reads
from vtc.lowering.dvm.plan import Plan, Prepacked, ScalarRef, Space, TensorRef
from vtc.lowering.dvm.prepack import Packing, prepack
from vtc.lowering.dvm.translate import Translation, translate
from vtc.program.tile import ANCHORS


def lower(program: Program, packing: Packing | None = None) -> Plan:
    """The plan of a program; the same for every size of its inputs.

    packing: how weights are prepacked; None reads them as they lie. Raises CaptureError for what
    the DVM cannot run, which is then the whole graph.
    """
    symbols = _symbols(program)  # before a decomposition takes one for a number
    own = translate(program)
    try:
        return _lowered(program, own, packing or Packing(0, 0), symbols)
    except Unsupported as error:
        raise errors.CaptureError("the graph", str(error)) from error


def _lowered(
    program: Program,
    own: Translation,
    packing: Packing,
    symbols: list[tuple[str, int, tuple[str, int]]],
) -> Plan:
    outputs = _apart(program, own)
    updates = [(number, own.values[node]) for number, node in program.updates]
    roots = [o.node if isinstance(o, Weak) else o for o in outputs if isinstance(o, Node | Weak)]
    roots += [value for _, value in updates]
    roots += [t for call in own.calls for t in call.tensors()]
    users = live_users(roots)
    fusion = Fusion(users, set(), own.graph.results)
    bases = {k: base for k, o in enumerate(outputs) if (base := _base(own, o)) is not None}
    prepacked = _prepacked(program, own, fusion, {*bases.values(), *roots}, packing)
    inputs = _inputs(program, own, fusion)
    fusion.inplace = _in_place(inputs, updates, users)
    for scatter, number in fusion.inplace.items():
        fusion.homes[scatter] = fusion.homes[inputs[number]]

    for k, base in bases.items():
        if k not in program.aliases:
            _give_home(own, fusion, base)
    for call in own.calls:
        fusion.call(call)
    for base in sorted(set(bases.values()), key=lambda n: -n.depth):
        fusion.ensure(base)
    _update(fusion, inputs, updates)
    returned = [
        _returned(own, fusion, program, k, value, bases.get(k)) for k, value in enumerate(outputs)
    ]
    return Plan(
        inputs=len(program.inputs) - len(program.constants),
        symbols=tuple(symbols),
        spaces=tuple(fusion.spaces),
        steps=assemble(fusion.steps, fusion.spaces, returned),
        outputs=tuple(returned),
        constants=program.constants,
        splits=frozenset(call.origin for call in own.splits),
        prepacked=prepacked,
    )


def _prepacked(
    program: Program, own: Translation, fusion: Fusion, excluded: set[Node], packing: Packing
) -> tuple[Prepacked, ...]:
    """Finds what depends on weights alone, and gives it homes; their spaces are the first."""
    inputs = [
        (number, value)
        for number, node in enumerate(program.inputs)
        if isinstance(value := own.values[node], Node)
    ]
    found = prepack(program, own.graph, inputs, fusion.users, excluded, packing)
    for number, (node, made) in enumerate(found.kept.items()):
        stride = contiguous(node.shape)
        space = fusion.space(Space("prepacked", made.dtype, made.shape, stride, number))
        fusion.homes[node] = Home(space, 0, stride)
        fusion.stored.add(node)
    fusion.panels = found.panels
    return tuple(found.kept.values())


def _inputs(program: Program, own: Translation, fusion: Fusion) -> dict[int, Node]:
    found: dict[int, Node] = {}
    for number, node in enumerate(program.inputs):
        value = own.values[node]
        if isinstance(value, Node):
            stride = tuple(map(sizes.as_size, value_of(node).stride()))
            space = fusion.space(Space("input", value.dtype, value.shape, stride, number))
            fusion.homes[value] = Home(space, 0, stride)
            fusion.stored.add(value)
            found[number] = value
    return found


def _symbols(program: Program) -> list[tuple[str, int, tuple[str, int]]]:
    """Where each size symbol is read from a call's arguments."""
    found: dict[str, tuple[str, int, tuple[str, int]]] = {}

    def note(size: Any, number: int, kind: str, d: int) -> None:
        expression = sizes.as_size(size) if isinstance(size, torch.SymInt) else size
        if isinstance(expression, sympy.Symbol):
            found.setdefault(str(expression), (str(expression), number, (kind, d)))

    for number, node in enumerate(program.inputs):
        if isinstance(value_of(node), torch.SymInt):
            note(value_of(node), number, "value", 0)
    for number, node in enumerate(program.inputs):
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            for kind, given in (("size", value.shape), ("stride", value.stride())):
                for d, size in enumerate(given):
                    note(size, number, kind, d)
    return list(found.values())


# Outputs.


def _apart(program: Program, own: Translation) -> list[Any]:
    """The values that are returned. One that eager PyTorch gives storage of its own, though it is
    the same node as an input or another output (a sum over one element), is a copy of it."""
    outputs = [own.values[o] if isinstance(o, fx.Node) else o for o in program.outputs]
    taken: dict[Node, int] = {}
    for k, value in enumerate(outputs):
        base = _base(own, value) if isinstance(value, Node) else None
        storage = program.storages.get(k)
        if base is None or storage is None or k in program.aliases:
            continue
        made = base.op == "input" and storage < 0
        if made or taken.setdefault(base, storage) != storage:
            copied = replace(own.graph.move(IndexMap.identity(value.shape), [value]))
            own.fakes[copied] = value_of(program.outputs[k])
            outputs[k] = copied
    return outputs


def _base(own: Translation, output: Any) -> Node | None:
    """What an output is a view of, as eager PyTorch returns it."""
    if isinstance(output, Weak):
        return output.node
    if not isinstance(output, Node):
        return None
    base = output
    while base.op == "move":
        move: Move = base.constant
        source = base.operands[0]
        if not move.view or move.sources != 1 or (source.op != "input" and source not in own.fakes):
            break
        base = source
    return base


def _give_home(own: Translation, fusion: Fusion, base: Node) -> None:
    """A tensor of its own for what is returned, with eager PyTorch's strides."""
    if base in fusion.homes or base.op == "external":
        return
    fake = own.fakes.get(base)
    if fake is None:
        fusion.home(base)
    else:
        stride = tuple(map(sizes.as_size, fake.stride()))
        number = fusion.space(Space("made", base.dtype, base.shape, stride))
        fusion.homes[base] = Home(number, 0, stride)
    fusion.kept.add(base)


def _returned(
    own: Translation, fusion: Fusion, program: Program, k: int, value: Any, base: Node | None
) -> Any:
    if k in program.aliases:
        view: InputView = program.aliases[k]
        input_node = own.values[program.inputs[view.input]]
        shape, stride = (tuple(map(sizes.as_size, v)) for v in (view.size, view.stride))
        return TensorRef(fusion.homes[input_node].buffer, (shape, stride, _size(view.offset)))
    if isinstance(value, Weak):
        return ScalarRef(fusion.homes[value.node].buffer)
    if base is None:
        return value
    home = fusion.homes[base]
    if value is base:
        return _whole(fusion, base, home)
    fake, under = value_of(program.outputs[k]), own.fakes[base]
    shape, stride = (tuple(map(sizes.as_size, v)) for v in (fake.shape, fake.stride()))
    start = sizes.sub(_size(fake.storage_offset()), _size(under.storage_offset()))
    return TensorRef(home.buffer, (shape, stride, sizes.add(home.offset, start)))


def _whole(fusion: Fusion, node: Node, home: Home) -> TensorRef:
    space = fusion.spaces[home.buffer]
    if home.offset == 0 and space.stride == home.stride and len(space.shape) == len(node.shape):
        return TensorRef(home.buffer)
    return TensorRef(home.buffer, (node.shape, home.stride, home.offset))


def _size(value: Any) -> Size:
    return sizes.as_size(value)


# Updated inputs.


def _in_place(
    inputs: dict[int, Node],
    updates: Sequence[tuple[int, Node]],
    users: dict[Node, list[Node]],
) -> dict[Node, int]:
    """Scatters that may write into the updated input itself: nobody reads what was there before,
    but through the scatter's result."""
    found: dict[Node, int] = {}
    for number, value in updates:
        chain = []
        node = value
        while node.op == "scatter":
            chain.append(node)
            node = node.operands[0]
        alone = all(set(users[s.operands[0]]) == {s} for s in chain)
        own_reads = any(reads(s.operands[1:], s.operands[0]) for s in chain)
        if chain and node is inputs[number] and alone and not own_reads:
            found |= dict.fromkeys(chain, number)
    return found


def _update(fusion: Fusion, inputs: dict[int, Node], updates: Sequence[tuple[int, Node]]) -> None:
    """The last values of updated inputs, after everything that reads the old ones."""
    late = []
    for number, value in updates:
        if value in fusion.inplace:
            fusion.ensure(value)
        elif value is not inputs[number]:
            late.append((number, value))
    for number, value in late:
        others = [v for n, v in late if n != number]
        if not _elementwise(value, inputs[number]) or reads(others, inputs[number]):
            fusion.ensure(value)
    for number, value in late:
        fusion.store_copy(value, fusion.homes[inputs[number]])


def _elementwise(value: Node, source: Node) -> bool:
    """Does each element of the value depend on the same element of the source only?"""
    if value is source:
        return True
    if not reads([value], source):
        return True
    if value.op in ("move", "reduce", "scan", "scatter", "external", "arm", *ANCHORS):
        return False
    return all(
        _elementwise(o, source) and (o is not source or o.shape == value.shape)
        for o in value.operands
    )

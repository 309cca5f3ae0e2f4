"""A captured program -> a plan: modules of fused kernels, and eager calls between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from vtc import errors
from vtc.graph.program import Program, value_of
from vtc.index import sizes
from vtc.lowering.dvm.calls import layouts
from vtc.lowering.dvm.fuse import Fusion
from vtc.lowering.dvm.memory import Home
from vtc.lowering.dvm.modules import assemble
from vtc.lowering.dvm.nodes import (
    Node,
    Unsupported,
    contiguous,
    inputs_of,
    live_users,
    reads,
)
from vtc.lowering.dvm.outputs import (
    give_homes,
    operand_views,
    outputs_of,
    reference,
    returned_views,
)
from vtc.lowering.dvm.plan import Plan, Prepacked, Space
from vtc.lowering.dvm.prepack import Packing, prepack
from vtc.lowering.dvm.translate import translate
from vtc.lowering.dvm.translation import Translation
from vtc.program.tile import ANCHORS

SymbolSource = tuple[str, int, tuple[str, int]]


def lower(program: Program, packing: Packing | None = None, rounded: bool = False) -> Plan:
    """The plan of a program; the same for every size of its inputs.

    packing: how weights are prepacked; None reads them as they lie. rounded: half precision is
    rounded after every operator, as eager PyTorch does. Raises CaptureError for what the DVM
    cannot run, which is then the whole graph.
    """
    symbols = _symbols(program)  # before a decomposition specialises one
    own = translate(program, rounded)
    try:
        return _lowered(program, own, symbols, packing or Packing(0, 0))
    except Unsupported as error:
        raise errors.CaptureError("the graph", str(error)) from error


def _lowered(
    program: Program, own: Translation, symbols: Sequence[SymbolSource], packing: Packing
) -> Plan:
    outputs, operands = outputs_of(program, own)
    tensors = [*outputs, *(output for output, _ in operands.values())]
    bases = list(dict.fromkeys(o.base for o in tensors if o.base is not None))
    updates = [(number, own.values[node]) for number, node in program.updates]
    roots = [*bases, *(value for _, value in updates)]
    roots += [t for call in own.calls for t in call.tensors()]
    users = live_users(roots)
    fusion = Fusion(users, set(), frozenset(roots), own.fakes, results=own.graph.results)
    fusion.whole_rows = own.device.type == "cuda"
    fusion.layouts = layouts(own, {*bases, *roots})
    prepacked = _prepacked(program, own, fusion, {*bases, *roots}, packing)
    inputs = _inputs(program, own, fusion)
    fusion.inplace = _in_place(inputs, updates, fusion, bases)
    for scatter, number in fusion.inplace.items():
        fusion.homes[scatter] = fusion.homes[inputs[number]]

    give_homes(fusion, tensors)
    fusion.viewed = returned_views(own, program, outputs)
    fusion.operands = operand_views(own, operands)
    for call in own.calls:
        fusion.call(call)
    # What others are moved into comes first, so that they are computed there.
    for base in sorted(bases, key=lambda n: (0, n.depth) if n.op == "move" else (1, -n.depth)):
        fusion.ensure(base)
    _update(fusion, inputs, updates)
    returned = [reference(own, fusion, program, k, output) for k, output in enumerate(outputs)]
    return Plan(
        inputs=len(program.inputs) - len(program.constants),
        symbols=tuple(symbols),
        spaces=tuple(fusion.spaces),
        steps=assemble(fusion.steps, fusion.spaces, returned),
        outputs=tuple(returned),
        constants=program.constants,
        splits=frozenset(call.origin for call in own.splits),
        prepacked=prepacked,
        bounds=tuple(own.bounds),
        device=own.device,
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


def _symbols(program: Program) -> list[SymbolSource]:
    """Where each size symbol is read from a call's arguments."""
    found: dict[str, SymbolSource] = {}

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
            note(value.storage_offset(), number, "offset", 0)
    return list(found.values())


# Updated inputs.


def _in_place(
    inputs: dict[int, Node],
    updates: Sequence[tuple[int, Node]],
    fusion: Fusion,
    returned: Sequence[Node],
) -> dict[Node, int]:
    """Scatters that may write into the updated input itself: nobody reads what was there before,
    but through the scatter's result, which is not returned as a tensor of its own."""
    found: dict[Node, int] = {}
    for number, value in updates:
        chain = []
        node = value
        while node.op == "scatter":
            chain.append(node)
            node = node.operands[0]
        alone = all(
            set(fusion.users[s.operands[0]]) == {s} and s.operands[0] not in fusion.roots
            for s in chain
        )
        own_reads = any(reads(s.operands[1:], s.operands[0]) for s in chain)
        apart = any(s in returned for s in chain)
        if chain and node is inputs[number] and alone and not own_reads and not apart:
            found |= dict.fromkeys(chain, number)
    return found


def _update(fusion: Fusion, inputs: dict[int, Node], updates: Sequence[tuple[int, Node]]) -> None:
    """The last values of updated inputs, after everything that reads the old ones."""
    late = {}
    for number, value in updates:
        if fusion.inplace.get(value) == number:
            fusion.ensure(value)
        elif value is not inputs[number]:
            late[number] = value
    for number, value in late.items():
        if not _elementwise(value, inputs[number], fusion):
            fusion.ensure(value)
    while late:
        number = _unread(late, inputs, fusion)
        fusion.store_copy(late.pop(number), fusion.homes[inputs[number]])


def _unread(late: Mapping[int, Node], inputs: Mapping[int, Node], fusion: Fusion) -> int:
    """An input whose old value no other input's new one is still to be computed from. Where each
    input's is, new values are brought into memory."""
    while True:
        for number in late:
            others = [v for n, v in late.items() if n != number and v not in fusion.stored]
            if not reads(others, inputs[number]):
                return number
        fusion.ensure(next(v for v in late.values() if v not in fusion.stored))


def _elementwise(value: Node, source: Node, fusion: Fusion) -> bool:
    """Does each element of the value, computed now, depend on the same element of the source's
    memory only?"""
    if value is source:
        return True
    if not _reads_place(value, fusion, fusion.homes[source].buffer):
        return True
    if value.op in ("move", "reduce", "scan", "scatter", "external", "arm", *ANCHORS):
        return False
    return all(
        _elementwise(o, source, fusion) and (o is not source or o.shape == value.shape)
        for o in value.operands
    )


def _reads_place(value: Node, fusion: Fusion, space: int) -> bool:
    """Is the value computed from what is in that space, or there itself?"""
    pending, seen = [value], set[Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in fusion.stored:
            pending += inputs_of(node)
        elif node not in fusion.homes or fusion.homes[node].buffer == space:
            return True
    return False

"""What depends on weights alone is computed before a call and kept: prepacked operands.

Two kinds. A product's right operand in the panels that the machine multiplies by, beside the weight
itself: the encoder takes the one that suits the number of rows. And expressions of weights that are
worth more than they cost to load (a batch norm's scale, a weight cast for autocast, the norm of a
weight). Each is a module of its own, so that what no encoding uses is never computed. The runtime
computes them again when a weight has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from vtc.graph.program import Program, has_symbol, is_parameter, value_of
from vtc.index import Affine, Fill, IndexMap, Piece, Size, axes, sizes
from vtc.lowering.dvm.fuse import Fusion
from vtc.lowering.dvm.graph import Graph, constant_key
from vtc.lowering.dvm.memory import Home
from vtc.lowering.dvm.modules import assemble
from vtc.lowering.dvm.nodes import (
    PHYSICAL,
    Move,
    Node,
    Unsupported,
    contiguous,
    inputs_of,
    live_users,
)
from vtc.lowering.dvm.plan import ModuleStep, Prepacked, Space, TensorRef
from vtc.program.dtypes import DType
from vtc.program.scalars import SCALARS
from vtc.program.tile import Panel

# A product of fewer rows streams its right operand as it lies.
FEW_ROWS = 16
# A small result is kept even where its operands are smaller.
SMALL_BYTES = 64 << 10
PACKED_TYPES = (DType.F32, DType.BF16, DType.F16)


@dataclass(frozen=True)
class Packing:
    """What the machine wants: columns of a panel, whether it multiplies pairs of bf16; and the most
    bytes that copies may take."""

    width: int
    max_bytes: int
    pairs_bf16: bool = False

    def depth(self, dtype: DType) -> int:
        """Rows of k that lie side by side in a panel."""
        return 2 if self.pairs_bf16 and dtype is DType.BF16 else 1


@dataclass
class Prepacking:
    """The prepacked operands of a program, found before its kernels are.

    `kept` are nodes that are loaded as if they were inputs; `panels` gives for the right operand of
    a product the node that holds it packed, and how.
    """

    program: Program
    graph: Graph
    weights: dict[Node, int]
    packing: Packing
    kept: dict[Node, Prepacked] = field(default_factory=dict)
    panels: dict[Node, tuple[Node, Panel]] = field(default_factory=dict)
    bytes: int = 0
    modules: dict[Any, ModuleStep | None] = field(default_factory=dict)
    fixed: set[Node] = field(default_factory=set)
    constant: set[Node] = field(default_factory=set)

    def find(self, users: dict[Node, list[Node]], excluded: Collection[Node]) -> None:
        """`users` are the live nodes with their users; what is `excluded` the caller gets."""
        for node in sorted(users, key=lambda n: n.depth):
            self.judge(node)
        # The caller may get views of what is excluded.
        excluded = {*excluded, *map(_moved, excluded)}
        for node in [n for n in users if n.op in ("matmul", "convolution")]:
            right = node.operands[1]
            if right in self.panels or right not in self.constant:
                continue
            if node.op == "convolution":
                self.pack_taps(right, node.constant.groups)
            elif _many_rows(node):
                self.pack(right)
        for node in list(users):
            source = _moved(node)
            edge = node in self.constant and any(u not in self.constant for u in users[node])
            if edge and source not in excluded and self.pays(source):
                self.keep(source)

    def judge(self, node: Node) -> None:
        """Does the node depend on weights and nothing else, at sizes that are known? Its operands
        were judged before."""
        if node.op in PHYSICAL:
            known = node in self.weights
        else:
            known = all(isinstance(s, int) for s in node.shape)
            known = known and self.fixed.issuperset(node.operands)
        if known:
            self.fixed.add(node)
            if node in self.weights or not self.constant.isdisjoint(node.operands):
                self.constant.add(node)

    def pays(self, node: Node) -> bool:
        """Is the node worth more than the loads of what it is made of?"""
        if node.op in ("input", "const", "iota") or node in self.kept:
            return False
        own, leaves = _bytes(node), [n for n in _leaves(node) if n in self.weights]
        inner = _inside(node)
        if any(n.op in ("reduce", "scan", "matmul", "attention") for n in inner):
            return True
        works = any(n.op in SCALARS or n.op == "cast" or _moved(n) is n for n in inner)
        return works and own <= max(SMALL_BYTES, sum(map(_bytes, leaves)))

    def pack(self, right: Node) -> None:
        """Adds the panels of a right operand [..., k, n]."""
        *outer, k, n = right.shape
        if not (k and n and isinstance(k, int) and isinstance(n, int)):
            return
        if right.dtype not in PACKED_TYPES:
            return
        panel = Panel(self.packing.width, self.packing.depth(right.dtype))
        shape = (*outer, -(-n // panel.width), -(-k // panel.depth), panel.width, panel.depth)
        node = self.graph.move(IndexMap(shape, _pieces(shape, panel, k, n)), [right])
        if self.keep(node):
            self.panels[right] = node, panel

    def pack_taps(self, right: Node, groups: int) -> None:
        """Adds the panels of a convolution's weight [co, ci, ...], a row a tap and channel:
        [group, panel, ..., ci, width]. A depthwise one is laid out as [..., co]."""
        co, ci, *taps = right.shape
        width = self.packing.width
        known = isinstance(co, int) and all(isinstance(s, int) for s in right.shape)
        if not known or 0 in right.shape or right.dtype not in PACKED_TYPES:
            return
        each = int(co) // groups
        if each == 1:
            order = [*range(2, len(right.shape)), 1, 0]
            node = self.graph.permute(right, order)
            if self.keep(node):
                self.panels[right] = node, Panel(1)
            return
        shape = (groups, -(-each // width), *taps, ci, width)
        at = axes(len(shape))
        column = at[0] * each + at[1] * width + at[-1]
        self.add_panels(right, shape, 1, each, [column, at[-2], *at[2:-2]])

    def add_panels(
        self, right: Node, shape: tuple[Size, ...], dim: int, n: int, index: list[Affine]
    ) -> None:
        """Adds the panels of n columns: `shape` has them at `dim` and the columns of one behind;
        `index` gives the element of the operand."""
        width = int(shape[-1])
        whole, rest = divmod(n, width)
        low, high = [0] * len(shape), list(shape)
        pieces = []
        if whole:
            pieces.append(Piece(low, [*shape[:dim], whole, *shape[dim + 1 :]], 0, index))
        if rest:
            first = [*low[:dim], whole, *low[dim + 1 :]]
            pieces.append(Piece(first, [*high[:-1], rest], 0, index))
            pieces.append(Piece([*first[:-1], rest], high, Fill(0.0)))
        node = self.graph.move(IndexMap(shape, pieces), [right])
        panel = Panel(width)
        if self.keep(node):
            self.panels[right] = node, panel

    def keep(self, node: Node) -> bool:
        """Adds a node, if there is room for it and it is a program that reads weights alone."""
        size = _bytes(node)
        if self.bytes + size > self.packing.max_bytes:
            return False
        made = self.prologue(node)
        if made is None:
            return False
        self.kept[node] = made
        self.bytes += size
        return True

    def prologue(self, node: Node) -> Prepacked | None:
        """The module that computes one node from weights; one for all that are of one form."""
        leaves = _leaves(node)
        strides = [value_of(self.program.inputs[self.weights[w]]).stride() for w in leaves]
        key = _form(node), tuple(strides)
        if key not in self.modules:
            self.modules[key] = _module(node, leaves, strides)
        step = self.modules[key]
        if step is None:
            return None
        numbers = [self.weights[w] for w in leaves]
        # Spaces are the leaves in order, and then the result.
        sources = (-1 if s is None or s == len(leaves) else numbers[s] for s in step.spaces)
        return Prepacked(step.module, tuple(sources), tuple(map(int, node.shape)), node.dtype)


def _module(node: Node, leaves: Sequence[Node], strides: Sequence[Any]) -> ModuleStep | None:
    """The kernels that compute a node from its leaves; None if they are no one module."""
    fusion = Fusion(live_users([node]), {node})
    for number, (weight, stride) in enumerate(zip(leaves, strides, strict=True)):
        space = fusion.space(Space("input", weight.dtype, weight.shape, stride, number))
        fusion.homes[weight] = Home(space, 0, stride)
        fusion.stored.add(weight)
    own = fusion.space(Space("made", node.dtype, node.shape, contiguous(node.shape)))
    fusion.homes[node] = Home(own, 0, contiguous(node.shape))
    try:
        fusion.ensure(node)
    except Unsupported:
        return None
    steps = assemble(fusion.steps, fusion.spaces, [TensorRef(own)])
    if len(steps) != 1:  # none where there are no elements
        return None
    (step,) = steps
    return step if isinstance(step, ModuleStep) and not step.module.symbols else None


def _form(node: Node) -> tuple[Any, ...]:
    """What two nodes have in common that are computed alike, if of different weights."""
    order = {one: number for number, one in enumerate(_inside(node))}
    return tuple(
        (
            one.op,
            one.shape,
            one.dtype,
            None if one.op == "input" else constant_key(one.constant),
            tuple(order[o] for o in inputs_of(one)),
        )
        for one in order
    )


def prepack(
    program: Program,
    graph: Graph,
    inputs: Sequence[tuple[int, Node]],
    users: dict[Node, list[Node]],
    excluded: Collection[Node],
    packing: Packing,
) -> Prepacking:
    """The prepacked operands of a program whose graph inputs are `inputs`."""
    updated = {number for number, _ in program.updates}
    first = len(program.inputs) - len(program.constants)
    weights = {
        node: number
        for number, node in inputs
        if number not in updated
        and (number >= first or is_parameter(program.inputs[number]))
        and not has_symbol(program.inputs[number])
    }
    found = Prepacking(program, graph, weights, packing)
    if packing.max_bytes > 0:
        found.find(users, excluded)
    return found


def _pieces(shape: Sequence[Size], panel: Panel, k: int, n: int) -> list[Piece]:
    """[..., panel, group of k, width, depth] of [..., k, n]: whole panels and groups, the last ones
    as far as they go, and zeros behind."""
    at = axes(len(shape))
    index = [*at[:-4], at[-3] * panel.depth + at[-1], at[-4] * panel.width + at[-2]]
    outer = shape[:-4]
    low = [0] * len(outer)
    pieces = []
    for p0, p1, columns in _parts(n, panel.width):
        for g0, g1, rows in _parts(k, panel.depth):
            lower, upper = [*low, p0, g0, 0, 0], [*outer, p1, g1, columns, rows]
            pieces.append(Piece(lower, upper, 0, index))
            if rows < panel.depth:
                lower, upper = [*low, p0, g0, 0, rows], [*outer, p1, g1, columns, panel.depth]
                pieces.append(Piece(lower, upper, Fill(0.0)))
        if columns < panel.width:
            lower, upper = [*low, p0, 0, columns, 0], [*outer, p1, *shape[-3:]]
            pieces.append(Piece(lower, upper, Fill(0.0)))
    return pieces


def _parts(count: int, width: int) -> list[tuple[int, int, int]]:
    """(first, last, extent) of the whole parts of `width`, and of the one that is not."""
    whole, rest = divmod(count, width)
    return [(0, whole, width)] * (whole > 0) + [(whole, whole + 1, rest)] * (rest > 0)


def _many_rows(node: Node) -> bool:
    """May the product have as many rows as make packing pay? A size that is a symbol may."""
    right = node.operands[1]
    outer = node.shape[:-2]
    shared = (1,) * (len(outer) - len(right.shape[:-2])) + right.shape[:-2]
    own = (s for s, r in zip(outer, shared, strict=True) if r == 1)
    rows = sizes.product([node.shape[-2], *own])
    return not isinstance(rows, int) or rows >= FEW_ROWS


def _moved(node: Node) -> Node:
    """What a movement that costs nothing to read through shows; else the node itself."""
    while node.op == "move":
        move: Move = node.constant
        if len(move.load.pieces) != 1:  # several sources, or no elements
            break
        (piece,) = move.load.pieces
        if isinstance(piece.source, Fill) or piece.lookups():
            break
        node = node.operands[piece.source]
    return node


def _inside(node: Node) -> list[Node]:
    """The node and all that it is computed from."""
    found, pending = dict[Node, None](), [node]
    while pending:
        one = pending.pop()
        if one not in found:
            found[one] = None
            pending += inputs_of(one)
    return list(found)


def _leaves(node: Node) -> list[Node]:
    return [n for n in _inside(node) if n.op == "input"]


def _bytes(node: Node) -> int:
    count = sizes.product(node.shape)
    assert isinstance(count, int)
    return count * node.dtype.itemsize

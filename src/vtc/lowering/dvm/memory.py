"""Where values are: the spaces of a program, the homes of nodes in them, and what is stored.

Layouts are settled here: eager PyTorch's strides for what it sees, channels last for what
convolutions read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from vtc.graph.rules import same
from vtc.index import Size, sizes
from vtc.lowering.dvm.nodes import Node
from vtc.lowering.dvm.plan import Space, TensorRef
from vtc.lowering.dvm.storage import Order, Orders, channels_last, without_gaps
from vtc.program.scalars import SCALARS
from vtc.program.tile import ANCHORS, Panel


@dataclass(frozen=True)
class Home:
    """Where a node's elements are: buffer, and offset and strides in elements."""

    buffer: int
    offset: Size
    stride: tuple[Size, ...]


@dataclass(frozen=True)
class View:
    """A view of a node's tensor, with the offset from its first element."""

    base: Node
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


@dataclass
class Memory:
    """The spaces of a program, and which nodes are in them.

    users: the live uses. kept: stored for the caller. roots: used beside `users`, as they are
    returned, left in updated inputs, or passed to eager calls. fakes: eager PyTorch's tensors,
    whose strides eager calls get. homes: where nodes are or will be. stored: those that are there.
    panels: for a product's right operand the node that holds it packed. also: where the caller
    wants a value that kernels read in another order: it is stored twice. viewed: values that are
    returned as views.
    """

    users: dict[Node, list[Node]]
    kept: set[Node]
    roots: frozenset[Node] = frozenset()
    fakes: Mapping[Node, torch.Tensor] = field(default_factory=dict)
    spaces: list[Space] = field(default_factory=list)
    homes: dict[Node, Home] = field(default_factory=dict)
    stored: set[Node] = field(default_factory=set)
    panels: dict[Node, tuple[Node, Panel]] = field(default_factory=dict)
    also: dict[Node, Home] = field(default_factory=dict)
    viewed: dict[Node, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.orders = Orders(self._given)

    def _given(self, node: Node) -> Order | None:
        home = self.homes.get(node)
        return None if home is None else channels_last(home.stride)

    def space(self, space: Space) -> int:
        self.spaces.append(space)
        return len(self.spaces) - 1

    def home(self, node: Node) -> Home:
        """Where the node is or will be."""
        found = self.homes.get(node)
        if found is None:
            stride = self.orders.strides(node)
            number = self.space(Space("made", node.dtype, node.shape, stride))
            found = self.homes[node] = Home(number, 0, stride)
        return found

    def in_memory(self, node: Node) -> Home | None:
        return self.homes[node] if node in self.stored else None

    # What eager PyTorch sees.

    def traced_home(self, node: Node) -> Home:
        """The node's home: one with eager PyTorch's strides, if it has none yet."""
        stride = None if node in self.homes else self.dense_stride(node)
        if stride is not None:
            space = self.space(Space("made", node.dtype, node.shape, stride))
            self.homes[node] = Home(space, 0, stride)
        return self.home(node)

    def traced_stride(self, node: Node) -> tuple[Size, ...] | None:
        fake = self.fakes.get(node)
        return None if fake is None else tuple(map(sizes.as_size, fake.stride()))

    def dense_stride(self, node: Node) -> tuple[Size, ...] | None:
        """Eager PyTorch's strides, or dense ones in their order; None where they are not known. It
        is asked for few nodes: it takes long to find."""
        stride = self.traced_stride(node)
        if stride is None or is_non_overlapping_and_dense_or_false(self.fakes[node]):
            return stride
        return without_gaps(node.shape, stride)

    def stride_of(self, reference: TensorRef) -> tuple[Size, ...]:
        return reference.view[1] if reference.view else self.spaces[reference.space].stride

    def reference(
        self, number: int, shape: tuple[Size, ...], stride: tuple[Size, ...], offset: Size
    ) -> TensorRef:
        space = self.spaces[number]
        if offset == 0 and (space.shape, space.stride) == (shape, stride):
            return TensorRef(number)
        return TensorRef(number, (shape, stride, offset))

    # Who uses a node, and what it reads.

    def only(self, node: Node) -> bool:
        """Does just one node use this one, and no caller?"""
        return len(self.users.get(node, ())) == 1 and node not in self.roots

    def wants_channels_last(self, node: Node) -> bool:
        """Is it computed channels last, and read by a convolution?"""
        return self.orders(node) is not None and self.convolved(node)

    def convolved(self, node: Node) -> bool:
        """Does a convolution read the node, movement between them aside?"""
        pending, seen = [node], {node}
        while pending:
            for user in self.users.get(pending.pop(), ()):
                if user.op == "convolution":
                    return True
                if user.op == "move" and user not in seen:
                    seen.add(user)
                    pending.append(user)
        return False

    def reads_place(self, node: Node, space: int) -> bool:
        """Would the kernel of `node` read an anchor's operand in that space?

        An anchor's tiles are stored while others still read its operands.
        """
        pending, seen = [node], set[Node]()
        while pending:
            at = pending.pop()
            if at in seen or at in self.stored:
                continue
            seen.add(at)
            if at.op in ANCHORS and any(self.lies_in(o, space) for o in at.operands):
                return True
            if at.op in ("move", "cast", *SCALARS):
                pending += at.operands
        return False

    def lies_in(self, node: Node, space: int) -> bool:
        """Is the node, or what it is a view of, in that space?"""
        while node.op == "move" and node not in self.homes and len(node.operands) == 1:
            node = node.operands[0]
        home = self.homes.get(node)
        return home is not None and home.buffer == space


def same_layout(shape: Sequence[Size], one: Sequence[Size], two: Sequence[Size]) -> bool:
    """Are strides the same but in dimensions of one element, or where there is none?"""
    if any(size == 0 for size in shape):
        return True
    return all(s == 1 or same(a, b) for s, a, b in zip(shape, one, two, strict=True))

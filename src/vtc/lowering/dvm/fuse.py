"""Fusion by deduction: which nodes become kernels, in which order, and where results are stored.

`Fusion.ensure(node)` brings a node into memory. Its kernel is written from the node downwards: what
can be computed at the same points is computed there, and what cannot raises Needs and is brought
into memory first. Nothing depends on a size's value, so that this is done once a capture.

What a kernel computed and others will ask for again is stored too, if computing it again would cost
more than loading it: that is how one kernel gets several outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._prims_common import is_non_overlapping_and_dense_or_false

from vtc.graph.rules import same
from vtc.index import Fill, Piece, Size, affine, sizes, substitution
from vtc.lowering.dvm.anchors import write_anchor
from vtc.lowering.dvm.body import Body, Cut, Home, Needs, Split, alive
from vtc.lowering.dvm.channels import Planned
from vtc.lowering.dvm.domain import Domain, Index, choose, coordinates_of, pointwise
from vtc.lowering.dvm.nodes import (
    PHYSICAL,
    Call,
    Conditional,
    Move,
    Node,
    Scatter,
    Unsupported,
    Weak,
    reads,
)
from vtc.lowering.dvm.plan import EagerStep, ScalarRef, Space, TensorRef
from vtc.lowering.dvm.storage import Order, Orders, channels_last
from vtc.program.module import Branch
from vtc.program.scalars import SCALARS
from vtc.program.tile import ANCHORS, Panel, TileKernel

# More cycles a vector than this, or more loads, and a value is stored rather than computed again.
RECOMPUTED_COST = 40
RECOMPUTED_LEAVES = 2
# Longer chains of scalar operators are cut into kernels.
DEEPEST = 120


@dataclass(frozen=True)
class View:
    """A view of a node's tensor, with the offset from its first element."""

    base: Node
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


@dataclass
class Fusion:
    """Kernels for the nodes that are asked for.

    users: the live uses. kept: stored for the caller. roots: used beside `users`, as they are
    returned, left in updated inputs, or passed to eager calls. fakes: eager PyTorch's
    tensors, whose strides eager calls get. panels: for a product's right operand the node
    that holds it packed. viewed: values that are returned as views. operands: those of calls that
    return views of them. overwritten: spaces that scatters write into. also: where the caller wants
    a value that kernels read in another order: it is stored twice.
    """

    users: dict[Node, list[Node]]
    kept: set[Node]
    results: dict[Call | Conditional, tuple[Node, ...]]
    roots: frozenset[Node] = frozenset()
    fakes: Mapping[Node, torch.Tensor] = field(default_factory=dict)
    inplace: dict[Node, int] = field(default_factory=dict)
    spaces: list[Space] = field(default_factory=list)
    homes: dict[Node, Home] = field(default_factory=dict)
    stored: set[Node] = field(default_factory=set)
    steps: list[TileKernel | Branch | EagerStep] = field(default_factory=list)
    calls: set[Call] = field(default_factory=set)
    panels: dict[Node, tuple[Node, Panel]] = field(default_factory=dict)
    overwritten: set[int] = field(default_factory=set)
    also: dict[Node, Home] = field(default_factory=dict)
    viewed: dict[Node, View] = field(default_factory=dict)
    operands: dict[tuple[Call, Node], View] = field(default_factory=dict)
    made: int = 0

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

    def ensure(self, node: Node) -> None:
        """Brings the node into memory, if it is not."""
        if node in self.stored:
            return
        if node.op == "external":
            self.call(node.constant[0])
        elif node.op == "scatter":
            self.scatter(node)
        elif node.op == "arm":
            self.branch(node.constant[0])
        elif node.op == "move":
            self.place(node)
        else:
            self.compute(node, self.home(node))
        self.stored.add(node)

    # Kernels.

    def compute(self, root: Node, home: Home) -> None:
        """The kernel that stores `root` at `home`, after those that it needs."""
        if root.op in PHYSICAL:
            self.ensure(root)  # no kernel's value: it is copied from where it is
        while root not in self.stored or self.homes[root] != home:
            again = root in self.stored
            order = self.orders(root)
            domain = (
                pointwise(root.shape, order=order)
                if again
                else choose(root, self.stored.__contains__, order)
            )
            needed = self.try_kernel(domain, root, home)
            if needed is None:
                return
            if needed is root or needed in self.stored:
                raise Unsupported(f"{root.op} cannot be written as one kernel")
            self.bring(needed, root)

    def bring(self, node: Node, root: Node) -> None:
        """Ensures a node that the kernel of `root` needs; a fold together with the folds over the
        same dimensions that read it (softmax's sum reads its maximum), so that one kernel does
        them."""
        node = self.epilogue(node, root)
        while node.op == "reduce":
            outer = self.fold_over(node, root)
            if outer is None:
                break
            node = outer
        self.ensure(node)

    def epilogue(self, anchor: Node, root: Node) -> Node:
        """What an anchor that has to be stored is stored as: with the scalar operators behind it,
        as long as all that use it go through them."""
        found, pending = anchor, [anchor]
        while anchor.op in ANCHORS:
            if len(pending) == 1 and pending[0].op != "move":
                (found,) = pending
            pending.sort(key=lambda n: n.depth)
            users = self.users.get(pending.pop(0), ())
            fits = all(
                u is not root
                and u not in self.stored
                and u not in self.kept
                and _follows(u, anchor)
                for u in users
            )
            if not users or not fits:
                break
            pending += [u for u in users if u not in pending]
        return found

    def fold_over(self, node: Node, root: Node) -> Node | None:
        """A fold that reads `node` at the points that it folds, and that `root` needs too."""
        pending, seen = [node], set[Node]()
        while pending:
            for user in self.users.get(pending.pop(), ()):
                if user in seen or user in self.stored or user is root:
                    continue
                seen.add(user)
                if user.op == "reduce":
                    same_points = user.constant.dims == node.constant.dims and (
                        user.operands[0].shape == node.operands[0].shape
                    )
                    if same_points and reads([root], user) and not reads([user], root):
                        return user
                elif user.op in SCALARS or user.op == "cast":
                    pending.append(user)
        return None

    def try_kernel(self, domain: Domain, root: Node, home: Home) -> Node | None:
        """Appends kernels that store the root's value, or tells what they need first."""
        body: Body | None = None
        while body is None:
            try:
                body = self.body(domain)
                value = body.value(root, domain.root)
                body.store(home, root.shape, domain.root, value)
                if root in self.also and self.homes.get(root) == home:
                    body.store(self.also[root], root.shape, domain.root, value)
            except Split as split:
                body, domain = None, domain.split(split.dim, split.factor)
            except Needs as needs:
                return needs.node
            except Cut as cut:
                return self.try_parts([domain.part(cut.dim, *p) for p in cut.parts], root, home)
        done = {root} if self.homes.get(root) == home else set()
        self.commit(body, done)
        return None

    def try_parts(self, domains: Sequence[Domain], root: Node, home: Home) -> Node | None:
        """The same for a kernel that is written in parts."""
        for domain in domains:
            needed = self.try_kernel(domain, root, home)
            if needed is not None:
                return needed
            self.stored.discard(root)
        if self.homes.get(root) == home:
            self.stored.add(root)
        return None

    def body(self, domain: Domain) -> Body:
        planned = Planned(self.homes, self.orders.strides, self.panels)
        return Body(domain, self.in_memory, functools.partial(write_anchor, planned=planned))

    def commit(self, body: Body, done: set[Node]) -> None:
        """Appends the body as a kernel, with stores of what is worth keeping beside."""
        for node, (index, value) in list(body.inlined.items()):
            if node not in done and self.worth_keeping(node, body) and _onto(body, node, index):
                body.store(self.home(node), node.shape, index, value)
                if node in self.also:
                    body.store(self.also[node], node.shape, index, value)
                done = done | {node}
        domain, instrs = body.domain, alive(body.instrs)
        name = f"k{self.made}_{_name(instrs)}"
        self.made += 1
        self.steps.append(TileKernel(name, domain.sizes, domain.reduced, instrs))
        self.stored |= done

    def worth_keeping(self, node: Node, body: Body) -> bool:
        if node in self.stored or node.op in ("move", "const", "iota"):
            return False
        if node in self.kept:
            return True
        if node.cost <= RECOMPUTED_COST and node.leaves <= RECOMPUTED_LEAVES:
            return False
        return self.asked_later(node, body.seen)

    def asked_later(self, node: Node, seen: set[Node]) -> bool:
        """Does a node that is neither in memory nor in the kernel at hand use this one?"""
        for user in self.users.get(node, ()):
            # An arm of a branch computes what it gives in the branch.
            if user in self.stored or user.op == "arm":
                continue
            if user.op == "move" and user not in self.kept:
                if self.asked_later(user, seen):
                    return True
            elif user not in seen:
                return True
        return False

    # Movement that has to be done.

    def place(self, node: Node) -> None:
        """A movement operator's result in memory.

        What it moves is computed straight into its place where that is known; the rest is copied.
        """
        home = self.home(node)
        move: Move = node.constant
        pieces = move.load.pieces
        left = [p for p in pieces if not self.adopt(node, p, home)]
        if not left:
            return
        moving = [p for p in left if not isinstance(p.source, Fill)]
        if len(left) == len(pieces) and len(moving) <= 1:
            try:
                self.compute(node, home)
            except Unsupported:
                pass  # a mask that no bound of one coordinate says
            else:
                return
        for piece in left:
            self.copy_box(node, piece, home)

    def adopt(self, node: Node, piece: Piece, home: Home) -> bool:
        """Lets the source of a piece live in its place in `home`, if it has none of its own yet."""
        move: Move = node.constant
        if isinstance(piece.source, Fill) or piece.lookups():
            return False
        source = node.operands[piece.source]
        store = move.stores[piece.source]
        if home.buffer in self.overwritten and not (self.only(node) and self.only(source)):
            return False  # others would read what is written over it
        alone = sum(p.source == piece.source for p in move.load.pieces) == 1
        free = source not in self.homes and source.op not in ("input", "external", "arm")
        if channels_last(home.stride) is None and self.wants_channels_last(source):
            return False
        if not alone or not free or store is None or len(store.pieces) != 1:
            return False
        if self.reads_place(source, home.buffer):
            return False
        (back,) = store.pieces
        if any(low != 0 for low in back.lower) or back.upper != source.shape:
            return False
        total = affine.constant(home.offset)
        for form, stride in zip(back.forms, home.stride, strict=True):
            total = affine.add(total, affine.scale(form, stride))
        total = substitution.simplify(affine.recombine(total, back.bounds), back.bounds)
        if not all(isinstance(t, int) for t in total.terms):
            return False
        stride = tuple(total.terms.get(d, 0) for d in range(len(source.shape)))
        self.homes[source] = Home(home.buffer, total.const, stride)
        self.ensure(source)
        return True

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

    def only(self, node: Node) -> bool:
        """Does just one node use this one, and no caller?"""
        return len(self.users.get(node, ())) == 1 and node not in self.roots

    def copy_box(self, node: Node, piece: Piece, home: Home) -> None:
        """A kernel that copies one piece of a movement operator."""
        extent = piece.extent
        while True:
            domain = pointwise(extent, piece.lower, self.orders(node))
            needed = self.try_piece(domain, node, piece, home)
            if needed is None:
                return
            self.bring(needed, node)

    def try_piece(self, domain: Domain, node: Node, piece: Piece, home: Home) -> Node | None:
        while True:
            try:
                body = self.body(domain)
                body.seen.add(node)
                if isinstance(piece.source, Fill):
                    value = body.filled(piece.source.value, node.dtype)
                else:
                    forms = body.forms(node, piece, domain.root, ())
                    value = body.value(node.operands[piece.source], forms)
                body.store(home, node.shape, domain.root, value)
            except Split as split:
                domain = domain.split(split.dim, split.factor)
            except Needs as needs:
                return needs.node
            else:
                self.commit(body, set())
                return None

    # Scatters.

    def scatter(self, node: Node) -> None:
        """Values written over a base: in the updated input itself, or in the base's copy."""
        base, values = node.operands[:2]
        spec: Scatter = node.constant
        home = self.home(node)
        self.overwritten.add(home.buffer)
        if node in self.inplace:
            self.ensure(base)  # the input, or what was written into it before
        else:
            self.store_into(base, home)
        for piece in spec.store.pieces:
            while True:
                whole = piece.extent == values.shape
                domain = (
                    choose(values, self.stored.__contains__)
                    if whole and values not in self.stored
                    else pointwise(piece.extent, piece.lower)
                )
                needed = self.try_scatter(domain, node, piece, home)
                if needed is None:
                    break
                self.bring(needed, values)

    def store_into(self, node: Node, home: Home) -> None:
        """The node's value at `home`, which is another node's."""
        free = node not in self.homes and node.op not in ("input", "external", "arm", "const")
        if free and self.only(node):
            self.homes[node] = home
            self.ensure(node)
            # The place is about to be written over.
            self.stored.discard(node)
            return
        if node.op == "move":
            copied = replace_root(node)
            self.homes[copied] = home
            self.ensure(copied)
            return
        self.compute(node, home)

    def try_scatter(self, domain: Domain, node: Node, piece: Piece, home: Home) -> Node | None:
        _, values, *lookups = node.operands
        while True:
            try:
                body = self.body(domain)
                body.seen.add(node)
                value = body.value(values, domain.root)
                if values not in self.stored and self.reads_place(values, home.buffer):
                    return values
                bounds = body.bounds
                forms = tuple(
                    body.looked_up(substitution.substitute(f, domain.root, bounds), lookups, ())
                    for f in piece.forms
                )
                body.store(home, node.shape, forms, value)
            except Split as split:
                domain = domain.split(split.dim, split.factor)
            except Cut:
                return values
            except Needs as needs:
                return needs.node
            else:
                self.commit(body, set())
                return None

    # Eager calls and branches.

    def call(self, call: Call) -> None:
        """Runs the operator eagerly, and its results are in memory."""
        if call in self.calls:
            return

        def passed(value: Any) -> Any:
            if isinstance(value, Weak):
                self.ensure(value.node)
                return ScalarRef(self.homes[value.node].buffer)
            return self.tensor(value, call) if isinstance(value, Node) else value

        args, kwargs = fx.node.map_aggregate((call.args, call.kwargs), passed)
        results = []
        for node in self.results[call]:
            stride = tuple(map(sizes.as_size, call.result(node.constant[1]).stride()))
            space = Space("made", node.dtype, node.shape, stride)
            self.homes[node] = Home(self.space(space), 0, stride)
            self.stored.add(node)
            results.append((node.constant[1], self.homes[node].buffer))
        step = EagerStep(call.origin, call.target, args, kwargs, tuple(results), call.symbols)
        self.calls.add(call)
        self.steps.append(step)

    def tensor(self, node: Node, call: Call) -> TensorRef:
        """The node, an operand of a call, as a tensor with eager PyTorch's strides, on which those
        of an operator's results depend: a view of something in memory where it is one."""
        shown = self.operands.get((call, node)) or self.viewed.get(node)
        if shown is not None:
            self.ensure(shown.base)
            home = self.also.get(shown.base) or self.homes[shown.base]
            offset = sizes.add(home.offset, shown.offset)
            return TensorRef(home.buffer, (shown.shape, shown.stride, offset))
        reference = self.view(node)
        if reference is None:
            home = self.traced_home(node)
            self.ensure(node)
            reference = TensorRef(home.buffer, (node.shape, home.stride, home.offset))
        stride = self.traced_stride(node)
        if stride is None or stride == self.stride_of(reference):
            return reference
        if same_layout(node.shape, stride, self.stride_of(reference)):
            # Strides of dimensions of one element tell PyTorch's kernels memory formats.
            offset = reference.view[2] if reference.view else 0
            return self.reference(reference.space, node.shape, stride, offset)
        if not self.dense(node):
            return reference
        space = self.space(Space("made", node.dtype, node.shape, stride))
        self.store_copy(node, Home(space, 0, stride))
        return TensorRef(space)

    def traced_home(self, node: Node) -> Home:
        """The node's home: one with eager PyTorch's strides, if it has none yet."""
        stride = self.traced_stride(node)
        if node not in self.homes and stride is not None and self.dense(node):
            space = self.space(Space("made", node.dtype, node.shape, stride))
            self.homes[node] = Home(space, 0, stride)
        return self.home(node)

    def traced_stride(self, node: Node) -> tuple[Size, ...] | None:
        fake = self.fakes.get(node)
        return None if fake is None else tuple(map(sizes.as_size, fake.stride()))

    def dense(self, node: Node) -> bool:
        """Has eager PyTorch's tensor no gaps? It is asked for few nodes: it takes long to find."""
        return is_non_overlapping_and_dense_or_false(self.fakes[node])

    def stride_of(self, reference: TensorRef) -> tuple[Size, ...]:
        return reference.view[1] if reference.view else self.spaces[reference.space].stride

    def view(self, node: Node, origin: Node | None = None) -> TensorRef | None:
        """The node as a view of what is in memory that it is moved from, of `origin` if there is
        one; None where it is no such view."""
        index: Index = tuple(affine.coordinate(d) for d in range(len(node.shape)))
        bounds = tuple((0, sizes.sub(s, 1)) for s in node.shape)
        base = node
        while base.op == "move" and (base not in self.stored if origin is None else base != origin):
            move: Move = base.constant
            pieces = move.load.pieces
            if len(pieces) != 1 or isinstance(pieces[0].source, Fill) or pieces[0].lookups():
                return None
            index = tuple(substitution.substitute(f, index, bounds) for f in pieces[0].forms)
            base = base.operands[pieces[0].source]
        if origin is not None and base is not origin:
            return None
        if base.op == "external":
            self.ensure(base)
        home = self.traced_home(base)
        total = affine.constant(home.offset)
        for form, stride in zip(index, home.stride, strict=True):
            total = affine.add(total, affine.scale(form, stride))
        total = substitution.simplify(affine.recombine(total, bounds), bounds)
        if not all(isinstance(t, int) for t in total.terms):
            return None
        stride = tuple(total.terms.get(d, 0) for d in range(len(node.shape)))
        if any(not sizes.nonnegative(s) for s in stride):
            return None
        self.ensure(base)
        return self.reference(home.buffer, node.shape, stride, total.const)

    def reference(
        self, number: int, shape: tuple[Size, ...], stride: tuple[Size, ...], offset: Size
    ) -> TensorRef:
        space = self.spaces[number]
        if offset == 0 and (space.shape, space.stride) == (shape, stride):
            return TensorRef(number)
        return TensorRef(number, (shape, stride, offset))

    def branch(self, own: Conditional) -> None:
        """Both arms as steps under a predicate that is read when the program gets there."""
        self.ensure(own.predicate)
        predicate = self.homes[own.predicate].buffer
        results = self.results[own]
        for node in results:
            self.home(node)
        arms = []
        for values in (own.then, own.otherwise):
            steps, stored, self.steps = self.steps, set(self.stored), []
            for node, value in zip(results, values, strict=True):
                self.store_copy(value, self.homes[node])
            made = self.steps
            self.steps, self.stored = steps, stored
            if any(isinstance(s, EagerStep) for s in made):
                raise Unsupported("an arm of a branch has an eager call")
            arms.append(tuple(made))
        self.steps.append(Branch(predicate, arms[0], arms[1]))  # type: ignore[arg-type]
        self.stored |= set(results)

    def store_copy(self, node: Node, home: Home) -> None:
        """The node's value at `home` beside its own home."""
        if node.op == "move" and node not in self.stored:
            copied = replace_root(node)
            self.homes[copied] = home
            self.ensure(copied)
            return
        self.compute(node, home)


def same_layout(shape: Sequence[Size], one: Sequence[Size], two: Sequence[Size]) -> bool:
    """Are strides the same but in dimensions of one element, or where there is none?"""
    if any(size == 0 for size in shape):
        return True
    return all(s == 1 or same(a, b) for s, a, b in zip(shape, one, two, strict=True))


def _follows(user: Node, anchor: Node) -> bool:
    """Has the node one element for each of the anchor's, computed from it alone?"""
    if not same(sizes.product(user.shape), sizes.product(anchor.shape)):
        return False
    if user.op == "move":
        return user.constant.view and len(user.operands) == 1
    return user.op in SCALARS or user.op == "cast"


def replace_root(node: Node) -> Node:
    """The same expression as a node of its own, with a home of its own."""
    return replace(node)


def _onto(body: Body, node: Node, index: Index) -> bool:
    """Is each element of the node at exactly one point of the space (of its outer part, for a
    reduced value)?"""
    used = coordinates_of(index)
    moving = {d for d, s in enumerate(body.domain.sizes) if s != 1}
    if used not in (moving, moving - body.reduced) or any(affine.lookups(i) for i in index):
        return False
    if not all(isinstance(t, int) for form in index for t in form.terms):
        return False
    points = sizes.product(body.domain.sizes[d] for d in used)
    return same(points, sizes.product(node.shape))


def _name(instrs: Sequence[Any]) -> str:
    names = [i.op if i.op not in ("reduce", "scan") else str(i.constant) for i in instrs]
    plain = [n for n in names if n not in ("load", "store", "const", "iota", "cast")]
    return "_".join(dict.fromkeys(plain[:4])) or "copy"

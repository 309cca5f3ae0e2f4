"""Fusion by deduction: which nodes become kernels, in which order, and where results are stored.

`Fusion.ensure(node)` brings a node into memory: a value by a kernel (`writer.py`), movement by
computing what it moves straight into its place, or copies, and what only PyTorch can compute by an
eager call. Nothing depends on a size's value, so that this is done once a capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from vtc.index import Fill, Piece, Size, affine, sizes, substitution
from vtc.lowering.dvm.alignment import as_aligned, reads_vectors
from vtc.lowering.dvm.domain import Domain, Index, choose, pointwise
from vtc.lowering.dvm.instructions import Cut, Needs, Split
from vtc.lowering.dvm.memory import Home, View, same_layout
from vtc.lowering.dvm.nodes import Call, Conditional, Move, Node, Scatter, Unsupported, Weak
from vtc.lowering.dvm.plan import EagerStep, ScalarRef, Space, TensorRef
from vtc.lowering.dvm.storage import channels_last, without_gaps
from vtc.lowering.dvm.writer import KernelWriter
from vtc.program.module import Branch


@dataclass
class Fusion(KernelWriter):
    """Steps for the nodes that are asked for.

    results: of eager calls and branches. calls: those that were made. inplace: scatters that write
    into the updated input of that number. overwritten: spaces that scatters write into. operands:
    those of calls that return views of them. layouts: strides of results of calls, where they are
    known to be others than those of their fakes.
    """

    results: dict[Call | Conditional, tuple[Node, ...]] = field(default_factory=dict)
    calls: set[Call] = field(default_factory=set)
    inplace: dict[Node, int] = field(default_factory=dict)
    overwritten: set[int] = field(default_factory=set)
    operands: dict[tuple[Call, Node], View] = field(default_factory=dict)
    layouts: dict[Node, tuple[Size, ...]] = field(default_factory=dict)

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

    def store_copy(self, node: Node, home: Home) -> None:
        """The node's value at `home` beside its own home."""
        if node.op == "move" and node not in self.stored:
            copied = replace_root(node)
            self.homes[copied] = home
            self.ensure(copied)
            return
        self.compute(node, home)

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
            stride = self.layouts.get(node)
            if stride is None:
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
        reference = self.located(node)
        if reads_vectors(call) and not as_aligned(node, reference, self.fakes, self.spaces):
            return self.laid_apart(node, self.stride_of(reference))
        return reference

    def located(self, node: Node) -> TensorRef:
        """The node as a tensor with eager PyTorch's strides, where those can be had."""
        reference = self.view(node)
        if reference is None:
            home = self.traced_home(node)
            self.ensure(node)
            reference = TensorRef(home.buffer, (node.shape, home.stride, home.offset))
        stride, own = self.traced_stride(node), self.stride_of(reference)
        if stride is None or stride == own:
            return reference
        if same_layout(node.shape, stride, own):
            # Strides of dimensions of one element tell PyTorch's kernels memory formats.
            offset = reference.view[2] if reference.view else 0
            return self.reference(reference.space, node.shape, stride, offset)
        dense = self.dense_stride(node)
        if dense is None or (dense != stride and dense == without_gaps(node.shape, own)):
            return reference  # in eager PyTorch's order
        return self.laid_apart(node, dense)

    def laid_apart(self, node: Node, stride: tuple[Size, ...]) -> TensorRef:
        """A copy of the node in memory of its own."""
        space = self.space(Space("made", node.dtype, node.shape, stride))
        self.store_copy(node, Home(space, 0, stride))
        return TensorRef(space)

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


def replace_root(node: Node) -> Node:
    """The same expression as a node of its own, with a home of its own."""
    return replace(node)

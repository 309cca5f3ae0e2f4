"""Kernels for values: which nodes one kernel computes, and which it stores.

A kernel is written from a node downwards: what can be computed at the same points is computed
there, and what cannot raises Needs and is brought into memory first. What a kernel computed and
others will ask for again is stored too, if computing it again would cost more than loading it: that
is how one kernel gets several outputs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vtc.graph.rules import same
from vtc.index import affine, sizes
from vtc.lowering.dvm.anchors import write_anchor
from vtc.lowering.dvm.body import Body
from vtc.lowering.dvm.channels import Planned
from vtc.lowering.dvm.domain import Domain, Index, choose, coordinates_of, pointwise
from vtc.lowering.dvm.instructions import Cut, Needs, Split, alive
from vtc.lowering.dvm.memory import Home, Memory
from vtc.lowering.dvm.nodes import PHYSICAL, Node, Unsupported, reads
from vtc.lowering.dvm.plan import EagerStep
from vtc.program.module import Branch
from vtc.program.scalars import SCALARS
from vtc.program.tile import ANCHORS, TileKernel

# More cycles a vector than this, or more loads, and a value is stored rather than computed again.
RECOMPUTED_COST = 40
RECOMPUTED_LEAVES = 2


@dataclass
class KernelWriter(Memory, ABC):
    """Appends kernels to `steps`; `made` counts them. whole_rows: see `normed`."""

    steps: list[TileKernel | Branch | EagerStep] = field(default_factory=list)
    made: int = 0
    whole_rows: bool = False

    @abstractmethod
    def ensure(self, node: Node) -> None:
        """Brings the node into memory, if it is not."""

    def compute(self, root: Node, home: Home) -> None:
        """The kernel that stores `root` at `home`, after those that it needs."""
        if root.op in PHYSICAL:
            self.ensure(root)  # no kernel's value: it is copied from where it is
        if 0 in root.shape:  # a fold in it over other dimensions would have results all the same
            self.stored |= {root} if self.homes.get(root) == home else set()
            return
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
            anchor = domain.anchor
            if needed in self.stored and anchor is not None and anchor is not root:
                needed = anchor  # by itself it reads them at affine addresses
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
        self.ensure(self.normed(node, root))

    def normed(self, fold: Node, root: Node) -> Node:
        """What is stored for a fold: on a device, where rows that are scaled by their own fold are
        one kernel, those rows, if they are read elsewhere than they are computed; else the fold."""
        found, at = fold, fold
        while self.whole_rows and at.op in ("reduce", "cast", *SCALARS):
            users = set(self.users.get(at, ()))
            if at.shape == fold.operands[0].shape and any(u.op == "move" for u in users):
                found = at
            if len(users) != 1 or users & {root, *self.stored, *self.kept} or at in self.roots:
                break
            (at,) = users
        return found

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
        anchor = functools.partial(write_anchor, planned=planned)
        return Body(domain, homes=self.in_memory, anchor=anchor)

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


def _follows(user: Node, anchor: Node) -> bool:
    """Has the node one element for each of the anchor's, computed from it alone?"""
    if not same(sizes.product(user.shape), sizes.product(anchor.shape)):
        return False
    if user.op == "move":
        return user.constant.view and len(user.operands) == 1
    return user.op in SCALARS or user.op == "cast"


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

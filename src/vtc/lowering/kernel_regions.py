"""Regions cut for kernels of ours: a matmul or convolution with what is computed on its result
point by point, matmuls that share their rows as one, and each pooling by itself.

    before: {gate, silu}; {up, mul}; {down, residual, squares, mean, norm}; {conv, relu, mean}
    after:  {gate, silu, up, mul}; {down}; {residual, squares, mean, norm}; {conv, relu}; {mean}

What only a reduction behind a matmul needs goes with the reduction, which reads the product anyway:
squares and the like would be further results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import fx

from vtc.graph.movement import is_movement_target
from vtc.graph.program import Program, value_of
from vtc.graph.regions import Grouping, arranged
from vtc.kernels.normalized import SQUARE_SUMS
from vtc.kernels.operators import ANCHORS, Kind, kind
from vtc.lowering.describe_matmul import call_of
from vtc.lowering.describe_pooling import POOLINGS

Nodes = list[fx.Node]


def cut(program: Program, grouping: Grouping, chosen: frozenset[fx.Node]) -> Grouping:
    """The grouping with the regions of the anchors in `chosen` cut for kernels of ours."""
    cutter = _Cutter(program, grouping)
    sets: list[Nodes] = []
    for region in grouping.regions:
        nodes = [n for n in region.nodes if n in grouping.region_of]
        anchors = [n for n in nodes if n.target in ANCHORS]
        head: Nodes = []
        if len(anchors) == 1 and anchors[0] in chosen:
            head = cutter.head(anchors[0], nodes)
        tail = [n for n in nodes if n not in head]
        poolings = tail and all(n.target in POOLINGS for n in tail)
        sets += [head, *([n] for n in tail)] if poolings else [head, tail]
    merged = _Merger(cutter, [s for s in sets if s]).merged(chosen)
    return arranged(program, merged)


class _Cutter:
    def __init__(self, program: Program, grouping: Grouping) -> None:
        self.program, self.computed = program, grouping.region_of
        self.finals = {v for _, v in program.updates}
        self.finals |= {o for o in program.outputs if isinstance(o, fx.Node)}

    def sources(self, node: fx.Node) -> Iterator[fx.Node]:
        """The computed tensors that an operand is, or is moved from."""
        if node in self.computed:
            yield node
            return
        for operand in node.all_input_nodes:
            yield from self.sources(operand)

    def looked_up(self, node: fx.Node) -> bool:
        """Is an operand read through a runtime index?"""
        if node not in self.program.movements:
            return False
        bound = self.program.movements[node]
        return bool(bound.lookups) or any(map(self.looked_up, bound.sources))

    def users(self, node: fx.Node) -> Iterator[fx.Node]:
        """The operators that compute with a value, moved or not; the value's end at an output."""
        for user in node.users:
            if user in self.program.movements or is_movement_target(user):
                yield user
                yield from self.users(user)
            else:
                yield user

    def head(self, anchor: fx.Node, nodes: Sequence[fx.Node]) -> Nodes:
        """The anchor and what a kernel computes with it."""
        inside, head = set(nodes), [anchor]
        shape = value_of(anchor).shape
        for node in nodes:
            if kind(node) is Kind.POINTWISE and _shape(node) == shape:
                other = [o for o in node.all_input_nodes if o not in head]
                moved = any(inside.intersection(self.sources(o)) for o in other)
                if not moved and not any(map(self.looked_up, other)):
                    head.append(node)
            elif node.target is SQUARE_SUMS and node.args[0] in head:
                head.append(node)
        for node in head[:0:-1] if call_of(anchor) else ():
            users = [u for u in self.users(node) if u in self.computed]
            kept = self.finals.intersection((node, *self.users(node)))
            if not kept and all(u in inside and u not in head for u in users):
                head.remove(node)
        return head


def _shape(node: fx.Node) -> torch.Size | None:
    """The shape of a value, or of the first of several."""
    value = value_of(node)
    first = value[0] if isinstance(value, tuple | list) and value else value
    return first.shape if isinstance(first, torch.Tensor) else None


class _Merger:
    """Sets of nodes that become one where nothing lies between them."""

    def __init__(self, cutter: _Cutter, sets: Iterable[Nodes]) -> None:
        self.sets = dict(enumerate(sets))
        number = {n: k for k, nodes in self.sets.items() for n in nodes}
        self.needs = {
            k: {number[s] for n in nodes for o in n.all_input_nodes for s in cutter.sources(o)}
            - {k}
            for k, nodes in self.sets.items()
        }

    def merged(self, chosen: frozenset[fx.Node]) -> list[Nodes]:
        """The sets, those with the same rows as one."""
        by_rows: dict[fx.Node, list[int]] = {}
        for k, nodes in list(self.sets.items()):
            call = next((call_of(n) for n in nodes if n in chosen), None)
            if call is None:
                continue
            first = by_rows.setdefault(call.rows, [])
            other = next((j for j in first if not self._apart(j, k)), None)
            if other is None:
                first.append(k)
            else:
                self._join(other, k)
        return list(self.sets.values())

    def _apart(self, a: int, b: int) -> bool:
        """Does another set need one of the two, and is needed by the other?"""
        return any(
            self._reaches(between, one)
            for one, other in ((a, b), (b, a))
            for between in self.needs[other] - {one}
        )

    def _reaches(self, start: int, end: int) -> bool:
        pending, seen = [start], {start}
        while pending:
            k = pending.pop()
            if k == end:
                return True
            pending += self.needs[k] - seen
            seen |= self.needs[k]
        return False

    def _join(self, a: int, b: int) -> None:
        self.sets[a] += self.sets.pop(b)
        self.needs[a] = (self.needs[a] | self.needs.pop(b)) - {a, b}
        for needs in self.needs.values():
            if b in needs:
                needs.remove(b)
                needs.add(a)

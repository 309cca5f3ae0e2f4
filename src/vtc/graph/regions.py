"""Grouping: operators -> regions, the units of planning, profiling, fallback and engine choice.

A region is what an engine runs as one: an anchor (matmul, convolution, attention) with the
pointwise work that follows it, or a chain of pointwise work and reductions. Movement operators
between regions are what planning decides about; those inside one region are the engine's to fold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from vtc.graph.movement import is_movement_target, is_registered
from vtc.graph.program import Program, is_tensor

CanJoin = Callable[[fx.Node, fx.Node], bool]


@dataclass(frozen=True)
class Region:
    """Nodes that run as one step.

    `nodes` are in program order, with the movement operators that lie inside. `reads` are the
    tensors it takes from outside, movement results among them; `writes` its tensors that others
    use. The name is that of its first operator, which is its anchor where it has one.
    """

    name: str
    nodes: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Grouping:
    """The regions, and the movement operators between them.

    `steps` interleaves both in an order that respects their data dependences; `regions` are in
    that order too.
    """

    regions: tuple[Region, ...]
    region_of: dict[fx.Node, Region]
    movements: tuple[fx.Node, ...]
    steps: tuple[Region | fx.Node, ...]

    def __str__(self) -> str:
        lines = [
            f"{r.name}: {', '.join(n.name for n in r.nodes)}  "
            f"[{', '.join(n.name for n in r.reads)}] -> [{', '.join(n.name for n in r.writes)}]"
            for r in self.regions
        ]
        return "\n".join([*lines, "between: " + ", ".join(n.name for n in self.movements)])


def group(program: Program, can_join: CanJoin) -> Grouping:
    """Group `program`; `can_join(producer, consumer)` is the engine's answer for two operators.

    A consumer joins the latest of its producers' regions that the engine lets it join, unless
    that would close a cycle through another region. Movement operators between the two are looked
    through where all that they read comes from that one region.
    """
    builder = _Builder(program, can_join)
    for node in program.nodes:
        if node not in program.movements and not is_movement_target(node):
            builder.place(node)
    return builder.finish()


def arranged(program: Program, parts: Iterable[Iterable[fx.Node]]) -> Grouping:
    """The grouping whose regions compute these operators: each of the program's in one part, no
    part in a circle with others."""
    builder = _Builder(program, lambda producer, consumer: False)
    builder.members = [list(part) for part in parts]
    builder.number = {n: k for k, nodes in enumerate(builder.members) for n in nodes}
    return builder.finish()


class _Builder:
    def __init__(self, program: Program, can_join: CanJoin) -> None:
        self.program, self.can_join = program, can_join
        self.members: list[list[fx.Node]] = []  # by region number
        self.number: dict[fx.Node, int] = {}  # compute node -> region number
        self.needs: list[set[int]] = []  # region number -> the regions it reads from
        self.origins: dict[fx.Node, frozenset[int]] = {}  # node -> regions its value comes from

    def place(self, node: fx.Node) -> None:
        operands = list(node.all_input_nodes)
        origins = [self._origins(o) for o in operands]
        chosen = self._choose(node, operands, origins)
        if chosen is None:
            chosen = len(self.members)
            self.members.append([])
            self.needs.append(set())
        self.members[chosen].append(node)
        self.number[node] = chosen
        for numbers in origins:
            self.needs[chosen] |= numbers - {chosen}

    def _choose(
        self, node: fx.Node, operands: list[fx.Node], origins: list[frozenset[int]]
    ) -> int | None:
        if node.target is operator.getitem:
            return self.number.get(operands[0])
        candidates = sorted({next(iter(o)) for o in origins if len(o) == 1}, reverse=True)
        others = frozenset().union(*origins) if origins else frozenset()
        for k in candidates:
            if any(self.can_join(p, node) for p in self._producers(operands, origins, k)) and not (
                any(self._depends(q, k) for q in others - {k})
            ):
                return k
        return None

    def _depends(self, region: int, on: int) -> bool:
        seen, stack = {region}, [region]
        while stack:
            k = stack.pop()
            if k == on:
                return True
            stack += self.needs[k] - seen
            seen |= self.needs[k]
        return False

    def _producers(
        self, operands: list[fx.Node], origins: list[frozenset[int]], region: int
    ) -> Iterator[fx.Node]:
        for operand, numbers in zip(operands, origins, strict=True):
            if numbers == {region}:
                yield from self._roots(operand)

    def _roots(self, node: fx.Node) -> Iterator[fx.Node]:
        """The compute nodes behind a chain of movement operators that an engine knows."""
        if node in self.number:
            yield node
        elif is_registered(node):
            return
        elif node in self.program.movements or is_movement_target(node):
            for operand in node.all_input_nodes:
                yield from self._roots(operand)

    def _origins(self, node: fx.Node) -> frozenset[int]:
        if node in self.number:
            return frozenset({self.number[node]})
        if node not in self.origins:
            self.origins[node] = frozenset().union(*map(self._origins, node.all_input_nodes))
        return self.origins[node]

    def finish(self) -> Grouping:
        inside = [self._inside(set(nodes), k) for k, nodes in enumerate(self.members)]
        finals = {v for _, v in self.program.updates}
        finals |= {o for o in self.program.outputs if isinstance(o, fx.Node)}
        between = self._between(inside, finals)
        movements = tuple(n for n in self.program.movements if n in between)
        order = {n: i for i, n in enumerate(self.program.graph_module.graph.nodes)}
        regions, region_of = [], {}
        for nodes in inside:
            ordered = tuple(sorted(nodes, key=order.__getitem__))
            reads = {o: None for n in ordered for o in n.all_input_nodes if o not in nodes}
            writes = [
                n
                for n in ordered
                if n in self.number
                and is_tensor(n)
                and (n in finals or any(u not in nodes or u in between for u in _users(n)))
            ]
            first = next(n for n in ordered if n in self.number)
            region = Region(first.name, ordered, tuple(reads), tuple(writes))
            regions.append(region)
            region_of.update({n: region for n in ordered if n in self.number})
        steps = _ordered(regions, region_of, movements)
        ordered_regions = tuple(step for step in steps if isinstance(step, Region))
        return Grouping(ordered_regions, region_of, movements, steps)

    def _inside(self, nodes: set[fx.Node], region: int) -> set[fx.Node]:
        """The region's compute nodes, and the movement operators that lie between two of them."""
        result = set(nodes)
        for node in nodes:
            stack = list(node.all_input_nodes)
            while stack:
                operand = stack.pop()
                if operand in result or operand in self.number:
                    continue
                if region in self._origins(operand):
                    result.add(operand)
                    stack += operand.all_input_nodes
        return result

    def _between(self, inside: list[set[fx.Node]], finals: set[fx.Node]) -> set[fx.Node]:
        """The movement operators whose results a region reads or the program returns, and those
        that they read in turn."""
        stack = [o for nodes in inside for n in nodes for o in n.all_input_nodes if o not in nodes]
        stack += finals
        found: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in self.number or node in found:
                continue
            if node in self.program.movements:
                found.add(node)
            stack += node.all_input_nodes
        return found


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that use a value; for an operator with several results, those that pick one."""
    for user in node.users:
        if is_movement_target(user):
            yield from user.users
        else:
            yield user


def _ordered(
    regions: list[Region], region_of: dict[fx.Node, Region], movements: tuple[fx.Node, ...]
) -> tuple[Region | fx.Node, ...]:
    """Depth-first, in program order: a step comes after all that it reads."""
    between = set(movements)
    done: dict[Region | fx.Node, None] = {}

    def visit(step: Region | fx.Node) -> None:
        if step in done:
            return
        for operand in step.reads if isinstance(step, Region) else step.all_input_nodes:
            need(operand)
        done[step] = None

    def need(node: fx.Node) -> None:
        if node in region_of:
            visit(region_of[node])
        elif node in between:
            visit(node)
        else:
            for operand in node.all_input_nodes:
                need(operand)

    for region in regions:
        visit(region)
    for movement in movements:
        visit(movement)
    return tuple(done)

"""Telling edges that stand in the graph as others do: a model's layers are mostly alike.

What a choice changes is in the components of its edges (see `Resolver`): their tensors, and the
steps that touch these. Two choices that are the same there, name by name, save the same and are
legal or not alike, so that a search need try one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from vtc.virtual.legality import Checker
from vtc.virtual.plan import PlanGraph, PlanRegion, operands, results
from vtc.virtual.strategy import Strategy
from vtc.virtual.vtog import Vtog

Form = Callable[[str], Hashable]
"""What a region computes, whatever its name: equal for regions that cost the same."""


class Alike:
    """Keys of sets of edges, relative to a chosen strategy: equal for sets that are alike."""

    def __init__(
        self, plan: PlanGraph, vtog: Vtog, checker: Checker, chosen: Strategy, form: Form
    ) -> None:
        self.plan, self.vtog, self.checker, self.form = plan, vtog, checker, form
        self.chosen, self.facts = chosen, checker.facts(chosen)
        self.touching: dict[str, list[int]] = {}
        for number, step in enumerate(plan.steps):
            for name in dict.fromkeys((*operands(step), *results(step))):
                self.touching.setdefault(name, []).append(number)
        self._parts: dict[tuple[int, ...], tuple[Hashable, dict[int, int]]] = {}

    def key(self, edges: frozenset[int]) -> Hashable:
        """What the edges are and where they stand."""
        numbered, component = self.vtog.numbered, self.checker.resolver.component
        near = tuple(sorted({component[numbered[n].tensor] for n in edges}))
        if near not in self._parts:
            self._parts[near] = self._part(near)
        part, position = self._parts[near]
        return part, tuple(sorted(position[n] for n in edges))

    def _part(self, near: tuple[int, ...]) -> tuple[Hashable, dict[int, int]]:
        """Components with all that touches them, and the positions of their edges."""
        members = self.checker.resolver.members
        writer = _Writer(self, {name for number in near for name in members[number]})
        numbers = sorted(n for name in writer.inside for n in self.vtog.out_edges.get(name, ()))
        for n in numbers:
            writer.edge(n)
        steps = {n for name in writer.inside for n in self.touching.get(name, ())}
        updated = [self.vtog.numbered[n].base for n in numbers]
        for base in (b for b in updated if self.plan.tensors[b].kind == "updated"):
            steps |= self.facts.users.get(base, set())
        for number in sorted(s for s in steps if s < len(self.plan.steps)):
            writer.step(number)
        return tuple(writer.lines), {n: k for k, n in enumerate(numbers)}


class _Writer:
    """Writes a part of the graph down with numbers in the place of names, as they first appear."""

    def __init__(self, alike: Alike, inside: set[str]) -> None:
        self.alike, self.inside = alike, inside
        self.plan = alike.plan
        self.numbers: dict[str, int] = {}
        self.lines: list[Hashable] = []

    def edge(self, n: int) -> None:
        edge = self.alike.vtog.numbered[n]
        names = self.names(edge.tensor, edge.base, edge.operator)
        how = edge.direction, edge.source, edge.inplace
        self.lines.append((names, how, n in self.alike.chosen, n < len(self.alike.vtog.edges)))

    def step(self, number: int) -> None:
        step, resolver = self.plan.steps[number], self.alike.checker.resolver
        if isinstance(step, PlanRegion):
            made: Any = self.alike.form(step.name)
        else:
            implied = bool(resolver.implied(step.name))
            made = step.movement, resolver.defaults[step.name], implied
        self.lines.append((made, self.names(*operands(step)), self.names(*results(step))))

    def names(self, *names: str) -> tuple[int, ...]:
        return tuple(map(self._number, names))

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers)
            tensor = self.plan.tensors[name]
            layout = tensor.shape, tensor.stride, tensor.itemsize
            kind = tensor.kind, tensor.output, tensor.returned
            finals = self.plan.finals.get(name, ())
            self.lines.append((layout, kind, self._home(name), self.names(*finals)))
        return self.numbers[name]

    def _home(self, name: str) -> Hashable:
        """Where a tensor lies that the edges do not move."""
        resolved = self.alike.facts.resolution.tensors[name]
        if name in self.inside or resolved.physical:
            return None
        return resolved.map, self.names(*(home.base for home in resolved.homes))

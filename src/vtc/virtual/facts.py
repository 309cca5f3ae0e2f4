"""Everything that judging and pricing a strategy need to know of it, found step by step.

A search asks about strategies that differ from one another in a few edges. What is known of one of
them, the anchor, is kept for all tensors and steps that the difference does not concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from vtc.virtual.effects import Access, Effects, EffectTable
from vtc.virtual.plan import PlanMovement, PlanRegion, operands, results
from vtc.virtual.strategy import Resolution, Resolved, Resolver, Strategy

Pair = tuple[int, int]
CopyBack = tuple[int, str, str]
_NONE: frozenset[int] = frozenset()


@dataclass(eq=False)
class Facts:
    """A resolved strategy with the effects of its steps.

    effects: by step number. backs: (step number, updated input, final tensor) of the copies back
    that are still needed. stores: tensor -> steps that store its elements; waits: those, and the
    steps that its runtime indices wait for. versions: scatter done in place -> base -> the versions
    of the base that are older. changed: the steps that may differ from the anchor's. backward:
    steps that may have to run before an earlier one, by data dependence alone.
    """

    resolution: Resolution
    effects: list[Effects]
    backs: tuple[CopyBack, ...]
    stores: dict[str, frozenset[int]]
    waits: dict[str, frozenset[int]]
    versions: dict[str, dict[str, set[str]]]
    changed: tuple[int, ...]
    backward: frozenset[int]
    orders: dict[str, tuple[Pair, ...]] = field(default_factory=dict)

    @cached_property
    def live(self) -> tuple[int, ...]:
        """Numbers of the steps that run."""
        steps = [number for number, effect in enumerate(self.effects) if effect.live]
        return (*steps, *(number for number, _, _ in self.backs))

    @cached_property
    def users(self) -> dict[str, set[int]]:
        """Base -> the steps that touch it."""
        table: dict[str, set[int]] = {}
        for number, effect in enumerate(self.effects):
            for access in (*effect.reads, *effect.writes):
                table.setdefault(access.base, set()).add(number)
        return table

    @property
    def versioned(self) -> set[str]:
        """The bases whose contents change: by scatters in place, and by copies back."""
        bases = {base for older in self.versions.values() for base in older}
        return bases | {name for _, name, _ in self.backs}


class FactTable:
    """Facts of the strategies of one plan, found from those of the anchor."""

    def __init__(self, resolver: Resolver) -> None:
        self.plan = resolver.plan
        self.resolver = resolver
        self.effects = EffectTable(resolver)
        self.anchor: Facts | None = None
        self._known: dict[Strategy, Facts] = {}
        self._in_place: dict[tuple[int, str], bool] = {}
        self._steps_of: dict[int, list[int]] = {}
        for number, step in enumerate(self.plan.steps):
            names = (*operands(step), *results(step))
            for component in {resolver.component[name] for name in names}:
                self._steps_of.setdefault(component, []).append(number)

    def reset(self) -> None:
        """Forget all, as the engine's implied edges have changed."""
        self.anchor = None
        self._known.clear()

    def rebase(self, strategy: Strategy) -> None:
        """Make a legal strategy the anchor of what is asked from now on."""
        facts = self.of(strategy)
        self.resolver.rebase(facts.resolution)
        self.anchor = facts
        self._known = {strategy: facts}

    def of(self, strategy: Strategy) -> Facts:
        """The facts of a strategy, which must resolve."""
        found = self._known.get(strategy)
        if found is None:
            if len(self._known) > 512:
                self._known.clear()
            found = self._known[strategy] = self._gather(self.resolver.resolve(strategy))
        return found

    def in_place(self, resolved: Resolved, name: str) -> bool:
        """The tensor lies in the storage of `name`, element by element."""
        key = (id(resolved), name)
        found = self._in_place.get(key)
        if found is None:
            found = resolved.bases == (name,) and len(resolved.map.pieces) == 1
            if found:
                same = self.resolver.physical(name).map.pieces[0].simplify()
                found = resolved.map.pieces[0].simplify().forms == same.forms
            self._in_place[key] = found
        return found

    def kept(self, facts: Facts) -> Iterator[str]:
        """The tensors whose homes the caller sees after the program."""
        copied = {name for _, name, _ in facts.backs}
        yield from (final for name, final in self.plan.updated.items() if name not in copied)
        for name in self.plan.outputs:
            if self.plan.tensors[name].kind == "internal":
                yield name

    def touched_bases(self, facts: Facts) -> set[str]:
        """The versioned bases on which the facts may differ from the anchor's."""
        anchor, bases = self.anchor, facts.versioned
        if anchor is None or facts is anchor:
            return bases
        near: set[str] = set()
        for number in facts.changed:
            for effect in (anchor.effects[number], facts.effects[number]):
                near.update(access.base for access in (*effect.reads, *effect.writes))
            step = self.plan.steps[number]
            near.update(anchor.versions.get(step.name, ()), facts.versions.get(step.name, ()))
        homes, old = facts.resolution.tensors, anchor.resolution.tensors
        for name in (*self.plan.outputs, *self.plan.updated.values()):
            if homes[name] is not old[name]:
                near.update((*homes[name].bases, *old[name].bases))
        near.update(name for _, name, _ in set(anchor.backs) ^ set(facts.backs))
        return near & bases

    def _gather(self, resolution: Resolution) -> Facts:
        steps, anchor = self.plan.steps, self.anchor
        if anchor is None:
            changed: Iterable[int] = range(len(steps))
            known: list[Effects] = [Effects()] * len(steps)
            facts = Facts(resolution, known, (), {}, {}, {}, tuple(changed), frozenset())
        else:
            edges = self.resolver.vtog.numbered
            difference = resolution.strategy ^ anchor.resolution.strategy
            near = {self.resolver.component[edges[n].tensor] for n in difference}
            changed = sorted({n for c in near for n in self._steps_of.get(c, ())})
            facts = Facts(
                resolution,
                list(anchor.effects),
                (),
                dict(anchor.stores),
                dict(anchor.waits),
                dict(anchor.versions),
                tuple(changed),
                anchor.backward - set(changed),
            )
        for number in facts.changed:
            facts.effects[number] = self.effects.of(number, resolution)
        facts.backs = tuple(
            (len(steps) + k, name, final)
            for k, (name, final) in enumerate(self.plan.updated.items())
            if not self.in_place(resolution.tensors[final], name)
        )
        for number in facts.changed:
            self._provenance(number, facts)
        for number in facts.changed:
            step = steps[number]
            if isinstance(step, PlanMovement) and step.movement.inplace is not None:
                self._version(number, step, facts)
        facts.backward |= {n for n in facts.changed if self._backward(n, facts)}
        return facts

    def _provenance(self, number: int, facts: Facts) -> None:
        """Which steps store the elements of what a step makes, and which its maps wait for."""
        step = self.plan.steps[number]
        if isinstance(step, PlanRegion):
            for name in step.writes:
                facts.stores[name] = facts.waits[name] = frozenset((number,))
            return
        effect, load = facts.effects[number], step.movement.load
        read = load.sources() if load is not None else range(len(step.sources))
        placed = [step.sources[k] for k in effect.placed if k in read]
        stores = _NONE.union(*(facts.stores.get(name, _NONE) for name in placed))
        waits = _NONE.union(*(facts.waits.get(name, _NONE) for name in (*placed, *step.lookups)))
        if effect.copies:
            stores, waits = stores | {number}, waits | {number}
        facts.stores[step.name], facts.waits[step.name] = stores, waits

    def _version(self, number: int, step: PlanMovement, facts: Facts) -> None:
        facts.versions.pop(step.name, None)
        homes, edges = facts.resolution.tensors, self.resolver.vtog.numbered
        active = facts.resolution.active.get(step.name, ())
        if not any(edges[n].inplace for n in active):
            return
        table: dict[str, set[str]] = {}
        for base in homes[step.name].bases:
            older = table[base] = {base}
            for k in facts.effects[number].placed:
                for home in homes[step.sources[k]].homes:
                    if home.base == base and home.version != step.name:
                        older.add(home.version)
                        older |= facts.versions.get(home.version, {}).get(base, set())
        facts.versions[step.name] = table

    def _backward(self, number: int, facts: Facts) -> bool:
        effect = facts.effects[number]
        if any(copy.before for copy in effect.copies):
            return True
        return any(
            max(facts.waits.get(name, _NONE), default=-1) >= number for name in effect.lookups
        )

    def dependences(self, facts: Facts) -> Iterator[Pair]:
        """(writer, reader) for every tensor that a step that runs needs."""
        for number, effect in enumerate(facts.effects):
            if effect.live:
                yield from self._needs(number, effect, facts)
        for number, _, final in facts.backs:
            for writer in facts.waits.get(final, _NONE):
                yield writer, number

    def _needs(self, number: int, effect: Effects, facts: Facts) -> Iterator[Pair]:
        step = self.plan.steps[number]
        if isinstance(step, PlanRegion):
            needed = (*step.reads, *effect.lookups)
        else:
            sources = [copy.source for copy in effect.copies if copy.source is not None]
            needed = (*(step.sources[k] for k in sources), *effect.lookups)
            if any(copy.before for copy in effect.copies):
                # The data is copied as a whole; what is stored into the copy comes after.
                for name in (step.sources[k] for k in effect.placed):
                    for writer in facts.stores.get(name, _NONE):
                        yield number, writer
        for name in needed:
            for writer in facts.waits.get(name, _NONE):
                if writer != number:
                    yield writer, number

    def accesses(self, facts: Facts, base: str) -> Iterator[tuple[int, Access, bool]]:
        """(step, access, whether it writes) of one base; step -1 is the caller afterwards."""
        users = self.anchor.users.get(base, set()) if self.anchor is not None else set()
        for number in sorted(users.union(facts.changed)):
            effect = facts.effects[number]
            for access in effect.writes:
                if access.base == base:
                    yield number, access, True
            for access in effect.reads:
                if access.base == base:
                    yield number, access, False
        homes = facts.resolution.tensors
        for number, _, final in facts.backs:
            for access in self.effects.accesses(homes[final]):
                if access.base == base:
                    yield number, access, False
        for name in self.kept(facts):
            for access in self.effects.accesses(homes[name]):
                if access.base == base:
                    yield -1, access, False

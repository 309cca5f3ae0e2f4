"""Is a strategy legal? The six rules, and the order of steps that a legal strategy needs.

Elements that share a home through edges hold one value, so a base needs no care but for data
dependences, until a scatter is done in place: then its storage holds a newer version. Every access
of a base knows the version it is about. A writer of an older version comes before the writers of
newer ones that it overlaps, and a reader comes before the writers of versions newer than its own
("readers of version v come before the writer of version v+1"). Versions of which neither is older
must not overlap. These orders and the data dependences together must be acyclic.

The rules, as the verdict names them: (i) every live element has one home; (ii) every element that
is read was stored or initialised; (iii) stores into a base overlap only in program order; (iv) the
orders are acyclic; (v) only internal and updated tensors are written, and an updated input is left
with its last version; (vi) the points-to graph is acyclic. "contract": the engine does not accept
a map.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vtc.index.sizes import product
from vtc.virtual import boxes
from vtc.virtual.effects import Access
from vtc.virtual.facts import Facts, FactTable
from vtc.virtual.plan import Engine, PlanGraph, operands, size_hint
from vtc.virtual.strategy import Resolved, Resolver, Strategy
from vtc.virtual.vtog import Vtog

LAST = "(last)"
"""The version that a copy back leaves in an updated input: newer than all others."""


@dataclass(frozen=True)
class Verdict:
    """`rule` is "(i)" to "(vi)" or "contract", None where the strategy is legal. `about` names the
    steps and tensors concerned."""

    ok: bool
    rule: str | None = None
    reason: str = ""
    about: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "legal" if self.ok else f"illegal by {self.rule}: {self.reason}"


class Illegal(Exception):  # noqa: N818  a finding, not an error
    """Carries rule, reason and the names concerned to where the verdict is made."""


class Event(NamedTuple):
    """A step's access of a base with several versions. Step -1 is the caller after the program."""

    step: int
    access: Access
    write: bool


class Checker:
    """Verdicts on strategies of one plan. It keeps what it computed, so that asking hundreds of
    times about strategies that differ from the anchor (see `rebase`) in a few edges is cheap.

    When the engine's defaults alone break a rule (a view of a cache's old contents that is read
    after the cache is updated in place), the operators concerned are made copies: `demoted`.
    """

    def __init__(self, plan: PlanGraph, vtog: Vtog, engine: Engine) -> None:
        self.plan = plan
        self.resolver = Resolver(plan, vtog, engine)
        self.table = FactTable(self.resolver)
        self.demoted: tuple[str, ...] = ()
        self._verdicts: dict[Strategy, Verdict] = {}
        self._views: dict[str, tuple[Resolved, str]] = {}
        self._demote()
        self.rebase(frozenset())

    def legal(self, strategy: Strategy) -> Verdict:
        """The verdict; a reason names the first rule that is broken."""
        found = self._verdicts.get(strategy)
        if found is None:
            found = self._verdicts[strategy] = self._judge(strategy)
        return found

    def rebase(self, strategy: Strategy) -> None:
        """Expect further questions near this strategy. Raises ValueError where it is not legal."""
        verdict = self.legal(strategy)
        if not verdict:
            raise ValueError(f"only a legal strategy can be built on: {verdict}")
        facts = self.facts(strategy)
        for base in facts.versioned - facts.orders.keys():
            facts.orders[base] = tuple(self._base_orders(base, facts))
        self.table.rebase(strategy)

    def facts(self, strategy: Strategy) -> Facts:
        """Homes and effects of all steps. The strategy need not be legal, but must resolve."""
        return self.table.of(strategy)

    def orders(self, strategy: Strategy) -> tuple[tuple[int, int], ...]:
        """Pairs (before, after) of step numbers: data dependences and version orders."""
        facts = self.facts(strategy)
        pairs = {*self.table.dependences(facts), *self._version_orders(facts)}
        return tuple(sorted(pairs))

    def version_orders(self, strategy: Strategy) -> tuple[tuple[str, str], ...]:
        """Pairs (before, after) of step names that data flow alone does not give: readers of a
        version of some storage and the writers of the next one."""
        names = self.plan.step_names
        pairs = self._version_orders(self.facts(strategy))
        return tuple((names[before], names[after]) for before, after in pairs)

    def sequence(self, strategy: Strategy) -> tuple[int, ...]:
        """The steps that run, in an order that is legal and as near to program order as can be."""
        facts = self.facts(strategy)
        pairs = self._version_orders(facts)
        if not facts.backward and all(before < after for before, after in pairs):
            return facts.live
        order = topological(facts.live, self.orders(strategy))
        if order is None:
            raise ValueError(f"the strategy has no legal order: {self.legal(strategy)}")
        return order

    def _judge(self, strategy: Strategy) -> Verdict:
        resolution = self.resolver.resolve(strategy)
        if resolution.fault is not None:
            return Verdict(False, *resolution.fault)
        facts = self.facts(strategy)
        try:
            self._check_steps(facts)
            self._check_outputs(facts)
            orders = self._version_orders(facts)
        except Illegal as finding:
            return Verdict(False, *finding.args)
        if facts.backward or any(before >= after for before, after in orders):
            pairs = {*orders, *self.table.dependences(facts)}
            if topological(facts.live, pairs) is None:
                asked = [f"{self._name(a)} before {self._name(b)}" for a, b in orders if a >= b]
                reason = f"no order of the steps is possible; asked for: {', '.join(asked[:4])}"
                about = {self._name(number) for pair in orders for number in pair}
                return Verdict(False, "(iv)", reason, tuple(sorted(about)))
        return Verdict(True)

    def _check_steps(self, facts: Facts) -> None:
        for number in facts.changed:
            effect = facts.effects[number]
            if effect.fault is not None:
                raise Illegal(*effect.fault, (self._name(number),))
            for access in effect.writes:
                kind = self.plan.tensors[access.base].kind
                if kind in ("input", "constant"):
                    reason = f"{self._name(number)} would write {access.base}, which is {kind}"
                    raise Illegal("(v)", reason, (access.base,))

    def _check_outputs(self, facts: Facts) -> None:
        for name in self.plan.outputs:
            resolved = facts.resolution.tensors[name]
            if resolved.physical or name in self.plan.finals:
                continue
            if name not in self._views or self._views[name][0] is not resolved:
                self._views[name] = resolved, self._view_fault(name, resolved)
            fault = self._views[name][1]
            if fault:
                raise Illegal("(v)", fault, (name,))

    def _view_fault(self, name: str, resolved: Resolved) -> str:
        """An output that is a view keeps its eager strides, and so must lie in one base."""
        if len(resolved.bases) != 1 or resolved.fills:
            return f"output {name} would be spread over {', '.join(resolved.bases) or 'fills'}"
        base = resolved.bases[0]
        view = resolved.map.strided(self.resolver.storage(base))
        shape, stride = self.plan.tensors[name].shape, self.plan.tensors[name].stride
        if view is None or any(
            size != 1 and mine != eager
            for size, mine, eager in zip(shape, view.stride, stride, strict=True)
        ):
            return f"output {name} on {base} would not keep its strides"
        return ""

    def _version_orders(self, facts: Facts) -> list[tuple[int, int]]:
        """Orders among the accesses of bases that hold several versions."""
        bases = facts.versioned
        missing = bases - facts.orders.keys()
        if missing:
            touched = self.table.touched_bases(facts)
            anchor = self.table.anchor
            for base in sorted(missing):
                if anchor is not None and base not in touched:
                    facts.orders[base] = anchor.orders[base]
                else:
                    facts.orders[base] = tuple(self._base_orders(base, facts))
        return [pair for base in bases for pair in facts.orders[base]]

    def _base_orders(self, base: str, facts: Facts) -> Iterator[tuple[int, int]]:
        events = [Event(*found) for found in self.table.accesses(facts, base)]
        for number, name, _ in facts.backs:
            if name == base:
                shape = self.plan.tensors[name].shape
                events.append(Event(number, Access(name, LAST, (boxes.whole(shape),)), True))
        writers = [event for event in events if event.write]
        for position, writer in enumerate(writers):
            for other in writers[position + 1 :]:
                yield from self._order(base, writer, other, facts)
            for reader in events:
                if not reader.write:
                    yield from self._order(base, writer, reader, facts)

    def _order(
        self, base: str, writer: Event, other: Event, facts: Facts
    ) -> Iterator[tuple[int, int]]:
        """The order that a writer and another access of its base need, if they meet."""
        first, second = writer.access.version, other.access.version
        if first == second or not boxes.any_meet(writer.access.boxes, other.access.boxes):
            return
        if _is_older(base, first, second, facts):
            before, after = writer, other
        elif _is_older(base, second, first, facts):
            before, after = other, writer
        else:
            reason = f"{first} and {second} are two newer versions of the same part of {base}"
            raise Illegal("(iii)", reason, (base,))
        if after.step < 0:
            return
        if before.step < 0:
            name = self._name(writer.step)
            reason = f"{name} would overwrite what the program leaves in {base} or returns from it"
            raise Illegal("(v)", reason, (base,))
        if before.step == after.step:
            verb = "write two versions" if other.write else "read what it overwrites"
            reason = f"{self._name(before.step)} would {verb} of {base}"
            raise Illegal("(iii)" if other.write else "(iv)", reason, (base,))
        yield before.step, after.step

    def _name(self, number: int) -> str:
        return self.plan.step_names[number]

    def _demote(self) -> None:
        """Make copies of implied operators, few of them, until the empty strategy is legal."""
        demoted: frozenset[str] = frozenset()
        verdict = self._judge(frozenset())
        while not verdict.ok:
            implied = [n for n in self.plan.movements if self.resolver.implied(n)]
            if not implied:
                raise ValueError(f"the plan is not legal though all movement is copied: {verdict}")
            demoted, verdict = self._demote_one(demoted, self._suspects(implied, verdict), verdict)
        self.demoted = tuple(name for name in self.plan.movements if name in demoted)

    def _demote_one(
        self, demoted: frozenset[str], suspects: list[str], verdict: Verdict
    ) -> tuple[frozenset[str], Verdict]:
        """Demote the first suspect that mends the verdict, else one that changes it, else all."""
        changed: tuple[frozenset[str], Verdict] | None = None
        for name in suspects:
            trial = demoted | {name}
            found = self._with_demoted(trial)
            if found.ok:
                return trial, found
            if changed is None and found.reason != verdict.reason:
                changed = trial, found
        if changed is None:
            trial = demoted | set(suspects)
            return trial, self._with_demoted(trial)
        self._with_demoted(changed[0])
        return changed

    def _with_demoted(self, operators: frozenset[str]) -> Verdict:
        self.resolver.demote(operators)
        self.table.reset()
        return self._judge(frozenset())

    def _suspects(self, implied: list[str], verdict: Verdict) -> list[str]:
        """The implied operators that a verdict may be about: views first, then the smaller."""
        about = set(verdict.about)
        tensors = self.resolver.empty.tensors
        for name in verdict.about:
            number = self.plan.numbers.get(name, len(self.plan.steps))
            if number < len(self.plan.steps):
                about.update((*operands(self.plan.steps[number]), name))
        near = [
            n for n in implied if n in about or (n in tensors and about & set(tensors[n].bases))
        ]
        edges = self.resolver.vtog.numbered
        return sorted(
            near or implied,
            key=lambda n: (
                edges[self.resolver.implied(n)[0]].inplace,
                size_hint(product(self.plan.tensors[n].shape)),
            ),
        )


def topological(live: Iterable[int], pairs: Iterable[tuple[int, int]]) -> tuple[int, ...] | None:
    """`live` in an order that obeys the pairs, the smallest number first; None if there is none."""
    after: dict[int, list[int]] = {number: [] for number in live}
    waiting = dict.fromkeys(after, 0)
    for before, later in pairs:
        if before in after and later in after:
            after[before].append(later)
            waiting[later] += 1
    ready = [number for number, count in waiting.items() if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for later in after[number]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heappush(ready, later)
    return tuple(order) if len(order) == len(after) else None


def _is_older(base: str, one: str, other: str, facts: Facts) -> bool:
    if other == LAST or one == base:
        return True
    return one in facts.versions.get(other, {}).get(base, ())


_CHECKERS: OrderedDict[tuple[int, int, int], tuple[Checker, Engine]] = OrderedDict()
_KEPT = 8


def checker(plan: PlanGraph, vtog: Vtog, engine: Engine) -> Checker:
    """The checker of a plan. The last few are kept, so that asking again costs little."""
    key = (id(plan), id(vtog), id(engine))
    if key not in _CHECKERS:
        _CHECKERS[key] = Checker(plan, vtog, engine), engine
        while len(_CHECKERS) > _KEPT:
            _CHECKERS.popitem(last=False)
    _CHECKERS.move_to_end(key)
    return _CHECKERS[key][0]


def legal(plan: PlanGraph, vtog: Vtog, strategy: Strategy, engine: Engine) -> Verdict:
    """Whether a strategy is legal, by DESIGN's rules and the engine's contracts."""
    return checker(plan, vtog, engine).legal(strategy)


def orders(
    plan: PlanGraph, vtog: Vtog, strategy: Strategy, engine: Engine
) -> tuple[tuple[str, str], ...]:
    """Pairs (before, after) of step names that a schedule of a legal strategy must keep.

    Only steps that run appear. The copy back into updated input x is called "x.copy_".
    """
    own = checker(plan, vtog, engine)
    live = set(own.facts(strategy).live)
    names = plan.step_names
    pairs = own.orders(strategy)
    return tuple((names[a], names[b]) for a, b in pairs if a in live and b in live)

"""Which edges to choose: the paper's global greedy. `exhaustive` tells how good it is.

Both ask `legal` of every strategy they consider and take any `Cost`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from vtc.virtual.alike import Alike
from vtc.virtual.cost import Cost
from vtc.virtual.legality import Checker, checker
from vtc.virtual.plan import Engine, PlanGraph, PlanMovement, operands, results
from vtc.virtual.strategy import Strategy
from vtc.virtual.vtog import Vtog

Progress = Callable[[int, float], None]
"""Called with the number of evaluations so far and the best cost."""

NONE: Strategy = frozenset()

MAX_PAIRS = 2000
"""How many pairs of candidates a search tries at most."""


@dataclass(frozen=True)
class TraceStep:
    """One decision of a search. `edges` were added, `dropped` taken away; `cost` is the new one."""

    kind: Literal["node", "bundle", "exchange", "best"]
    name: str
    edges: tuple[int, ...]
    gain: float
    cost: float
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """The strategy found and what finding it took.

    base_cost: of the empty strategy. evaluations: strategies priced. gap: see `optimality_gap`,
    where it is known. complete: the time budget did not cut the search short.
    """

    strategy: Strategy
    cost: float
    base_cost: float
    evaluations: int
    seconds: float
    trace: tuple[TraceStep, ...] = ()
    gap: float | None = None
    complete: bool = True

    def text(self, vtog: Vtog) -> str:
        """The decisions, one a line, for a person."""
        lines = [f"nothing virtual: {self.base_cost:.3f}"]
        for step in self.trace:
            added = ", ".join(str(vtog.numbered[number]) for number in step.edges)
            saved = f"saves {step.gain:.3f}: {step.cost:.3f}"
            lines.append(f"{step.kind} {step.name}: {added}; {saved}")
            if step.dropped:
                dropped = ", ".join(str(vtog.numbered[number]) for number in step.dropped)
                lines.append(f"  instead of {dropped}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Candidate:
    """Edges that are tried together: of one node, or a bundle that only pays as a whole."""

    kind: Literal["node", "bundle"]
    name: str
    edges: frozenset[int]


def greedy(
    plan: PlanGraph,
    vtog: Vtog,
    engine: Engine,
    cost: Cost,
    *,
    progress: Progress | None = None,
    budget_s: float | None = None,
    start: SearchResult | None = None,
) -> SearchResult:
    """The paper's global greedy (section 5.2, figure 10), with bundles and exchanges.

    The anchor set starts with all tensors, as every tensor is physical at first; what is chosen
    each time is the node (or bundle of edges that only pay together: all of one movement operator,
    or a chain of views up to the producer) whose legal, non-conflicting edges save most, and the
    gains that the choice may have changed are found again. When no gain is left, two candidates are
    tried at once (a concat read in parts pays only with the stores behind it; of pairs that are
    alike one, where the cost has a `form` of regions), and each bundle in exchange for the chosen
    edges that stand against it. The result costs at most what the empty strategy does.

    From `start`, found with another cost, it goes on alone by what saves most.
    """
    return _Greedy(plan, vtog, engine, cost, progress, budget_s, start).run()


class _Greedy:
    def __init__(
        self,
        plan: PlanGraph,
        vtog: Vtog,
        engine: Engine,
        cost: Cost,
        progress: Progress | None,
        budget_s: float | None,
        start: SearchResult | None,
    ) -> None:
        self.plan = plan
        self.vtog = vtog
        self.checker: Checker = checker(plan, vtog, engine)
        self.cost = cost
        self.progress = progress
        self.started = time.perf_counter()
        self.deadline = math.inf if budget_s is None else self.started + budget_s
        self.seen: dict[Strategy, float] = {}
        self.start = start
        self.trace: list[TraceStep] = list(start.trace) if start else []
        self.chosen: Strategy = start.strategy if start else NONE
        self.checker.rebase(self.chosen)
        self.now = self.price(self.chosen)
        self.base = start.base_cost if start else self.now
        self.free = free_edges(vtog, self.checker)
        self.around = _neighbourhoods(plan, vtog)
        self.reach: dict[Candidate, frozenset[str]] = {}
        self.complete = start is None or start.complete

    def run(self) -> SearchResult:
        gains: dict[Candidate, float] = {}
        candidates = list(dict.fromkeys((*self.nodes(), *self.bundles(), *self.of_regions())))
        stale = set(candidates)
        while not self.late():
            for candidate in [c for c in candidates if c in stale]:
                gains[candidate] = self.gain(candidate)
                if self.late():
                    break
            stale.clear()
            best = max(gains, key=lambda c: (gains[c], -len(c.edges)), default=None)
            if best is None or gains[best] <= self.least():
                break
            gains[best] = self.gain(best)  # a choice far away may have made it illegal
            if gains[best] <= self.least():
                continue
            self.choose(best, self.compatible(best), NONE)
            stale = {c for c in candidates if self.concerned(c, best)}
        if self.start is None:
            self.pairs(candidates)
            self.exchange([c for c in candidates if c.kind == "bundle" or len(c.edges) == 1])
        seconds, evaluations = time.perf_counter() - self.started, len(self.seen)
        if self.start is not None:
            seconds, evaluations = (
                seconds + self.start.seconds,
                evaluations + self.start.evaluations,
            )
        return SearchResult(
            self.chosen,
            self.now,
            self.base,
            evaluations,
            seconds,
            tuple(self.trace),
            complete=self.complete,
        )

    def price(self, strategy: Strategy) -> float:
        """Cost of a strategy; infinite where it is not legal."""
        found = self.seen.get(strategy)
        if found is None:
            legal = self.checker.legal(strategy)
            found = self.seen[strategy] = self.cost.cost(strategy) if legal else math.inf
            if self.progress is not None:
                self.progress(len(self.seen), getattr(self, "now", found))
        return found

    def least(self) -> float:
        """Gains below this are rounding, or what the cost says is too little to tell."""
        return max(1e-9 * max(abs(self.base), 1.0), getattr(self.cost, "min_gain", 0.0))

    def late(self) -> bool:
        if time.perf_counter() > self.deadline:
            self.complete = False
            return True
        return False

    def compatible(self, candidate: Candidate) -> frozenset[int]:
        """The candidate's edges that are new. Of a node those that pay, the most paying first."""
        new = candidate.edges - self.chosen
        if any(self.vtog.rivals[number] & self.chosen for number in new):
            if candidate.kind == "bundle":
                return frozenset()
            new = frozenset(n for n in new if not self.vtog.rivals[n] & self.chosen)
        if candidate.kind == "bundle" or len(new) < 2:
            return new
        gains = {number: self.now - self.price(self.chosen | {number}) for number in new}
        taken: frozenset[int] = frozenset()
        for number in sorted(gains, key=lambda n: (-gains[n], n)):
            if gains[number] > self.least() and not self.vtog.rivals[number] & taken:
                taken |= {number}
        return taken

    def gain(self, candidate: Candidate) -> float:
        new = self.compatible(candidate)
        return self.now - self.price(self.chosen | new) if new else -math.inf

    def choose(self, candidate: Candidate, new: frozenset[int], dropped: frozenset[int]) -> None:
        self.chosen = self.chosen - dropped | new
        self.checker.rebase(self.chosen)
        before, self.now = self.now, self.price(self.chosen)
        kind: Literal["node", "bundle", "exchange"] = "exchange" if dropped else candidate.kind
        step = TraceStep(
            kind,
            candidate.name,
            tuple(sorted(new)),
            before - self.now,
            self.now,
            tuple(sorted(dropped)),
        )
        self.trace.append(step)

    def pairs(self, candidates: list[Candidate]) -> None:
        """Choose two candidates that are near each other and pay only together; here storing into
        a physical view is one as well, as it changes the order in which the other is walked."""
        edges = self.vtog.edges
        renamed = (n for n in sorted(self.free) if self.renames(n))
        candidates = candidates + [
            Candidate("node", edges[n].tensor, frozenset({n})) for n in renamed
        ]
        near = (p for p in itertools.combinations(candidates, 2) if self.concerned(*p))
        for one, other in itertools.islice(self.distinct(near), MAX_PAIRS):
            if self.late():
                return
            new = (one.edges | other.edges) - self.chosen
            whole = len(self.agreeing((*sorted(self.chosen), *sorted(new))))
            if whole < len(self.chosen) + len(new) or not self.promising(self.chosen | new):
                continue
            if self.now - self.price(self.chosen | new) > self.least():
                self.choose(Candidate("bundle", f"{one.name} + {other.name}", new), new, NONE)

    def promising(self, strategy: Strategy) -> bool:
        """Could a strategy pay, were it legal? Asked where a cost can tell it in less time."""
        floor = getattr(self.cost, "floor", None)
        return floor is None or self.now - floor(strategy) > self.least()

    def distinct(
        self, pairs: Iterable[tuple[Candidate, Candidate]]
    ) -> Iterator[tuple[Candidate, Candidate]]:
        """The pairs that have something new, but for those like others that did not pay."""
        form = getattr(self.cost, "form", None) if getattr(self.cost, "local", False) else None
        alike: Alike | None = None
        tried: set[Hashable] = set()
        for one, other in pairs:
            new = (one.edges | other.edges) - self.chosen
            if not new:
                continue
            if form is not None:
                if alike is None or alike.chosen != self.chosen:
                    alike = Alike(self.plan, self.vtog, self.checker, self.chosen, form)
                    tried.clear()
                key = alike.key(new)
                if key in tried:
                    continue
                tried.add(key)
            yield one, other

    def exchange(self, candidates: list[Candidate]) -> None:
        """Try each candidate instead of the chosen edges that conflict with it, and drop edges."""
        improved = True
        while improved and not self.late():
            improved = False
            for candidate in candidates:
                new = candidate.edges - self.chosen
                if not new or self.late():
                    continue
                for dropped in self.rivals(new):
                    trial = self.chosen - dropped | new
                    if dropped and self.now - self.price(trial) > self.least():
                        self.choose(candidate, new, dropped)
                        improved = True
                        break

    def rivals(self, new: frozenset[int]) -> list[frozenset[int]]:
        """Chosen edges that stand against `new`: by conflict, or with their whole operators."""
        edges = self.vtog.numbered
        near = {n for number in new for n in self.vtog.rivals[number]}
        tensors = {edges[n].tensor for n in new} | {edges[n].base for n in new}
        operators = {edges[n].operator for n in new}
        clash = frozenset(n for n in self.chosen if n in near)
        lost = {edges[n].operator for n in clash}
        whole = frozenset(n for n in self.chosen if edges[n].operator in lost)
        turned = frozenset(
            n
            for n in self.chosen
            if n in near or edges[n].operator in operators or edges[n].tensor in tensors
        )
        return list(dict.fromkeys((clash, whole, turned - new)))

    def concerned(self, candidate: Candidate, chosen: Candidate) -> bool:
        """The gain of a candidate may have changed: a step or tensor is near both."""
        if not getattr(self.cost, "local", False):
            return True
        mine = self.reach.get(candidate)
        if mine is None:
            mine = frozenset().union(*(self.around[n] for n in candidate.edges))
            self.reach[candidate] = mine
        return any(not mine.isdisjoint(self.around[n]) for n in chosen.edges)

    def nodes(self) -> Iterator[Candidate]:
        """All out-edges of one tensor. A store into a view that is physical only renames the
        tensor; such edges count as links of a bundle alone."""
        for tensor, numbers in self.vtog.out_edges.items():
            mine = frozenset(n for n in numbers if n in self.free and not self.renames(n))
            if mine:
                yield Candidate("node", tensor, mine)

    def renames(self, number: int) -> bool:
        edge = self.vtog.edges[number]
        return edge.direction == "store" and self.plan.movements[edge.operator].movement.view

    def of_regions(self) -> Iterator[Candidate]:
        """The copies in front of one region together: a kernel may take them only together (keys
        and values of grouped heads)."""
        edges = self.vtog.edges
        for step in self.plan.steps:
            if isinstance(step, PlanMovement):
                continue
            loads: list[int] = []
            pending, seen = list(step.reads), set(step.reads)
            for name in pending:
                behind = [n for n in self.vtog.out_edges.get(name, ()) if n < len(edges)]
                behind = [n for n in behind if edges[n].direction == "load"]
                loads += [n for n in behind if n in self.free and not edges[n].inplace]
                pending += [edges[n].base for n in behind if edges[n].base not in seen]
                seen.update(edges[n].base for n in behind)
            together = self.agreeing(loads)
            if len(together) > 1:
                yield Candidate("bundle", step.name, together)

    def bundles(self) -> Iterator[Candidate]:
        """Edges of one operator, or all stores of one tensor, together, each with the views that
        lead to its producers."""
        edges = self.vtog.edges
        for number in sorted(self.free):
            chain = self.chain(number)
            if len(chain) > 1 and not self.renames(number):
                yield Candidate("bundle", edges[number].tensor, chain)
        for tensor, numbers in self.vtog.out_edges.items():
            parts = [n for n in numbers if n in self.free and edges[n].direction == "store"]
            together = self.agreeing(n for number in parts for n in sorted(self.chain(number)))
            if len(together) > 1:
                yield Candidate("bundle", tensor, together)
        for operator, numbers in self.vtog.operator_edges.items():
            mine = [n for n in numbers if n in self.free]
            loads = [n for n in mine if edges[n].direction == "load" and not edges[n].inplace]
            stores = [n for n in mine if edges[n].direction == "store" and not self.renames(n)]
            kept = [n for n in mine if edges[n].inplace]
            for group in (loads, stores, [*kept, *stores]):
                plain = self.agreeing(group)
                chained = self.agreeing(n for number in group for n in sorted(self.chain(number)))
                for together in dict.fromkeys((plain, chained)):
                    if len(together) > 1:
                        yield Candidate("bundle", operator, together)

    def agreeing(self, numbers: Iterable[int]) -> frozenset[int]:
        """The edges without those that conflict with an earlier one."""
        taken: frozenset[int] = frozenset()
        for number in numbers:
            if not self.vtog.rivals[number] & taken:
                taken |= {number}
        return taken

    def chain(self, number: int) -> frozenset[int]:
        """An edge, and the B edges by which its tensor's source would live there as well."""
        edges = self.vtog.edges
        taken = [number]
        for n in taken:
            step = self.plan.movements.get(edges[n].tensor)
            if step is None or (edges[n].direction == "load" and not edges[n].inplace):
                continue
            for m in self.vtog.operator_edges.get(step.name, ()):
                usable = m in self.free and m not in taken and edges[m].direction == "store"
                if usable and edges[m].operator != edges[n].operator:
                    taken.append(m)
        return self.agreeing(taken)


def free_edges(vtog: Vtog, own: Checker) -> frozenset[int]:
    """The edges that are choices: not those that are implied and cost nothing when not chosen."""
    implied = {
        n
        for operator in own.plan.movements
        if own.resolver.defaults[operator] in ("view", "fold")
        for n in own.resolver.implied(operator)
    }
    return frozenset(range(len(vtog.edges))) - implied


def _neighbourhoods(plan: PlanGraph, vtog: Vtog) -> list[frozenset[str]]:
    """For each edge the tensors of the steps that touch its ends; inputs are near everything."""
    far = {name for name, tensor in plan.tensors.items() if tensor.kind in ("input", "constant")}
    near: dict[str, set[str]] = {name: {name} for name in plan.tensors}
    for step in plan.steps:
        names = {*operands(step), *results(step)}
        for name in names - far:
            near[name] |= names - far
    return [frozenset(near[edge.tensor] | near[edge.base]) for edge in vtog.numbered]

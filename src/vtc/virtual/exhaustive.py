"""Exhaustive search: the best legal strategy of a small graph, to tell how good greedy is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from vtc.virtual.cost import Cost
from vtc.virtual.legality import Checker, checker
from vtc.virtual.plan import Engine, PlanGraph
from vtc.virtual.search import Progress, SearchResult, TraceStep, free_edges
from vtc.virtual.strategy import Strategy
from vtc.virtual.vtog import Vtog


class TooManyChoicesError(ValueError):
    """A component of the opportunity graph has more free edges than may be enumerated."""

    def __init__(self, choices: int, allowed: int, tensors: Iterable[str]) -> None:
        self.choices = choices
        self.allowed = allowed
        names = ", ".join(list(tensors)[:6])
        super().__init__(
            f"exhaustive search would enumerate {choices} free choices around {names}, more than "
            f"max_choices={allowed}; use the greedy search or raise max_choices"
        )


def optimality_gap(greedy_cost: float, exhaustive_cost: float) -> float:
    """How much more the greedy strategy costs than the best one: 0.05 is five percent."""
    return greedy_cost / exhaustive_cost - 1.0 if exhaustive_cost else 0.0


def exhaustive(
    plan: PlanGraph,
    vtog: Vtog,
    engine: Engine,
    cost: Cost,
    *,
    max_choices: int = 16,
    progress: Progress | None = None,
) -> SearchResult:
    """The best legal strategy by enumeration.

    Views that cost nothing are no choices. With more than `max_choices` free edges the opportunity
    graph is split into connected components, each solved with the others empty, and the answers
    joined: then the result is exact where the costs of components add up. Raises
    TooManyChoicesError for a component with more free edges than that, and ValueError where the
    joined answer is not legal.
    """
    started = time.perf_counter()
    own = checker(plan, vtog, engine)
    free = sorted(free_edges(vtog, own))
    groups = [free] if len(free) <= max_choices else _components(vtog, free, own)
    evaluations = 0
    strategy: Strategy = frozenset()
    base = cost.cost(strategy)
    for group in groups:
        if len(group) > max_choices:
            raise TooManyChoicesError(
                len(group), max_choices, (vtog.edges[n].tensor for n in group)
            )
        best, best_cost = frozenset[int](), base
        for trial in _subsets(vtog, own, group):
            if not own.legal(trial):
                continue
            found = cost.cost(trial)
            evaluations += 1
            if found < best_cost - 1e-9 * max(abs(base), 1.0):
                best, best_cost = trial, found
            if progress is not None:
                progress(evaluations, best_cost)
        strategy |= best
    verdict = own.legal(strategy)
    if not verdict:
        raise ValueError(f"the components' best strategies are not legal together: {verdict}")
    total = cost.cost(strategy)
    trace = (TraceStep("best", "all", tuple(sorted(strategy)), base - total, total),)
    return SearchResult(
        strategy, total, base, evaluations, time.perf_counter() - started, trace, 0.0
    )


def _components(vtog: Vtog, free: list[int], own: Checker) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for number in free:
        groups.setdefault(own.resolver.component[vtog.edges[number].tensor], []).append(number)
    return list(groups.values())


def _subsets(vtog: Vtog, own: Checker, group: list[int]) -> Iterator[Strategy]:
    """Subsets without conflicts and cycles, smaller ones first along each branch."""
    stack: list[tuple[int, Strategy]] = [(0, frozenset())]
    while stack:
        position, taken = stack.pop()
        if position == len(group):
            yield taken
            continue
        number = group[position]
        if not vtog.rivals[number] & taken:
            more = taken | {number}
            fault = own.resolver.resolve(more).fault
            if fault is None or fault[0] not in ("(i)", "(vi)"):
                stack.append((position + 1, more))
        stack.append((position + 1, taken))

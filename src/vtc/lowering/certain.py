"""Small savings that need no measurement: copies in front of and behind kernels of ours.

A saving of less than a part in two hundred of the whole is not worth a measurement. Where all that
it changes are kernels that read and store through a map as they do through a plain view, it needs
none: a copy goes, and nothing comes in its place.
"""

from __future__ import annotations

from vtc.graph.regions import Region
from vtc.kernels.convolution import Convolution
from vtc.kernels.convolution_bare import reads_dense_image
from vtc.kernels.pooling import Pooling
from vtc.lowering.described import described
from vtc.lowering.description import Undescribed
from vtc.lowering.homes import Homes, Unschedulable
from vtc.lowering.profile import ProfiledCost
from vtc.lowering.schedule import Step
from vtc.virtual.search import SearchResult
from vtc.virtual.strategy import Strategy


class Certain:
    """What search asks to go on from a strategy that was found by measurements: microseconds of it
    with more edges, infinite where they change what would have to be measured."""

    def __init__(self, pricing: ProfiledCost, found: SearchResult) -> None:
        self.pricing, self.static, self.found = pricing, pricing.static, found
        self.plan, self.local = pricing.plan, pricing.local
        self.min_gain = pricing.options.min_gain_us
        self.profiles = self.cache_hits = 0
        self.before = self.plan.homes(found.strategy)
        self.cost_before = self.static.cost(found.strategy)
        self.copies = self._copies(found.strategy)
        self.alike: dict[tuple[str, str], bool] = {}

    def cost(self, strategy: Strategy) -> float:
        if strategy == self.found.strategy:
            return self.found.cost
        if not strategy >= self.found.strategy or strategy & self.pricing.banned:
            return float("inf")
        gain = self.cost_before - self.static.cost(strategy)
        if gain <= self.min_gain:
            return self.found.cost - min(gain, 0.0)
        if not self._small(strategy):
            return float("inf")
        homes = self.plan.homes(strategy)
        try:
            homes.require_schedulable()
            more = strategy - self.found.strategy
            regions = self.plan.grouping.regions
            certain = all(self._certain(r, homes) for r in regions if self.pricing.touches(r, more))
        except Unschedulable:
            certain = False
        return self.found.cost - gain if certain else float("inf")

    def _copies(self, strategy: Strategy) -> dict[str, float]:
        """Microseconds of each copy, as modelled."""
        return {s.name: s.latency_us for s in self.static.steps(strategy) if s.kind == "copy"}

    def _small(self, strategy: Strategy) -> bool:
        """Does it spare copies alone that were too short to be measured, and add none?"""
        now = self._copies(strategy)
        saved = [self.copies.get(n, 0.0) - now.get(n, 0.0) for n in {*self.copies, *now}]
        return all(0.0 <= s < self.pricing.min_gain for s in saved)

    def _certain(self, region: Region, homes: Homes) -> bool:
        """Is the region as it was, or a kernel of ours that is as fast?"""
        (before, one), (after, other) = (
            self.pricing.looking(region, h) for h in (self.before, homes)
        )
        if one == other:
            return True
        if region.name not in self.plan.engine.own:
            return False
        if (one, other) not in self.alike:
            self.alike[one, other] = _as_good(before, after)
        return self.alike[one, other]


def _as_good(before: Step, after: Step) -> bool:
    """Do both have the same kernels? A convolution that a library may do best must go on to read a
    dense image."""
    try:
        old, new = described(before).problem, described(after).problem
    except Undescribed:
        return False
    if isinstance(old, Pooling) and isinstance(new, Pooling):
        return True
    if not isinstance(old, Convolution) or not isinstance(new, Convolution):
        return False
    ours_best = old.depthwise or (old.groups == 1 and old.window.size == (1, 1))
    return ours_best or reads_dense_image(new) or not reads_dense_image(old)

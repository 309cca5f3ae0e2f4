"""Choosing a plan: how library kernels are called, and which tensors are virtual."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import warnings
from collections.abc import Iterable

import torch
from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

from vtc import errors
from vtc.graph.outer_product import multiplied
from vtc.graph.program import Program
from vtc.kernels.operators import is_random
from vtc.lowering.attention import attended
from vtc.lowering.cache import ProfileCache
from vtc.lowering.cached_attention import attended_on_caches
from vtc.lowering.calls import transposed
from vtc.lowering.certain import Certain
from vtc.lowering.homes import Unschedulable
from vtc.lowering.linear_attention import linearly_attended
from vtc.lowering.norms import with_split_norms
from vtc.lowering.own import own_plan
from vtc.lowering.plan import NOTHING, Plan, device_of
from vtc.lowering.profile import Pricing, ProfiledCost
from vtc.lowering.record import Choice
from vtc.lowering.remembered import Memory, Remembered
from vtc.lowering.schedule import Schedule
from vtc.lowering.settings import Settings
from vtc.lowering.shift import moved_on, moved_on_unmeasured
from vtc.virtual import cost as costs
from vtc.virtual import search
from vtc.virtual.exhaustive import exhaustive, optimality_gap
from vtc.virtual.search import SearchResult

logger = logging.getLogger(__name__)


def prepare(program: Program, settings: Settings) -> Plan:
    """Group the program, build its opportunity graph, and measure how kernels are best called.

    The plan's program is `program` with some attentions made ours, and in the layout that our
    kernels want where they compute some of its regions.
    """
    options, device = settings.options, device_of(program)
    measures = settings.measures and not program.symbolic and not options.materializes("all")
    cache = ProfileCache(options.cache_dir, device)
    attentions: tuple[str, ...] = ()
    if measures and device.type == "cuda":
        _settle_triton_cache(device)
    if measures:
        program = multiplied(program)
        program, attentions = attended(program, cache, settings.progress)
        program, more = linearly_attended(program, cache, settings.progress)
        program, cached = attended_on_caches(program, cache, settings.progress)
        program, moved = moved_on(program, cache, settings.progress)
        attentions += (*more, *cached, *moved)
    elif settings.objective == "memory" and not options.materializes("all"):
        program, attentions = moved_on_unmeasured(program)
    own = measures and device.type == "cuda"
    plan = own_plan(program) if own else Plan.of(program)
    if own:
        plan, norms = with_split_norms(program, plan, cache, settings.progress)
        attentions += norms
    plan = dataclasses.replace(plan, attentions=attentions)
    _warn_of_unknown(options.materialize - {"all"}, plan)
    if not measures or options.freeze:
        return plan
    return dataclasses.replace(plan, transposed=transposed(plan, cache, settings.progress))


def _settle_triton_cache(device: torch.device) -> None:
    """Put Triton's cache where TorchInductor puts it with the first kernel that it loads: what is
    compiled before would not be found after."""
    index = torch.cuda.current_device() if device.index is None else device.index
    os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(index))


def choose(plan: Plan, settings: Settings) -> tuple[Choice, Schedule]:
    """The strategy that the search finds best for the objective, and its schedule.

    The empty strategy takes its place where no steps can carry it out.
    """
    memory = Memory.of(plan, settings)
    recalled = _recalled(plan, settings, memory) if memory else None
    choice = recalled or _search(plan, settings)
    try:
        schedule = plan.schedule(choice.strategy)
        if memory and not recalled:
            found = choice.result
            memory.keep(Remembered(tuple(sorted(found.strategy)), found.cost, found.base_cost))
        return choice, schedule
    except Unschedulable as reason:
        logger.info("nothing is virtual: %s", reason)
        return choice.without_virtual_tensors(), plan.schedule(NOTHING)


def _recalled(plan: Plan, settings: Settings, memory: Memory) -> Choice | None:
    """The choice that was made for this program before, if it is legal."""
    started, known = time.perf_counter(), memory.recall()
    strategy = frozenset(known.edges) if known else NOTHING
    if known is None or not strategy <= frozenset(range(len(plan.vtog.numbered))):
        return None
    if not plan.checker.legal(strategy):
        return None
    seconds = time.perf_counter() - started
    found = SearchResult(strategy, known.cost, known.base_cost, 0, seconds)
    return Choice(found, _static(plan, settings), settings.objective, 0, 1)


def _static(plan: Plan, settings: Settings) -> costs.StaticCost:
    model = costs.GPU if plan.device.type == "cuda" else costs.CPU
    return costs.StaticCost(plan.graph, plan.vtog, plan.engine, model, settings.objective)


def _search(plan: Plan, settings: Settings) -> Choice:
    options, static = settings.options, _static(plan, settings)
    # The order of random operators is part of their meaning, so that they stay in one step.
    if options.materializes("all") or any(map(is_random, plan.program.nodes)):
        base = static.cost(NOTHING)
        return Choice(SearchResult(NOTHING, base, base, 1, 0.0), static, settings.objective)
    pricing = Pricing(plan, static, options)
    if settings.measures and not plan.program.symbolic:
        cache = ProfileCache(options.cache_dir, plan.device)
        pricing = ProfiledCost(plan, static, options, cache, settings.progress)
    found = search.greedy(
        plan.graph, plan.vtog, plan.engine, pricing, budget_s=options.profile_budget_s
    )
    if isinstance(pricing, ProfiledCost) and plan.engine.own and pricing.leaves_small_gains:
        certain = Certain(pricing, found)
        found = search.greedy(plan.graph, plan.vtog, plan.engine, certain, start=found)
    if options.search == "exhaustive":
        best = exhaustive(
            plan.graph, plan.vtog, plan.engine, pricing, max_choices=options.max_exhaustive
        )
        found = dataclasses.replace(best, gap=optimality_gap(found.cost, best.cost))
    if settings.objective == "latency" and found.base_cost - found.cost < options.min_gain_us:
        found = dataclasses.replace(found, strategy=NOTHING, cost=found.base_cost)
    return Choice(found, static, settings.objective, pricing.profiles, pricing.cache_hits)


def _warn_of_unknown(names: Iterable[str], plan: Plan) -> None:
    """Say which names of `materialize` this graph does not have."""
    virtual = {e.tensor for e in plan.vtog.edges}
    known = [*virtual, *(r.name for r in plan.grouping.regions if r.name not in virtual)]
    for name in names:
        if name not in known:
            text = str(errors.UnknownTensorError(name, sorted(known)))
            warnings.warn(errors.VtcWarning(text), stacklevel=3)

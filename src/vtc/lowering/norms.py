"""Which norms between matmuls are computed in two halves by the kernels around them: where
measurement finds these faster than kernels without them and a norm of its own.

Both forms are planned, and the steps that differ are timed as they would run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import fx

from vtc.graph import normed
from vtc.graph.program import Program, copied, value_of
from vtc.kernels.normalized import NORMALIZED, SQUARE_SUMS
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.describe_matmul import call_of
from vtc.lowering.own import FEW_ROWS, Tuner, own_plan
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.schedule import Step, signature

Progress = Callable[[str], None]


def with_split_norms(
    program: Program, plan: Plan, cache: ProfileCache, progress: Progress
) -> tuple[Plan, tuple[str, ...]]:
    """`plan`, that of `program`, or the plan of the program with split norms, and a sentence about
    it where that is faster."""
    if not plan.own or not normed.find(program, _behind_a_matmul):
        return plan, ()
    other = split(program)
    if other is None:
        return plan, ()
    tuner = Tuner(cache, progress)
    ours, theirs = differing(other.schedule(NOTHING).steps, plan.schedule(NOTHING).steps)
    try:
        tuner.prepare([*ours, *theirs])
        new, old = (sum(_microseconds(s, tuner) * n for s, n in d.items()) for d in (ours, theirs))
    except torch.cuda.OutOfMemoryError:
        return plan, ()  # no room to measure: they stay as they are
    if not new < old:
        return plan, ()
    count = sum(n.target is SQUARE_SUMS for n in other.program.nodes)
    said = f"{count} norms in the kernels of matmuls: {new:.1f} us in the place of {old:.1f} us"
    return other, (said,)


def split(program: Program) -> Plan | None:
    """The plan of the program with norms between matmuls of a few rows in two halves, those that
    our kernels can compute so; None where there are none."""
    refused: set[str] = set()
    while True:
        own = copied(program)
        found = [n for n in normed.find(own, _behind_a_matmul) if n.node.name not in refused]
        if not found:
            return None
        width = min(map(_width, found))
        names = {n.rows.name: n.node.name for n in found}
        plan = own_plan(normed.rewrite(own, found, width, SQUARE_SUMS, NORMALIZED))
        others = {names[s.args[0].name] for s in plan.program.nodes if _is_apart(s, plan)}
        if not others:
            return plan
        refused |= others


def _is_apart(sums: fx.Node, plan: Plan) -> bool:
    """Are sums of squares, or one of the norms by them, not computed by kernels of ours?"""
    if sums.target is not SQUARE_SUMS:
        return False
    regions = plan.grouping.region_of
    behind = [u for u in sums.users if u.target is NORMALIZED]
    return any(regions[n].name not in plan.own for n in (sums, *behind))


def differing(
    ours: Sequence[Step], theirs: Sequence[Step]
) -> tuple[dict[Step, int], dict[Step, int]]:
    """The steps of each that the other does not have, and how many more of them there are."""
    one, other = ({signature(s): s for s in steps} for steps in (ours, theirs))
    counts = Counter(map(signature, ours))
    counts.subtract(Counter(map(signature, theirs)))
    more = {one[key]: n for key, n in counts.items() if n > 0}
    return more, {other[key]: -n for key, n in counts.items() if n < 0}


def _behind_a_matmul(rows: fx.Node) -> bool:
    """Are rows what a matmul of few rows gives, alone or with others added to it?"""
    pending = [rows]
    if rows.target is torch.ops.aten.add.Tensor:
        pending = [n for n in rows.args if isinstance(n, fx.Node)]
    for node in pending:
        call = call_of(node)
        if call is not None and value_of(node).shape == value_of(rows).shape:
            return 0 < value_of(node).numel() <= FEW_ROWS * value_of(node).shape[-1]
    return False


def _width(norm: normed.Norm) -> int:
    """How many columns are summed: as many as a narrow tile has, fewer for those of few rows."""
    rows = math.prod(value_of(norm.rows).shape[:-1])
    wanted = 8 if rows <= 4 else 32
    return math.gcd(norm.count, wanted)


def _microseconds(step: Step, tuner: Tuner) -> float:
    if step.implementation == "kernel":
        own = tuner.microseconds(step)
        return own if own < timing.NEVER else tuner.generated(step)
    return tuner.generated(step)

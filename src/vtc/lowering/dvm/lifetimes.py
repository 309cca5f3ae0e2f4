"""Steps moved so that what the program makes is in memory for a shorter time.

Fusion copies the base of a scatter before it computes what is written over it, and gives updated
inputs their new values at the end, behind all that reads the old ones. So of each layer a cache
with its rows shifted, and new ones among them, would be in memory for most of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vtc.lowering.dvm.plan import EagerStep, Space, TensorRef, references
from vtc.program.module import Branch, Step
from vtc.program.tile import Access, TileKernel, operands


def accesses(kernel: TileKernel) -> Iterator[Access]:
    """What a kernel loads and stores."""
    for instr in kernel.body:
        if instr.access is not None:
            yield instr.access
        yield from operands(instr.constant)


Memory = Mapping[int, frozenset[int]]
"""For spaces that may lie in others: those spaces, and themselves."""


def shared_memory(steps: Iterable[EagerStep]) -> Memory:
    """What eager calls return may be a view of what they take. That an operator's result is one,
    its schema does not always tell."""
    memory: dict[int, frozenset[int]] = {}
    for step in steps:
        taken = {r.space for r in references((step.args, step.kwargs)) if isinstance(r, TensorRef)}
        under = reached(taken, memory)
        memory |= {space: under | {space} for _, space in step.results}
    return memory


def reached(spaces: Iterable[int], memory: Memory) -> frozenset[int]:
    """All spaces that some may lie in."""
    return frozenset().union(*(memory.get(n, {n}) for n in spaces))


@dataclass(frozen=True)
class _Effects:
    """The spaces that a step touches, and those of them that it writes; what these may lie in."""

    touched: frozenset[int]
    written: frozenset[int]
    reached: frozenset[int]
    changed: frozenset[int]

    def conflicts(self, other: _Effects) -> bool:
        return bool(self.changed & other.reached or other.changed & self.reached)


def shortened(steps: Sequence[Step], spaces: Sequence[Space], memory: Memory) -> list[Step]:
    """The steps in an order that means the same."""
    order = [(step, _effects(step, memory)) for step in steps]
    _late_bases(order, spaces)
    _early_updates(order, spaces)
    return [step for step, _ in order]


def _late_bases(order: list[tuple[Step, _Effects]], spaces: Sequence[Space]) -> None:
    """Moves down what is written over later, and computed from nothing that the program made."""
    writes = Counter(space for _, own in order for space in own.written)
    for step, own in reversed(order.copy()):
        made = {n for n in own.touched if spaces[n].kind == "made"}
        if made != own.written or not any(writes[n] > 1 for n in made):
            continue
        at = to = _place(order, step)
        while to + 1 < len(order) and not own.conflicts(order[to + 1][1]):
            to += 1
        order.insert(to, order.pop(at))


def _early_updates(order: list[tuple[Step, _Effects]], spaces: Sequence[Space]) -> None:
    """Moves up what writes nothing but inputs, and is the last to read something that the program
    made."""
    last = {space: step for step, own in order for space in own.touched}
    for step, own in order.copy():
        frees = any(spaces[n].kind == "made" and last[n] is step for n in own.touched)
        if not (frees and all(spaces[n].kind == "input" for n in own.written)):
            continue
        at = to = _place(order, step)
        while to > 0 and not own.conflicts(order[to - 1][1]):
            to -= 1
        order.insert(to, order.pop(at))


def _place(order: Sequence[tuple[Step, _Effects]], step: Step) -> int:
    return next(k for k, (other, _) in enumerate(order) if other is step)


def _effects(step: Step, memory: Memory) -> _Effects:
    touched, written = set[int](), set[int]()
    pending = [step]
    while pending:
        one = pending.pop()
        if isinstance(one, Branch):
            touched.add(one.predicate)
            pending += [*one.then, *one.otherwise]
            continue
        touched |= {a.buffer for a in accesses(one)}
        written |= {i.access.buffer for i in one.body if i.op == "store" and i.access is not None}
    own = frozenset(touched), frozenset(written)
    return _Effects(*own, *(reached(spaces, memory) for spaces in own))

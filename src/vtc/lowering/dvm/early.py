"""Updates of inputs as early as they may be.

Fusion gives updated inputs their new values at the end of a program, behind all that reads the old
ones. What these are copied from would stay in memory until then: of each layer the cache with its
rows shifted and new ones among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vtc.lowering.dvm.plan import Space
from vtc.program.module import Branch, Step
from vtc.program.tile import Access, TileKernel, operands


def accesses(kernel: TileKernel) -> Iterator[Access]:
    """What a kernel loads and stores."""
    for instr in kernel.body:
        if instr.access is not None:
            yield instr.access
        yield from operands(instr.constant)


@dataclass(frozen=True)
class _Effects:
    """The spaces that a step touches, and those of them that it writes."""

    touched: frozenset[int]
    written: frozenset[int]

    def conflicts(self, other: _Effects) -> bool:
        return bool(self.written & other.touched or other.written & self.touched)


def early_updates(steps: Sequence[Step], spaces: Sequence[Space]) -> list[Step]:
    """The steps, with those moved up that write nothing but inputs, and are the last to read
    something that the program made."""
    order = [(step, _effects(step)) for step in steps]
    last = {space: step for step, own in order for space in own.touched}
    for step, own in list(order):
        frees = any(spaces[n].kind == "made" and last[n] is step for n in own.touched)
        if not (frees and all(spaces[n].kind == "input" for n in own.written)):
            continue
        at = to = next(k for k, (other, _) in enumerate(order) if other is step)
        while to > 0 and not own.conflicts(order[to - 1][1]):
            to -= 1
        order.insert(to, order.pop(at))
    return [step for step, _ in order]


def _effects(step: Step) -> _Effects:
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
    return _Effects(frozenset(touched), frozenset(written))

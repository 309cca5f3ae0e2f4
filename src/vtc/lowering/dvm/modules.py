"""Steps over spaces -> modules over buffers: what lies between two eager calls is one program."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy

from vtc.index import Size, sizes
from vtc.lowering.dvm.lifetimes import Memory, accesses, shared_memory, shortened
from vtc.lowering.dvm.plan import EagerStep, ModuleStep, Space, references
from vtc.program.module import Branch, Buffer, BufferKind, Module, Step
from vtc.program.tile import ANCHORS, Access, Instr, with_operands

Run = list[Step]


def assemble(
    steps: Sequence[Step | EagerStep], spaces: Sequence[Space], outputs: Sequence[Any]
) -> tuple[ModuleStep | EagerStep, ...]:
    """Modules and eager calls in order."""
    runs: list[Run | EagerStep] = []
    for step in steps:
        if isinstance(step, EagerStep):
            runs.append(step)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(step)
        else:
            runs.append([step])
    used = [set(_used(run)) for run in runs]
    wanted = {r.space for r in references(outputs)}
    memory = shared_memory(step for step in steps if isinstance(step, EagerStep))
    made: list[ModuleStep | EagerStep] = []
    for number, run in enumerate(runs):
        if isinstance(run, EagerStep):
            made.append(run)
            continue
        before = set().union(*used[:number])
        after = wanted.union(*used[number + 1 :])
        made.append(_module(run, spaces, used[number], before, after, memory))
    return tuple(made)


def _used(run: Run | EagerStep) -> Iterator[int]:
    """The spaces that a run reads or writes."""
    if isinstance(run, EagerStep):
        yield from (r.space for r in references((run.args, run.kwargs)))
        yield from (space for _, space in run.results)
        return
    for step in run:
        if isinstance(step, Branch):
            yield step.predicate
            yield from _used(list(step.then))
            yield from _used(list(step.otherwise))
        else:
            for access in accesses(step):
                yield access.buffer


def _module(
    run: Run,
    spaces: Sequence[Space],
    used: set[int],
    before: set[int],
    after: set[int],
    memory: Memory,
) -> ModuleStep:
    order = sorted(used)
    places = {space: number for number, space in enumerate(order)}
    buffers = []
    for number in order:
        space = spaces[number]
        prefix = {"input": "in", "prepacked": "p", "made": "t"}[space.kind]
        name = f"{prefix}{number if space.kind == 'made' else space.number}"
        kind: BufferKind = "temporary"
        if space.kind != "made" or number in before:
            kind = "input"
        elif number in after:
            kind = "output"
        buffers.append(Buffer(name, kind, space.dtype, extent_of(space.shape, space.stride)))
    steps = tuple(_placed(step, places) for step in shortened(run, spaces, memory))
    symbols = sorted(set(_symbols((steps, [b.extent for b in buffers]))))
    module = Module(tuple(symbols), tuple(buffers), steps)
    kept = [None if b.kind == "temporary" else n for n, b in zip(order, buffers, strict=True)]
    return ModuleStep(module, tuple(kept))


def extent_of(shape: Sequence[Size], stride: Sequence[Size]) -> Size:
    """Elements from the first to the last of a tensor, both counted; none if a size is 0."""
    return _extent_of(tuple(shape), tuple(stride))


# A model has many tensors of few shapes, and whether symbolic sizes divide takes long to find.
@functools.lru_cache(maxsize=1 << 12)
def _extent_of(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> Size:
    if any(s == 0 for s in shape):
        return 0
    reach: Size = 1
    for size, step in zip(shape, stride, strict=True):
        reach = sizes.add(reach, sizes.mul(sizes.sub(size, 1), step))
    odd = [s for s in shape if not isinstance(s, int) and sizes.exact_div(reach, s) is None]
    return sizes.mul(reach, sizes.sign(sizes.product(odd))) if odd else reach


def _placed(step: Step, places: dict[int, int]) -> Step:
    """The step over buffers."""
    if isinstance(step, Branch):
        then, otherwise = (
            tuple(_placed(s, places) for s in arm) for arm in (step.then, step.otherwise)
        )
        return Branch(places[step.predicate], then, otherwise)
    return replace(step, body=tuple(_placed_instr(i, places) for i in step.body))


def _placed_instr(instr: Instr, places: dict[int, int]) -> Instr:
    def placed(access: Access) -> Access:
        return replace(access, buffer=places[access.buffer])

    if instr.access is None and instr.op not in ANCHORS:
        return instr
    access = None if instr.access is None else placed(instr.access)
    constant = with_operands(instr.constant, placed)
    return Instr(instr.op, instr.args, instr.dtype, access, constant)


def _symbols(value: Any) -> Iterator[str]:
    """The names of the size symbols in steps and sizes."""
    if value is None or isinstance(value, int | str | float):
        return
    if isinstance(value, sympy.Expr):
        yield from _names(value)
    elif isinstance(value, Instr):
        yield from _symbols(value.access)
        yield from _symbols(value.constant)
    elif isinstance(value, list | tuple | frozenset):
        for one in value:
            yield from _symbols(one)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _symbols(getattr(value, name))


@functools.lru_cache(maxsize=1 << 12)
def _names(size: sympy.Expr) -> tuple[str, ...]:
    return tuple(str(s) for s in size.free_symbols)

"""What a stream has recorded, as a path in a tree that all streams share.

A step of the path is an operator with its operands and numbers, at known sizes. The tree remembers
what each step gives, so that an operator that was seen before is recorded by one look-up, and the
program for a whole path is found at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vtc.program.dtypes import DType
from vtc.streaming.table import Kind


@dataclass(eq=False)
class Meta:
    """The layout of a tensor; one object for equal ones. Strides and offset in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    _example: Tensor | None = None

    @property
    def example(self) -> Tensor:
        """A tensor without memory that operators are tried on."""
        if self._example is None:
            extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
            count = 0 if 0 in self.shape else extent
            base = torch.empty(self.offset + count, dtype=self.dtype, device="meta")
            self._example = base.as_strided(self.shape, self.stride, self.offset)
        return self._example


_METAS: dict[Any, Meta] = {}


def meta_of(dtype: torch.dtype, shape: Any, stride: Any, offset: int = 0) -> Meta:
    key = (dtype, shape, stride, offset)
    found = _METAS.get(key)
    if found is None:
        found = _METAS[key] = Meta(dtype, tuple(shape), tuple(stride), offset)
    return found


class Ref:
    """An operand: input `number` of the program, or the value of its node `number`."""

    __slots__ = ("is_input", "number")

    def __init__(self, number: int, is_input: bool) -> None:
        self.number = number
        self.is_input = is_input

    def __repr__(self) -> str:
        return f"{'a' if self.is_input else 'v'}{self.number}"


@dataclass(frozen=True, eq=False)
class Operator:
    """A recorded call: tensors are Refs in args and kwargs. first: the layout of its first tensor.
    inputs: layouts of inputs that it is the first to read."""

    func: Any
    args: Any
    kwargs: Any
    first: Meta
    inputs: tuple[Meta, ...]


@dataclass(eq=False)
class State:
    """A path of recorded operators, by its last one.

    results: layout, and the node whose memory it is, of each tensor that the operator gives; none
    for an update. single: it gives one tensor, not several. programs: by what is to be stored.
    """

    parent: State | None = None
    operator: Operator | None = None
    results: tuple[tuple[Meta, int], ...] = ()
    single: bool = True
    steps: dict[Any, State] = field(default_factory=dict)
    programs: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def path(self) -> list[State]:
        """The states from the first operator to this one."""
        found, state = [], self
        while state.parent is not None:
            found.append(state)
            state = state.parent
        return found[::-1]


ROOT = State()
MOST = 256  # tensors that one operator gives
# Steps that are not recorded: the operator runs on its own; it gives its first operand; it gives
# a view of memory that nothing pending writes.
OUTSIDE, SAME, ASIDE = State(), State(), State()


class Tree:
    """The states that there are."""

    # More than these, and what is known is forgotten.
    KEPT = 50_000

    def __init__(self) -> None:
        self.count = 0

    def learn(
        self,
        state: State,
        code: Any,
        operator: Operator,
        kind: Kind,
        metas: Callable[[Ref], Meta],
        bases: list[int],
        inner: bool = False,
    ) -> State:
        """Tries an operator on layouts, and adds the step.

        bases: the node whose memory each node is; negative for that of an input, of which a view
        is a step only where it is `inner`: nobody but the program sees it.
        """
        found = self._tried(state, operator, kind, metas, bases, inner)
        state.steps[code] = found
        self.count += 1
        return found

    def trim(self) -> None:
        """Forgets everything when there is too much; called when nothing is recorded."""
        if self.count > self.KEPT:
            ROOT.steps.clear()
            _METAS.clear()
            self.count = 0

    def _tried(
        self,
        state: State,
        operator: Operator,
        kind: Kind,
        metas: Callable[[Ref], Meta],
        bases: list[int],
        inner: bool = False,
    ) -> State:
        examples: list[tuple[Ref, Tensor]] = []

        def example(ref: Ref) -> Tensor:
            made = metas(ref).example
            examples.append((ref, made))
            return made

        if _elsewhere(operator.kwargs.get("device")):
            return OUTSIDE
        args, kwargs = pytree.tree_map_only(Ref, example, (operator.args, operator.kwargs))
        try:
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                given = operator.func(*args, **kwargs)
        except Exception:  # what is wrong with the call, PyTorch says when it runs
            return OUTSIDE
        if kind is Kind.UPDATE:
            own = examples[0][0]
            if own.is_input:
                return OUTSIDE
            others = [r for r, _ in examples[1:] if not r.is_input and r is not own]
            mixed = any(bases[r.number] == bases[own.number] for r in others)
            return OUTSIDE if mixed or _overlaps(metas(own)) else State(state, operator)
        several = isinstance(given, tuple | list)
        if several and len(given) > MOST:
            return OUTSIDE
        results: list[Any] = []
        for tensor in given if several else (given,):
            if not isinstance(tensor, Tensor) or DType.of(tensor.dtype) is None:
                return OUTSIDE
            if tensor.layout is not torch.strided:
                return OUTSIDE
            under = _aliased(tensor, examples)
            base = len(bases) + len(results)
            if under is not None:
                base = -1 if under[0].is_input else bases[under[0].number]
                if base < 0 and not inner:
                    return ASIDE
                if tensor is under[1]:
                    return SAME if under[0] is operator.args[0] else OUTSIDE
            offset = tensor.storage_offset()
            results.append((meta_of(tensor.dtype, tensor.shape, tensor.stride(), offset), base))
        return State(state, operator, tuple(results), not several)


def _overlaps(meta: Meta) -> bool:
    """May two elements be in one place?"""
    reach = 1
    moving = [(s, n) for n, s in zip(meta.shape, meta.stride, strict=True) if n != 1]
    for stride, size in sorted(moving):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _elsewhere(device: Any) -> bool:
    return device is not None and torch.device(device).type != "cpu"


def _aliased(tensor: Tensor, examples: list[tuple[Ref, Tensor]]) -> tuple[Ref, Tensor] | None:
    """The operand whose memory a result is in."""
    storage = tensor.untyped_storage()._cdata
    for ref, example in examples:
        if example.untyped_storage()._cdata == storage:
            return ref, example
    return None

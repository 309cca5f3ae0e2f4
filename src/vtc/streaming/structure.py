"""The structure of a recorded program: what stays the same when sizes and numbers change.

Sizes of inputs are symbols, but for 0 and 1. A size among an operator's arguments is written by
what it equals: a size of its operand, a size of an input, what is left of the elements. Other
numbers are constants, until the same program comes again with other ones: these are symbols from
then on. Whatever is written holds for the call at hand, so that a program found by its structure is
right if its guards hold.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from vtc.streaming.trace import Meta, Operator, Ref, State

aten = torch.ops.aten

# Operators whose sizes are those of their result, in order.
_VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.reshape.default,
    aten.view_copy.default,
}  # fmt: skip
_EXPANDS = {aten.expand.default, aten.broadcast_to.default, aten.expand_copy.default}
# Operators that take a changing number where they take a constant.
_SCALARS = {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.add.Scalar,
    aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.rsub.Scalar, aten.maximum.default,
    aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar,
    aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor,
}  # fmt: skip
# Operators that round a number to the dtype of their operand before they use it.
_ROUNDED = {
    aten.add.Tensor, aten.sub.Tensor, aten.add_.Tensor, aten.sub_.Tensor, aten.add.Scalar,
    aten.sub.Scalar, aten.rsub.Scalar, aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar,
    aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.pow.Tensor_Scalar, aten.fmod.Scalar,
    aten.remainder.Scalar,
}  # fmt: skip
# What stands for "to the end" in a slice.
_END = 1 << 62


class Own(NamedTuple):
    """A size of the operator's first operand."""

    dim: int


class Dim(NamedTuple):
    """A size of an input."""

    number: int
    dim: int


class Number(NamedTuple):
    """Literal `place` of the program."""

    place: int
    kind: type


@dataclass
class Structure:
    """A recorded program without its sizes and numbers.

    key: equal for programs of one structure. calls: operators with args and kwargs, sizes written
    as Own, Dim and Number, and how many tensors each gives as a tuple, None for one alone.
    literals: the numbers, in order. inputs: layouts.
    """

    key: Any
    calls: tuple[tuple[Any, Any, Any, int | None], ...]
    literals: list[int | float]
    inputs: tuple[Meta, ...]


@dataclass
class Seen:
    """What is known of a structure: its first numbers, and which of them change."""

    first: list[int | float]
    varying: set[int] = field(default_factory=set)

    def changing(self, literals: Sequence[int | float]) -> tuple[int, ...]:
        """The places whose numbers are symbols in the program at hand."""
        for place, (one, other) in enumerate(zip(self.first, literals, strict=True)):
            if one is not other and repr(one) != repr(other):
                self.varying.add(place)
        return tuple(p for p in sorted(self.varying) if is_free(literals[p]))


def is_free(value: int | float) -> bool:
    """May the number be a symbol? 0 and 1 change what an operator is."""
    return isinstance(value, float) or 1 < value < _END


def structure_of(path: Sequence[State], wanted: tuple[int, ...]) -> Structure:
    """The structure of a path whose nodes `wanted` are stored."""
    writer = _Writer()
    calls = []
    for state in path:
        operator = state.operator
        assert operator is not None
        for meta in operator.inputs:
            writer.input(meta)
        count = None if state.single and state.results else len(state.results)
        calls.append((operator.func, *writer.arguments(operator), count))
    own = tuple(calls)
    patterns = tuple(map(pattern, writer.inputs))
    return Structure((own, patterns, wanted), own, writer.literals, tuple(writer.inputs))


@functools.lru_cache(maxsize=4096)
def pattern(meta: Meta) -> tuple[Any, ...]:
    """What a program takes for granted of an input: dtype, sizes 0 and 1, the order of strides."""
    sizes = tuple(n if n in (0, 1) else None for n in meta.shape)
    return meta.dtype, sizes, strides_pattern(meta)


def strides_pattern(meta: Meta) -> tuple[Any, ...]:
    """Dimensions from the innermost out if strides are products of sizes; else strides 0 and 1."""
    order = sorted(range(len(meta.shape)), key=lambda d: (meta.stride[d], meta.shape[d], -d))
    step = 1
    for d in order:
        if meta.stride[d] != step:
            return ("free", tuple(s if s in (0, 1) else None for s in meta.stride))
        step *= max(meta.shape[d], 1)
    return ("dense", tuple(order))


class _Writer:
    """Rewrites arguments; knows the sizes of the inputs so far."""

    def __init__(self) -> None:
        self.inputs: list[Meta] = []
        self.literals: list[int | float] = []
        self.known: dict[int, Dim] = {}

    def input(self, meta: Meta) -> None:
        for d, size in enumerate(meta.shape):
            self.known.setdefault(size, Dim(len(self.inputs), d))
        self.inputs.append(meta)

    def arguments(self, operator: Operator) -> tuple[Any, Any]:
        kinds = _kinds(operator.func)
        func, first = operator.func, operator.first
        args = tuple(
            self.argument(func, first, kind, value)
            for kind, value in zip(kinds[0], operator.args, strict=False)
        )
        kwargs = tuple(
            (name, self.argument(func, first, kinds[1][name], value))
            for name, value in sorted(operator.kwargs.items())
        )
        return args, kwargs

    def argument(self, func: Any, first: Meta, kind: str, value: Any) -> Any:
        if kind == "size" and isinstance(value, int):
            return self.size(value)
        if kind == "size" and isinstance(value, list | tuple):
            return self.sizes(func, first, value)
        value = _as_eager(func, first, value)
        if kind == "scalar" and type(value) in (int, float):
            return self.number(value)
        return _plain(value)

    def sizes(self, func: Any, first: Meta, values: Sequence[int]) -> tuple[Any, ...]:
        if func in _EXPANDS:
            start = len(values) - len(first.shape)
            return tuple(
                -1 if d >= start and first.shape[d - start] == v else self.size(v)
                for d, v in enumerate(values)
            )
        if func not in _VIEWS:
            return tuple(map(self.size, values))
        found = [self.own(first, d, v) for d, v in enumerate(values)]
        left = [d for d, one in enumerate(found) if one is None]
        if len(left) == 1 and -1 not in values and 0 not in values:
            found[left[0]] = -1
        return tuple(
            self.number(v) if one is None else one for one, v in zip(found, values, strict=True)
        )

    def own(self, first: Meta, d: int, value: int) -> Any:
        """A size of a view, by the sizes of what it views, or of inputs."""
        if value in (-1, 0, 1):
            return value
        if d < len(first.shape) and first.shape[d] == value:
            return Own(d)
        if value in first.shape:
            return Own(first.shape.index(value))
        return self.known.get(value)

    def size(self, value: int) -> Any:
        if not is_free(value):
            return value
        return self.known.get(value) or self.number(value)

    def number(self, value: float) -> Number:
        self.literals.append(value)
        return Number(len(self.literals) - 1, type(value))


@functools.cache
def _kinds(func: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Of each argument: "size", "scalar" if it may change, or "" for what is part of the key."""
    sizes = set(re.findall(r"SymInt\S* (\w+)", str(func._schema)))

    def kind(argument: Any) -> str:
        if argument.name in sizes:
            return "size"
        scalar = str(argument.type) in ("number", "Tensor") and argument.name != "alpha"
        return "scalar" if scalar and func in _SCALARS else ""

    own = [(a.name, kind(a)) for a in func._schema.arguments]
    return tuple(k for _, k in own), dict(own)


def _as_eager(func: Any, first: Meta, value: Any) -> Any:
    """A number as eager PyTorch takes it on half precision: some operators round it first."""
    half = first.dtype in (torch.bfloat16, torch.float16)
    if not half or type(value) not in (int, float) or func not in _ROUNDED:
        return value
    rounded = torch.tensor(value, dtype=first.dtype).item()
    return value if rounded == value else rounded


def _plain(value: Any) -> Any:
    """An argument as part of a key."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return Constant(value) if isinstance(value, bool | float) else value


class Constant:
    """A number that equals another only if it is the same one of the same type: 1, 1.0 and True
    differ, and so do 0.0 and -0.0."""

    __slots__ = ("key", "value")

    def __init__(self, value: float) -> None:
        self.key = (type(value), repr(value))
        self.value = value

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.key == other.key


def refs_in(values: Any) -> Iterator[Ref]:
    """The operands among rewritten arguments."""
    for value in values:
        if isinstance(value, Ref):
            yield value
        elif type(value) in (tuple, list):
            yield from refs_in(value)

"""The signature that an exported model was compiled for."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vtc import errors

CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), enum.Enum, range, slice,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class Expected(Protocol):
    """What an argument must be."""

    def check(self, name: str, value: Any) -> None:
        """Raises SignatureError, by `name`, for a value that is not it."""


@dataclass(frozen=True)
class TensorFacts:
    """Shape, strides in elements, dtype and device of a tensor, and whether its elements are the
    negated or conjugated ones of its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    negated: bool = False
    conjugated: bool = False

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorFacts:
        return TensorFacts(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.device,
            tensor.is_neg(),
            tensor.is_conj(),
        )

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            raise errors.SignatureError(name, "type", "Tensor", type(value).__name__)
        if value.shape != self.shape:
            raise errors.SignatureError(name, "shape", self.shape, tuple(value.shape))
        if value.dtype != self.dtype:
            raise errors.SignatureError(name, "dtype", self.dtype, value.dtype)
        if value.device != self.device:
            raise errors.SignatureError(name, "device", self.device, value.device)
        if value.stride() != self.stride and self._laid_out_otherwise(value):
            raise errors.SignatureError(name, "strides", self.stride, value.stride())
        if value.is_neg() != self.negated:
            raise errors.SignatureError(name, "is_neg()", self.negated, value.is_neg())
        if value.is_conj() != self.conjugated:
            raise errors.SignatureError(name, "is_conj()", self.conjugated, value.is_conj())

    def _laid_out_otherwise(self, value: torch.Tensor) -> bool:
        """Do the strides differ where they matter?"""
        pairs = zip(self.shape, self.stride, value.stride(), strict=True)
        return value.numel() > 0 and any(a != b for size, a, b in pairs if size != 1)


@dataclass(frozen=True)
class ConstantFacts:
    """A plain value, which the compiled code holds as a constant."""

    value: Any

    def check(self, name: str, value: Any) -> None:
        if value is self.value:
            return
        if type(value) is not type(self.value) or value != self.value:
            raise errors.SignatureError(name, "value", repr(self.value), repr(value))


@dataclass(frozen=True)
class SequenceFacts:
    """A list or tuple."""

    items: tuple[Expected, ...]

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise errors.SignatureError(name, "type", "list or tuple", type(value).__name__)
        if len(value) != len(self.items):
            raise errors.SignatureError(name, "length", len(self.items), len(value))
        for k, (expected, item) in enumerate(zip(self.items, value, strict=True)):
            expected.check(f"{name}[{k}]", item)


@dataclass(frozen=True)
class MappingFacts:
    """A dictionary."""

    items: Mapping[Any, Expected]

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise errors.SignatureError(name, "type", "dict", type(value).__name__)
        if value.keys() != self.items.keys():
            raise errors.SignatureError(name, "keys", list(self.items), list(value))
        for key, expected in self.items.items():
            expected.check(f"{name}[{key!r}]", value[key])


@dataclass(frozen=True)
class ObjectFacts:
    """Any other object: a cache, a configuration. What the compiled code takes out of it is checked
    where it is taken."""

    type: type

    def check(self, name: str, value: Any) -> None:
        if type(value) is not self.type:
            expected, got = self.type.__name__, type(value).__name__
            raise errors.SignatureError(name, "type", expected, got)


def facts_of(value: Any) -> Expected:
    """What a value tells of the arguments that may take its place."""
    if isinstance(value, torch.Tensor):
        return TensorFacts.of(value)
    if isinstance(value, CONSTANTS):
        return ConstantFacts(value)
    if type(value) in (list, tuple):
        return SequenceFacts(tuple(map(facts_of, value)))
    if type(value) is dict:
        return MappingFacts({key: facts_of(item) for key, item in value.items()})
    return ObjectFacts(type(value))


class Signature:
    """What the arguments of a call must be, each by its name: args[0], args[1][2], the keyword."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.positional = tuple((f"args[{k}]", facts_of(a)) for k, a in enumerate(args))
        self.keywords = {name: facts_of(a) for name, a in kwargs.items()}
        self.autocast = autocast_state()

    @classmethod
    def of(
        cls,
        args: Sequence[Expected],
        kwargs: Mapping[str, Expected],
        autocast: tuple[tuple[str, torch.dtype], ...],
    ) -> Signature:
        """The signature with these facts."""
        found = cls((), {})
        found.positional = tuple((f"args[{k}]", facts) for k, facts in enumerate(args))
        found.keywords, found.autocast = dict(kwargs), autocast
        return found

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises SignatureError for the first argument that differs.

        Autocast is part of the signature: the compiled code holds its casts.
        """
        if len(args) != len(self.positional):
            raise errors.SignatureError(
                f"args[{min(len(args), len(self.positional))}]",
                "a call with",
                _count(len(self.positional)),
                _count(len(args)),
            )
        for (name, expected), value in zip(self.positional, args, strict=True):
            expected.check(name, value)
        if kwargs.keys() != self.keywords.keys():
            name = next(iter(kwargs.keys() ^ self.keywords.keys()))
            given, absent = "a keyword argument", "none"
            expected_it = name in self.keywords
            raise errors.SignatureError(
                name, "a call with", *((given, absent) if expected_it else (absent, given))
            )
        for name, expected in self.keywords.items():
            expected.check(name, kwargs[name])
        state = autocast_state()
        if state != self.autocast:
            raise errors.SignatureError("autocast", "state", _state(self.autocast), _state(state))


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types for which autocast is on, with the dtype that it casts to."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple(
        (kind, torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )


def _state(state: tuple[tuple[str, torch.dtype], ...]) -> str:
    return ", ".join(f"{dtype} on {kind}" for kind, dtype in state) or "off"


def _count(number: int) -> str:
    return f"{number} positional argument{'s' if number != 1 else ''}"


def source_name(source: Any) -> str:
    """The text of a source of Dynamo's: L['args'][0].keys"""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


ARGUMENT = re.compile(r"L\['(args|kwargs)'\](\[\d+\]|\['[^']*'\])*")
"""The source of a tensor that the signature sees."""


def path_of(source: str) -> list[str | int] | None:
    """Where in (args, kwargs) a source of Dynamo's takes a tensor; None for one that does not.

    before: L['args'][0]['x']
    after:  ["args", 0, "x"]
    """
    if not ARGUMENT.fullmatch(source):
        return None
    found: list[str | int] = []
    for number, name in re.findall(r"\[(?:(\d+)|'([^']*)')\]", source):
        found.append(int(number) if number else name)
    return found


def readable(source: str) -> str:
    """A source, as Dynamo writes it, as a user knows it.

    before: L['self']._modules['layers']._modules['0']._parameters['weight']
    after:  layers.0.weight
    """
    text = re.sub(r"^L\['\w+'\](?=\._(?:modules|parameters|buffers)\[)", "", source)
    text = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", text)
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", text)
    text = re.sub(r"^kwargs\['(\w+)'\]", r"\1", text)
    return text.removeprefix("model.").removeprefix(".")

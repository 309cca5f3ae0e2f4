"""What a fuzzed case is: a straight-line PyTorch function and expressions for its arguments."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx

NAME = re.compile(r"\b[avw]\d+\b")
MODULES = {"torch": torch, "F": F, "inf": float("inf"), "nan": float("nan")}


def names_in(text: str) -> list[str]:
    """The arguments and values that a piece of a case's code mentions."""
    return NAME.findall(text)


def moved(values: list[Any], device: str) -> list[Any]:
    """The values on another device: tensors that share storage, or are one, do so there."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, torch.Tensor] = {}
    for value in values:
        if isinstance(value, torch.Tensor) and id(value) not in made:
            own = value.untyped_storage()
            if own._cdata not in storages:
                held = torch.empty(0, dtype=torch.uint8).set_(own)
                storages[own._cdata] = held.to(device).untyped_storage()
            empty = torch.empty(0, dtype=value.dtype, device=device)
            place = value.storage_offset(), value.shape, value.stride()
            made[id(value)] = empty.set_(storages[own._cdata], *place)
    return [made.get(id(value), value) for value in values]


def seeded(number: int, device: str = "cpu") -> None:
    """`torch.manual_seed` for the device alone: it formats a stack trace for every other one."""
    torch.default_generator.manual_seed(number)
    if device != "cpu":
        torch.cuda.manual_seed(number)


@dataclass(frozen=True)
class Argument:
    """A parameter of the function: one expression for each world, over the arguments before it."""

    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """One line of the function. `kind` is what it counts as, `makes` the values it defines."""

    text: str
    kind: str
    makes: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        return [n for n in names_in(self.text) if n not in self.makes]


@dataclass(frozen=True)
class Case:
    """A function, and arguments of it in one or more worlds: the same code on other sizes.

    `exact` names the values that have one right answer, bit for bit.
    """

    seed: int
    arguments: tuple[Argument, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    exact: frozenset[str] = field(default_factory=frozenset)
    symbolic: bool = False

    @property
    def worlds(self) -> range:
        return range(len(self.arguments[0].texts) if self.arguments else 1)

    @property
    def updates(self) -> bool:
        """Does a statement write into a value?"""
        return any(not s.makes for s in self.statements)

    @property
    def code(self) -> str:
        lines = [s.text for s in self.statements]
        lines.append(f"return {''.join(f'{o}, ' for o in self.outputs)}".rstrip())
        parameters = ", ".join(a.name for a in self.arguments)
        return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in lines)

    @cached_property
    def function(self) -> Callable[..., tuple[Any, ...]]:
        names = dict(MODULES)
        exec(compile(self.code, f"<case {self.seed}>", "exec"), names)
        return names["f"]  # type: ignore[return-value]

    def args(self, world: int = 0, device: str = "cpu") -> list[Any]:
        """New arguments, with the same values at each call and on each device, that share storage
        as they are to: an index that is legal for the values drawn on one is so on all."""
        names = dict(MODULES)
        for k, argument in enumerate(self.arguments):
            seeded(self.seed * 1000 + int(argument.name[1:]) + 97 * world)
            names[argument.name] = eval(self._expressions[world][k], names)
        made = [names[a.name] for a in self.arguments]
        return made if device == "cpu" else moved(made, device)

    @cached_property
    def _expressions(self) -> list[list[Any]]:
        return [
            [compile(a.texts[world], f"<{a.name}>", "eval") for a in self.arguments]
            for world in self.worlds
        ]

    def without_idle_arguments(self) -> Case:
        """The case with the arguments that are used, by the code or by those arguments."""
        used = {*self.outputs, *(n for s in self.statements for n in s.reads)}
        for a in reversed(self.arguments):
            if a.name in used:
                used.update(n for text in a.texts for n in names_in(text))
        return replace(self, arguments=tuple(a for a in self.arguments if a.name in used))

    def __str__(self) -> str:
        """A program that a reader can run."""
        lines = ["import torch", "import torch.nn.functional as F", "from math import inf, nan"]
        lines += ["", "", *self.code.rstrip().split("\n"), "", ""]
        for world in self.worlds:
            if world:
                lines.append("")
            for a in self.arguments:
                seed = self.seed * 1000 + int(a.name[1:]) + 97 * world
                random = "rand" in a.texts[world]
                lines += [f"torch.manual_seed({seed})"] * random
                lines.append(f"{a.name} = {a.texts[world]}")
            lines.append(f"f({', '.join(a.name for a in self.arguments)})")
        return "\n".join(lines)


class _Recorded(fx.Proxy):
    """A proxy that takes `x[i] = y` too, as Dynamo does."""

    def __getattr__(self, name: str) -> Any:
        if name in ("mT", "values", "indices"):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Recorded(node, self)


class _Factories(torch.overrides.TorchFunctionMode):
    """Records calls that make a tensor of no tensor."""

    def __init__(self, tracer: fx.Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FACTORIES:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


FACTORIES = {torch.zeros, torch.ones, torch.full, torch.arange, torch.eye, torch.linspace}


def traced(case: Case, args: list[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """The function as Dynamo hands it to a backend, and its inputs: each tensor once."""
    tracer = _Tracer()
    tracer.root = torch.nn.Module()
    tracer.graph = fx.Graph(tracer_cls=_Tracer)
    proxies: dict[int, fx.Proxy] = {}
    inputs = []
    for argument, value in zip(case.arguments, args, strict=True):
        if id(value) not in proxies:
            proxies[id(value)] = tracer.create_proxy("placeholder", argument.name, (), {})
            inputs.append(value)
    with _Factories(tracer):
        results = case.function(*[proxies[id(value)] for value in args])
    tracer.create_node("output", "output", (tracer.create_arg(results),), {})
    return fx.GraphModule(tracer.root, tracer.graph), inputs

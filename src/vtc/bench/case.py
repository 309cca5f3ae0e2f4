"""A case: one model with the inputs that it is explained and timed on.

The inputs own everything that a call may change, so that each system under comparison gets a twin
of its own, with equal values, while the weights are shared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


class Inputs(Protocol):
    """The arguments of one call, and what the call updates in them."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments of the call."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the call."""

    def reset(self) -> None:
        """Undo what a call counted, so that the next call does the same work. Cheap."""

    def updated(self) -> dict[str, Tensor]:
        """The tensors that a call updates in place, by name."""

    def refill(self, seed: int) -> None:
        """Give all inputs new values of `seed`, in place; counters as `reset` leaves them."""

    def advance(self, seed: int, step: int) -> None:
        """The arguments of call number `step` (from 0) of a sequence, in place, updates kept."""

    def cast(self, dtype: torch.dtype) -> None:
        """Turn floating-point inputs into `dtype`."""


@dataclass
class Case:
    """A model and its inputs.

    model: in eval mode. config: "size", "layers", "context" (None where the model has none),
    "dtype", and "description" (one line on what the sizes are). python_counters: a call counts in
    a Python number beside its tensors, which a captured CUDA graph does not repeat. best: stock
    variants of the model that run faster under torch.compile: name -> function that changes a copy
    of the model in place.
    """

    name: str
    model: nn.Module | Callable[..., Any]
    inputs: Inputs
    config: dict[str, Any]
    device: torch.device
    dtype: torch.dtype
    python_counters: bool = False
    best: dict[str, Callable[[nn.Module], None]] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Any, ...]:
        return self.inputs.args

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.inputs.kwargs

    def reset(self) -> None:
        """Undo what a call counted (a cache's length), so that the next does the same work."""
        self.inputs.reset()

    def updated(self) -> dict[str, Tensor]:
        """The tensors that a call updates in place (caches, counters), by name."""
        return self.inputs.updated()

    def fresh_inputs(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """New random inputs, written into the same tensors so that captured graphs see them."""
        self.inputs.refill(seed)
        return self.args, self.kwargs

    def advance(self, seed: int, step: int) -> None:
        """The arguments of call `step` of a sequence (the next token and its position)."""
        self.inputs.advance(seed, step)

    def call(self, run: Callable[..., Any] | None = None) -> Any:
        """`run` (by default the model) on the inputs."""
        return (self.model if run is None else run)(*self.args, **self.kwargs)

    def twin(self, change: Callable[[nn.Module], None] | None = None) -> Case:
        """The same weights with inputs of their own.

        `change` alters a copy of the module in place; parameters and buffers stay shared.
        """
        model = self.model
        if change is not None:
            if not isinstance(model, nn.Module):
                raise TypeError("only a module can be changed")
            shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
            model = copy.deepcopy(model, shared)
            change(model)
        return self._with(model, copy.deepcopy(self.inputs))

    def widened(self, dtype: torch.dtype = torch.float64) -> Case:
        """A copy of weights and inputs in a wider type."""
        model = copy.deepcopy(self.model)
        if isinstance(model, nn.Module):
            model = model.to(dtype)
        inputs = copy.deepcopy(self.inputs)
        inputs.cast(dtype)
        twin = self._with(model, inputs)
        twin.dtype = dtype
        return twin

    def _with(self, model: nn.Module | Callable[..., Any], inputs: Inputs) -> Case:
        twin = copy.copy(self)
        twin.model, twin.inputs = model, inputs
        return twin


def random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Values for an input like `tensor`: normal, or drawn from the integers that it holds."""
    if tensor.is_floating_point():
        drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        return drawn.to(tensor.dtype)
    if tensor.dtype == torch.bool or tensor.is_complex() or not tensor.numel():
        return tensor.clone()
    low, high = int(tensor.min()), int(tensor.max())
    return torch.randint(
        low, high + 1, tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype
    )


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    """A random generator of `device` started at `seed`."""
    return torch.Generator(device=device).manual_seed(seed)


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors reachable from `value` by containers and attributes, each once, with a path."""
    seen: set[int] = set()

    def walk(path: str, item: Any) -> Iterator[tuple[str, Tensor]]:
        if id(item) in seen or isinstance(item, nn.Module | type | str | bytes):
            return
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield path, item
        elif isinstance(item, dict):
            for key, part in item.items():
                yield from walk(f"{path}[{key!r}]", part)
        elif isinstance(item, list | tuple):
            for number, part in enumerate(item):
                yield from walk(f"{path}[{number}]", part)
        elif hasattr(item, "__dict__"):
            for key, part in vars(item).items():
                yield from walk(f"{path}.{key}", part)

    yield from walk("", value)


@dataclass
class ImageInputs:
    """One image tensor (batch, channels, height, width); a call updates nothing."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        return

    def updated(self) -> dict[str, Tensor]:
        return {}

    def refill(self, seed: int) -> None:
        (image,) = self.args
        image.copy_(random_like(image, generator_on(image.device, seed)))

    def advance(self, seed: int, step: int) -> None:
        return

    def cast(self, dtype: torch.dtype) -> None:
        self.args = tuple(image.to(dtype) for image in self.args)


class UserInputs:
    """The arguments that a user's factory gave.

    What a call changes is found by comparing with the values at the start, and put back by
    `reset`. Tensors of custom objects are found through their attributes.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self._start = [t.clone() for t in self._tensors().values()]

    def _tensors(self) -> dict[str, Tensor]:
        return dict(tensors_in({"args": self.args, "kwargs": self.kwargs}))

    def reset(self) -> None:
        # All of them, always: replays of a captured graph do not move version counters.
        for (_, tensor), start in self._pairs():
            _write(tensor, start)

    def updated(self) -> dict[str, Tensor]:
        return {
            name: tensor
            for (name, tensor), start in self._pairs()
            if not torch.equal(tensor, start)
        }

    def refill(self, seed: int) -> None:
        for number, ((_, tensor), start) in enumerate(self._pairs()):
            # A counter or an index keeps its value: a random one could be out of range.
            if tensor.is_floating_point():
                _write(start, random_like(tensor, generator_on(tensor.device, seed + number)))
            _write(tensor, start)

    def advance(self, seed: int, step: int) -> None:
        return

    def cast(self, dtype: torch.dtype) -> None:
        def to(t: Tensor) -> Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        self.args = pytree.tree_map_only(Tensor, to, self.args)
        self.kwargs = pytree.tree_map_only(Tensor, to, self.kwargs)
        for tensor in self._tensors().values():
            if tensor.is_floating_point() and tensor.dtype != dtype:
                tensor.data = tensor.data.to(dtype)
        self._start = [to(t) for t in self._start]

    def _pairs(self) -> Iterator[tuple[tuple[str, Tensor], Tensor]]:
        return iter(zip(self._tensors().items(), self._start, strict=True))


def _write(tensor: Tensor, values: Tensor) -> None:
    """Copy `values` into `tensor`, unless it is expanded and no call can have written to it."""
    if all(stride or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        tensor.copy_(values)

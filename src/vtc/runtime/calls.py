"""What a call may bring that the compiled graph was not made for."""

from __future__ import annotations

import itertools
import operator
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from vtc import errors
from vtc.lowering.storage import extent_of
from vtc.runtime.signature import TensorFacts
from vtc.runtime.unchanged import Same, watch


def sharing(inputs: Sequence[Any], updated: Sequence[int]) -> bool:
    """Do two inputs share storage while one of them is updated?"""
    written = {_storage(inputs[i]) for i in updated}
    if len(written) < len(updated):
        return True
    rest = set(range(len(inputs))) - set(updated)
    return any(isinstance(inputs[i], torch.Tensor) and _storage(inputs[i]) in written for i in rest)


def overlapping(inputs: Sequence[Any], updated: Collection[int]) -> bool:
    """Do two inputs overlap while one of them is updated?

    Functional capture gives each input a life of its own, so that a write through one would not be
    seen through the other. Inputs overlap where the ranges from their first to their last element
    do: parts of one buffer that lie one after the other do not.
    """
    spans: dict[int, list[tuple[int, int, bool]]] = {}
    for i, tensor in enumerate(inputs):
        if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
            start = tensor.storage_offset() * tensor.element_size()
            end = start + extent_of(tensor.shape, tensor.stride()) * tensor.element_size()
            spans.setdefault(_storage(tensor), []).append((start, end, i in updated))
    return any(
        a[0] < b[1] and b[0] < a[1] and (a[2] or b[2])
        for group in spans.values()
        for a, b in itertools.combinations(group, 2)
    )


def apart(inputs: Sequence[Any]) -> list[Any]:
    """The inputs; those that share storage as copies, each in a storage of its own."""
    storages = Counter(_storage(a) for a in inputs if isinstance(a, torch.Tensor))
    return [
        _copy(a) if isinstance(a, torch.Tensor) and storages[_storage(a)] > 1 else a for a in inputs
    ]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage().clone()
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class OverlapGuard:
    """Sends calls whose arguments overlap to plain PyTorch; checked at every call.

    `updated` and `weights` number the inputs that the graph updates, and those that are parameters
    or buffers: those that are what they were in the call before are not looked at again.
    `constants` are the inputs after the `passed` ones that a call brings.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        eager: Callable[..., Any],
        updated: Sequence[int],
        weights: Sequence[int],
        passed: int,
        constants: Sequence[torch.Tensor] = (),
    ) -> None:
        self.run, self.eager = run, eager
        self.updated = tuple(i for i in updated if i < passed)
        self.weights = tuple(i for i in weights if i < passed and i not in updated)
        self.rest = tuple(set(range(passed)) - {*self.updated, *self.weights})
        own = {passed + k: _storage(constant) for k, constant in enumerate(constants)}
        self.own_updated = frozenset(own[i] for i in own.keys() & set(updated))
        self.own = frozenset(own.values())
        self.constants, self.all_updated = tuple(constants), frozenset(updated)
        self.known: list[torch.Tensor] = []
        self.storages: frozenset[int] = self.own
        self.written: Same[frozenset[int]] = Same()

    def __call__(self, *args: Any) -> Any:
        if self._shared(args) and overlapping([*args, *self.constants], self.all_updated):
            return self.eager(*args)
        return self.run(*args)

    def _shared(self, args: Sequence[Any]) -> bool:
        weights = [args[i] for i in self.weights]
        renewed = len(self.known) != len(weights) or any(map(operator.is_not, weights, self.known))
        if renewed:
            self.known, self.storages = weights, self.own.union(map(_storage, weights))
        updated = [args[i] for i in self.updated]
        written = None if renewed else self.written(updated)
        if written is None:
            written = frozenset(map(_storage, updated))
            if len(written) < len(updated) or not written.isdisjoint(self.storages):
                return True
            written |= self.own_updated
            self.written.note(updated, written)
        return any(
            isinstance(args[i], torch.Tensor) and _storage(args[i]) in written for i in self.rest
        )


class WeightWatch:
    """Watches weights that compiled code holds by itself, not as arguments of its calls.

    `folded` numbers those whose values went into the code. `renew` compiles from the live tensors;
    it is called before the first call that follows a change of one of them, so that no answer is
    stale. A change is seen by a tensor's version counter and by its address: a write through
    `weight.data` changes neither. Of the rest the address alone is watched.

    Raises WeightsChangedError for a weight that got another shape, layout, dtype or device.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        renew: Callable[[], Callable[..., Any]],
        names: Sequence[str],
        weights: Sequence[torch.Tensor],
        folded: Sequence[int],
    ) -> None:
        self.run, self.renew = run, renew
        self.names, self.weights = tuple(names), tuple(weights)
        self.folded = frozenset(folded)
        self.facts = tuple(map(TensorFacts.of, self.weights))
        self.lock = threading.Lock()
        self.unchanged = self._watch()

    def __call__(self, *args: Any) -> Any:
        if not self.unchanged():
            self._renew()
        return self.run(*args)

    def _watch(self) -> Callable[[], bool]:
        return watch(self.weights, [k in self.folded for k in range(len(self.weights))])

    def _renew(self) -> None:
        with self.lock:
            if self.unchanged():
                return
            unchanged = self._watch()  # from here on a change is seen by the next call
            for name, weight, facts in zip(self.names, self.weights, self.facts, strict=True):
                if TensorFacts.of(weight) != facts:
                    raise errors.WeightsChangedError(name)
            self.run, self.unchanged = self.renew(), unchanged

"""What a call may bring that the compiled graph was not made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def overlapping(inputs: Sequence[Any], updated: Sequence[int]) -> bool:
    """Do two inputs share storage while one of them is updated?

    Functional capture gives each input a life of its own, so that a write through one would not be
    seen through the other.
    """
    written = {_storage(inputs[i]) for i in updated}
    if len(written) < len(updated):
        return True
    rest = set(range(len(inputs))) - set(updated)
    return any(isinstance(inputs[i], torch.Tensor) and _storage(inputs[i]) in written for i in rest)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class OverlapGuard:
    """Sends calls whose arguments overlap to plain PyTorch; checked at every call.

    `weights` numbers the parameters and buffers: one that is the same object as in the call before
    keeps its storage, and is not looked at again.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        eager: Callable[..., Any],
        updated: Sequence[int],
        weights: Sequence[int],
        inputs: int,
    ) -> None:
        self.run, self.eager, self.updated = run, eager, tuple(updated)
        self.weights = tuple(i for i in weights if i not in updated)
        self.rest = tuple(set(range(inputs)) - {*self.updated, *self.weights})
        self.known: list[torch.Tensor] = []
        self.storages: frozenset[int] = frozenset()

    def __call__(self, *args: Any) -> Any:
        weights = [args[i] for i in self.weights]
        if len(self.known) != len(weights) or any(
            a is not b for a, b in zip(weights, self.known, strict=True)
        ):
            self.known, self.storages = weights, frozenset(map(_storage, weights))
        written = {_storage(args[i]) for i in self.updated}
        if (
            len(written) < len(self.updated)
            or not written.isdisjoint(self.storages)
            or any(
                isinstance(args[i], torch.Tensor) and _storage(args[i]) in written
                for i in self.rest
            )
        ):
            return self.eager(*args)
        return self.run(*args)


class FrozenWeights:
    """Watches the tensors whose values were folded into compiled code.

    `renew` compiles from the live tensors; it runs again before the first call that follows an
    in-place change of any of them, so that no answer is stale.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], renew: Callable[[], Callable[..., Any]]
    ) -> None:
        # An inference tensor has no version counter: it can only be changed in inference mode.
        self.weights = tuple(w for w in weights if not w.is_inference())
        self.renew = renew
        self.run = renew()
        self.versions = self._versions()

    def __call__(self, *args: Any) -> Any:
        versions = self._versions()
        if versions != self.versions:
            self.run, self.versions = self.renew(), versions
        return self.run(*args)

    def _versions(self) -> list[int]:
        return [w._version for w in self.weights]

"""Prepacked operands at run time: computed before the first call that needs them, and again when a
weight that they were computed from has changed.

A weight's change is seen by its version counter and its address. While a copy is kept, so is the
memory of the weights that it was made from: an address that is known cannot become another
tensor's. Copies are never written again, so that a call in another thread goes on with its own.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from vtc.lowering.dvm.plan import Prepacked
from vtc.program.module import Module
from vtc.runtime.unchanged import ADDRESS, VERSION, watch

# Sets of weights (layers that share one graph) of which copies are kept at a time.
KEPT = 256


class Encoded(Protocol):
    def run(self, pointers: Sequence[int], params: Sequence[float]) -> None: ...


@dataclass(frozen=True, eq=False)
class Copy:
    """One prepacked operand as of some versions of its weights.

    memory: aliases of the weights, which keep their memory. owners: the weights themselves.
    """

    versions: tuple[int, ...]
    tensor: torch.Tensor
    memory: tuple[torch.Tensor, ...]
    owners: tuple[weakref.ref[torch.Tensor], ...]

    def wanted(self) -> bool:
        """Are the weights still there, in the memory that they had?"""
        return all(
            (weight := owner()) is not None and ADDRESS(weight) == ADDRESS(alias)
            for owner, alias in zip(self.owners, self.memory, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Ready:
    """The operands that an encoding needs. weights: what they were computed from; unchanged: are
    these as they were; pointers: one a prepacked buffer of the module, 0 for those not used."""

    weights: list[torch.Tensor]
    unchanged: Callable[[], bool]
    pointers: tuple[int, ...]
    copies: tuple[Copy, ...]


class Operand:
    """One prepacked operand, for each set of weights that it is asked for."""

    def __init__(
        self, own: Prepacked, encode: Callable[[Module], Encoded], computing: Callable[[], None]
    ) -> None:
        """`computing` is called before the operand is computed."""
        self.own, self.encode, self.computing = own, encode, computing
        self.copies: OrderedDict[tuple[int, ...], Copy] = OrderedDict()
        self.numbers = tuple(dict.fromkeys(n for n in own.sources if n >= 0))

    def copy(self, weights: Sequence[torch.Tensor]) -> Copy:
        """The operand for these weights, in the order of `numbers`."""
        key = tuple(map(ADDRESS, weights))
        versions = tuple(map(version_of, weights))
        found = self.copies.get(key)
        if found is None or found.versions != versions or -1 in versions:
            for old in [k for k, copy in self.copies.items() if not copy.wanted()]:
                del self.copies[old]
            found = self.copies[key] = self.computed(key, versions, weights)
            if len(self.copies) > KEPT:
                self.copies.popitem(last=False)
        self.copies.move_to_end(key)
        return found

    def computed(
        self, key: tuple[int, ...], versions: tuple[int, ...], weights: Sequence[torch.Tensor]
    ) -> Copy:
        self.computing()
        tensor = torch.empty(self.own.shape, dtype=self.own.dtype.torch_dtype)
        address = dict(zip(self.numbers, key, strict=True))
        pointers = [
            address[n] if n >= 0 else tensor.data_ptr() if buffer.kind == "output" else 0
            for n, buffer in zip(self.own.sources, self.own.module.buffers, strict=True)
        ]
        self.encode(self.own.module).run(pointers, ())
        memory = tuple(w.detach() for w in weights)
        return Copy(versions, tensor, memory, tuple(map(weakref.ref, weights)))


def version_of(weight: torch.Tensor) -> int:
    """A weight's version; -1 for an inference tensor, which counts none."""
    return -1 if weight.is_inference() else VERSION(weight)


def watch_of(weights: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """Tells if the weights are as they are now; inference tensors, which count nothing, never."""
    if any(w.is_inference() for w in weights):
        return lambda: False
    return watch(weights, [True] * len(weights))


class Watched:
    """The prepacked operands of one encoding of a module.

    operands: for each prepacked buffer of the module its operand, None for one that the encoding
    does not use. order: numbers of the weights in the order in which calls bring them.
    """

    def __init__(
        self, operands: Sequence[Operand | None], order: Sequence[int], lock: threading.Lock
    ) -> None:
        self.operands, self.lock = tuple(operands), lock
        place = {number: k for k, number in enumerate(order)}
        used = [o for o in operands if o is not None]
        wanted = dict.fromkeys(place[n] for o in used for n in o.numbers)
        self.chosen = tuple(k in wanted for k in range(len(order)))
        self.places = [tuple(place[n] for n in o.numbers) for o in used]
        self.used = used
        self.ready = Ready([], lambda: not self.used, (0,) * len(operands), ())

    def __call__(self, weights: tuple[torch.Tensor, ...]) -> Ready:
        """The operands for these weights; its caller keeps them while it uses the pointers."""
        ready = self.ready
        if not self.used:
            return ready
        mine = list(itertools.compress(weights, self.chosen))
        same = len(mine) == len(ready.weights) and all(map(operator.is_, mine, ready.weights))
        return ready if same and ready.unchanged() else self.renewed(weights, mine)

    def renewed(self, weights: tuple[torch.Tensor, ...], mine: list[torch.Tensor]) -> Ready:
        with self.lock:
            self.ready = Ready([], lambda: False, (), ())  # or it would keep weights that are gone
            unchanged = watch_of(mine)  # from here on a change is seen by the next call
            copies = tuple(
                operand.copy([weights[k] for k in places])
                for operand, places in zip(self.used, self.places, strict=True)
            )
        left = iter(copies)
        pointers = tuple(0 if o is None else next(left).tensor.data_ptr() for o in self.operands)
        self.ready = found = Ready(mine, unchanged, pointers, copies)
        return found

"""Measuring an operator of ours, in several tilings, against what is done without it.

Times are kept in the profile cache by name, so that only those that are missing are taken. A tiling
that cannot run, or does not give what the other way gives, is never chosen.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache

logger = logging.getLogger(__name__)

DIFFERENT = 1e-2
"""Root-mean-square difference, relative, that half-precision results may have."""

Progress = Callable[[str], None]
Call = Callable[..., Any]


@dataclass(frozen=True)
class Times:
    """The fastest tiling, as an argument and as text, its microseconds, and the other way's."""

    tiling: list[int]
    name: str
    ours: float
    theirs: float

    @property
    def said(self) -> str:
        return f"{self.name}: {self.ours:.1f} us in the place of {self.theirs:.1f} us"


class Contest(ABC):
    """One operator on operands of one form. `what` says it to the user, `key` names its times."""

    what: str
    written: tuple[int, ...] = ()
    """The numbers of the operands that a call writes."""
    exact: bool = True
    """Is what it writes only moved, so that it must be the same bit by bit?"""

    @property
    @abstractmethod
    def key(self) -> str: ...

    @property
    @abstractmethod
    def tilings(self) -> Mapping[str, list[int]]:
        """Tilings that are worth timing, by their text."""

    @abstractmethod
    def operands(self) -> list[Tensor]:
        """New random operands."""

    @abstractmethod
    def ours(self, tiling: list[int]) -> Call: ...

    @abstractmethod
    def theirs(self) -> Call:
        """What is timed in the place of ours."""

    def meaning(self) -> Call:
        """What gives what ours must give."""
        return self.theirs()


def measured(contest: Contest, cache: ProfileCache, progress: Progress) -> Times:
    """The times of a contest. Raises OutOfMemoryError where there is no room to take them."""
    tilings = contest.tilings
    names = {name: f"{contest.key}-{'-'.join(map(str, t))}" for name, t in tilings.items()}
    other = f"{contest.key}-other"
    missing = [name for name, key in names.items() if cache.get(key) is None]
    if missing or cache.get(other) is None:
        progress(f"measuring {contest.what}")
        sets = timing.rotated(contest.operands)
        if cache.get(other) is None:
            cache.put(other, timing.replayed(contest.theirs(), sets))
        for name in missing:
            call = contest.ours(tilings[name])
            right = agrees(contest, call, sets[0])
            cache.put(names[name], timing.replayed(call, sets) if right else timing.NEVER)
    times = {name: cache.get(key) or timing.NEVER for name, key in names.items()}
    best = min(times, key=times.__getitem__)
    found = Times(tilings[best], best, times[best], cache.get(other) or 0.0)
    logger.debug("%s: %s", contest.what, found)
    return found


def agrees(contest: Contest, call: Call, operands: Sequence[Tensor]) -> bool:
    """Does ours leave the same in what it writes, element by element, and give about the same?"""
    own, theirs = ([t.clone() for t in operands] for _ in range(2))
    try:
        found, expected = call(*own), contest.meaning()(*theirs)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # no room in shared memory, a compiler that refuses
        logger.debug("%s: a kernel cannot run", contest.what, exc_info=True)
        return False
    same = torch.equal if contest.exact else _rounded_alike
    if not all(same(own[k], theirs[k]) for k in contest.written):
        logger.debug("%s: a kernel leaves other values", contest.what)
        return False
    if found is None:
        return True
    difference = (found.float() - expected.float()).square().mean().sqrt()
    return bool(difference <= DIFFERENT * expected.float().square().mean().sqrt())


def _rounded_alike(own: Tensor, theirs: Tensor) -> bool:
    """Are elements equal but for the last place, in half precision?"""
    return torch.allclose(own, theirs, rtol=2**-7, atol=1e-6)


def key_of(name: str, operands: Sequence[Tensor], *further: Any) -> str:
    """What the times of an operator are kept by: the layouts of its operands, and more."""
    layouts = [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in operands]
    text = f"{layouts} {further}"
    return f"{name}-" + hashlib.sha256(text.encode()).hexdigest()[:24]

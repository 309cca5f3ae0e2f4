"""Plans that were found before, on disk: the strategy, and how it did against stock TorchInductor.

On an accelerator finding a plan takes a minute, and finding it again takes the reading of a file.
A plan is remembered for a program, the options that chose it, the device and versions, and the
sources of vtc. It is checked for legality as a new one is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from vtc.graph.program import value_of
from vtc.lowering.cache import environment
from vtc.lowering.plan import Plan
from vtc.lowering.settings import Settings

logger = logging.getLogger(__name__)

CHOOSING = ("freeze", "search", "verify", "profile_budget_s", "max_exhaustive", "min_gain_us")
"""The options beside `materialize` that decide what a plan is."""


@dataclass(frozen=True)
class Remembered:
    """A strategy by its edges, its cost and that of the empty one, and the microseconds of whole
    calls of the plan and of stock TorchInductor, where they were compared and agreed. checked: the
    digests of schedules that were found right."""

    edges: tuple[int, ...]
    cost: float
    base_cost: float
    ours_us: float | None = None
    theirs_us: float | None = None
    checked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Memory:
    """Where the plan of one program is kept."""

    path: Path

    @staticmethod
    def of(plan: Plan, settings: Settings) -> Memory | None:
        """None where plans are found anew: by a model alone, or on a CPU, where it is quick."""
        if not settings.measures or plan.program.symbolic or plan.device.type == "cpu":
            return None
        folder = settings.options.cache_dir / "plans" / environment(plan.device)
        return Memory(folder / f"{_key(plan, settings)}.json")

    def recall(self) -> Remembered | None:
        """What is known; a file that cannot be read counts as nothing."""
        try:
            found = json.loads(self.path.read_text())
            numbers = [found["cost"], found["base_cost"]]
            if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
                raise ValueError(f"costs of {numbers}")
            edges, checked = map(int, found["edges"]), map(str, found.get("checked", ()))
            return Remembered(**{**found, "edges": tuple(edges), "checked": tuple(checked)})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            logger.debug("%s is no plan", self.path, exc_info=True)
            return None

    def keep(self, remembered: Remembered) -> None:
        """Write it, whole or not at all; a folder that cannot be written is none."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, suffix=".tmp", delete=False
            ) as file:
                json.dump(asdict(remembered), file)
            Path(file.name).replace(self.path)
        except OSError:
            logger.debug("%s cannot be written", self.path, exc_info=True)


def _key(plan: Plan, settings: Settings) -> str:
    options = {name: getattr(settings.options, name) for name in CHOOSING}
    lines = [
        _sources(),
        f"{options} {sorted(settings.options.materialize)}",
        f"ours {sorted(plan.own)}, transposed {sorted(plan.transposed)}",
        *map(str, plan.vtog.numbered),
        *map(_line, plan.program.graph_module.graph.nodes),
        f"updates {[(i, n.name) for i, n in plan.program.updates]}",
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _line(node: fx.Node) -> str:
    return f"{node.name} {node.op} {node.target} {node.args} {node.kwargs} {_value(value_of(node))}"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        start = value.storage_offset() % 16
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {start} {value.device}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_value, value))})"
    return repr(value)


@cache
def _sources() -> str:
    """A digest of the package: another version may plan and generate otherwise."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

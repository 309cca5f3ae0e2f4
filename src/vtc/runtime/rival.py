"""The DVM as a candidate of `engine="auto"` on a CPU: ready in milliseconds, kept where it measures
faster than what TorchInductor compiles.

What was measured is kept on disk by the graph's text and inputs, by whether its weights are frozen
and by the number of threads, so that a graph that the DVM is known to win is compiled by nothing
else.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vtc import errors
from vtc.graph.program import Program as Captured
from vtc.graph.program import value_of
from vtc.lowering.cache import ProfileCache
from vtc.lowering.dvm import Plan
from vtc.lowering.dvm.hints import TooWide
from vtc.lowering.plan import device_of
from vtc.lowering.settings import Settings
from vtc.runtime import dvm_compile
from vtc.runtime.dvm import Program, native_machine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Rival:
    """A graph compiled for the DVM. key: what its cost is kept by."""

    captured: Captured
    plan: Plan
    run: Program
    capture_s: float
    compile_s: float
    key: str
    cache: ProfileCache

    def wins(self) -> bool | None:
        """Is it known to be faster than what else was measured? None: not known."""
        own, other = self.cache.get(f"{self.key}-dvm"), self.cache.get(f"{self.key}-other")
        return None if own is None or other is None else own < other

    def note(self, own_us: float, other_us: float) -> None:
        self.cache.put(f"{self.key}-dvm", own_us)
        self.cache.put(f"{self.key}-other", other_us)


def rival(graph_module: fx.GraphModule, inputs: Sequence[Any], settings: Settings) -> Rival | None:
    """The graph for the DVM; None where it is not to be chosen by measured time, has sizes that are
    symbols, or runs operators as eager PyTorch."""
    options = settings.options
    if settings.engine != "auto" or not settings.measures or not options.verify:
        return None
    if options.materialize or not all(_suits(a) for a in inputs):
        return None
    if any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in inputs):
        return None
    try:
        machine = native_machine()
        captured, plan, times = dvm_compile.planned(graph_module, inputs, settings)
        device = device_of(captured)
        if plan.eager or plan.symbols or captured.symbolic or device.type != "cpu":
            return None
        run = Program(plan, machine)
    except (errors.VtcError, TooWide):
        return None
    except Exception:  # a bug of the DVM's must not stop another engine
        logger.debug("lowering for the DVM failed", exc_info=True)
        return None
    cache = ProfileCache(options.cache_dir, device)
    return Rival(captured, plan, run, *times, _key(captured, options.freeze), cache)


def _suits(value: Any) -> bool:
    return not isinstance(value, torch.SymInt) and (
        not isinstance(value, torch.Tensor) or value.device.type == "cpu"
    )


def _key(captured: Captured, freeze: bool) -> str:
    """What a verdict is kept by: frozen, TorchInductor compiles another program of the graph."""
    facts = [str(captured.graph_module.graph), f"{freeze=}", f"threads={torch.get_num_threads()}"]
    for node in captured.inputs:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            facts.append(f"{tuple(value.shape)} {value.stride()} {value.dtype}")
        else:
            facts.append(repr(value))
    return "whole-" + hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24]

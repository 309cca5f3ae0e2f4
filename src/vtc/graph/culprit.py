"""Which operator an error comes from: the innermost one that it passes is noted on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vtc.errors import CaptureError

_NOTED = "_vtc_culprit"


def named(target: Any) -> str:
    """An operator's name; of a Python function without its address."""
    operator = isinstance(target, torch._ops.OperatorBase)
    return str(target) if operator else getattr(target, "__name__", str(target))


def note(error: Exception, target: Any) -> None:
    """Note that `error` passes a call of `target`."""
    vars(error).setdefault(_NOTED, named(target))


def failure(error: Exception) -> CaptureError:
    """An error of whatever kind as one of the operator that it comes from; of the graph where it
    passed none."""
    first_line, *_ = str(error).splitlines() or [""]
    name = vars(error).get(_NOTED, "the graph")
    return CaptureError(name, f"{type(error).__name__}: {first_line}")


class Interpreter(fx.Interpreter):
    """Runs a graph; errors are noted to come from the node that raises them."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            if n.op in ("call_function", "call_method"):
                note(error, n.target)
            raise

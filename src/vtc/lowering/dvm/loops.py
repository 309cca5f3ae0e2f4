"""Loops that Dynamo captures, and the functions of control flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Loop:
    """`while_loop` as an eager call: it carries tensors around, which it then returns."""

    condition: fx.GraphModule
    body: fx.GraphModule

    def __str__(self) -> str:
        return "while_loop"

    def __call__(self, carried: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        # A loop that ends at once gives no alias of what it was given.
        now = tuple(c.clone() if isinstance(c, torch.Tensor) else c for c in carried)
        while self.condition(*now, *others):
            now = tuple(self.body(*now, *others))
        return now


def submodule(node: fx.Node) -> fx.GraphModule:
    """The function that an argument of a control-flow operator names."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    assert isinstance(found, fx.GraphModule)
    return found

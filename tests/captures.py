"""Capture through Dynamo: the program of a model's one graph, and the inputs that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from vtc.graph.capture import capture
from vtc.graph.program import Program


def program_of(model: Callable[..., Any], *args: Any) -> tuple[Program, list[Any]]:
    found: list[tuple[Program, list[Any]]] = []

    def backend(graph_module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append((capture(graph_module, list(inputs)), list(inputs)))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(*args)
    (only,) = found
    return only

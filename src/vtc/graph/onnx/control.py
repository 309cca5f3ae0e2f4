"""Subgraphs as values of attributes: a module, and what it takes from the graphs around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtc.graph.onnx.host import Value

Subgraph = tuple[Callable[..., Any], tuple[Value, ...]]


def call(subgraph: Subgraph, *inputs: Value) -> tuple[Value, ...]:
    """All outputs of the subgraph for these inputs."""
    module, captured = subgraph
    return tuple(module(*inputs, *captured))

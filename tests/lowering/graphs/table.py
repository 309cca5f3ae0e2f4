"""The table of the graphs: name -> () -> (fn, args)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Graph = tuple[Callable[..., Any], tuple[Any, ...]]
GRAPHS: dict[str, Callable[[], Graph]] = {}


def graph(build: Callable[[], Graph]) -> Callable[[], Graph]:
    return GRAPHS.setdefault(build.__name__, build)

"""What is checked around a compiled graph at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from vtc.graph.program import Program
from vtc.lowering.settings import Compiled
from vtc.runtime.calls import OverlapGuard, WeightWatch
from vtc.runtime.signature import readable, source_name


def watched(
    run: Compiled,
    again: Callable[[], Compiled],
    graph_module: fx.GraphModule,
    program: Program,
    freeze: bool,
) -> Compiled:
    """`run`, compiled again when a weight that it holds has changed."""
    first = len(program.inputs) - len(program.constants)
    names = weight_names(graph_module)
    if not names:  # the constants, if any, are literals of the model's code
        return run
    updated = {i - first for i, _ in program.updates}
    folded = [k for k in range(len(names)) if freeze and k not in updated]
    return WeightWatch(run, again, names, program.constants[: len(names)], folded)


def weight_names(graph_module: fx.GraphModule) -> list[str]:
    """The names of the weights that are attributes of the graph, as a user knows them: these are
    the first constants of its program."""
    attributes = dict.fromkeys(n.target for n in graph_module.graph.find_nodes(op="get_attr"))
    sources = getattr(graph_module, "_param_name_to_source", None) or {}
    return [readable(source_name(sources.get(a))) or str(a) for a in attributes]


def guarded(run: Compiled, eager: Compiled, program: Program, weights: Sequence[int]) -> Compiled:
    """`run`, with calls whose arguments overlap while one is updated sent to plain PyTorch."""
    updated = [i for i, _ in program.updates]
    if not updated:
        return run
    passed = len(program.inputs) - len(program.constants)
    return OverlapGuard(run, eager, updated, weights, passed, program.constants)

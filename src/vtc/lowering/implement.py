"""Implementations: a step of the schedule -> a callable over its operands."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx

from vtc.graph.movement import is_movement_target, movement_of
from vtc.graph.program import Program, value_of
from vtc.kernels import attention, linear_attention
from vtc.lowering.access_order import access_order_kept
from vtc.lowering.decompositions import decomposed_alike
from vtc.lowering.guarded import or_eager
from vtc.lowering.in_place import in_place
from vtc.lowering.schedule import Operand, Step, signature

Implementation = Callable[..., Any]

CALLED = frozenset({attention.OVERLOAD, linear_attention.OVERLOAD})
"""Operators of ours that give one new tensor."""


class Tuner(Protocol):
    """Finds the fastest of our own kernels for a step."""

    def fastest(self, step: Step) -> Implementation | None:
        """A callable over the step's operands that returns its results, or None."""
        ...


def implement(
    step: Step, program: Program, *, freeze: bool, tuner: Tuner | None = None
) -> tuple[Implementation, Step]:
    """The callable of a step, and the step as it is called (frozen weights are no operands).

    A step for our own kernels is compiled by Inductor where none of them can run it. A step that
    Inductor cannot compile runs as eager PyTorch, warned of by its first operator.
    """
    if step.implementation == "kernel" and tuner is not None:
        kernel = tuner.fastest(step)
        if kernel is not None:
            return kernel, step
    step = frozen(step, program) if freeze else step
    if step.implementation == "library":
        return library_call(step), step
    if _only_calls(step):
        return step.graph.forward, step
    examples = [value_of(n) for n in step.graph.graph.nodes if n.op == "placeholder"]
    return or_eager(
        lambda: inductor(step.graph, examples, freeze=freeze), step.graph, step.stores
    ), step


def implemented(
    steps: Sequence[Step], program: Program, *, freeze: bool, tuner: Tuner | None = None
) -> list[tuple[Implementation, Step]]:
    """`implement` for each step; steps that are alike share what is compiled (layers of a model
    mostly are), unless weights are frozen into it."""
    made: dict[str, Implementation] = {}
    found: list[tuple[Implementation, Step]] = []
    for step in steps:
        plain = all(n.op != "get_attr" for n in step.graph.graph.nodes)
        shared = plain and not freeze and step.implementation == "inductor"
        key = signature(step) if shared else ""
        if key in made:
            found.append((made[key], step))
            continue
        found.append(implement(step, program, freeze=freeze, tuner=tuner))
        if shared:
            made[key] = found[-1][0]
    return found


def inductor(
    graph_module: fx.GraphModule, examples: Sequence[Any], *, freeze: bool = False
) -> Implementation:
    """Compile a graph with TorchInductor, apart from whatever trace is going on."""
    mode = detect_fake_mode(list(examples))
    with (
        torch.no_grad(),
        without_autocast(),
        tracing(TracingContext(mode)),
        inductor_config.patch(freezing=freeze, fallback_random=True),
        access_order_kept(),
        decomposed_alike(),
    ):
        compiled: Implementation = compile_fx(in_place(graph_module), list(examples))
    return compiled


def _only_calls(step: Step) -> bool:
    """Are there views alone around kernels of ours that are called, on a CUDA device? A captured
    graph holds the same then, and nothing is to be compiled."""
    calls = [n for n in step.graph.graph.nodes if n.op == "call_function"]
    own = [n for n in calls if n.target in CALLED]
    if not own or step.stores or value_of(own[0]).device.type != "cuda":
        return False
    return all(n in own or is_movement_target(n) or _is_view(n) for n in calls)


def _is_view(node: fx.Node) -> bool:
    bound = movement_of(node)
    return bound is not None and bound.movement.view


class without_autocast(torch.amp.autocast_mode.autocast):  # noqa: N801 - used like no_grad
    """Autocast off on every device: captured graphs hold their casts."""

    def __init__(self) -> None:
        super().__init__("cpu", enabled=False)
        self._cuda = torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else None

    def __enter__(self) -> Any:
        if self._cuda is not None:
            self._cuda.__enter__()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> Any:
        super().__exit__(*exc)
        if self._cuda is not None:
            self._cuda.__exit__(*exc)


def library_call(step: Step) -> Implementation:
    """The library kernel itself when its operands are in the step's order, else the graph."""
    nodes = list(step.graph.graph.nodes)
    calls = [n for n in nodes if n.op == "call_function"]
    placeholders = [n for n in nodes if n.op == "placeholder"]
    if len(calls) == 1 and list(calls[0].args) == placeholders and not calls[0].kwargs:
        kernel: Implementation = calls[0].target
        return kernel
    return step.graph.forward


def frozen(step: Step, program: Program) -> Step:
    """The step with the program's constants as attributes of its graph."""
    first = len(program.inputs) - len(program.constants)
    updated = {i for i, _ in program.updates}
    graph = copy.deepcopy(step.graph.graph)  # the step may be frozen again, with newer weights
    kept: list[Operand] = []
    module = fx.GraphModule(dict(step.graph.named_buffers()), graph)
    for operand, node in zip(
        step.operands, [n for n in graph.nodes if n.op == "placeholder"], strict=True
    ):
        number = operand.source
        if operand.kind != "input" or not isinstance(number, int) or number < first:
            kept.append(operand)
            continue
        if number in updated or operand.view is not None:
            kept.append(operand)
            continue
        name = f"constant{number}"
        value = program.constants[number - first]
        if isinstance(value, torch.nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
        with graph.inserting_before(node):
            attribute = graph.get_attr(name)
        attribute.meta["val"] = value_of(node)
        node.replace_all_uses_with(attribute)
        graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    stores = tuple(kept.index(step.operands[i]) for i in step.stores)
    return Step(
        step.name, step.implementation, module, tuple(kept), stores, step.results, step.regions
    )

"""A case with sizes as symbols, below Dynamo: one program for as many worlds as its guards hold in.

Dynamo takes seconds for a graph. What it does to sizes is done here: tensors get symbolic sizes and
strides, equal ones a symbol, and where a trace with sizes of 0 and 1 as symbols too does not come
through, PyTorch's usual rules are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import Case, traced
from torch import Tensor
from torch._dynamo.source import LocalSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from vtc.lowering.settings import Settings
from vtc.runtime import dvm_compile

Call = Callable[..., Any]


class Programs:
    """The DVM's programs of a case, made when a world asks for one that there is not yet."""

    def __init__(self, case: Case, device: str) -> None:
        self.case, self.device = case, device
        self.made: list[tuple[Call, Call]] = []

    def of(self, world: int) -> Call:
        """A program whose guards hold for the arguments of a world."""
        graph_module, inputs = traced(self.case, self.case.args(world, self.device))
        for holds, program in self.made:
            if holds(inputs):
                return program
        self.made.append(self._compiled(graph_module, inputs))
        return self.made[-1][1]

    def _compiled(self, graph_module: torch.fx.GraphModule, inputs: list[Any]) -> tuple[Call, Call]:
        try:
            with dvm_compile._traced(oblivious=True):
                fakes = symbolic_inputs(inputs)
                mode = fakes[0].fake_mode
                with mode, mode.shape_env.ignore_fresh_unbacked_symbols(), torch.no_grad():
                    graph_module(*fakes)  # as Dynamo does before it calls a backend
                return self._program(graph_module, symbolic_inputs(inputs))
        except Exception:  # as vtc does it, whatever the reason
            with dvm_compile._traced(oblivious=False):
                return self._program(graph_module, symbolic_inputs(inputs))

    def _program(self, graph_module: torch.fx.GraphModule, fakes: list[Any]) -> tuple[Call, Call]:
        program = dvm_compile.compile_graph(graph_module, fakes, Settings(engine="dvm", records=[]))
        env = fakes[0].fake_mode.shape_env
        try:
            code = env.produce_guards_expression(fakes, ignore_static=False)
        except AssertionError:  # a symbol that is no size of an argument: no other call is its own
            code = "False"

        def holds(args: Sequence[Any]) -> bool:
            return code is None or bool(env.evaluate_guards_expression(code, args))

        return holds, program


def symbolic_inputs(tensors: Sequence[Tensor]) -> list[Any]:
    """Fake tensors whose sizes are symbols, as Dynamo makes them with `dynamic=True`. They share
    storage as the tensors do, but are no views: the sizes of a base would be symbols too."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    return [
        mode.from_tensor(
            _no_view(tensor),
            source=LocalSource(f"t{k}"),  # the name that guards are written in
            symbolic_context=StatelessSymbolicContext(
                dynamic_sizes=[DimDynamic.DUCK] * tensor.dim(),
                dynamic_strides=[DimDynamic.INFER_STRIDE] * tensor.dim(),
            ),
        )
        for k, tensor in enumerate(tensors)
    ]


def _no_view(tensor: Tensor) -> Tensor:
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return made.set_(tensor.untyped_storage(), *place)

"""A case with sizes as symbols, below Dynamo: one program for the worlds that its guards hold in.

It is traced with the sizes of the world that the seed picks. Other worlds, that its guards do not
hold for, are run with their sizes known: PyTorch's symbolic shapes make a trace ten times as slow.

Dynamo takes seconds for a graph. What it does to sizes is done here: tensors get symbolic sizes and
strides, equal ones a symbol, the graph is run once on such fakes, whose guards go for the program
too, and where a trace with sizes of 0 and 1 as symbols too does not come through, PyTorch's usual
rules are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from cases import Case, traced
from torch import Tensor, fx
from torch._dynamo.source import LocalSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatefulSymbolicContext,
)

from vtc.lowering.dvm.hints import TooWide
from vtc.lowering.settings import Settings
from vtc.runtime import dvm_compile
from vtc.runtime.tracing import quick_tracing

Call = Callable[..., Any]


class Programs:
    """The DVM's program of a case with symbols for sizes, and those for other worlds.

    `symbolic` says whether there is one with symbols: PyTorch's shape functions do not take
    everything with them (those of 2.11 lack some). `others` counts worlds it does not hold for.
    """

    def __init__(self, case: Case, device: str) -> None:
        self.case, self.device = case, device
        self.first = case.seed % len(case.worlds)
        self.others = 0
        made = self._symbolic(*traced(case, case.args(self.first, device)))
        self.symbolic = made is not None
        self.holds, self.program = made or (lambda _: False, None)

    def of(self, world: int) -> Call:
        """A program whose guards hold for the arguments of a world."""
        graph_module, inputs = traced(self.case, self.case.args(world, self.device))
        if self.program is not None and (world == self.first or self.holds(inputs)):
            return self.program
        self.others += 1
        return dvm_compile.compile_graph(graph_module, inputs, _settings())

    def _symbolic(
        self, graph_module: fx.GraphModule, inputs: list[Any]
    ) -> tuple[Call, Call] | None:
        """A program, and whether it holds for other arguments, as vtc makes them."""
        for oblivious in (True, False):
            symbols = Symbols(inputs)
            with dvm_compile._traced(oblivious), quick_tracing():
                try:
                    _note(graph_module, symbols)
                except Exception:  # as vtc does it, whatever the reason
                    continue
                try:
                    return self._program(graph_module, symbols)
                except TooWide:
                    if not oblivious:
                        raise
        return None

    def _program(self, graph_module: fx.GraphModule, symbols: Symbols) -> tuple[Call, Call]:
        fakes = symbols.fakes()
        program = dvm_compile.compile_graph(graph_module, fakes, _settings())
        return symbols.holds(fakes), program


def _settings() -> Settings:
    return Settings(engine="dvm", records=[])


def _note(graph_module: fx.GraphModule, symbols: Symbols) -> None:
    """Notes the value of each node, as Dynamo does before it calls a backend."""
    fakes = symbols.fakes()
    mode = fakes[0].fake_mode
    with mode, symbols.env.ignore_fresh_unbacked_symbols(), torch.no_grad():
        _Noted(graph_module).run(*fakes)


class _Noted(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        n.meta["example_value"] = found = super().run_node(n)
        return found


@dataclass(frozen=True)
class Symbols:
    """Symbols for the sizes and strides of tensors, as Dynamo makes them with `dynamic=True`."""

    tensors: Sequence[Tensor]
    env: ShapeEnv = field(default_factory=ShapeEnv)
    known: dict[int, dict[str, Any]] = field(default_factory=dict)

    def fakes(self) -> list[Any]:
        """New fake tensors of them, with the same symbols at each call. They share storage as the
        tensors do, but are no views: the sizes of a base would be symbols too."""
        # Each result is made once or twice: to note it for a third time takes as long.
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
            mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        made = []
        for source, tensor in zip(self.sources, self.tensors, strict=True):
            context = StatefulSymbolicContext(
                dynamic_sizes=[DimDynamic.DUCK] * tensor.dim(),
                dynamic_strides=[DimDynamic.INFER_STRIDE] * tensor.dim(),
                tensor_source=source,
                shape_env_to_source_to_symbol_cache=self.known,
            )
            own = _no_view(tensor)
            made.append(mode.from_tensor(own, source=source, symbolic_context=context))
        return made

    @property
    def sources(self) -> list[LocalSource]:
        """The names that guards are written in: those that `evaluate_guards_expression` knows."""
        return [LocalSource(f"t{k}") for k in range(len(self.tensors))]

    def holds(self, fakes: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """Do all guards hold for other tensors? `fakes` are those that they are written for."""
        try:
            guards = self.env.produce_guards(fakes, self.sources, ignore_static=False)
        except AssertionError:  # a symbol that is no size of an argument: no other call is its own
            guards = ["False"]
        # In parentheses: some are alternatives.
        code = " and ".join(f"({guard})" for guard in guards) or "True"
        # The value of a number that a trace has read may be part of the program.
        read = [k for k, fake in enumerate(fakes) if fake.item_memo is not None]
        values = [self.tensors[k].item() for k in read]

        def hold(args: Sequence[Any]) -> bool:
            if [args[k].item() for k in read] != values:
                return False
            return bool(self.env.evaluate_guards_expression(code, args))

        return hold


def _no_view(tensor: Tensor) -> Tensor:
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return made.set_(tensor.untyped_storage(), *place)

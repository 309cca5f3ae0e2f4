"""A captured program with all that planning needs to choose a strategy for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vtc.graph.program import Program, value_of
from vtc.graph.regions import Grouping, group
from vtc.kernels.inductor import InductorEngine
from vtc.kernels.operators import can_join
from vtc.lowering.homes import Homes
from vtc.lowering.planning import plan_graph
from vtc.lowering.schedule import Schedule
from vtc.lowering.scheduler import schedule
from vtc.virtual import vtog
from vtc.virtual.legality import Checker, checker
from vtc.virtual.plan import PlanGraph
from vtc.virtual.strategy import Strategy
from vtc.virtual.vtog import Vtog

NOTHING: Strategy = frozenset()


@dataclass(frozen=True, eq=False)
class Plan:
    """Regions, opportunity graph and the judge of legality of one program.

    `transposed` names the linear operators that are called as (weight @ rows.T).T. `attentions`
    says in a sentence each which attentions of the program were made ours.
    """

    program: Program
    grouping: Grouping
    graph: PlanGraph
    vtog: Vtog
    engine: InductorEngine
    checker: Checker
    transposed: frozenset[str] = frozenset()
    attentions: tuple[str, ...] = ()

    @staticmethod
    def of(
        program: Program,
        own: frozenset[str] = frozenset(),
        grouping: Grouping | None = None,
    ) -> Plan:
        """The plan of a program whose regions named in `own` are computed by our own kernels.

        grouping: by default the one that Inductor's regions have.
        """
        grouping = grouping or group(program, can_join)
        graph = plan_graph(program, grouping)
        opportunities = vtog.build(graph)
        engine = InductorEngine(program, grouping, own)
        legality = checker(graph, opportunities, engine)
        return Plan(program, grouping, graph, opportunities, engine, legality)

    @property
    def own(self) -> frozenset[str]:
        """The names of the regions that our own kernels compute."""
        return self.engine.own

    @property
    def device(self) -> torch.device:
        return device_of(self.program)

    @property
    def weights(self) -> tuple[int, ...]:
        """The numbers of the inputs that are parameters or buffers."""
        tensors = self.graph.tensors
        return tuple(
            i
            for i, n in enumerate(self.program.inputs)
            if n.name in tensors and tensors[n.name].kind == "constant"
        )

    def homes(self, strategy: Strategy) -> Homes:
        resolver = self.checker.resolver
        return Homes(
            self.program,
            self.grouping,
            self.engine,
            resolver,
            resolver.resolve(strategy),
            self.transposed,
        )

    def schedule(self, strategy: Strategy) -> Schedule:
        """Raises Unschedulable for a legal strategy that no step can carry out."""
        # One functional step, as sizes that are not known leave, has no order to keep.
        orders = () if self.program.symbolic else self.checker.version_orders(strategy)
        return schedule(self.homes(strategy), orders)


def device_of(program: Program) -> torch.device:
    """The device of the first tensor that is not on the CPU, else the CPU."""
    devices = [
        value.device
        for n in program.graph_module.graph.nodes
        if isinstance(value := value_of(n), torch.Tensor)
    ]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))

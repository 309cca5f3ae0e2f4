"""Chains of 1 to 6 random movement operators as one composed map, against the chain itself."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from graph.movement_checks import check_map, traced
from graph.movement_strategies import Draw, some
from graph.movement_strategies_indexed import ARGUMENTS
from vtc.graph.movement import movement_of
from vtc.index import IndexMap, NotRepresentable

LIMIT = 600

aten = torch.ops.aten
STEPS = (
    aten.clone.default,
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.default,
    aten.unsqueeze.default,
    aten.permute.default,
    aten.transpose.int,
    aten.movedim.intlist,
    aten.slice.Tensor,
    aten.narrow.default,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.unbind.int,
    aten.flip.default,
    aten.rot90.default,
    aten.cat.default,
    aten.stack.default,
    aten.expand.default,
    aten.repeat.default,
    aten.repeat_interleave.self_int,
    aten.constant_pad_nd.default,
    aten.roll.default,
    aten.index_select.default,
    aten.gather.default,
    aten.index.Tensor,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal.default,
    aten.unfold.default,
    aten.as_strided.default,
)


class Chain:
    """The tensor at hand, and the map from it to all sources and lookups so far."""

    def __init__(self, source: Tensor) -> None:
        self.value = source
        self.sources = [source]
        self.lookups: list[Tensor] = []
        self.map = IndexMap.identity(source.shape)

    def apply(self, draw: Draw, op: OpOverload) -> bool:
        """One more step; False where the drawn call does not move the tensor at hand."""
        draw.given = self.value
        args, kwargs = ARGUMENTS[op](draw)
        nodes = traced(op, *args, **kwargs)
        if draw.given is not None or not nodes:
            return False
        node, out = nodes[draw(st.integers(0, len(nodes) - 1))]
        bound = movement_of(node)
        if bound is None or bound.movement.load is None or out.numel() > LIMIT or out.dim() > 5:
            return False
        numbers = {k: len(self.sources) + k for k in range(len(bound.sources))}
        lookups = {n: len(self.lookups) + n for n in range(len(bound.lookups))}
        values = [n.meta["val"] for n in bound.sources]
        inner = {numbers[k]: self.map for k, value in enumerate(values) if value is self.value}
        try:
            composed = bound.movement.load.renumber(numbers, lookups).compose(inner)
        except NotRepresentable:
            return False
        self.map, self.value = composed, out
        self.sources += values
        self.lookups += [n.meta["val"] for n in bound.lookups]
        return True


def test_composed_map_equals_chain():
    used = set()

    @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        draw = Draw(data.draw)
        chain = Chain(some(draw))
        for _ in range(data.draw(st.integers(1, 6))):
            op = data.draw(st.sampled_from(STEPS))
            if chain.apply(draw, op):
                used.add(op)
        check_map(chain.map, chain.sources, chain.lookups, chain.value)

    run()
    assert len(used) > 0.8 * len(STEPS)

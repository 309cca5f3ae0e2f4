"""Linear attention: what our kernels are measured against, and how a plan feeds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import vtc
from vtc.graph.capture import capture
from vtc.kernels.linear_attention import OVERLOAD, written_out
from vtc.lowering.linear_attention import _compiled
from vtc.lowering.own import own_plan
from vtc.lowering.profile import Pricing
from vtc.virtual import cost, search


def test_the_written_out_form_compiles_outside_of_any_trace() -> None:
    base = torch.randn(2, 64, 3, 48).transpose(1, 2)
    operands = list(base.split([16, 16, 16], -1))
    (found,) = _compiled(operands, 1e-5)(*operands)
    expected = written_out(*(o.double() for o in operands), 1e-5)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


class TwoScales(nn.Module):
    """EfficientViT's attention: queries, keys and values of two scales, joined along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(16, 48, 1, bias=False)
        self.spread = nn.Conv2d(48, 48, 5, padding=2, groups=48, bias=False)
        self.mix = nn.Conv2d(48, 48, 1, groups=6, bias=False)
        self.out = nn.Conv2d(32, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        first = self.project(x)
        joined = torch.cat([first, self.mix(self.spread(first))], 1)
        heads = joined.reshape(b, 4, 24, h * w).transpose(-1, -2)
        q, k, v = heads.chunk(3, -1)
        found = torch.ops.vtc.linear_attention(q, k, v, eps=1e-5)
        return self.out(found.transpose(-1, -2).reshape(b, -1, h, w))


def test_a_concat_that_a_library_kernel_reads_is_stored_where_it_lies() -> None:
    """It takes one strided tensor: reading the parts where they are would copy them in its step."""
    found = []

    def backend(graph_module: Any, inputs: Any) -> Any:
        found.append(capture(graph_module, list(inputs)))
        return graph_module.forward

    model = TwoScales().eval().to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.randn(16, 16, 32, 32))
    plan = own_plan(found[0])
    static = cost.StaticCost(plan.graph, plan.vtog, plan.engine, cost.GPU, "latency")
    pricing = Pricing(plan, static, vtc.Options(min_gain_us=0.1))
    chosen = search.greedy(plan.graph, plan.vtog, plan.engine, pricing)
    steps = plan.schedule(chosen.strategy).steps
    targets = [n.target for s in steps for n in s.graph.graph.nodes]
    assert OVERLOAD in targets
    assert torch.ops.aten.cat.default not in targets
    assert sum(len(s.stores) for s in steps if s.implementation == "kernel") == 2

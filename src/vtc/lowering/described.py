"""A step of the schedule as a description that our own kernels are generated from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vtc.index.sizes import NotRepresentable
from vtc.kernels.convolution import Convolution
from vtc.kernels.matmul import Matmul
from vtc.kernels.operators import ANCHORS, MATMULS
from vtc.kernels.pooling import Pooling
from vtc.lowering.describe_convolution import ConvolutionDescriber
from vtc.lowering.describe_matmul import MatmulDescriber
from vtc.lowering.describe_pooling import POOLINGS, PoolingDescriber
from vtc.lowering.description import Undescribed
from vtc.lowering.dvm.nodes import Unsupported
from vtc.lowering.schedule import Step


@dataclass(frozen=True, eq=False)
class Described:
    """What a step computes, over its operands and then the results that a call allocates."""

    problem: Convolution | Matmul | Pooling
    results: tuple[torch.Tensor, ...]


def described(step: Step) -> Described:
    """The description of a step: one 2-D convolution or pooling, or matmuls of the same rows.

    Raises Undescribed.
    """
    try:
        targets = {n.target for n in step.graph.graph.nodes}
        if targets & POOLINGS and not targets & ANCHORS:
            pooling = PoolingDescriber(step)
            return Described(pooling.describe(), tuple(pooling.results()))
        if targets & MATMULS:
            matmuls = MatmulDescriber(step)
            return Described(matmuls.describe(), tuple(matmuls.results()))
        convolution = ConvolutionDescriber(step)
        return Described(convolution.describe(), tuple(convolution.results()))
    except (Unsupported, NotRepresentable, ValueError) as error:
        raise Undescribed(str(error)) from error

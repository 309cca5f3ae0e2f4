"""Matmuls whose contraction has one element: a multiplication, which fuses with what is around it.

before: matmul(x, y), x (..., m, 1) and y (..., 1, n)
after:  mul(x, y)

Rotary embeddings are written so: frequencies times positions. A library's kernel for it takes
longer than all that is computed with the result.
"""

from __future__ import annotations

import torch
from torch import fx

from vtc.graph import program as programs
from vtc.graph.program import Program, has_symbol, is_tensor, value_of

aten = torch.ops.aten

_MATMULS = (aten.matmul.default, aten.bmm.default, aten.mm.default)


def multiplied(program: Program) -> Program:
    """`program` with such matmuls as multiplications. The graph is changed in place, and nodes keep
    their names."""
    found = [node for node in program.nodes if _is_outer(node)]
    if not found:
        return program
    for node in found:
        node.target = aten.mul.Tensor
    program.graph_module.graph.lint()
    program.graph_module.recompile()
    return programs.build(
        program.graph_module, program.updates, program.constants, program.aliases, program.storages
    )


def _is_outer(node: fx.Node) -> bool:
    if node.target not in _MATMULS or node.kwargs or not all(map(is_tensor, node.args)):
        return False
    left, right = map(value_of, node.args)
    if any(map(has_symbol, (node, *node.args))) or left.dim() < 2 or right.dim() < 2:
        return False
    value = value_of(node)
    if left.shape[-1] != 1 or not value.is_floating_point() or not value.numel():
        return False
    with value.fake_mode:
        return bool((left * right).stride() == value.stride())

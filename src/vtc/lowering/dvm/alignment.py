"""Operands of calls whose kernels read vectors of 16 bytes, wherever an operand begins.

A tensor that eager PyTorch hands to one of them (`libraries.reads_vectors`) in memory of its own,
which is aligned, is to be no view of other memory that begins anywhere:

    before: attention(q, k, view(t, offset 1))      for x = clone(t[1:])
    after:  attention(q, k, x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vtc.index import Size, sizes
from vtc.kernels import libraries
from vtc.lowering.dvm.nodes import Call, Node
from vtc.lowering.dvm.plan import Space, TensorRef


def reads_vectors(call: Call) -> bool:
    """Is it a call of such a kernel?"""
    result = call.result(None)
    return isinstance(result, torch.Tensor) and libraries.reads_vectors(call.target, result.device)


def as_aligned(
    node: Node, reference: TensorRef, fakes: Mapping[Node, torch.Tensor], spaces: Sequence[Space]
) -> bool:
    """Is a value at a reference certain to begin at a multiple of 16 bytes, if eager PyTorch's
    tensor does? Memory that is allocated does."""
    fake = fakes.get(node)
    if fake is None:
        return True
    space = spaces[reference.space]
    start: Size = reference.view[2] if reference.view else 0
    theirs = sizes.as_size(fake.storage_offset())
    if space.kind == "input":
        given = next(f for n, f in fakes.items() if n.op == "input" and n.constant == space.number)
        same = given.untyped_storage()._cdata == fake.untyped_storage()._cdata
        return same and sizes.add(sizes.as_size(given.storage_offset()), start) == theirs
    unit = libraries.VECTOR // fake.element_size()
    return start == theirs or sizes.exact_div(start, unit) is not None

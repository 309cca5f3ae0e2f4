"""Operands of calls whose kernels read vectors of 16 bytes, wherever an operand begins.

PyTorch chooses a kernel of attention by sizes and by some of the strides, and not by addresses: one
whose rows lie elsewhere is read past alignment (pytorch/pytorch#183484). So a tensor that eager
PyTorch hands over in memory of its own, which is aligned, is to be no view of other memory that
begins anywhere:

    before: attention(q, k, view(t, offset 1))      for x = clone(t[1:])
    after:  attention(q, k, x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vtc.index import Size, sizes
from vtc.lowering.dvm.nodes import Call, Node
from vtc.lowering.dvm.plan import Space, TensorRef

VECTOR = 16
"""Bytes."""
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def reads_vectors(call: Call) -> bool:
    """Is it a call of such a kernel?"""
    return call.target is _ATTENTION and call.result(None).device.type == "cuda"


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
    unit = VECTOR // fake.element_size()
    return start == theirs or sizes.exact_div(start, unit) is not None

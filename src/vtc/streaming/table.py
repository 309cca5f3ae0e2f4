"""Which ATen operators a stream records, and as what."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch._ops import OpOverload

from vtc.graph.movement import moves
from vtc.lowering.dvm.rules import RULES

aten = torch.ops.aten


class Kind(Enum):
    """What an operator does: it computes tensors, makes one from a layout alone, gives a view, or
    updates its first operand."""

    COMPUTE = "compute"
    MAKE = "make"
    VIEW = "view"
    UPDATE = "update"


# Operators without a rule or a map that PyTorch decomposes into such.
_DECOMPOSED = {
    aten._fused_rms_norm.default,
    aten.native_group_norm.default,
    aten._safe_softmax.default,
}
# Operators that read nothing of their operand but its layout.
_MAKES = {
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default,
    aten.full_like.default, aten.new_empty.default, aten.new_empty_strided.default,
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
}  # fmt: skip
# What writes without reading, whose functional twins have other names or arguments.
_WRITES = {aten.copy_.default, aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor}

_KINDS: dict[Any, Kind | None] = {}


def kind_of(operator: Any) -> Kind | None:
    """How an operator is recorded; None if it runs as it is."""
    if operator not in _KINDS:
        _KINDS[operator] = _kind_of(operator)
    return _KINDS[operator]


def _kind_of(operator: Any) -> Kind | None:
    if not isinstance(operator, OpOverload):
        return None
    schema = operator._schema
    if operator in _MAKES:
        return Kind.MAKE
    if torch.Tag.nondeterministic_seeded in operator.tags or not any(
        "Tensor" in str(a.type) for a in schema.arguments
    ):
        return None
    if schema.is_mutable:
        return Kind.UPDATE if _updates(operator) else None
    if not _has_kernel(operator):
        return None
    if any(r.alias_info is not None for r in schema.returns):
        return Kind.VIEW
    return Kind.COMPUTE


def _has_kernel(operator: OpOverload) -> bool:
    return operator in RULES or moves(operator) or operator in _DECOMPOSED


def _updates(operator: OpOverload) -> bool:
    """Is it `f_(x, ...)` for an `f` that is recorded?"""
    written = [n for n, a in enumerate(operator._schema.arguments) if a.is_write]
    if written != [0] or torch.Tag.inplace_view in operator.tags:
        return False
    if operator in _WRITES:
        return True
    name = operator._schema.name.removeprefix("aten::")
    twin = getattr(getattr(aten, name.removesuffix("_"), None), operator._overloadname, None)
    return twin is not None and twin is not operator and _has_kernel(twin)

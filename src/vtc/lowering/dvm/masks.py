"""Attention whose mask says no more than that it is causal, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vtc.graph.rules import same
from vtc.index import Affine, Fill, affine, sizes, substitution
from vtc.lowering.dvm.closed import ClosedForms, agree
from vtc.lowering.dvm.nodes import Node
from vtc.program.dtypes import DType

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
# Which of `a - b` and `b - a` a comparison says is not negative, and what is added to it.
_ORDERED = {"ge": (1, 0), "le": (-1, 0), "gt": (1, -1), "lt": (-1, -1)}


def unmasked(
    closed: ClosedForms, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of `scaled_dot_product_attention`; one that is true everywhere left out, and a
    mask that is true up to the diagonal only as `is_causal`, for which no mask is made or read, and
    nothing computed beyond the diagonal."""
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    query, key, value, mask = (given.get(name) for name in _NAMES[:4])
    if not isinstance(mask, Node) or given.get("is_causal", False):
        return args, kwargs
    everywhere = closed.constant(mask) == 1
    if not _fits(mask, query, key) or not (everywhere or _is_causal(closed, mask)):
        return args, kwargs
    options = {k: v for k, v in given.items() if k not in _NAMES}
    return (query, key, value, None, given.get("dropout_p", 0.0), not everywhere), options


def _fits(mask: Node, query: Any, key: Any) -> bool:
    """Has the mask a row for each query and a column for each key, and no more batches?"""
    if mask.dtype is not DType.BOOL or not 2 <= len(mask.shape) <= len(query.shape):
        return False
    *outer, rows, columns = mask.shape
    batches = zip(reversed(outer), reversed(query.shape[:-2]), strict=False)
    return (
        same(rows, query.shape[-2])
        and same(columns, key.shape[-2])
        and all(a == 1 or same(a, b) for a, b in batches)
    )


def _is_causal(closed: ClosedForms, mask: Node) -> bool:
    rank = len(mask.shape)
    bounds = tuple((0, sizes.sub(size, 1)) for size in mask.shape)
    form = _not_negative(closed, mask)
    diagonal = affine.coordinate(rank - 2) - affine.coordinate(rank - 1)
    return form is not None and agree(form, diagonal, bounds)


def _not_negative(closed: ClosedForms, condition: Node) -> Affine | None:
    """The form that a condition says is not negative."""
    if condition.op in _ORDERED:
        factor, more = _ORDERED[condition.op]
        a, b = condition.operands
        found = closed.difference(a, b, len(condition.shape))
        return None if found is None else affine.scale(found, factor) + more
    if condition.op != "move" or len(condition.constant.load.pieces) != 1:
        return None
    (piece,) = condition.constant.load.pieces
    if isinstance(piece.source, Fill) or piece.lookups():
        return None
    inner = _not_negative(closed, condition.operands[piece.source])
    return None if inner is None else substitution.substitute(inner, piece.forms, piece.bounds)

"""Reference semantics: an index map carried out by advanced indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy
import torch
from torch import Tensor

from vtc.index.affine import Affine, Div, Look
from vtc.index.piece import Fill
from vtc.index.sizes import Size

if TYPE_CHECKING:
    from vtc.index.map import IndexMap


def materialize(
    index_map: IndexMap, sources: Sequence[Tensor], lookups: Sequence[Tensor] = ()
) -> Tensor:
    """The tensor that ``index_map`` describes; see IndexMap.materialize."""
    shape = [number(s) for s in index_map.shape]
    out = _empty(index_map, shape, sources)
    for piece in index_map.pieces:
        lower = [number(x) for x in piece.lower]
        upper = [number(x) for x in piece.upper]
        box = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
        extent = [max(b - a, 0) for a, b in zip(lower, upper, strict=True)]
        if 0 in extent:
            continue
        if isinstance(piece.source, Fill):
            out[box] = piece.source.value
            continue
        source = sources[piece.source]
        grid = grids(lower, upper, out.device)
        if source.ndim != len(piece.forms):
            raise ValueError(
                f"source {piece.source} has {source.ndim} dimensions, not {len(piece.forms)}"
            )
        index = tuple(evaluate(a, grid, lookups).expand(extent) for a in piece.forms)
        out[box] = source[index] if index else source.expand(extent)
    return out


def _empty(index_map: IndexMap, shape: Sequence[int], sources: Sequence[Tensor]) -> Tensor:
    used = sorted(index_map.sources())
    if used:
        first = sources[used[0]]
        return torch.zeros(shape, dtype=first.dtype, device=first.device)
    values = [p.source.value for p in index_map.pieces if isinstance(p.source, Fill)]
    if sources:
        return torch.zeros(shape, dtype=sources[0].dtype, device=sources[0].device)
    return torch.zeros(shape, dtype=torch.tensor(values).dtype if values else None)


def grids(
    lower: Sequence[int], upper: Sequence[int], device: torch.device | str = "cpu"
) -> list[Tensor]:
    """One int64 tensor per coordinate that broadcasts to the box's values of it."""
    rank = len(lower)
    return [
        torch.arange(a, b, device=device).reshape([-1 if d == k else 1 for d in range(rank)])
        for k, (a, b) in enumerate(zip(lower, upper, strict=True))
    ]


def evaluate(a: Affine, grid: Sequence[Tensor], lookups: Sequence[Tensor] = ()) -> Tensor:
    """The values of an expression with concrete sizes, on coordinates that broadcast together."""
    device = grid[0].device if grid else (lookups[0].device if lookups else None)
    total = torch.tensor(number(a.const), device=device)
    for atom, coefficient in a.terms.items():
        if isinstance(atom, int):
            value = grid[atom]
        elif isinstance(atom, Look):
            table = lookups[atom.tensor]
            at = [evaluate(x, grid, lookups) for x in atom.args]
            value = (table[tuple(torch.broadcast_tensors(*at))] if at else table).long()
        elif isinstance(atom, Div):
            value = evaluate(atom.arg, grid, lookups).div(number(atom.by), rounding_mode="floor")
        else:
            value = evaluate(atom.arg, grid, lookups).remainder(number(atom.by))
        total = total + value * number(coefficient)
    return total


def number(size: Size) -> int:
    """A size as an int; raises ValueError if it is symbolic."""
    if type(size) is int:
        return size
    if isinstance(size, sympy.Expr) and not size.is_number:
        raise ValueError(f"the size {size} is symbolic: substitute numbers first")
    return int(size)

"""Substitution into quasi-affine expressions, which is also how they are simplified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vtc.index import affine
from vtc.index.affine import Affine, Atom, Bounds, Div, Look, Rem
from vtc.index.sizes import Size


def substitute(a: Affine, values: Sequence[Affine], bounds: Bounds) -> Affine:
    """a with coordinate k replaced by values[k], simplified under bounds of the new coordinates."""
    return _substitute(a, values, bounds, {})


def _substitute(
    a: Affine, values: Sequence[Affine], bounds: Bounds, memo: dict[Atom, Affine]
) -> Affine:
    result = affine.constant(a.const)
    nested = False
    for atom, coefficient in a.terms.items():
        if isinstance(atom, int):
            value = values[atom]
        else:
            found = memo.get(atom)
            if found is None:
                found = _substitute_atom(atom, values, bounds, memo)
                memo[atom] = found
            value = found
        nested = nested or any(isinstance(t, Rem) for t in value.terms)
        result = affine.add(result, affine.scale(value, coefficient))
    return affine.recombine(result, bounds) if nested else result


def _substitute_atom(
    atom: Div | Rem | Look, values: Sequence[Affine], bounds: Bounds, memo: dict[Atom, Affine]
) -> Affine:
    if isinstance(atom, Look):
        args = tuple(_substitute(x, values, bounds, memo) for x in atom.args)
        return Affine(0, {Look(atom.tensor, args): 1})
    arg = _substitute(atom.arg, values, bounds, memo)
    if isinstance(atom, Div):
        return affine.floor_div(arg, atom.by, bounds)
    return affine.modulo(arg, atom.by, bounds)


def simplify(a: Affine, bounds: Bounds) -> Affine:
    """a simplified under bounds; a coordinate with one possible value becomes that value."""
    return substitute(a, identity_values(bounds), bounds)


def identity_values(bounds: Bounds) -> list[Affine]:
    """Each coordinate as itself, or as its only value."""
    return [
        affine.constant(low) if low is not None and low == high else affine.coordinate(k)
        for k, (low, high) in enumerate(bounds)
    ]


def rewrite(a: Affine, size: Callable[[Size], Size], tensor: Callable[[int], int]) -> Affine:
    """a with every size and every lookup tensor number replaced; not simplified by bounds."""
    result = affine.constant(size(a.const))
    for atom, coefficient in a.terms.items():
        factor = size(coefficient)
        if isinstance(atom, int):
            value = affine.coordinate(atom)
        elif isinstance(atom, Look):
            args = tuple(rewrite(x, size, tensor) for x in atom.args)
            value = Affine(0, {Look(tensor(atom.tensor), args): 1})
        elif isinstance(atom, Div):
            value = affine.floor_div(rewrite(atom.arg, size, tensor), size(atom.by), ())
        else:
            value = affine.modulo(rewrite(atom.arg, size, tensor), size(atom.by), ())
        result = affine.add(result, affine.scale(value, factor))
    return result

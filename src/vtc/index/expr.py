"""Index expressions as sympy: the public face of ``affine`` for rules and code generators.

``FloorDiv`` and ``Mod`` are torch's ``FloorDiv`` and ``PythonMod`` (both round as Python does, so
negative arguments are allowed) without their costly evaluation; torch's printers know them.
torch's own classes are accepted wherever an expression is read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from torch.utils._sympy import functions as torch_functions

from vtc.index import affine, sizes, substitution
from vtc.index.affine import Affine, Div, Look
from vtc.index.sizes import Expr, FloorDiv, Mod, NotRepresentable, Size

__all__ = [
    "Expr",
    "FloorDiv",
    "Lookup",
    "Mod",
    "axes",
    "coords",
    "from_affine",
    "ravel",
    "simplify",
    "to_affine",
    "unravel",
]


class Lookup(sympy.Function):
    """``Lookup(n, *c)``: element c of the runtime index tensor n (an int64 or int32 tensor).

    As a whole index expression a negative value counts from the end of the source dimension, as
    in PyTorch; inside a larger expression nothing is added to it.
    """

    is_integer = True


@functools.lru_cache(maxsize=64)
def coords(n: int) -> tuple[sympy.Symbol, ...]:
    """The output coordinates i0 .. i{n-1}: nonnegative integer symbols."""
    return tuple(_coordinate(k) for k in range(n))


@functools.lru_cache(maxsize=256)
def _coordinate(k: int) -> sympy.Symbol:
    return sympy.Symbol(f"i{k}", integer=True, nonnegative=True)


@functools.lru_cache(maxsize=256)
def _coordinate_number(symbol: sympy.Symbol) -> int | None:
    name = symbol.name
    if name[:1] == "i" and name[1:].isdigit() and symbol == _coordinate(int(name[1:])):
        return int(name[1:])
    return None


def axes(n: int) -> tuple[Affine, ...]:
    """The output coordinates as ``Affine``: ``+ - * // %`` on them never enter sympy."""
    return tuple(affine.coordinate(k) for k in range(n))


def to_affine(e: Any) -> Affine:
    """A sympy expression, size or Affine as Affine; NotRepresentable if it is not quasi-affine."""
    if isinstance(e, Affine):
        return e
    if isinstance(e, sympy.Expr):
        return _to_affine(e)
    return affine.constant(sizes.as_size(e))


@functools.lru_cache(maxsize=1 << 16)
def _to_affine(e: Expr) -> Affine:
    if isinstance(e, sympy.Integer):
        return affine.constant(int(e))
    if isinstance(e, sympy.Symbol):
        number = _coordinate_number(e)
        return affine.constant(e) if number is None else affine.coordinate(number)
    if isinstance(e, Lookup):
        args = tuple(_to_affine(x) for x in e.args[1:])
        return Affine(0, {Look(int(e.args[0]), args): 1})
    if not any(_coordinate_number(s) is not None for s in e.free_symbols) and not e.has(Lookup):
        return affine.constant(e)
    if isinstance(e, sympy.Add):
        return functools.reduce(affine.add, (_to_affine(x) for x in e.args))
    if isinstance(e, sympy.Mul):
        return functools.reduce(affine.multiply, (_to_affine(x) for x in e.args))
    if isinstance(e, torch_functions.FloorDiv):
        return affine.floor_div(_to_affine(e.args[0]), _divisor(e), ())
    if isinstance(e, (torch_functions.PythonMod, torch_functions.Mod, sympy.Mod)):
        return affine.modulo(_to_affine(e.args[0]), _divisor(e), ())
    if isinstance(e, torch_functions.ModularIndexing):
        base, by, modulus = (_to_affine(x) for x in e.args)
        return affine.modulo(affine.floor_div(base, by.const, ()), modulus.const, ())
    raise NotRepresentable(f"not a quasi-affine index expression: {e}")


def _divisor(e: Expr) -> Size:
    divisor = _to_affine(e.args[1])
    if divisor.terms:
        raise NotRepresentable(f"division by a coordinate is no index expression: {e}")
    return divisor.const


@functools.lru_cache(maxsize=1 << 16)
def from_affine(a: Affine) -> Expr:
    """The sympy expression of an Affine."""
    terms = [sympy.sympify(a.const)]
    for atom, coefficient in a.terms.items():
        if isinstance(atom, int):
            body = _coordinate(atom)
        elif isinstance(atom, Look):
            body = Lookup(sympy.Integer(atom.tensor), *(from_affine(x) for x in atom.args))
        else:
            kind = FloorDiv if isinstance(atom, Div) else Mod
            body = kind(from_affine(atom.arg), sympy.sympify(atom.by))
        terms.append(body if coefficient == 1 else sympy.Mul(coefficient, body))
    return sympy.Add(*terms)


def simplify(e: Any, upper: Mapping[sympy.Symbol, Any]) -> Expr:
    """e simplified where each coordinate s of ``upper`` ranges over [0, upper[s]).

    Upper bounds are ints, positive size expressions or SymInts; a coordinate that is not in
    ``upper`` is only known to be nonnegative. Raises NotRepresentable for an expression that is
    not quasi-affine.
    """
    known: dict[int, affine.Interval] = {}
    for symbol, bound in upper.items():
        number = _coordinate_number(symbol)
        if number is None:
            raise ValueError(f"{symbol} is not an output coordinate (see coords)")
        known[number] = (0, sizes.sub(sizes.as_size(bound), 1))
    count = max([*known, *affine.coordinates(to_affine(e)), -1]) + 1
    bounds = [known.get(k, (0, None)) for k in range(count)]
    return from_affine(substitution.simplify(to_affine(e), bounds))


def ravel(index: Sequence[Any], shape: Sequence[Any]) -> Affine:
    """The row-major offset, in elements, of ``index`` in a contiguous tensor of ``shape``."""
    total = affine.constant(0)
    for e, size in zip(index, shape, strict=True):
        total = affine.add(affine.scale(total, sizes.as_size(size)), to_affine(e))
    return affine.recombine(total, ())


def unravel(offset: Any, shape: Sequence[Any]) -> tuple[Affine, ...]:
    """The index, in a tensor of ``shape``, of the element at a row-major offset in elements."""
    rest = to_affine(offset)
    index: list[Affine] = []
    for size in reversed([sizes.as_size(s) for s in shape][1:]):
        by = 1 if size == 0 else size
        index.append(affine.modulo(rest, by, ()))
        rest = affine.floor_div(rest, by, ())
    return (rest, *reversed(index)) if len(shape) else ()

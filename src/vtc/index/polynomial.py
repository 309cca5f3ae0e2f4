"""Sizes as polynomials with integer coefficients.

Almost every symbolic size is one, and sums, products and exact quotients of them take microseconds
here where sympy's general algorithms take milliseconds. A generator is a symbol, or a quotient,
remainder, maximum or minimum that is taken as a symbol of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import sympy
from torch.utils._sympy import functions as torch_functions

Expr: TypeAlias = sympy.Expr
Exponents: TypeAlias = tuple[int, ...]
# generator -> exponent, in any order, for each term; and the term's coefficient
Terms: TypeAlias = tuple[tuple[tuple[tuple[Expr, int], ...], int], ...]
_MAX, _MIN = (torch_functions.Max, sympy.Max), (torch_functions.Min, sympy.Min)
_GENERATORS = (sympy.Symbol, torch_functions.FloorDiv, torch_functions.PythonMod, *_MAX, *_MIN)


@functools.lru_cache(maxsize=1 << 16)
def terms_of(e: Expr) -> Terms | None:
    """The terms of an expanded expression; None if it is no such polynomial."""
    found = []
    for term in sympy.Add.make_args(e):
        coefficient, rest = term.as_coeff_Mul()
        if not isinstance(coefficient, sympy.Integer):
            return None
        powers = []
        for factor in sympy.Mul.make_args(rest):
            if factor is sympy.S.One:
                continue
            base, exponent = factor, 1
            if isinstance(factor, sympy.Pow):
                base = factor.base
                if not isinstance(factor.exp, sympy.Integer) or factor.exp <= 0:
                    return None
                exponent = int(factor.exp)
            if not isinstance(base, _GENERATORS):
                return None
            powers.append((base, exponent))
        found.append((tuple(powers), int(coefficient)))
    return tuple(found)


def is_expanded(e: Expr) -> bool:
    """Is it a polynomial that is written out, as are those in its quotients and remainders?"""
    terms = terms_of(e)
    return terms is not None and all(
        isinstance(g, sympy.Symbol) or all(map(is_expanded, g.args))
        for powers, _ in terms
        for g, _ in powers
    )


def product(a: Expr, b: Expr) -> Expr:
    """a * b of expanded expressions, expanded."""
    pairs = itertools.product(sympy.Add.make_args(a), sympy.Add.make_args(b))
    return sympy.Add(*(_times(x, y) for x, y in pairs))


@functools.lru_cache(maxsize=1 << 16)
def _times(a: Expr, b: Expr) -> Expr:
    return a * b


def quotient(a: Terms, b: Terms) -> Expr | None:
    """a / b where it is a polynomial with integer coefficients, else None. b is not zero.

    By division of the leading terms in lexicographic order: where b divides a, the leading term of
    b divides that of what is left at each step.
    """
    generators = list(dict.fromkeys(g for powers, _ in (*a, *b) for g, _ in powers))
    left, divisor = _dense(a, generators), _dense(b, generators)
    top = max(divisor)
    found: dict[Exponents, int] = {}
    while left:
        lead = max(left)
        exponents = tuple(x - y for x, y in zip(lead, top, strict=True))
        count, rest = divmod(left[lead], divisor[top])
        if rest or any(x < 0 for x in exponents):
            return None
        found[exponents] = count
        for own, coefficient in divisor.items():
            at = tuple(x + y for x, y in zip(own, exponents, strict=True))
            total = left.get(at, 0) - count * coefficient
            if total:
                left[at] = total
            else:
                left.pop(at, None)
    return _expression(found, generators)


def _dense(terms: Terms, generators: list[Expr]) -> dict[Exponents, int]:
    found = {}
    for powers, coefficient in terms:
        own = dict(powers)
        found[tuple(own.get(g, 0) for g in generators)] = coefficient
    return {exponents: c for exponents, c in found.items() if c}


def _expression(terms: Mapping[Exponents, int], generators: Iterable[Expr]) -> Expr:
    gens = tuple(generators)
    return _written((zip(gens, exponents, strict=True), c) for exponents, c in terms.items())


def at(terms: Terms, value: Callable[[Expr], int]) -> int:
    """The value where each generator has the value that is told."""
    return sum(c * math.prod(value(g) ** e for g, e in powers) for powers, c in terms)


def never_negative(terms: Terms) -> bool:
    """Is it proved that the value is at least 0, every symbol being what it is assumed to be?

    With each positive generator g written as 1 + t, t >= 0, a polynomial without a negative
    coefficient is nonnegative. So is one of which a lower bound is.
    """
    if _has_no_negative(terms):
        return True
    shifted: dict[frozenset[tuple[Expr, int]], int] = {}
    for powers, coefficient in terms:
        choices = [
            [(g, k, math.comb(e, k)) for k in range(e + 1)]
            if isinstance(g, sympy.Symbol) and g.is_positive
            else [(g, e, 1)]
            for g, e in powers
        ]
        for chosen in itertools.product(*choices):
            key = frozenset((g, k) for g, k, _ in chosen if k)
            ways = math.prod(count for _, _, count in chosen)
            shifted[key] = shifted.get(key, 0) + coefficient * ways
    if _has_no_negative((tuple(powers), c) for powers, c in shifted.items() if c):
        return True
    return any(map(is_nonnegative, _lower_bounds(terms)))


def _has_no_negative(terms: Iterable[tuple[Iterable[tuple[Expr, int]], int]]) -> bool:
    return all(c >= 0 and all(is_nonnegative(g) for g, _ in powers) for powers, c in terms)


@functools.lru_cache(maxsize=1 << 16)
def is_nonnegative(e: Expr) -> bool:
    """Is it proved that an expanded expression is at least 0?"""
    if isinstance(e, _MAX):
        return any(map(is_nonnegative, e.args))
    if isinstance(e, (*_MIN, torch_functions.FloorDiv)):
        return all(map(is_nonnegative, e.args))
    if isinstance(e, torch_functions.PythonMod):
        return is_nonnegative(e.args[1])
    if isinstance(e, sympy.Symbol | sympy.Integer):
        return bool(e.is_nonnegative)
    terms = terms_of(e if is_expanded(e) else sympy.expand(e))
    return bool(e.is_nonnegative) if terms is None else never_negative(terms)


def _lower_bounds(terms: Terms) -> list[Expr]:
    """Polynomials that are at most a positive multiple of the value, in which other expressions
    stand for one generator: of a negative term, else of a positive one; empty for want of one."""
    for term in sorted(terms, key=lambda term: term[1] >= 0):
        powers, coefficient = term
        for g, exponent in powers:
            times, bounds = _bounds(g, coefficient)
            others = tuple(power for power in powers if power[0] is not g)
            if exponent == 1 and bounds and all(is_nonnegative(o) for o, _ in others):
                rest = _written((own, times * c) for own, c in terms if own is not powers)
                factor = _written([(others, coefficient)])
                return [sympy.expand(rest + factor * bound) for bound in bounds]
    return []


def _bounds(g: Expr, coefficient: int) -> tuple[int, tuple[Expr, ...]]:
    """A positive number and expressions: coefficient * g * number is at least coefficient times
    each of them."""
    if isinstance(g, _MAX if coefficient > 0 else _MIN):
        return 1, g.args
    if coefficient > 0 or not isinstance(g, torch_functions.FloorDiv):
        return 1, ()
    over, under = g.args
    return (int(under), (over,)) if isinstance(under, sympy.Integer) and under > 0 else (1, ())


def _written(terms: Iterable[tuple[Iterable[tuple[Expr, int]], int]]) -> Expr:
    return sympy.Add(*(sympy.Mul(c, *(g**e for g, e in powers)) for powers, c in terms))

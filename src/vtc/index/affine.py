"""Quasi-affine integer expressions: the fast form in which index maps are computed.

An ``Affine`` is ``const + sum(coefficient * atom)``; an atom is an output coordinate (its number),
a floor division, a modulo, or a runtime lookup, whose arguments are ``Affine`` again.
Coefficients are sizes, so an expression stays in integer dictionaries while shapes are concrete.
Functions that take ``bounds`` simplify under them: ``bounds[k]`` is the closed interval of
coordinate k. The rules are those of isl's and tinygrad's quasi-affine simplifiers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy

from vtc.index import sizes
from vtc.index.sizes import NotRepresentable, Size

Interval: TypeAlias = tuple[Size | None, Size | None]
Bounds: TypeAlias = Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Div:
    """arg // by, by positive."""

    arg: Affine
    by: Size


@dataclass(frozen=True, slots=True)
class Rem:
    """arg % by, by positive, result in [0, by)."""

    arg: Affine
    by: Size


@dataclass(frozen=True, slots=True)
class Look:
    """Element ``args`` of the runtime index tensor number ``tensor``."""

    tensor: int
    args: tuple[Affine, ...]


Atom: TypeAlias = int | Div | Rem | Look


class Affine:
    """An immutable quasi-affine expression; ``+ - * // %`` build simplified ones."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, const: Size, terms: Mapping[Atom, Size]) -> None:
        self.const = const
        self.terms = terms
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Affine):
            return NotImplemented
        return self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.const, frozenset(self.terms.items())))
        return self._hash

    def __add__(self, other: Affine | Size) -> Affine:
        return add(self, as_affine(other))

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return scale(self, -1)

    def __sub__(self, other: Affine | Size) -> Affine:
        return add(self, scale(as_affine(other), -1))

    def __rsub__(self, other: Size) -> Affine:
        return add(constant(other), scale(self, -1))

    def __mul__(self, factor: Size) -> Affine:
        return scale(self, sizes.as_size(factor))

    __rmul__ = __mul__

    def __floordiv__(self, by: Size) -> Affine:
        return floor_div(self, sizes.as_size(by), ())

    def __mod__(self, by: Size) -> Affine:
        return modulo(self, sizes.as_size(by), ())

    def __repr__(self) -> str:
        return text(self)


def constant(value: Size) -> Affine:
    """The expression that is one size."""
    return Affine(sizes.as_size(value), {})


def as_affine(value: Affine | Size) -> Affine:
    """value, wrapped if it is a size."""
    return value if isinstance(value, Affine) else constant(value)


def coordinate(k: int) -> Affine:
    """Output coordinate k."""
    return Affine(0, {k: 1})


def add(a: Affine, b: Affine) -> Affine:
    """a + b, without recombination of divisions."""
    if not b.terms:
        return a if b.const == 0 else Affine(sizes.add(a.const, b.const), a.terms)
    terms = dict(a.terms)
    for atom, coefficient in b.terms.items():
        if atom in terms:
            total = sizes.add(terms[atom], coefficient)
            if total == 0:
                del terms[atom]
            else:
                terms[atom] = total
        else:
            terms[atom] = coefficient
    return Affine(sizes.add(a.const, b.const), terms)


def scale(a: Affine, factor: Size) -> Affine:
    """a * factor."""
    if factor == 1:
        return a
    if factor == 0:
        return constant(0)
    return Affine(sizes.mul(a.const, factor), {t: sizes.mul(c, factor) for t, c in a.terms.items()})


def multiply(a: Affine, b: Affine) -> Affine:
    """a * b where one of them is a size; raises NotRepresentable otherwise."""
    if not b.terms:
        return scale(a, b.const)
    if not a.terms:
        return scale(b, a.const)
    raise NotRepresentable(f"a product of two coordinates is no index expression: {a} * {b}")


def coordinates(a: Affine) -> set[int]:
    """The numbers of the coordinates that a depends on."""
    found: set[int] = set()
    _collect(a, found, set())
    return found


def lookups(a: Affine) -> set[int]:
    """The numbers of the runtime index tensors that a reads."""
    found: set[int] = set()
    _collect(a, set(), found)
    return found


def _collect(a: Affine, coords: set[int], tensors: set[int]) -> None:
    for atom in a.terms:
        if isinstance(atom, int):
            coords.add(atom)
        elif isinstance(atom, Look):
            tensors.add(atom.tensor)
            for arg in atom.args:
                _collect(arg, coords, tensors)
        else:
            _collect(atom.arg, coords, tensors)


def wrapped_lookup(form: Affine, size: Size) -> Affine:
    """A bare runtime index with its wrap made explicit: it may count from the end."""
    if len(form.terms) == 1 and form.const == 0:
        ((atom, coefficient),) = form.terms.items()
        if isinstance(atom, Look) and coefficient == 1 and size != 0:
            return Affine(0, {Rem(form, size): 1}) if size != 1 else constant(0)
    return form


def interval(a: Affine, bounds: Bounds) -> Interval:
    """Closed interval that holds every value of a; None for an unknown end."""
    low: Size | None = a.const
    high: Size | None = a.const
    for atom, coefficient in a.terms.items():
        first, last = _atom_interval(atom, bounds)
        if type(coefficient) is int:
            positive = coefficient > 0
        elif sizes.nonnegative(coefficient):
            positive = True
        elif sizes.nonnegative(sizes.mul(coefficient, -1)):
            positive = False
        else:
            return None, None
        if not positive:
            first, last = last, first
        low = _advance(low, coefficient, first)
        high = _advance(high, coefficient, last)
        if low is None and high is None:
            return None, None
    return low, high


def _advance(end: Size | None, coefficient: Size, value: Size | None) -> Size | None:
    """end + coefficient * value, unknown if either is."""
    if end is None or value is None:
        return None
    return sizes.add(end, sizes.mul(coefficient, value))


def _atom_interval(atom: Atom, bounds: Bounds) -> Interval:
    if isinstance(atom, int):
        return bounds[atom] if atom < len(bounds) else (0, None)
    if isinstance(atom, Look):
        return None, None
    if isinstance(atom, Rem):
        return 0, sizes.sub(atom.by, 1)
    low, high = interval(atom.arg, bounds)
    return (
        None if low is None else sizes.floor_div(low, atom.by),
        None if high is None else sizes.floor_div(high, atom.by),
    )


def _within(a: Affine, by: Size, bounds: Bounds) -> Size | None:
    """k if every value of a lies in [k * by, (k + 1) * by), else None."""
    low, high = interval(a, bounds)
    if low is None or high is None:
        return None
    if type(low) is int and type(high) is int and type(by) is int:
        quotient: Size = low // by
        return quotient if quotient == high // by else None
    quotient = sizes.floor_div(low, by)
    return quotient if quotient == sizes.floor_div(high, by) else None


def _reduce(a: Affine, by: Size) -> tuple[Affine, Affine]:
    """(q, r) with a = q * by + r: q takes the terms that by divides, r.const is in [0, by).

    Other coefficients stay whole, although 64 x + y = x + y (mod 3): reduced, they would no longer
    recombine when x = z // 64 and y = z % 64 are put in.
    """
    whole: dict[Atom, Size] = {}
    rest: dict[Atom, Size] = {}
    for atom, coefficient in a.terms.items():
        quotient, left = sizes.split(coefficient, by)
        if quotient != 0:
            whole[atom] = quotient
        if left != 0:
            rest[atom] = left
    quotient = sizes.floor_div(a.const, by)
    if isinstance(quotient, sympy.Expr) and quotient.has(sizes.FloorDiv):
        quotient, left = 0, a.const
    else:
        left = sizes.sub(a.const, sizes.mul(quotient, by))
    return Affine(quotient, whole), Affine(left, rest)


def _decided(rest: Affine, by: Size, bounds: Bounds) -> tuple[Affine, Affine] | None:
    """(rest // by, rest % by) where bounds decide the quotient up to multiples of coordinates."""
    quotient = _within(rest, by, bounds)
    if quotient is not None:
        return constant(quotient), add(rest, constant(sizes.mul(quotient, sizes.mul(-1, by))))
    large = {
        atom: (c // by if c > 0 else -(-c // by))
        for atom, c in rest.terms.items()
        if type(c) is int and type(by) is int and abs(c) > by
    }
    if not large:
        return None
    whole = Affine(0, large)
    small = add(rest, scale(whole, sizes.mul(-1, by)))
    quotient = _within(small, by, bounds)
    if quotient is None:
        return None
    return (
        add(whole, constant(quotient)),
        add(small, constant(sizes.mul(quotient, sizes.mul(-1, by)))),
    )


def _factored(a: Affine, by: Size, bounds: Bounds) -> tuple[Size, Affine, Affine] | None:
    """(g, x, r) with a = g * x + r, g > 1 a divisor of by and r in [0, g), or None."""
    for candidate in {sizes.common_factor(c, by) for c in a.terms.values()}:
        if candidate == 1:
            continue
        scaled: dict[Atom, Size] = {}
        rest: dict[Atom, Size] = {}
        for atom, coefficient in a.terms.items():
            exact = sizes.exact_div(coefficient, candidate)
            if exact is None:
                rest[atom] = coefficient
            else:
                scaled[atom] = exact
        quotient = sizes.floor_div(a.const, candidate)
        left = Affine(sizes.sub(a.const, sizes.mul(quotient, candidate)), rest)
        if _within(left, candidate, bounds) == 0:
            return candidate, Affine(quotient, scaled), left
    return None


def floor_div(a: Affine, by: Size, bounds: Bounds) -> Affine:
    """a // by under bounds, by a positive size."""
    if by == 1:
        return a
    _check_divisor(by)
    return _floor_div(a, by, tuple(bounds))


# The same quotients are asked for over and over while maps are composed.
@functools.lru_cache(maxsize=1 << 16)
def _floor_div(a: Affine, by: Size, bounds: Bounds) -> Affine:
    whole, rest = _reduce(a, by)
    decided = _decided(rest, by, bounds)
    if decided is not None:
        return add(whole, decided[0])
    factored = _factored(rest, by, bounds)
    if factored is not None:
        # (g x + r) // (g d) = x // d for 0 <= r < g
        factor, inner, _ = factored
        exact = sizes.exact_div(by, factor)
        if exact is not None:
            return add(whole, floor_div(inner, exact, bounds))
    for atom, coefficient in rest.terms.items():
        if isinstance(atom, Div) and coefficient == 1:
            # (x // b + y) // d = (x + b y) // (b d)
            others = Affine(rest.const, {t: c for t, c in rest.terms.items() if t is not atom})
            inner = recombine(add(atom.arg, scale(others, atom.by)), bounds)
            return add(whole, floor_div(inner, sizes.mul(atom.by, by), bounds))
        if isinstance(atom, Rem) and coefficient == 1 and len(rest.terms) == 1 and rest.const == 0:
            # (x % (d m)) // d = (x // d) % m
            exact = sizes.exact_div(atom.by, by)
            if exact is not None:
                return add(whole, modulo(floor_div(atom.arg, by, bounds), exact, bounds))
    return add(whole, Affine(0, {Div(rest, by): 1}))


def modulo(a: Affine, by: Size, bounds: Bounds) -> Affine:
    """a % by under bounds, by a positive size."""
    if by == 1:
        return constant(0)
    _check_divisor(by)
    return _modulo(a, by, tuple(bounds))


@functools.lru_cache(maxsize=1 << 16)
def _modulo(a: Affine, by: Size, bounds: Bounds) -> Affine:
    _, rest = _reduce(a, by)
    decided = _decided(rest, by, bounds)
    if decided is not None:
        return decided[1]
    for atom, coefficient in rest.terms.items():
        if not isinstance(atom, Rem):
            continue
        if sizes.exact_div(sizes.mul(coefficient, atom.by), by) is not None:
            # (c (x % m) + y) % d = (c x + y) % d where d divides c m
            others = Affine(rest.const, {t: c for t, c in rest.terms.items() if t is not atom})
            return modulo(recombine(add(others, scale(atom.arg, coefficient)), bounds), by, bounds)
    factored = _factored(rest, by, bounds)
    if factored is not None:
        # (g x + r) % (g d) = g (x % d) + r for 0 <= r < g
        factor, inner, left = factored
        exact = sizes.exact_div(by, factor)
        if exact is not None:
            return recombine(add(scale(modulo(inner, exact, bounds), factor), left), bounds)
    return Affine(0, {Rem(rest, by): 1})


def _check_divisor(by: Size) -> None:
    if type(by) is int:
        if by == 0:
            raise ZeroDivisionError("division by zero in an index expression")
        if by < 0:
            raise NotRepresentable(f"division by a negative size: {by}")


def recombine(a: Affine, bounds: Bounds) -> Affine:
    """Undo splits: m * (x // m) + x % m = x, and m * ((x // m) % n) + x % m = x % (m n)."""
    changed = True
    while changed:
        changed = False
        for atom, coefficient in a.terms.items():
            if not isinstance(atom, Rem):
                continue
            merged = _merged(a, atom, coefficient, bounds)
            if merged is not None:
                a, changed = merged, True
                break
    return a


def _merged(a: Affine, atom: Rem, coefficient: Size, bounds: Bounds) -> Affine | None:
    quotient = floor_div(atom.arg, atom.by, bounds)
    outer = sizes.mul(coefficient, atom.by)
    divisions = [(t, c) for t, c in quotient.terms.items() if not isinstance(t, int)]
    if divisions and all(a.terms.get(t) == sizes.mul(outer, c) for t, c in divisions):
        without = add(a, Affine(0, {atom: sizes.mul(-1, coefficient)}))
        without = add(without, scale(quotient, sizes.mul(-1, outer)))
        return add(without, scale(atom.arg, coefficient))
    for other, scaled in a.terms.items():
        if not isinstance(other, Rem) or scaled != outer:
            continue
        if divisions and all(other.arg.terms.get(t) == c for t, c in divisions):
            # m ((w + x // m) % n) + x % m = (m w + x) % (m n)
            terms = {t: c for t, c in a.terms.items() if t is not atom and t is not other}
            whole = add(other.arg, scale(quotient, -1))
            inner = recombine(add(scale(whole, atom.by), atom.arg), bounds)
            joined = modulo(inner, sizes.mul(atom.by, other.by), bounds)
            return add(Affine(a.const, terms), scale(joined, coefficient))
    return None


def text(a: Affine, names: Callable[[int], str] = "i{}".format) -> str:
    """Readable text: ``4*i0 + i1//3``; coordinates come first, in order."""
    parts: list[str] = []
    for atom, coefficient in sorted(a.terms.items(), key=_order):
        body = _atom_text(atom, names)
        if coefficient == 1:
            parts.append(body)
        elif coefficient == -1:
            parts.append(f"-{body}")
        else:
            factor = str(coefficient) if type(coefficient) is int else _wrapped(str(coefficient))
            parts.append(f"{factor}*{body}")
    if a.const != 0 or not parts:
        parts.append(str(a.const))
    return " + ".join(parts).replace("+ -", "- ")


def _order(item: tuple[Atom, Size]) -> tuple[int, int, str]:
    atom, coefficient = item
    if isinstance(atom, int):
        return 0, atom, ""
    return 1, 0, f"{_atom_text(atom, 'i{}'.format)} {coefficient}"


def _wrapped(body: str) -> str:
    return f"({body})" if any(mark in body for mark in " */%") else body


def _atom_text(atom: Atom, names: Callable[[int], str]) -> str:
    if isinstance(atom, int):
        return names(atom)
    if isinstance(atom, Look):
        return f"lookup{atom.tensor}[{', '.join(text(x, names) for x in atom.args)}]"
    sign = "//" if isinstance(atom, Div) else "%"
    body = text(atom.arg, names)
    if list(atom.arg.terms.values()) != [1] or atom.arg.const != 0:
        body = f"({body})"
    return f"({body}{sign}{_wrapped(str(atom.by))})"

"""Arithmetic on sizes: plain ints where a size is known, sympy expressions where it is symbolic.

Every result is normal: an ``int`` when it is a number, an expanded expression otherwise. Size
symbols are positive integers (the symbols of torch's ``ShapeEnv`` are), which is all that
``nonnegative`` uses; a comparison that cannot be proved from it answers False, never a guess.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy import functions as torch_functions

from vtc.index import polynomial

Expr: TypeAlias = sympy.Expr
Size: TypeAlias = int | Expr


class FloorDiv(torch_functions.FloorDiv):
    """``a // b`` rounded to minus infinity, printed by torch's printers as its own class is.

    torch's class tries polynomial division whenever one is built (milliseconds); this one only
    folds numbers, since ``vtc.index`` simplifies by bounds instead.
    """

    @classmethod
    def eval(cls, base: Expr, divisor: Expr) -> Expr | None:
        """Fold numbers and division by one."""
        if divisor.is_zero:
            raise ZeroDivisionError("division by zero in an index expression")
        if divisor == 1 or base.is_zero:
            return base
        if isinstance(base, sympy.Integer) and isinstance(divisor, sympy.Integer):
            return sympy.Integer(int(base) // int(divisor))
        return None


class Mod(torch_functions.PythonMod):
    """``a % b`` with the sign of b, as in Python; folds numbers only (see FloorDiv)."""

    @classmethod
    def eval(cls, base: Expr, divisor: Expr) -> Expr | None:
        """Fold numbers and modulo one."""
        if divisor.is_zero:
            raise ZeroDivisionError("modulo by zero in an index expression")
        if divisor == 1 or base.is_zero:
            return sympy.S.Zero
        if isinstance(base, sympy.Integer) and isinstance(divisor, sympy.Integer):
            return sympy.Integer(int(base) % int(divisor))
        return None

    def _sympystr(self, printer: Any) -> str:
        left, right = (printer.parenthesize(x, 1000) for x in self.args)
        return f"({left} % {right})"


_INTEGER_PARTS = (
    torch_functions.TruncToInt, torch_functions.FloorToInt, torch_functions.CeilToInt,
)  # fmt: skip
SIZE_BITS = 31
"""A size of which a real number is computed has fewer bits."""

# What polynomial arithmetic takes as a symbol of its own.
_OPAQUE = (
    torch_functions.FloorDiv, torch_functions.PythonMod,
    torch_functions.Max, torch_functions.Min, sympy.Max, sympy.Min,
)  # fmt: skip


class NotRepresentable(ValueError):  # noqa: N818 - a fact about the answer, not a failure
    """The result of an operation on index maps is not a small set of boxes, or is not provable."""


def as_size(value: Any) -> Size:
    """An int, a sympy expression or a ``torch.SymInt`` as a normal size."""
    if type(value) is int:
        return value
    if type(value) is torch.SymInt and isinstance(value.node.expr, sympy.Expr):
        return _expand(value.node.expr)
    if isinstance(value, sympy.Integer):
        return int(value)
    if isinstance(value, sympy.Expr):
        return _expand(value)
    node = getattr(value, "node", None)
    if node is not None and isinstance(node.expr, sympy.Expr):
        return as_size(node.expr)
    return int(value)


@functools.lru_cache(maxsize=1 << 16)
def _expand(value: Expr) -> Size:
    value = _of_integers(value)
    return _normal(value if polynomial.is_expanded(value) else sympy.expand(value))


def _of_integers(value: Expr) -> Expr:
    """The expression with integer parts of real numbers as divisions, where they are exact.

    CeilToInt(IntTrueDiv(s, 2))     ->  -((-s)//2)
    TruncToInt(1.5*ToFloat(s))      ->  (3*s)//2
    TruncToInt(1.5*ToFloat(s - 4))  ->  Max(0, (3*s - 12)//2) - Max(0, (12 - 3*s)//2)
    """
    if not value.has(*_INTEGER_PARTS):
        return value
    return value.replace(lambda part: isinstance(part, _INTEGER_PARTS), _divided)


def _divided(part: Expr) -> Expr:
    """An integer part as a division; as it is where its argument is no fraction of sizes."""
    fraction = _fraction(part.args[0])
    if fraction is None:
        return part
    over, under = fraction
    down = FloorDiv(over, under)
    if isinstance(part, torch_functions.FloorToInt):
        return down
    back = FloorDiv(-over, under)
    if isinstance(part, torch_functions.CeilToInt):
        return -back
    if nonnegative(over) and nonnegative(under):
        return down
    return torch_functions.Max(down, 0) - torch_functions.Max(back, 0)


def _fraction(number: Expr) -> tuple[Expr, Expr] | None:
    """Numerator and denominator that give the integer parts of `number`, a double; None where there
    are none. A quotient of sizes that is no integer is further from one than it can be rounded."""
    if isinstance(number, torch_functions.IntTrueDiv):
        return number.args
    factors = sympy.Mul.make_args(number)
    numbers = [f for f in factors if isinstance(f, sympy.Float)]
    floats = [f for f in factors if isinstance(f, torch_functions.ToFloat)]
    if len(floats) != 1 or len(numbers) + 1 != len(factors) or len(numbers) > 1:
        return None
    (size,) = floats[0].args
    over, under = float(numbers[0] if numbers else 1).as_integer_ratio()
    return (over * size, sympy.Integer(under)) if 0 <= over < 1 << 53 - SIZE_BITS else None


def _key(value: Any) -> Size:
    """A size that can be hashed: a ``torch.SymInt`` cannot."""
    return value if isinstance(value, int | sympy.Expr) else as_size(value)


def add(a: Size, b: Size) -> Size:
    """a + b."""
    if type(a) is int and type(b) is int:
        return a + b
    return _add(_key(a), _key(b))


def _normal(value: Size) -> Size:
    """An expanded expression as a normal size."""
    return int(value) if isinstance(value, sympy.Integer) else value


@functools.lru_cache(maxsize=1 << 16)
def _add(a: Size, b: Size) -> Size:
    return _normal(as_size(a) + as_size(b))


def sub(a: Size, b: Size) -> Size:
    """a - b."""
    if type(a) is int and type(b) is int:
        return a - b
    return _sub(_key(a), _key(b))


@functools.lru_cache(maxsize=1 << 16)
def _sub(a: Size, b: Size) -> Size:
    return _normal(as_size(a) - as_size(b))


def mul(a: Size, b: Size) -> Size:
    """a * b."""
    if type(a) is int and type(b) is int:
        return a * b
    return _mul(_key(a), _key(b))


@functools.lru_cache(maxsize=1 << 16)
def _mul(a: Size, b: Size) -> Size:
    return _normal(polynomial.product(*map(sympy.sympify, map(as_size, (a, b)))))


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes; 1 for none."""
    result: Size = 1
    for size in sizes:
        result = mul(result, size)
    return result


def nonnegative(a: Size) -> bool:
    """True if a >= 0 for every positive value of its symbols is proved."""
    return a >= 0 if type(a) is int else _nonnegative(a)


@functools.lru_cache(maxsize=1 << 16)
def _nonnegative(a: Expr) -> bool:
    # sympy knows some more of what is no polynomial.
    return polynomial.is_nonnegative(a) or bool(a.is_nonnegative)


def le(a: Size, b: Size) -> bool:
    """True if a <= b is proved."""
    if type(a) is int and type(b) is int:
        return a <= b
    return nonnegative(sub(b, a))


def lt(a: Size, b: Size) -> bool:
    """True if a < b is proved."""
    if type(a) is int and type(b) is int:
        return a < b
    return nonnegative(sub(sub(b, a), 1))


def minimum(a: Size, b: Size) -> Size:
    """The smaller size; raises NotRepresentable where neither order is proved."""
    if le(a, b):
        return a
    if le(b, a):
        return b
    raise NotRepresentable(f"cannot order the sizes {a} and {b}")


def maximum(a: Size, b: Size) -> Size:
    """The larger size; raises NotRepresentable where neither order is proved."""
    return b if minimum(a, b) is a else a


def sign(a: Size) -> Size:
    """1 if a > 0, 0 if a is 0, for a >= 0: also where a symbol that counts as positive is 0."""
    return floor_div(mul(a, 2), add(a, 1))


def exact_div(a: Size, b: Size) -> Size | None:
    """a / b where b divides a for all values of the symbols, else None. b is not zero."""
    if type(a) is int and type(b) is int:
        return None if a % b else a // b
    if b == 1:
        return a
    return _exact_div(sympy.sympify(a), sympy.sympify(b))


@functools.lru_cache(maxsize=1 << 16)
def _exact_div(a: Expr, b: Expr) -> Size | None:
    one, other = polynomial.terms_of(a), polynomial.terms_of(b)
    if one is not None and other is not None:
        if _remains(one, other):
            return None
        quotient = polynomial.quotient(one, other)
        return None if quotient is None else _normal(quotient)
    # A quotient of symbols is a symbol of its own here: what divides for any value of it, divides.
    opaque = a.atoms(*_OPAQUE) | b.atoms(*_OPAQUE)
    if opaque:
        hidden = {f: sympy.Dummy(integer=True) for f in opaque}
        shown = {dummy: f for f, dummy in hidden.items()}
        found = _exact_div(a.xreplace(hidden), b.xreplace(hidden))
        return as_size(found.xreplace(shown)) if isinstance(found, sympy.Expr) else found
    if _indivisible(a, b):
        return None
    ratio = sympy.cancel(a / b)
    if not ratio.is_polynomial(*ratio.free_symbols):
        return None
    ratio = sympy.expand(ratio)
    for term in sympy.Add.make_args(ratio):
        if not term.as_coeff_Mul()[0].is_Integer:
            return None
    return as_size(ratio)


def _indivisible(a: Expr, b: Expr) -> bool:
    """Is there a remainder for some numbers? It is asked first, for polynomial division is slow."""
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    point = {s: sympy.Integer(101 + 6 * k) for k, s in enumerate(symbols)}
    left, right = a.xreplace(point), b.xreplace(point)
    whole = isinstance(left, sympy.Integer) and isinstance(right, sympy.Integer)
    return bool(whole and right != 0 and int(left) % int(right))


def _remains(a: polynomial.Terms, b: polynomial.Terms) -> bool:
    """Is there a remainder for some numbers? It is asked first: most sizes do not divide."""
    numbers: dict[Expr, int] = {}

    def number(generator: Expr) -> int:
        return numbers.setdefault(generator, 101 + 6 * len(numbers))

    divisor = polynomial.at(b, number)
    return divisor != 0 and polynomial.at(a, number) % divisor != 0


def split(a: Size, b: Size) -> tuple[Size, Size]:
    """(q, r) with a = q * b + r, where r is the terms of a that b does not divide."""
    if type(a) is int and type(b) is int:
        return (0, a) if a % b else (a // b, 0)
    return _split(_key(a), _key(b))


@functools.lru_cache(maxsize=1 << 16)
def _split(a: Size, b: Size) -> tuple[Size, Size]:
    whole = exact_div(a, b)
    if whole is not None:  # where b has several terms, those of a are not divided one by one
        return whole, 0
    quotient: Size = 0
    rest: Size = 0
    for term in sympy.Add.make_args(sympy.sympify(a)):
        exact = exact_div(as_size(term), b)
        if exact is None:
            rest = add(rest, as_size(term))
        else:
            quotient = add(quotient, exact)
    return quotient, rest


def floor_div(a: Size, b: Size) -> Size:
    """a // b, b positive; opaque (a FloorDiv) where the symbols do not divide."""
    if type(a) is int and type(b) is int:
        return a // b
    return _floor_div(_key(a), _key(b))


@functools.lru_cache(maxsize=1 << 16)
def _floor_div(a: Size, b: Size) -> Size:
    exact, rest = split(a, b)
    if type(rest) is int and type(b) is int:
        return add(exact, rest // b)
    if nonnegative(rest) and lt(rest, b):
        return exact
    if le(rest, -1) and nonnegative(add(rest, b)):
        return sub(exact, 1)
    return add(exact, FloorDiv(sympy.sympify(rest), sympy.sympify(b)))


def ceil_div(a: Size, b: Size) -> Size:
    """-(-a // b), b positive."""
    return mul(-1, floor_div(mul(-1, a), b))


def common_factor(a: Size, b: Size) -> Size:
    """A common divisor of a and b, positive; the greatest one for numbers."""
    if type(a) is int and type(b) is int:
        return math.gcd(a, b)
    return _common_factor(sympy.sympify(a), sympy.sympify(b))


@functools.lru_cache(maxsize=1 << 16)
def _common_factor(a: Expr, b: Expr) -> Size:
    try:
        factor = as_size(sympy.gcd(a, b))
    except sympy.PolynomialError:
        return 1
    if nonnegative(factor):
        return factor
    negated = mul(-1, factor)
    return negated if nonnegative(negated) else 1


def integer_content(a: Size) -> int:
    """The greatest integer that divides a for all values of its symbols; 0 for 0."""
    if type(a) is int:
        return abs(a)
    return math.gcd(*(abs(int(t.as_coeff_Mul()[0])) for t in sympy.Add.make_args(a)))

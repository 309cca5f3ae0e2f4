"""Sizes computed as polynomials are what sympy makes of them."""

from __future__ import annotations

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Max, Min

from vtc.index import polynomial, sizes
from vtc.index.sizes import Size

X, Y, Z = sympy.symbols("x y z", integer=True, positive=True)
W = sympy.Symbol("w", integer=True)
GENERATORS = (X, Y, Z, W, sizes.FloorDiv(X + 3, sympy.Integer(2)), sizes.Mod(Y, X + 1))
LARGER = Max(0, X - Y)
BOUNDED = (
    *(X, Y, W, LARGER, Max(W, 2), Max(-3, 2 - X), Min(X, Y), Min(W, X - 4)),
    *(sizes.FloorDiv(X, sympy.Integer(2)), sizes.FloorDiv(LARGER, sympy.Integer(3))),
    *(sizes.FloorDiv(W, sympy.Integer(4)), sizes.FloorDiv(X, Y), sizes.Mod(W, sympy.Integer(3))),
)


@st.composite
def polynomials(draw: st.DrawFn, generators: tuple[sympy.Expr, ...] = GENERATORS) -> sympy.Expr:
    total = sympy.Integer(draw(st.integers(-4, 4)))
    for _ in range(draw(st.integers(0, 3))):
        powers = draw(st.lists(st.sampled_from(generators), min_size=1, max_size=3))
        total += draw(st.integers(-6, 6)) * sympy.Mul(*powers)
    return total


def size(e: sympy.Expr) -> Size:
    return int(e) if isinstance(e, sympy.Integer) else e


@given(polynomials(), polynomials())
@settings(max_examples=300, deadline=None)
def test_arithmetic_is_that_of_expanded_expressions(a: sympy.Expr, b: sympy.Expr) -> None:
    assert sizes.mul(a, b) == size(sympy.expand(a * b))
    assert sizes.add(a, b) == size(sympy.expand(a + b))
    assert sizes.sub(a, b) == size(sympy.expand(a - b))
    assert sizes.as_size((a + 1) * (b - 2)) == size(sympy.expand((a + 1) * (b - 2)))


@given(polynomials(), polynomials())
@settings(max_examples=300, deadline=None)
def test_what_was_multiplied_divides(a: sympy.Expr, b: sympy.Expr) -> None:
    if b != 0:
        assert sizes.exact_div(sizes.mul(a, b), size(b)) == size(a)


@given(polynomials((X, Y, W)), polynomials((X, Y, W)))
@settings(max_examples=300, deadline=None)
def test_what_divides_is_what_sympy_cancels_to_integers(a: sympy.Expr, b: sympy.Expr) -> None:
    if b == 0:
        return
    ratio = sympy.expand(sympy.cancel(a / b))
    whole = ratio.is_polynomial(*ratio.free_symbols) and all(
        term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(ratio)
    )
    assert sizes.exact_div(size(a), size(b)) == (size(ratio) if whole else None)


@given(
    st.one_of(polynomials(), polynomials(BOUNDED)),
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
    st.integers(-9, 9),
)
@settings(max_examples=1000, deadline=None)
def test_what_is_never_negative_is_not(a: sympy.Expr, positive: list[int], other: int) -> None:
    if sizes.nonnegative(size(a)):
        values = dict(zip((X, Y, Z), positive, strict=True)) | {W: other}
        assert a.xreplace({s: sympy.Integer(v) for s, v in values.items()}) >= 0


def test_positive_symbols_are_at_least_one() -> None:
    assert sizes.nonnegative(X * Y - X)
    assert sizes.nonnegative(X**2 + 2 * X - 3)
    assert not sizes.nonnegative(X * Y - 2)
    assert not sizes.nonnegative(W * W - 1)
    assert sizes.lt(0, X * Y)


def test_bounds_of_quotients_and_extremes_are_known() -> None:
    padding = Max(0, X - Y)
    assert sizes.nonnegative(padding - sizes.FloorDiv(padding, sympy.Integer(2)))
    assert sizes.nonnegative(Y * padding - Y * sizes.FloorDiv(padding, sympy.Integer(2)))
    assert sizes.le(Min(X, Y), X)
    assert sizes.le(W, Max(W, Y))
    assert not sizes.le(X, Min(X, Y))
    assert not sizes.nonnegative(Min(X - 5, Y))
    assert not sizes.nonnegative(Max(-7, 5 - X))


def test_what_is_no_polynomial_is_left_to_sympy() -> None:
    assert polynomial.terms_of(sympy.Abs(W) + 1) is None
    assert polynomial.terms_of(X / 2) is None
    assert polynomial.terms_of(X * (Y + 1)) is None
    assert polynomial.terms_of(2**X) is None
    assert sizes.mul(Max(X, Y), 2) == 2 * Max(X, Y)
    assert sizes.exact_div(2 * X * Max(X, Y), X) == 2 * Max(X, Y)


def test_expressions_in_quotients_are_expanded_too() -> None:
    written = FloorDiv(X * (Y + 1), sympy.Integer(7))
    assert not polynomial.is_expanded(written)
    assert sizes.as_size(written + 1) == sympy.expand(written + 1)

"""Simplification keeps every value and every bound, and reaches the printed normal form."""

import functools
from collections.abc import Mapping, Sequence

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Symbol
from torch import Tensor
from torch.utils._sympy import functions as torch_functions

from vtc.index import (
    FloorDiv,
    Lookup,
    Mod,
    NotRepresentable,
    affine,
    coords,
    simplify,
    sizes,
    substitution,
)
from vtc.index.affine import Affine
from vtc.index.expr import from_affine, to_affine
from vtc.index.materialize import evaluate, grids

i0, i1, i2 = coords(3)
UPPER = {i0: 6, i1: 4, i2: 5}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> sympy.Expr:
    """Random nested quasi-affine expressions, negative coefficients and offsets included."""
    total = sympy.Integer(draw(st.integers(-9, 9)))
    for _ in range(draw(st.integers(1, 3))):
        factor = draw(st.sampled_from((1, 1, -1, 2, 3, 4, 6, -4, 12)))
        kind = draw(st.sampled_from(("c", "//", "%"))) if depth else "c"
        if kind == "c":
            body = draw(st.sampled_from((i0, i1, i2)))
        else:
            by = draw(st.sampled_from((1, 2, 3, 4, 5, 6, 8, 12)))
            inner = draw(expressions(depth - 1))
            body = (FloorDiv if kind == "//" else Mod)(inner, sympy.Integer(by))
        total = total + factor * body
    return total


def value(e: sympy.Expr, at: Mapping[sympy.Symbol, Tensor]) -> Tensor:
    """Plain integer arithmetic of torch, independent of the algebra under test."""
    if isinstance(e, sympy.Integer):
        return torch.tensor(int(e))
    if isinstance(e, sympy.Symbol):
        return at[e]
    args = [value(x, at) for x in e.args]
    if isinstance(e, FloorDiv):
        return args[0].div(args[1], rounding_mode="floor")
    if isinstance(e, Mod):
        return args[0].remainder(args[1])
    return functools.reduce(torch.add if isinstance(e, sympy.Add) else torch.mul, args)


def points(lower: Sequence[int], upper: Sequence[int]) -> dict[sympy.Symbol, Tensor]:
    """All points of a box, as coordinates that broadcast."""
    return dict(zip(UPPER, grids(lower, upper), strict=True))


def same(a: Tensor, b: Tensor) -> bool:
    return bool((a == b).all())


@given(expressions(), st.tuples(*(st.integers(1, n) for n in UPPER.values())))
@settings(max_examples=150, deadline=None)
def test_simplify_keeps_values_and_bounds(e: sympy.Expr, upper: tuple[int, ...]) -> None:
    simple = simplify(e, dict(zip(UPPER, upper, strict=True)))
    form = to_affine(simple)
    low, high = affine.interval(form, [(0, n - 1) for n in upper])
    at = points([0, 0, 0], upper)
    expected = value(e, at)
    assert same(value(simple, at), expected)
    assert same(evaluate(form, list(at.values())), expected)
    assert low is not None
    assert high is not None
    assert low <= int(expected.min())
    assert int(expected.max()) <= high


@given(expressions(), st.tuples(*(st.integers(0, 3) for _ in range(3))))
@settings(max_examples=80, deadline=None)
def test_simplify_in_a_box_keeps_the_value(e: sympy.Expr, start: tuple[int, ...]) -> None:
    simple = from_affine(substitution.simplify(to_affine(e), [(a, a + 2) for a in start]))
    at = points(start, [a + 3 for a in start])
    assert same(value(simple, at), value(e, at))


@given(expressions())
@settings(max_examples=50, deadline=None)
def test_sympy_and_affine_forms_convert_both_ways(e: sympy.Expr) -> None:
    once = to_affine(simplify(e, UPPER))
    assert to_affine(from_affine(once)) == once


s0 = Symbol("s0", integer=True, positive=True)


@pytest.mark.parametrize(
    ("e", "upper", "text"),
    [
        (4 * FloorDiv(i0, 4) + Mod(i0, 4), {i0: 100}, "i0"),
        (FloorDiv(20 * i0 + i1, 60), {i0: 6, i1: 20}, "(i0//3)"),
        (Mod(20 * i0 + i1, 60), {i0: 6, i1: 20}, "i1 + 20*(i0%3)"),
        (FloorDiv(FloorDiv(i0, 3), 4), {i0: 100}, "(i0//12)"),
        (Mod(Mod(i0, 12), 4), {i0: 100}, "(i0%4)"),
        (FloorDiv(Mod(i0, 12), 4), {i0: 100}, "((i0//4)%3)"),
        (Mod(i0, 8), {i0: 8}, "i0"),
        (FloorDiv(i0, 8), {i0: 8}, "0"),
        (FloorDiv(i0 + 5, 4), {i0: 100}, "((i0 + 1)//4) + 1"),
        (4 * Mod(FloorDiv(i0, 4), 3) + Mod(i0, 4), {i0: 100}, "(i0%12)"),
        (12 * FloorDiv(i0, 12) + 4 * Mod(FloorDiv(i0, 4), 3) + Mod(i0, 4), {i0: 100}, "i0"),
        (FloorDiv(s0 * i0 + i1, s0), {i0: 4, i1: s0}, "i0"),
        (Mod(s0 * i0 + i1, s0), {i0: 4, i1: s0}, "i1"),
        (s0 * FloorDiv(i0, s0) + Mod(i0, s0), {i0: 4 * s0}, "i0"),
        (Lookup(0, i0) - Lookup(0, i0) + i1, {i0: 4, i1: 4}, "i1"),
    ],
)
def test_normal_forms(e: sympy.Expr, upper: dict[sympy.Symbol, int], text: str) -> None:
    assert affine.text(to_affine(simplify(e, upper))) == text


def test_classes_of_torch_are_read() -> None:
    theirs = torch_functions.FloorDiv(i0, 4) + torch_functions.PythonMod(i0, 4)
    ours = FloorDiv(i0, 4) + Mod(i0, 4)
    assert to_affine(theirs) == to_affine(ours)
    assert to_affine(torch_functions.ModularIndexing(i0, 2, 4)) == to_affine(
        Mod(FloorDiv(i0, 2), 4)
    )


def test_what_is_not_quasi_affine_is_refused() -> None:
    for e in (i0 * i1, FloorDiv(i0, i1), sympy.Max(i0, 3)):
        with pytest.raises(NotRepresentable):
            simplify(e, UPPER)
    with pytest.raises(ZeroDivisionError):
        FloorDiv(i0, 0)


def test_operators_on_affine_agree_with_sympy() -> None:
    a, b = to_affine(i0), to_affine(i1)
    assert ((a * 12 + b) // 4 - b % 3 + 1) == to_affine(FloorDiv(12 * i0 + i1, 4) - Mod(i1, 3) + 1)
    assert (5 - a) == to_affine(5 - i0)
    assert isinstance(2 * a, Affine)


def test_size_comparisons_are_proofs() -> None:
    s1 = Symbol("s1", integer=True, positive=True)
    assert sizes.le(1, s0)
    assert sizes.le(s0, s0 * s1)
    assert sizes.lt(s0 - 1, s0 * s1)
    assert not sizes.le(2, s0)
    assert not sizes.le(s0, s1)
    assert sizes.exact_div(s0 * s1 + s0, s0) == s1 + 1
    assert sizes.exact_div(s0 + 1, s0) is None
    assert sizes.exact_div(3 * s0, 2) is None
    assert sizes.floor_div(4 * s0 - 1, 4) == s0 - 1
    assert sizes.integer_content(6 * s0 + 4 * s1) == 2
    with pytest.raises(NotRepresentable):
        sizes.minimum(s0, s1)


def test_symbolic_floor_division_is_python_division() -> None:
    opaque = sizes.floor_div(s0 + 1, 2)
    assert [int(opaque.subs(s0, n)) for n in range(1, 8)] == [(n + 1) // 2 for n in range(1, 8)]
    x = torch.arange(7)
    assert evaluate(to_affine(FloorDiv(i0 - 5, 3)), [x]).tolist() == [(n - 5) // 3 for n in x]

"""Maps of symbolic shape, put to numbers, equal the maps of those numbers."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Float, Symbol
from torch.utils._sympy import functions

from index.chains import arange
from vtc.index import Expr, IndexMap, NotRepresentable, Piece, affine, axes, sizes
from vtc.index.sizes import FloorDiv
from vtc.index.strided import contiguous_strides

s0, s1 = (Symbol(n, integer=True, positive=True) for n in ("s0", "s1"))
Shape = tuple[int | Expr, ...]

# Reshapes between which a chain may move, each list of one element count.
FORMS: list[list[Shape]] = [
    [(s0, 12), (s0, 3, 4), (12 * s0,), (s0 * 3, 4), (s0, 2, 6), (s0 * 12, 1), (1, s0, 4, 3)],
    [(s0, s1, 4), (s0 * s1, 4), (s0, 4 * s1), (s0, s1, 2, 2), (s0, s1 * 2, 2), (4 * s0 * s1,)],
    [(2, s0, 6), (2 * s0, 6), (2, 6 * s0), (2, s0, 3, 2), (2 * s0, 2, 3), (1, 2, s0, 6)],
]


def at(shape: Shape, numbers: dict[Symbol, int]) -> list[int]:
    return [n if isinstance(n, int) else int(n.subs(numbers)) for n in shape]


@st.composite
def symbolic_chains(
    draw: st.DrawFn,
) -> tuple[Shape, list[tuple[str, IndexMap, tuple[int, ...] | Shape]]]:
    """A source shape and up to five reshapes, permutations, and slices of known dimensions."""
    forms = draw(st.sampled_from(FORMS))
    source = draw(st.sampled_from(forms))
    shape, steps = source, []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("reshape", "permute", "narrow")))
        if kind == "permute":
            dims = tuple(draw(st.permutations(range(len(shape)))))
            steps.append((kind, IndexMap.permute(shape, dims), dims))
            shape = tuple(shape[d] for d in dims)
        elif kind == "reshape":
            options = [f for f in forms if _count(f) == _count(shape)]
            target = draw(st.sampled_from(options)) if options else (_count(shape),)
            steps.append((kind, IndexMap.reshape(shape, target), target))
            shape = target
        else:
            known = [k for k, n in enumerate(shape) if isinstance(n, int) and n > 1]
            if not known:
                continue
            k = draw(st.sampled_from(known))
            index = list(axes(len(shape)))
            index[k] = index[k] + 1
            shape = (*shape[:k], shape[k] - 1, *shape[k + 1 :])
            steps.append((kind, IndexMap.single(shape, index), (k,)))
    return source, steps


def _count(shape: Shape) -> Expr | int:
    total: Expr | int = 1
    for n in shape:
        total = total * n
    return total


@given(symbolic_chains(), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=120, deadline=None)
def test_symbolic_chains_equal_torch_for_numbers(
    case: tuple[Shape, list[tuple[str, IndexMap, Shape]]], n0: int, n1: int
) -> None:
    source, steps = case
    numbers = {s0: n0, s1: n1}
    total = IndexMap.identity(source)
    x = arange(at(source, numbers))
    value = x
    for kind, step, how in steps:
        total = step.compose({0: total})
        if kind == "permute":
            value = value.permute(how)
        elif kind == "reshape":
            value = value.reshape(at(how, numbers))
        else:
            value = value.narrow(how[0], 1, value.shape[how[0]] - 1)
    concrete = total.substitute(numbers)
    assert torch.equal(concrete.materialize([x]), value)
    assert total.covers()
    view = total.strided(contiguous_strides(source))
    if view is not None:
        stride, offset = at(view.stride, numbers), at((view.offset,), numbers)[0]
        assert torch.equal(x.as_strided(at(view.shape, numbers), stride, offset), value)
    inverse = total.inverse(0, source)
    if inverse is not None:
        inverse = inverse.substitute(numbers)
        where = inverse.materialize([arange(value.shape)])
        held = sum(
            torch.Size(b - a for a, b in zip(*box, strict=True)).numel() for box in inverse.domain()
        )
        assert held == value.numel()
        for lower, upper in inverse.domain():
            box = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
            assert torch.equal(value.reshape(-1)[where[box]], x[box])


@given(st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_symbolic_concat_is_two_boxes(n0: int, n1: int) -> None:
    i, j = axes(2)
    joined = IndexMap(
        (s0 + s1, 8),
        (Piece((0, 0), (s0, 8), 0, (i, j)), Piece((s0, 0), (s0 + s1, 8), 1, (i - s0, j))),
    )
    split = IndexMap.reshape((s0 + s1, 8), (s0 + s1, 2, 4)).compose({0: joined})
    assert len(split.pieces) == 2
    a, b = arange((n0, 8)), arange((n1, 8), 1000)
    concrete = split.substitute({s0: n0, s1: n1})
    assert torch.equal(concrete.materialize([a, b]), torch.cat([a, b]).reshape(-1, 2, 4))
    second = joined.inverse(1, (s1, 8))
    assert second is not None
    assert str(second) == "(s1, 8)\n  [i0 in 0:s1, i1 in 0:8] = source0[i0 + s0, i1]"
    rows = joined.restrict((s0, 0), (s0 + s1, 8))
    assert rows == IndexMap.identity((s1, 8), source=1)


def test_symbolic_runs_are_known_divisors() -> None:
    heads = IndexMap.permute((s0, 8, 16), (1, 0, 2))
    assert heads.contiguity((128, 16, 1)).run == 16
    assert heads.classify((128, 16, 1)) == "partial"
    assert IndexMap.identity((s0, 16)).classify((16, 1)) == "I"
    assert IndexMap.permute((s0, 16), (1, 0)).classify((16, 1)) == "II"


def test_what_depends_on_unknown_order_is_refused() -> None:
    i, j = axes(2)
    part = IndexMap((s0, 8), (Piece((0, 0), (s0, 8), 0, (i, j)),))
    with pytest.raises(NotRepresentable):
        part.restrict((0, 0), (s1, 8))
    with pytest.raises(ValueError, match="symbolic"):
        part.materialize([arange((2, 8))])


def test_sizes_that_are_quotients_themselves():
    """The reshapes of a channel shuffle: dividing by c // 2 once failed an assertion."""
    half = FloorDiv(s0, 2)
    split = IndexMap.reshape((2, half * 2, 6), (2, 2, half, 6))
    swapped = split.compose({0: IndexMap.identity((2, half * 2, 6))})
    turned = IndexMap.permute((2, 2, half, 6), (0, 2, 1, 3)).compose({0: swapped})
    joined = IndexMap.reshape((2, half, 2, 6), (2, half * 2, 6)).compose({0: turned})
    for number in (2, 6, 10):
        x = arange((2, number, 6))
        found = joined.substitute({s0: number}).materialize([x])
        shuffled = x.view(2, 2, number // 2, 6).transpose(1, 2).reshape(2, number, 6)
        assert torch.equal(found, shuffled)


def test_a_reshape_leaves_dimensions_at_both_ends_alone() -> None:
    """A channel shuffle's views of an image whose sides are quotients."""
    h, w = FloorDiv(s0 - 1, 8) + 1, FloorDiv(s1 - 1, 8) + 1
    (piece,) = IndexMap.reshape((s0, 6, h, w), (s0, 2, 3, h, w)).pieces
    n, group, each, row, column = axes(5)
    assert piece.forms == (n, group * 3 + each, row, column)
    (piece,) = IndexMap.reshape((s0, 3, 2, h, w), (s0, 6, h, w)).pieces
    n, channel, row, column = axes(4)
    assert piece.forms == (n, channel // 2, channel % 2, row, column)


@pytest.mark.parametrize("size", [s0 + 3, FloorDiv(s0 - 1, 32) + 1, s0 * s1 + 2])
def test_a_size_of_several_terms_divides_its_multiples(size: Expr) -> None:
    whole = sizes.mul(size, size)
    assert sizes.split(sizes.mul(whole, 16), whole) == (16, 0)
    assert sizes.exact_div(sizes.mul(size, 4), 2) == sizes.mul(size, 2)
    assert sizes.exact_div(whole, sizes.mul(size, 2)) is None
    assert sizes.split(sizes.add(whole, 1), whole) == (0, sizes.add(whole, 1))
    n = 12 * sizes.mul(whole, 5)
    at = affine.add(affine.scale(affine.coordinate(0), whole), affine.constant(n))
    found = affine.modulo(affine.add(at, affine.coordinate(1)), whole, ((0, 4), (0, whole - 1)))
    assert found == affine.coordinate(1)


PARTS = {
    functions.TruncToInt: math.trunc,
    functions.FloorToInt: math.floor,
    functions.CeilToInt: math.ceil,
}


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.5, 2.0, 2.75, 0.1, 0.29])
@pytest.mark.parametrize("part", PARTS)
def test_integer_parts_of_float_multiples_are_divisions_where_they_are_exact(
    factor: float, part: type[Expr]
) -> None:
    given = part(Float(factor) * functions.ToFloat(s0)) + 1
    found = sizes.as_size(given)
    assert found.has(part) == (factor in (0.1, 0.29))
    less = sizes.as_size(part(Float(factor) * functions.ToFloat(s0 - 5)))
    exact = PARTS[part]
    assert all(less.subs(s0, n) == exact(factor * (n - 5)) for n in range(1, 20))
    for n in (*range(1, 200), 2**31 - 1):
        assert found.subs(s0, n) == exact(factor * n) + 1


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("over", "under"), [(s0, s1), (s0 - 9, s1 + 2), (s0 + 2, s1 - 9)])
def test_integer_parts_of_quotients_are_divisions(
    part: type[Expr], over: Expr, under: Expr
) -> None:
    found = sizes.as_size(part(functions.IntTrueDiv(over, under)))
    assert not found.has(part)
    for a, b in itertools.product((1, 5, 9, 10, 21, 2**31 - 1), (1, 2, 7, 2**31 - 3)):
        values = {s0: a, s1: b}
        want = PARTS[part](int(over.subs(values)) / int(under.subs(values)))
        assert found.subs(values) == want

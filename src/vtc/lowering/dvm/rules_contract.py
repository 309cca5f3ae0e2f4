"""Rules of matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtc.graph.rules import same
from vtc.index import Fill, IndexMap, Size, affine, axes, sizes
from vtc.lowering.dvm.nodes import AttentionSpec, Move, Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, is_size, rule
from vtc.program.dtypes import DType

aten = torch.ops.aten


def product(own: Lowering, left: Node, right: Node) -> Node:
    """left [..., m, k] @ right [..., k, n] in the compute type of both."""
    if not left.dtype.is_float or left.dtype is not right.dtype:
        raise Unsupported(f"a product of {left.dtype} and {right.dtype}")
    apart = _columns(right)
    if apart is not None:
        found = [_times(own, left, column) for column in apart]
        return own.graph.concat(found, len(found[0].shape) - 1)
    outer = own.graph.joined(left.shape[:-2], right.shape[:-2])
    shape = (*outer, left.shape[-2], right.shape[-1])
    return own.graph.node("matmul", shape, left.dtype, (left, right))


def _times(own: Lowering, left: Node, right: Node | Fill) -> Node:
    """The product with a part of the right operand's columns. One column of one value is a sum, and
    one column a sum of products."""
    if isinstance(right, Node) and right.shape[-1] != 1:
        return product(own, left, right)
    wide = own.graph.cast(left, left.dtype.compute)
    if isinstance(right, Fill):
        terms = wide if right.value == 1 else own.arith("mul", wide, float(right.value))
    else:
        turned = own.graph.permute(right, [*range(len(right.shape) - 2), len(right.shape) - 1,
                                           len(right.shape) - 2])  # fmt: skip
        terms = own.arith("mul", wide, own.graph.cast(turned, wide.dtype))
    found = own.graph.reduce("sum", terms, [len(terms.shape) - 1])
    return own.graph.cast(found, left.dtype)


def _columns(right: Node) -> list[Node | Fill] | None:
    """The parts of a right operand that is a concat or padding along its columns, where one of them
    is a single column: a linear attention's values have ones beside them. None for others."""
    if right.op != "move":
        return None
    move: Move = right.constant
    found: list[Node | Fill] = []
    rank, ones = len(right.shape), False
    at = tuple(affine.coordinate(d) for d in range(rank))
    for piece in sorted(move.load.pieces, key=lambda p: str(p.lower[-1]) != "0"):
        whole = all(
            low == 0 and same(high, size)
            for low, high, size in zip(
                piece.lower[:-1], piece.upper[:-1], right.shape[:-1], strict=True
            )
        )
        width = sizes.sub(piece.upper[-1], piece.lower[-1])
        ones |= width == 1
        if not whole or (isinstance(piece.source, Fill) and width != 1):
            return None
        if isinstance(piece.source, Fill):
            found.append(piece.source)
            continue
        source = right.operands[piece.source]
        moved = affine.add(at[-1], affine.constant(sizes.mul(-1, piece.lower[-1])))
        if piece.forms != (*at[:-1], moved) or not same(source.shape[-1], width):
            return None
        found.append(source)
    return found if ones and len(found) == 2 and len(move.load.pieces) == 2 else None


@rule(aten.mm.default, aten.bmm.default)
def _mm(own: Lowering, a: Node, b: Node) -> Node:
    return product(own, a, b)


@rule(aten.matmul.default, aten.mv.default, aten.dot.default)
def _matmul(own: Lowering, a: Node, b: Node) -> Node:
    if not a.shape or not b.shape:
        raise Unsupported("a product with a scalar")
    left = a if len(a.shape) > 1 else own.graph.unsqueeze(a, 0)
    right = b if len(b.shape) > 1 else own.graph.unsqueeze(b, len(b.shape))
    found = product(own, left, right)
    if len(a.shape) > 1 and len(b.shape) > 1:
        return found
    dropped = [d for d, one in ((-2, len(a.shape) == 1), (-1, len(b.shape) == 1)) if one]
    return own.graph.squeeze(found, [d % len(found.shape) for d in dropped])


@rule(aten.linear.default)
def _linear(own: Lowering, x: Node, weight: Node, bias: Node | None = None) -> Node:
    if not x.shape or len(weight.shape) != 2:
        raise Unsupported("linear of these ranks")
    turned = own.graph.permute(weight, [1, 0])
    row = x if len(x.shape) > 1 else own.graph.unsqueeze(x, 0)
    found = product(own, row, turned)
    if len(x.shape) == 1:
        found = own.graph.squeeze(found, [0])
    return found if bias is None else own.arith("add", found, bias)


def _combined(own: Lowering, found: Node, x: Node, beta: Any, alpha: Any) -> Node:
    if not (isinstance(alpha, int | float) and alpha == 1):
        found = own.arith("mul", found, alpha)
    if isinstance(beta, int | float) and beta == 0:
        return found
    if not (isinstance(beta, int | float) and beta == 1):
        x = own.arith("mul", x, beta)
    return own.arith("add", found, x)


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(own: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    return _combined(own, product(own, a, b), x, beta, alpha)


@rule(aten.addbmm.default)
def _addbmm(own: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    """x + the sum of a [n, m, k] @ b [n, k, p] over n: one product over n and k."""
    n, m, k = a.shape
    left = own.graph.reshape(own.graph.permute(a, [1, 0, 2]), (m, sizes.mul(n, k)))
    right = own.graph.reshape(b, (sizes.mul(n, k), b.shape[-1]))
    return _combined(own, product(own, left, right), x, beta, alpha)


@rule(aten.addmv.default)
def _addmv(own: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    column = own.graph.unsqueeze(b, len(b.shape))
    found = own.graph.squeeze(product(own, a, column), [1])
    return _combined(own, found, x, beta, alpha)


@rule(aten.outer.default)
def _outer(own: Lowering, a: Node, b: Node) -> Node:
    return own.arith("mul", own.graph.unsqueeze(a, len(a.shape)), b)


@rule(aten.einsum.default)
def _einsum(own: Lowering, equation: str, operands: Sequence[Node], path: Any = None) -> Node:
    """Two operands, no ellipsis, no index repeated within an operand: one batched product."""
    inputs, _, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    plain = all(len(set(t)) == len(t) and t.isalpha() for t in terms)
    if len(operands) != 2 or not plain or not (result.isalpha() or not result):
        raise Unsupported(f"einsum {equation}")
    if "->" not in equation:
        letters = "".join(terms)
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    (left, right), (a, b) = operands, terms
    lengths: dict[str, Size] = dict(zip(a, left.shape, strict=True))
    lengths |= {c: s for c, s in zip(b, right.shape, strict=True) if lengths.get(c, 1) == 1}
    batch = [c for c in a if c in b and c in result]
    summed = [c for c in a if c in b and c not in result]
    rows = [c for c in a if c not in b]
    columns = [c for c in b if c not in a]
    if any(c not in result for c in (*rows, *columns)) or not summed:
        raise Unsupported(f"einsum {equation}")
    one = _grouped(own, left, a, (batch, rows, summed), lengths)
    two = _grouped(own, right, b, (batch, summed, columns), lengths)
    found = product(own, one, two)
    order = [*batch, *rows, *columns]
    whole = own.graph.reshape(found, [lengths[c] for c in order])
    return own.graph.permute(whole, [order.index(c) for c in result])


def _grouped(
    own: Lowering,
    x: Node,
    term: str,
    groups: tuple[list[str], list[str], list[str]],
    lengths: dict[str, Size],
) -> Node:
    """x with its indices in groups: the first as they are, the other two as one dimension each."""
    batch, second, third = groups
    order = [*batch, *second, *third]
    if any(s == 1 and lengths[c] != 1 for c, s in zip(term, x.shape, strict=True)):
        raise Unsupported("einsum that broadcasts")
    turned = own.graph.permute(x, [term.index(c) for c in order])
    shape = [lengths[c] for c in batch]
    shape += [sizes.product(lengths[c] for c in group) for group in (second, third)]
    return own.graph.reshape(turned, shape)


@rule(aten.scaled_dot_product_attention.default)
def _attention(
    own: Lowering,
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None = None,
    dropout: Any = 0.0,
    causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Node:
    ranks = {len(t.shape) for t in (query, key, value)}
    wide = query.dtype.is_float and query.dtype is key.dtype is value.dtype
    if dropout != 0 or not wide or len(ranks) != 1 or ranks.pop() < 3:
        raise Unsupported("this form of attention")
    if is_size(scale) or not (scale is None or isinstance(scale, int | float)):
        raise Unsupported("a scale that changes")
    if not same(query.shape[-1], value.shape[-1]):
        raise Unsupported("values of another width than keys")
    if not all(same(a, b) for a, b in zip(key.shape[:-2], value.shape[:-2], strict=True)):
        raise Unsupported("keys and values of different heads")
    operands = [query, key, value]
    if mask is not None:
        if mask.dtype is not DType.BOOL and not mask.dtype.is_float:
            raise Unsupported(f"a mask of {mask.dtype}")
        operands.append(mask)
    spec = AttentionSpec(None if scale is None else float(scale), causal)
    if enable_gqa and not same(query.shape[-3], key.shape[-3]):
        return _grouped_attention(own, operands, spec)
    return attention(own, operands, spec)


def attention(own: Lowering, operands: Sequence[Node], spec: AttentionSpec) -> Node:
    """Query, key, value and maybe a mask whose outer dimensions broadcast."""
    query, key, value = operands[:3]
    outer = own.graph.joined(query.shape[:-2], key.shape[:-2])
    _check_mask(own, operands, outer)
    shape = (*outer, query.shape[-2], value.shape[-1])
    return own.graph.node("attention", shape, query.dtype, tuple(operands), spec)


def _check_mask(own: Lowering, operands: Sequence[Node], outer: Sequence[Size]) -> None:
    """PyTorch's shape function leaves the mask's sizes alone: raises TooWide where one of them, a
    symbol, is broadcast, or may be for other sizes."""
    query, key = operands[:2]
    for mask in operands[3:]:
        scores = (*outer, query.shape[-2], key.shape[-2])
        own.graph.hints.check_unguarded(mask.shape, scores)


def _grouped_attention(own: Lowering, operands: Sequence[Node], spec: AttentionSpec) -> Node:
    """Query heads in groups of those that share a key head: [..., heads, s, d] as
    [..., key heads, group, s, d], where keys and values have one instead of a group."""
    query, key = operands[:2]
    heads, shared = query.shape[-3], key.shape[-3]
    batch = own.graph.joined(query.shape[:-3], key.shape[:-3])
    _check_mask(own, operands, (*batch, heads))
    exact = sizes.exact_div(heads, shared)
    group = sizes.floor_div(heads, shared) if exact is None else exact
    apart = [_with_groups(own, x, heads, shared, group) for x in operands]
    found = attention(own, apart, spec)
    *outer, _, _, rows, columns = found.shape
    shape = (*outer, heads, rows, columns)
    at = axes(len(shape))
    head = at[-3]
    load = IndexMap.single(shape, [*at[:-3], head // group, head % group, *at[-2:]])
    return own.graph.move(load, [found], stores=[_joined(found.shape, group)])


def _joined(shape: Sequence[Size], group: Size) -> IndexMap:
    """[..., key heads, group, s, d] -> [..., heads, s, d]."""
    at = axes(len(shape))
    return IndexMap.single(shape, [*at[:-4], at[-4] * group + at[-3], *at[-2:]])


def _with_groups(own: Lowering, x: Node, heads: Size, shared: Size, group: Size) -> Node:
    if len(x.shape) < 3:
        return x
    *outer, count, rows, columns = x.shape
    if not same(count, heads):
        return own.graph.unsqueeze(x, len(x.shape) - 2)
    shape = (*outer, shared, group, rows, columns)
    return own.graph.move(_joined(shape, group), [x], view=True)

"""Rules of reductions, softmax and scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vtc.index import sizes
from vtc.lowering.dvm.nodes import Node, Unsupported
from vtc.lowering.dvm.rules import Lowering, dims_of, rule, static, total
from vtc.lowering.dvm.rules_pointwise import truth
from vtc.program.dtypes import DType

aten = torch.ops.aten


def folded(own: Lowering, name: str, x: Node, dims: Sequence[int], keepdim: bool = False) -> Node:
    """x folded over dims, dropped unless keepdim."""
    found = own.graph.reduce(name, x, dims)
    return found if keepdim else own.graph.squeeze(found, dims)


def count(own: Lowering, x: Node, dims: Sequence[int], like: Node) -> Node:
    """How many elements a fold over dims takes in, in the compute type of `like`."""
    return own.graph.const(total([x.shape[d] for d in dims]), like.dtype.compute)


def widened(own: Lowering, x: Node) -> Node:
    """x in its compute type, in which folds are done."""
    return own.graph.cast(x, x.dtype.compute)


def _rounded(own: Lowering, x: Node) -> Node:
    return own.tagged(x) if x.dtype.is_float else own.graph.cast(x, own.dtype)


@rule(aten.sum.default, aten.sum.dim_IntList)
def _sum(
    own: Lowering, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    wide = own.operand(x, own.dtype)
    wide = own.graph.cast(wide, own.dtype.compute)
    return _rounded(own, folded(own, "sum", wide, dims_of(dim, len(x.shape)), keepdim))


@rule(aten.prod.default, aten.prod.dim_int)
def _prod(
    own: Lowering, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    wide = own.graph.cast(own.operand(x, own.dtype), own.dtype.compute)
    return _rounded(own, folded(own, "prod", wide, dims_of(dim, len(x.shape)), keepdim))


@rule(aten.mean.default, aten.mean.dim)
def _mean(
    own: Lowering, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    dims = dims_of(dim, len(x.shape))
    wide = own.graph.cast(own.operand(x, own.dtype), own.dtype.compute)
    return own.tagged(mean_of(own, wide, dims, keepdim))


def mean_of(own: Lowering, x: Node, dims: Sequence[int], keepdim: bool = True) -> Node:
    """The mean of a wide x over dims."""
    found = folded(own, "sum", x, dims, keepdim)
    return own.op("div", found, count(own, x, dims, found))


def _extreme(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
        dims = dims_of(dim, len(x.shape))
        if x.dtype is DType.BOOL:
            return folded(own, "any" if name == "max" else "all", x, dims, keepdim)
        return _rounded(own, folded(own, name, widened(own, x), dims, keepdim))

    return lower


rule(aten.amax.default, aten.max.default)(_extreme("max"))
rule(aten.amin.default, aten.min.default)(_extreme("min"))


def _extreme_with_index(name: str) -> Callable[..., tuple[Node, Node]]:
    def lower(own: Lowering, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        dims = dims_of(dim, len(x.shape))
        if x.dtype is DType.BOOL:
            raise Unsupported(f"{name} of bool with places")
        wide = widened(own, x)
        best = folded(own, name, wide, dims, keepdim)
        return _rounded(own, best), folded(own, f"arg{name}", wide, dims, keepdim)

    return lower


rule(aten.max.dim)(_extreme_with_index("max"))
rule(aten.min.dim)(_extreme_with_index("min"))


def _place(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if x.dtype is DType.BOOL:
            raise Unsupported(f"{name} of bool")
        wide, graph = widened(own, x), own.graph
        if dim is not None:
            return folded(own, name, wide, dims_of(dim, len(x.shape)), keepdim)
        flat = folded(own, name, graph.reshape(wide, [total(x.shape)]), [0])
        return graph.reshape(flat, [1] * len(x.shape)) if keepdim else flat

    return lower


rule(aten.argmax.default)(_place("argmax"))
rule(aten.argmin.default)(_place("argmin"))


def _quantified(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
        found = folded(own, name, truth(own, x), dims_of(dim, len(x.shape)), keepdim)
        return own.graph.cast(found, own.dtype)

    return lower


rule(aten.any.default, aten.any.dim, aten.any.dims)(_quantified("any"))
rule(aten.all.default, aten.all.dim, aten.all.dims)(_quantified("all"))


@rule(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def _count_nonzero(own: Lowering, x: Node, dim: Any = None) -> Node:
    ones = own.graph.cast(truth(own, x), DType.I64)
    return folded(own, "sum", ones, dims_of(dim, len(x.shape)))


# Variance in two passes: the mean first, then the squares of what is left.


def _variance(
    own: Lowering, x: Node, dims: Sequence[int], correction: Any, keepdim: bool
) -> tuple[Node, Node]:
    wide = own.graph.cast(own.operand(x, own.dtype), own.dtype.compute)
    mean = mean_of(own, wide, dims)
    left = own.op("sub", wide, mean)
    squares = own.graph.reduce("sum", own.op("mul", left, left), dims)
    length = total([x.shape[d] for d in dims])
    correction = 1 if correction is None else static(correction)
    if isinstance(correction, float) and not correction.is_integer():
        divisor: Node = own.op(
            "sub", own.graph.const(length, wide.dtype), own.graph.const(correction, wide.dtype)
        )
    else:
        divisor = own.graph.const(sizes.sub(length, int(correction)), wide.dtype)
    divisor = own.op("maximum", divisor, own.number(0, divisor))
    variance = own.op("div", squares, divisor)
    if keepdim:
        return variance, mean
    return own.graph.squeeze(variance, dims), own.graph.squeeze(mean, dims)


def _unbiased(rank: int, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any, bool]:
    """(dims, correction, keepdim) of the overloads of var and std."""
    dim: Any = None
    correction: Any = options.get("correction", 1)
    rest = list(args)
    if rest and not isinstance(rest[0], bool):
        dim = rest.pop(0)
    if rest:
        correction = int(bool(rest.pop(0))) if "correction" not in options else correction
    if "unbiased" in options:
        correction = int(bool(options["unbiased"]))
    keepdim = bool(rest.pop(0)) if rest else bool(options.get("keepdim", False))
    return dims_of(dim if dim is not None else options.get("dim"), rank), correction, keepdim


@rule(aten.var.default, aten.var.dim, aten.var.correction)
def _var(own: Lowering, x: Node, *args: Any, **options: Any) -> Node:
    dims, correction, keepdim = _unbiased(len(x.shape), args, options)
    return own.tagged(_variance(own, x, dims, correction, keepdim)[0])


@rule(aten.std.default, aten.std.dim, aten.std.correction)
def _std(own: Lowering, x: Node, *args: Any, **options: Any) -> Node:
    dims, correction, keepdim = _unbiased(len(x.shape), args, options)
    return own.tagged(own.op("sqrt", _variance(own, x, dims, correction, keepdim)[0]))


@rule(aten.var_mean.default, aten.var_mean.dim, aten.var_mean.correction)
def _var_mean(own: Lowering, x: Node, *args: Any, **options: Any) -> tuple[Node, Node]:
    dims, correction, keepdim = _unbiased(len(x.shape), args, options)
    variance, mean = _variance(own, x, dims, correction, keepdim)
    return own.tagged(variance), own.tagged(mean)


@rule(aten.std_mean.default, aten.std_mean.dim, aten.std_mean.correction)
def _std_mean(own: Lowering, x: Node, *args: Any, **options: Any) -> tuple[Node, Node]:
    dims, correction, keepdim = _unbiased(len(x.shape), args, options)
    variance, mean = _variance(own, x, dims, correction, keepdim)
    return own.tagged(own.op("sqrt", variance)), own.tagged(mean)


# Softmax.


def _shifted(own: Lowering, x: Node, dims: Sequence[int]) -> Node:
    """x less its maximum, wide."""
    wide = own.graph.cast(own.operand(x, own.dtype), own.dtype.compute)
    return own.op("sub", wide, own.graph.reduce("max", wide, dims))


@rule(aten.softmax.int, aten._softmax.default)
def _softmax(own: Lowering, x: Node, dim: int, half_to_float: Any = False, **_: Any) -> Node:
    dims = dims_of(dim, len(x.shape))
    shifted = _shifted(own, x, dims)
    top = own.op("exp", shifted)
    # One division a row: the sum is at least 1, so that its reciprocal is a number.
    scale = own.op("reciprocal", own.graph.reduce("sum", top, dims))
    return own.tagged(own.op("mul", top, scale))


@rule(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(own: Lowering, x: Node, dim: int, half_to_float: Any = False, **_: Any) -> Node:
    dims = dims_of(dim, len(x.shape))
    shifted = _shifted(own, x, dims)
    below = own.op("log", own.graph.reduce("sum", own.op("exp", shifted), dims))
    return own.tagged(own.op("sub", shifted, below))


@rule(aten.logsumexp.default)
def _logsumexp(own: Lowering, x: Node, dim: Any, keepdim: bool = False) -> Node:
    dims = dims_of(dim, len(x.shape))
    wide = own.graph.cast(own.operand(x, own.dtype), own.dtype.compute)
    top = own.graph.reduce("max", wide, dims)
    # An infinite maximum would give inf - inf.
    top = own.op("select", own.op("isinf", top), own.number(0, top), top)
    inner = own.graph.reduce("sum", own.op("exp", own.op("sub", wide, top)), dims)
    found = own.op("add", own.op("log", inner), top)
    return own.tagged(found if keepdim else own.graph.squeeze(found, dims))


# Vector norms.


@rule(aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim, aten.norm.Scalar)
def _vector_norm(
    own: Lowering, x: Node, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Node:
    dims = dims_of(dim, len(x.shape))
    power = 2.0 if order is None else float(static(order))
    wide = own.op("abs", own.graph.cast(own.operand(x, own.dtype), own.dtype.compute))
    if power == math.inf:
        return own.tagged(folded(own, "max", wide, dims, keepdim))
    if power == -math.inf:
        return own.tagged(folded(own, "min", wide, dims, keepdim))
    if power == 0:
        some = own.op("ne", wide, own.number(0, wide))
        return own.tagged(folded(own, "sum", own.graph.cast(some, wide.dtype), dims, keepdim))
    if power == 1:
        return own.tagged(folded(own, "sum", wide, dims, keepdim))
    if power == 2:
        squares = folded(own, "sum", own.op("mul", wide, wide), dims, keepdim)
        return own.tagged(own.op("sqrt", squares))
    powers = folded(own, "sum", own.op("pow", wide, own.number(power, wide)), dims, keepdim)
    return own.tagged(own.op("pow", powers, own.number(1 / power, powers)))


@rule(aten.cosine_similarity.default)
def _cosine_similarity(own: Lowering, a: Node, b: Node, dim: int = 1, eps: Any = 1e-8) -> Node:
    """The sum of products of both over their lengths, which are eps at least. A length is that of
    the operand as it is broadcast: an element that is repeated along `dim` counts as often."""
    common = own.graph.joined(a.shape, b.shape) or (1,)
    wide, at = own.dtype.compute, dim % len(common)

    def of_length_one(x: Node) -> Node:
        x = own.graph.cast(x, wide)
        while len(x.shape) < len(common):
            x = own.graph.unsqueeze(x, 0)
        x = own.graph.broadcast(x, [*x.shape[:at], common[at], *x.shape[at + 1 :]])
        length = own.op("sqrt", own.graph.reduce("sum", own.op("mul", x, x), [at]))
        return own.op("div", x, own.op("maximum", length, own.operand(eps, wide)))

    products = own.op("mul", of_length_one(a), of_length_one(b))
    return own.tagged(folded(own, "sum", products, [at]))


# Scans.


def _scan(name: str) -> Callable[..., Node]:
    def lower(own: Lowering, x: Node, dim: int, *, dtype: Any = None) -> Node:
        wide = own.graph.cast(own.operand(x, own.dtype), own.dtype.compute)
        if not x.shape or x.shape[dim % len(x.shape)] == 1:
            return _rounded(own, wide)
        return _rounded(own, own.graph.scan(name, wide, dim % len(x.shape)))

    return lower


rule(aten.cumsum.default)(_scan("sum"))
rule(aten.cumprod.default)(_scan("prod"))


@rule(aten.diff.default)
def _diff(
    own: Lowering,
    x: Node,
    n: int = 1,
    dim: int = -1,
    prepend: Node | None = None,
    append: Node | None = None,
) -> Node:
    """Each element along a dimension less the one before it."""
    if n != 1 or not x.shape:
        raise Unsupported("differences of higher order")
    d = dim % len(x.shape)
    parts = [p for p in (prepend, x, append) if p is not None]
    if any(p.dtype is not x.dtype or len(p.shape) != len(x.shape) for p in parts):
        raise Unsupported("differences of mixed dtypes")
    whole = own.graph.concat(parts, d) if len(parts) > 1 else x
    length = own.shape[d]
    later, earlier = (own.graph.slice(whole, d, start, length) for start in (1, 0))
    if x.dtype is DType.BOOL:
        return own.op("xor", later, earlier)
    return own.arith("sub", later, earlier)

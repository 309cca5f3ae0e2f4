"""Reductions, scans over a dimension, and what is normalised by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vtc.graph.onnx.host import Host, Value, number, optional_ints, tensor
from vtc.graph.onnx.registry import ALL, add, publish, rule

Reduction = Callable[[Tensor, list[int], bool], Any]


def _dims(x: Any, axes: list[int] | tuple[int, ...] | None) -> list[int]:
    """Numbers, of axes that may be symbols: what a shape is then is decided by comparing them."""
    rank = len(x.shape)
    if not axes:
        return list(range(rank))
    return [d for a in axes for d in range(rank) if a % rank == d]


def _sum(x: Tensor, dims: list[int], keep: bool) -> Any:
    return torch.sum(x, dims, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, dims: list[int], keep: bool) -> Any:
    if not x.is_floating_point():
        return torch.mean(x.to(torch.float64), dims, keepdim=keep).to(x.dtype)
    return torch.mean(x, dims, keepdim=keep)


def _prod(x: Tensor, dims: list[int], keep: bool) -> Any:
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, keepdim=keep, dtype=x.dtype)
    return x


def _extreme(x: Tensor, dims: list[int], keep: bool, largest: bool) -> Any:
    if all(x.shape[d] != 0 for d in dims):
        return (torch.amax if largest else torch.amin)(x, dims, keepdim=keep)
    shape = [1 if d in dims else s for d, s in enumerate(x.shape) if keep or d not in dims]
    if x.dtype == torch.bool:
        return torch.full(shape, not largest, device=x.device)
    if x.is_floating_point():
        fill = -math.inf if largest else math.inf
    else:
        fill = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    return torch.full(shape, fill, dtype=x.dtype, device=x.device)


def _max(x: Tensor, dims: list[int], keep: bool) -> Any:
    return _extreme(x, dims, keep, True)


def _min(x: Tensor, dims: list[int], keep: bool) -> Any:
    return _extreme(x, dims, keep, False)


def _l1(x: Tensor, dims: list[int], keep: bool) -> Any:
    return _sum(torch.abs(x), dims, keep)


def _sum_square(x: Tensor, dims: list[int], keep: bool) -> Any:
    return _sum(x * x, dims, keep)


def _l2(x: Tensor, dims: list[int], keep: bool) -> Any:
    return torch.sqrt(_sum_square(x, dims, keep))


def _log_sum(x: Tensor, dims: list[int], keep: bool) -> Any:
    return torch.log(_sum(x, dims, keep))


def _log_sum_exp(x: Tensor, dims: list[int], keep: bool) -> Any:
    if any(x.shape[d] == 0 for d in dims):
        return torch.log(_sum(torch.exp(x), dims, keep))
    return torch.logsumexp(x, dims, keepdim=keep)


_NUMBERS: dict[str, Callable[..., Any]] = {
    "ReduceSum": sum,
    "ReduceProd": math.prod,
    "ReduceMax": max,
    "ReduceMin": min,
}


def _reduction(name: str, reduce: Reduction, input_since: int) -> None:
    """Register a reduction with `axes` as an attribute, and as an input from a version on."""
    on_numbers = _NUMBERS.get(name)

    def run(x: Value, axes: Any, keep: int) -> Any:
        if isinstance(x, Host):
            if on_numbers is not None and len(x.shape) == 1 and x.values:
                return Host((on_numbers(x.values),), (1,) if keep else (), x.dtype)
            x = tensor(x)
        if x.dim() == 0:
            return reduce(x.reshape(1), [0], False)
        return reduce(x, _dims(x, axes), bool(keep))

    def with_attribute(
        data: Value, *, axes: tuple[int, ...] | None = None, keepdims: int = 1
    ) -> Any:
        return run(data, axes, keepdims)

    def with_input(
        data: Value, axes: Value = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        chosen = optional_ints(axes)
        if not chosen and noop_with_empty_axes:
            return _elementwise_part(name, data)
        return run(data, chosen, keepdims)

    publish(globals(), f"{name.lower()}_attribute", with_attribute)
    publish(globals(), name.lower(), with_input)
    add(name, with_attribute, host=(ALL,))
    add(name, with_input, since=input_since, host=(ALL, 1))


def _elementwise_part(name: str, x: Value) -> Any:
    """What a reduction over no axes leaves: the part that acts on each element."""
    if name in ("ReduceL1", "ReduceL2"):
        return torch.abs(tensor(x))
    if name == "ReduceSumSquare":
        return torch.square(tensor(x))
    return torch.log(tensor(x)) if name == "ReduceLogSum" else x


for _name, _fn, _since in (
    ("ReduceSum", _sum, 13),
    ("ReduceMean", _mean, 18),
    ("ReduceProd", _prod, 18),
    ("ReduceMax", _max, 18),
    ("ReduceMin", _min, 18),
    ("ReduceL1", _l1, 18),
    ("ReduceL2", _l2, 18),
    ("ReduceSumSquare", _sum_square, 18),
    ("ReduceLogSum", _log_sum, 18),
    ("ReduceLogSumExp", _log_sum_exp, 18),
):
    _reduction(_name, _fn, _since)


@rule("ArgMax")
def arg_max(x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    if not select_last_index:
        return torch.argmax(x, axis, keepdim=bool(keepdims))
    last = torch.argmax(x.flip(axis), axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - last


@rule("ArgMin")
def arg_min(x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    if not select_last_index:
        return torch.argmin(x, axis, keepdim=bool(keepdims))
    last = torch.argmin(x.flip(axis), axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - last


# Scans.


def _scan(fn: Any, neutral: int, x: Value, axis: Value, exclusive: int, reverse: int) -> Any:
    x, d = tensor(x), number(axis)
    out = x.flip(d) if reverse else x
    if exclusive:
        first = torch.full_like(torch.narrow(out, d, 0, 1), neutral)
        out = torch.cat([first, torch.narrow(out, d, 0, out.shape[d] - 1)], d)
    out = fn(out, d, dtype=x.dtype)
    return out.flip(d) if reverse else out


@rule("CumSum", host=(1,))
def cum_sum(x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Any:
    return _scan(torch.cumsum, 0, x, axis, exclusive, reverse)


@rule("CumProd", host=(1,))
def cum_prod(x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Any:
    return _scan(torch.cumprod, 1, x, axis, exclusive, reverse)


# Softmax and its kind.


def _over_rows(fn: Any, x: Tensor, axis: int) -> Any:
    """What versions before 13 do: rows are all dimensions from `axis` on."""
    d = axis % x.dim()
    rows = x.reshape(math.prod(x.shape[:d]), -1)
    return fn(rows, -1).reshape(x.shape)


@rule("Softmax")
def softmax_rows(x: Value, *, axis: int = 1) -> Any:
    return _over_rows(torch.softmax, x, axis)


@rule("Softmax", since=13)
def softmax(x: Value, *, axis: int = -1) -> Any:
    return torch.softmax(x, axis)


@rule("LogSoftmax")
def log_softmax_rows(x: Value, *, axis: int = 1) -> Any:
    return _over_rows(torch.log_softmax, x, axis)


@rule("LogSoftmax", since=13)
def log_softmax(x: Value, *, axis: int = -1) -> Any:
    return torch.log_softmax(x, axis)


def _hardmax(x: Tensor, axis: int) -> Any:
    best = torch.argmax(x, axis, keepdim=True)
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    return (torch.arange(x.shape[axis], device=x.device).reshape(shape) == best).to(x.dtype)


@rule("Hardmax")
def hardmax_rows(x: Value, *, axis: int = 1) -> Any:
    return _over_rows(_hardmax, x, axis)


@rule("Hardmax", since=13)
def hardmax(x: Value, *, axis: int = -1) -> Any:
    return _hardmax(x, axis)


@rule("LpNormalization")
def lp_normalization(x: Value, *, axis: int = -1, p: int = 2) -> Any:
    norm = torch.linalg.vector_norm(x, p, dim=axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)

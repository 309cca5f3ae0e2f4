"""Every lowering rule against eager PyTorch, on odd shapes that change between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lowering.dvm.evaluated import check

r = torch.randn

Case = tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]


def one(m: int, n: int) -> tuple[Any, ...]:
    return (r(m, n),)


def two(m: int, n: int) -> tuple[Any, ...]:
    return r(m, n), r(m, n)


def positive(m: int, n: int) -> tuple[Any, ...]:
    return (torch.rand(m, n) + 0.1,)


def unit(m: int, n: int) -> tuple[Any, ...]:
    return (torch.rand(m, n) * 1.8 - 0.9,)


def integers(m: int, n: int) -> tuple[Any, ...]:
    return torch.randint(-9, 9, (m, n)), torch.randint(1, 9, (m, n))


def small(m: int, n: int) -> tuple[Any, ...]:
    wide = torch.randint(-128, 128, (2, m, n), dtype=torch.int8)
    return wide[0], wide[1]


def bools(m: int, n: int) -> tuple[Any, ...]:
    return torch.rand(m, n) > 0.5, torch.rand(m, n) > 0.3


def half(m: int, n: int) -> tuple[Any, ...]:
    return r(m, n).bfloat16(), r(m, n).bfloat16()


def with_nan(m: int, n: int) -> tuple[Any, ...]:
    x, y = r(m, n), r(m, n)
    x.view(-1)[::3], y.view(-1)[::4] = float("nan"), float("inf")
    return x, y


UNARY: dict[str, Case] = {
    name: (getattr(torch, name), one)
    for name in (
        "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh",
        "erf", "erfc", "sigmoid", "reciprocal", "neg", "abs", "sign", "floor", "ceil", "trunc",
        "round", "square", "frac", "deg2rad", "rad2deg", "relu", "isnan", "isinf", "isfinite",
    )
} | {
    name: (getattr(torch, name), positive)
    for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")
} | {name: (getattr(torch, name), unit) for name in ("asin", "acos", "atanh")} | {
    "acosh": (lambda x: torch.acosh(x + 1), positive),
}  # fmt: skip

ACTIVATIONS: dict[str, Case] = {
    name: (getattr(F, name), lambda m, n: (3 * r(m, n),))
    for name in (
        "relu6", "silu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "elu",
        "selu", "celu", "softplus", "mish", "logsigmoid", "softshrink", "hardshrink", "softsign",
        "tanhshrink",
    )
} | {
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), one),
    "prelu": (lambda x: F.prelu(x, torch.full((1,), 0.3)), one),
    "prelu of one number": (lambda x: F.prelu(x[0, 0], torch.full((1,), 0.3)), one),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), one),
    "glu": (lambda x: F.glu(torch.cat([x, x + 1], -1)), one),
}  # fmt: skip

BINARY: dict[str, Case] = {
    "add alpha": (lambda x, y: torch.add(x, y, alpha=3), two),
    "sub alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), two),
    "rsub": (lambda x, y: 2 - x * y, two),
    "div": (lambda x, y: x / y, two),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), two),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), two),
    "integer div": (lambda x, y: x / y, integers),
    "integer div floor": (lambda x, y: (x // 3, torch.div(y, -4, rounding_mode="floor")), integers),
    "integer div trunc": (
        lambda x, y: (
            torch.div(x, 3, rounding_mode="trunc"),
            torch.div(y, -2, rounding_mode="trunc"),
        ),
        integers,
    ),
    "integer remainder": (lambda x, y: x % 3 + y % -4, integers),
    "integer fmod": (lambda x, y: torch.fmod(x, 3) + torch.fmod(y, -4), integers),
    "remainder": (torch.remainder, two),
    "fmod": (torch.fmod, two),
    "maximum": (torch.maximum, with_nan),
    "minimum": (torch.minimum, with_nan),
    "fmax": (torch.fmax, with_nan),
    "fmin": (torch.fmin, with_nan),
    "atan2": (torch.atan2, two),
    "pow": (lambda x, y: torch.pow(x.abs() + 0.1, y), two),
    "pow scalars": (lambda x, y: x**2 + y**3 + (x.abs() + 1) ** -0.5 + 2.0**x, two),
    "integer pow": (lambda x, y: x**2 + y**y, integers),
    "integer pow below 0": (lambda x, y: ((x % 4 - 2) ** (y - 5), 2 ** (y - 5)), integers),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, torch.sigmoid(y)), two),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), two),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=2), two),
    "comparisons": (lambda x, y: (x > y, x >= y, x < y, x <= y, x == y, x != y), integers),
    "comparisons of kinds": (lambda x, y: (x > 1.5, y == 2, x <= 3), integers),
    "bitwise": (lambda x, y: ((x & y) | (x ^ y), ~x), integers),
    "bool arithmetic": (lambda x, y: (x + y, x * y, x & y, x | y, x ^ y, ~x, x == y), bools),
    "bool alpha": (lambda x, y: (torch.add(x, y, alpha=False), torch.add(x, y)), bools),
    "bool extremes": (
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(y), x.clamp_max(y)),
        bools,
    ),
    "broadcast of a size that is 1": (
        lambda x, y: (torch.maximum(x, y), torch.fmod(y, x), torch.eq(x, y)),
        lambda m, n: (r(m, 1), r(m)),
    ),
    "copy that broadcasts": (lambda x: torch.expand_copy(x, (3, 4, 5)), lambda m, n: (r(1, 4, 1),)),
    "logical": (
        lambda x, y: (x.logical_and(y), x.logical_or(y), x.logical_xor(y), x.logical_not()),
        integers,
    ),
    "int8 wraps": (lambda x, y: (x + y, x * y, x - y, -x), small),
    "int8 compares": (lambda x, y: (x > y, (x + y) > 3), small),
    "mixed dtypes": (lambda x, y: (x + y.float(), x.double() * 2, x * 2.5, x / 3), integers),
    "bfloat16": (lambda x, y: (x * y, x + 1.5, (x - y).float()), half),
    "where": (lambda x, y: torch.where(x > y, x, 2.0) + torch.where(y > 0, 1, y), two),
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, float("-inf")), two),
    "clamp": (lambda x, y: x.clamp(-0.5, 0.5) + y.clamp(min=0) + y.clamp_max(1), two),
    "clamp tensors": (lambda x, y: torch.clamp(x, y, y + 1), two),
    "nan_to_num": (lambda x, y: (torch.nan_to_num(x), torch.nan_to_num(y, 1, 2, 3)), with_nan),
    "ldexp": (lambda x, y: torch.ldexp(x, torch.round(y * 3).int()), two),
    "isclose": (lambda x, y: torch.isclose(x, x + y * 1e-6, equal_nan=True), two),
    "differences": (lambda x, y: (torch.diff(x, n=2), torch.diff(y, dim=0)), two),
    "cosine similarity": (F.cosine_similarity, two),
    "cosine similarity of numbers": (
        lambda x, y: F.cosine_similarity(x[0, 0], y[0, 1], 0),
        two,
    ),
    "folds of operands that broadcast": (
        lambda x, y: (
            *(F.cosine_similarity(x, y, k) for k in (0, 1, 2)),
            F.cosine_similarity(x[0, 0], y, -2),
            F.pairwise_distance(x, y),
            torch.linalg.vecdot(x, y, dim=1),
            torch.dist(x, y),
        ),
        lambda m, n: (r(1, m, n), r(m, 1, n)),
    ),
    "heaviside": (torch.heaviside, two),
    "casts": (lambda x, y: (x.int(), x.bool(), x.half().float(), y.to(torch.int8)), two),
    "type_as": (lambda x, y: x.type_as(y.double()), two),
    "broadcast": (lambda x, y: x[:, :1] + y[:1], two),
    "size as operand": (lambda x, y: x * x.shape[0] + y.shape[1] ** 0.5, two),
}

FOLDS: dict[str, Case] = {
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum(-1), x.sum((0, 1), keepdim=True)), one),
    "sum of bools": (lambda x, y: (x.sum(), y.sum(1)), bools),
    "sum of int8": (lambda x, y: (x.sum(), y.sum(0)), small),
    "sum as double": (lambda x: x.sum(1, dtype=torch.float64), one),
    "mean": (lambda x: (x.mean(), x.mean(0), x.mean(1, keepdim=True)), one),
    "prod": (lambda x: (x.prod(1), x.prod(), x.prod(0, keepdim=True)), unit),
    "amax amin": (lambda x, y: (x.amax(1), y.amin(0), x.max(), x.min()), with_nan),
    "max with places": (lambda x: (x.max(1), x.min(0, keepdim=True)), one),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.argmax(1, keepdim=True)), one),
    "any all": (lambda x, y: (x.any(), x.all(1), y.any(0), x.all()), bools),
    "var std": (lambda x: (x.var(1), x.std(0), x.var(1, unbiased=False), x.std()), one),
    "var_mean": (lambda x: torch.var_mean(x, 1, correction=0, keepdim=True), one),
    "softmax": (lambda x: (x.softmax(1), x.softmax(0)), one),
    "softmax of bfloat16": (lambda x, y: (x.softmax(1), x.softmax(0, dtype=torch.float32)), half),
    "log_softmax": (lambda x: (x.log_softmax(1), x.log_softmax(0)), one),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 1))), one),
    "norms": (
        lambda x: (
            x.norm(dim=1), x.norm(p=1, dim=0), x.norm(p=float("inf"), dim=1),
            torch.linalg.vector_norm(x, 3, 1), F.normalize(x, dim=1),
        ),
        one,
    ),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[1:]), one),
    "layer_norm affine": (
        lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
        lambda m, n: (r(m, n), r(n), r(n)),
    ),
    "layer_norm of bfloat16": (
        lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
        lambda m, n: (r(m, n).bfloat16(), r(n).bfloat16(), r(n).bfloat16()),
    ),
    "rms_norm": (
        lambda x, w: (F.rms_norm(x, x.shape[1:], w), F.rms_norm(x, x.shape[1:], eps=1e-3)),
        lambda m, n: (r(m, n), r(n)),
    ),
    "group_norm": (
        lambda x, w: F.group_norm(x, 2, w, w),
        lambda m, n: (r(m, 6, n), r(6)),
    ),
    "instance_norm": (
        lambda x, w: (F.instance_norm(x, weight=w, bias=w), F.instance_norm(x)),
        lambda m, n: (r(m, 6, n), r(6)),
    ),
    "batch_norm": (
        lambda x, w, v: F.batch_norm(x, w, v, w, w),
        lambda m, n: (r(m, 5, n), r(5), torch.rand(5) + 0.5),
    ),
    "cumsum": (lambda x: (x.cumsum(0), x.cumsum(1), x.int().cumsum(1)), one),
    "cumprod": (lambda x: x.cumprod(1), unit),
    "count_nonzero": (lambda x, y: torch.count_nonzero(x, 1), integers),
    "two folds over different dimensions": (lambda x: x.softmax(1).softmax(0), one),
    "folds in both operands": (lambda x, y: x.sum(1) * y.sum(1) + x.amax(1), two),
    "fold of a broadcast": (lambda x, y: (x.unsqueeze(1) * y.unsqueeze(0)).sum(-1), two),
}  # fmt: skip

MADE: dict[str, Case] = {
    "zeros ones": (lambda x: (torch.zeros(x.shape), torch.ones_like(x), x.new_zeros(3)), one),
    "full": (lambda x: torch.full((x.shape[1], 2), 7) + torch.full_like(x[:1, :1], 1.5), one),
    "arange": (
        lambda x: (
            torch.arange(x.shape[0]), torch.arange(2, x.shape[1] + 2),
            torch.arange(0, 3 * x.shape[0], 3), torch.arange(x.shape[0], dtype=torch.float32),
        ),
        one,
    ),
    "eye": (lambda x: torch.eye(x.shape[0]) + torch.eye(x.shape[0], x.shape[0]), one),
    "tril triu": (lambda x: (x.tril(), x.triu(1), x.tril(-2), (x > 0).triu()), one),
    "one_hot": (lambda x, y: F.one_hot(y, 10), integers),
    "linspace": (
        lambda x: (
            torch.linspace(-2, 5, 7), torch.linspace(-4.5, 7.5, 6, dtype=torch.int64),
            torch.linspace(1, 2, 1), torch.linspace(x.shape[0], 2, 9),
        ),
        one,
    ),
    "logspace": (
        lambda x: (torch.logspace(-2, 3, 7), torch.logspace(0, 3, 4, 2, dtype=torch.int64)), one,
    ),
    "linspace by arange": (lambda x: torch.arange(x.shape[1]) / x.shape[1] + x, one),
}  # fmt: skip


class Padded(torch.nn.Module):
    """Its amounts are constants to Dynamo."""

    def __init__(self, mode: str, pads: tuple[int, ...]) -> None:
        super().__init__()
        self.mode, self.pads = mode, pads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, self.pads, self.mode) * 2


PADS: dict[str, Case] = {
    f"{mode} {pads}": (Padded(mode, pads), lambda m, n: (r(2, 3, m, n),))
    for mode in ("constant", "replicate", "reflect")
    for pads in ((-2, -1, 0, 0), (1, 0, -2, -1), (2, 1, 1, 2))
}

POOLS: dict[str, Case] = {
    "max_pool2d": (
        lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2)),
        lambda m, n: (r(2, m, 9, 12),),
    ),
    "avg_pool2d": (
        lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1)),
        lambda m, n: (r(1, m, 8, 10),),
    ),
    "avg_pool2d of windows that reach out": (
        lambda x: (
            F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, (2, 3), 2, (1, 0), ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, 3, 2, 1, True, False, divisor_override=5),
        ),
        lambda m, n: (r(1, m, 8, 10),),
    ),
    "pools of other ranks": (
        lambda x: (
            F.max_pool1d(x, 3, 2, 1),
            F.avg_pool1d(x, 2),
            F.avg_pool1d(x, 3, 2, 1, True, False),
            F.adaptive_avg_pool1d(x, 1),
        ),
        lambda m, n: (r(2, m, 12),),
    ),
    "pools of one image": (
        lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 1)),
        lambda m, n: (r(m, 9, 12),),
    ),
    "pools of wide windows": (
        lambda x: (
            F.max_pool2d(x, 9, 2, 3),
            F.max_pool2d(x, 8, 1, 4, 2),
            F.avg_pool2d(x, 9, 3, 4, count_include_pad=False),
            F.avg_pool2d(x, (9, 10), 1, ceil_mode=True),
        ),
        lambda m, n: (r(2, m, 20, 23),),
    ),
    "pools of integers": (
        lambda x, y: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(y, 2, 1, 1)),
        lambda m, n: (
            torch.randint(-90, 90, (2, m, 9, 12)),
            torch.randint(0, 256, (2, m, 9, 12), dtype=torch.uint8),
        ),
    ),
}


PRODUCTS: dict[str, Case] = {
    "mm": (torch.mm, lambda m, n: (r(m, 13), r(13, n))),
    "mm of a transpose": (lambda a, b: a.t() @ b, lambda m, n: (r(13, m), r(13, n))),
    "attention": (
        lambda q, k, v: (
            F.scaled_dot_product_attention(q, k, v),
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        ),
        lambda m, n: (r(2, 3, m, 8), r(2, 3, n, 8), r(2, 3, n, 8)),
    ),
    "attention with masks": (
        lambda q, k, v, m: (
            F.scaled_dot_product_attention(q, k, v, m),
            F.scaled_dot_product_attention(q, k, v, m.masked_fill(m < -1, float("-inf"))),
            F.scaled_dot_product_attention(q, k, v, m > -1),
        ),
        lambda m, n: (r(2, 3, m, 8), r(2, 3, n, 8), r(2, 3, n, 8), r(m, n)),
    ),
    "attention of grouped heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda m, n: (r(2, 6, m, 8), r(2, 3, n, 8), r(2, 3, n, 8)),
    ),
    "attention of repeated heads": (
        lambda q, k, v: (
            F.scaled_dot_product_attention(
                q,
                *(
                    t[:, :, None].expand(2, 3, 2, t.shape[2], 8).reshape(2, 6, -1, 8)
                    for t in (k, v)
                ),
            )
            .transpose(1, 2)
            .reshape(2, -1, 48)
        ),
        lambda m, n: (r(2, 6, m, 8), r(2, 3, n, 8), r(2, 3, n, 8)),
    ),
    "bmm": (torch.bmm, lambda m, n: (r(3, m, 8), r(3, 8, n))),
    "matmul of ranks": (
        lambda a, b: (a @ b, a[0] @ b, a[0, 0] @ b, a @ b[:, 0]),
        lambda m, n: (r(2, m, 7), r(7, n)),
    ),
    "matmul that broadcasts": (torch.matmul, lambda m, n: (r(4, 1, m, 7), r(3, 7, n))),
    "linear gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda m, n: (r(2, m, 8), r(n, 8), r(n)),
    ),
    "linear residual norm": (
        lambda x, w, b: F.layer_norm(x + F.linear(x, w, b), x.shape[-1:]),
        lambda m, n: (r(2, m, n), r(n, n), r(n)),
    ),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda m, n: (r(n), r(m, 6), r(6, n)),
    ),
    "baddbmm": (torch.baddbmm, lambda m, n: (r(2, m, n), r(2, m, 6), r(2, 6, n))),
    "addbmm": (
        lambda c, a, b: torch.addbmm(c, a, b, beta=0.5, alpha=2),
        lambda m, n: (r(m, n), r(3, m, 6), r(3, 6, n)),
    ),
    "mv dot outer": (
        lambda a, v, w: (torch.mv(a, v), torch.dot(v, v), torch.outer(w, v)),
        lambda m, n: (r(m, n), r(n), r(m)),
    ),
    "double": (torch.mm, lambda m, n: (r(m, 5).double(), r(5, n).double())),
    "bfloat16": (
        lambda a, b: (a @ b).relu(),
        lambda m, n: (r(m, 16).bfloat16(), r(16, n).bfloat16()),
    ),
    "einsum": (
        lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij,bjk->ikb", a, b)),
        lambda m, n: (r(3, m, 5), r(3, 5, n)),
    ),
    "two products": (
        lambda x, a, b: F.silu(x @ a) * (x @ b),
        lambda m, n: (r(m, 8), r(8, n), r(8, n)),
    ),
    "three parts of one product": (
        lambda x, w: [p.relu() for p in F.linear(x, w).split(4, -1)],
        lambda m, n: (r(m, 8), r(12, 8)),
    ),
}

TABLES = {
    "unary": UNARY, "activation": ACTIVATIONS, "binary": BINARY, "fold": FOLDS, "made": MADE,
    "pad": PADS, "pool": POOLS,  "product": PRODUCTS,
}  # fmt: skip
CASES = [
    pytest.param(case, id=f"{table} {name}")
    for table, cases in TABLES.items()
    for name, case in cases.items()
]


@pytest.mark.parametrize("case", CASES)
def test_a_rule_gives_what_eager_pytorch_gives(case: Case) -> None:
    torch.manual_seed(0)
    fn, arguments = case
    tolerance = 2e-2 if any(a.dtype == torch.bfloat16 for a in arguments(4, 4)) else None
    check(fn, arguments(11, 14), arguments(4, 15), tolerance=tolerance)


# What a library runs best between programs: no warning says that it does.
SCATTERED: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]], str]] = {
    "bilinear": (
        lambda x, y: F.interpolate(x + 1, size=y.shape[2:], mode="bilinear") * 2,
        lambda m, n: (r(2, 3, m, n), r(1, 2, 2 * n + 1, m + 5)), "upsample_bilinear2d.vec",
    ),
    "bicubic": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic") * 2,
        lambda m, n: (r(2, 3, m, n),), "upsample_bicubic2d.vec",
    ),
    "adaptive": (
        lambda x: F.adaptive_avg_pool2d(x + 1, (5, 3)) * 2,
        lambda m, n: (r(2, 3, m, n),), "adaptive_avg_pool2d.default",
    ),
    "adaptive with places": (
        lambda x: F.adaptive_max_pool2d(x + 1, 3, return_indices=True),
        lambda m, n: (r(2, 3, m, n),), "adaptive_max_pool2d.default",
    ),
    "bags": (
        lambda w, i: F.embedding_bag(i, w, mode="mean") * 2,
        lambda m, n: (r(50, 8), torch.randint(0, 50, (m, n))), "embedding_bag.padding_idx",
    ),
    "bags of several lengths": (
        lambda w, i, starts: F.embedding_bag(i, w, starts, mode="sum").bfloat16(),
        lambda m, n: (r(50, 8), torch.randint(0, 50, (m,)), torch.tensor([0, 2, 2])),
        "embedding_bag.padding_idx",
    ),
    "sums of rows": (
        lambda x, i, y: (x * 2).index_add(0, i, y.exp()) + 1,
        lambda m, n: (r(7, n), torch.randint(0, 7, (m,)), r(m, n)), "index_add.default",
    ),
    "sums of elements": (
        lambda x, i, y: (x * 2).scatter_add(0, i, y * 3) + 1,
        lambda m, n: (torch.ones(7, n).long(), torch.randint(0, 7, (m, n)),
                      torch.randint(0, 9, (m, n))), "scatter_add.default",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("error::vtc.errors.FallbackWarning")
@pytest.mark.parametrize("name", SCATTERED)
def test_what_a_library_runs_best_is_called_between_programs(name: str) -> None:
    fn, arguments, operator = SCATTERED[name]
    compiled = check(fn, arguments(11, 14), arguments(4, 15), eager=(f"aten.{operator}",))
    assert all(plan.splits for plan in compiled.plans)

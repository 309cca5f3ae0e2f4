"""Operators that a device runs as programs, by name: a function and how many tensors it takes."""

import torch
from torch.nn import functional


def rms_add(x, y, w):
    z = x + y
    return z, functional.rms_norm(z, (z.shape[-1],), w, 1e-6)


def layer_norm(x, w, b):
    return functional.layer_norm(x, (x.shape[-1],), w, b)


POINTWISE = {
    "add": (lambda x, y: x + y, 2),
    "swiglu": (lambda x, y: functional.silu(x) * y, 2),
    "gelu": (functional.gelu, 1),
    "gelu_tanh": (lambda x: functional.gelu(x, approximate="tanh"), 1),
    "relu_scaled": (lambda x: torch.relu(x + 1) * 2, 1),
    "where": (lambda x, y: torch.where(x > y, x, -y), 2),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), 1),
    "div": (lambda x, y: x / (y.abs() + 1), 2),
    "softmax": (lambda x: torch.softmax(x, -1), 1),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), 1),
    "mean_all": (lambda x: x.float().mean(), 1),
    "sum_rows": (lambda x: x.float().sum(0), 1),
    "sum_columns": (lambda x: x.float().sum(-1), 1),
    "max_all": (lambda x: x.amax(), 1),
    "transposed": (lambda x: x.mT + 1, 1),
    "cat": (lambda x, y: torch.cat([x, y * 2], -1), 2),
    "halves": (lambda x: x[:, : x.shape[1] // 2] * x[:, x.shape[1] - x.shape[1] // 2 :], 1),
    "flip": (lambda x: x.flip(1) + x, 1),
    "pad": (lambda x: functional.pad(x, (1, 2)) * 2, 1),
    "sin": (lambda x: torch.sin(x) + torch.cos(x), 1),
    "pow": (lambda x: x.abs() ** 1.5, 1),
}


def close(got, expected, dtype):
    bound = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(got, expected, rtol=bound, atol=bound)


def rms(x):
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)


# Operations on rows: a kind of them, and a function of two tensors and a vector of columns.
ROW_OPERATORS = {
    "copy": ("map", lambda x, y, w: x.clone()),
    "unary": ("map", lambda x, y, w: torch.exp(x)),
    "two unary ones": ("map", lambda x, y, w: torch.tanh(torch.neg(x))),
    "binary": ("map", lambda x, y, w: torch.maximum(x, y)),
    "by a number": ("map", lambda x, y, w: 3.0 - x),
    "gate": ("map", lambda x, y, w: y * functional.silu(x)),
    "gate the other way round": ("map", lambda x, y, w: torch.sigmoid(x) - y),
    "bias and activation": ("map", lambda x, y, w: functional.gelu(x + w)),
    "square of itself": ("map", lambda x, y, w: x / x),
    "choice": ("map", lambda x, y, w: torch.where(x <= 0.5, y - x, x * y)),
    "choice of operands": ("map", lambda x, y, w: torch.where(x > 0, y, x)),
    "layer norm": ("norm", lambda x, y, w: layer_norm(x, w, w)),
    "layer norm alone": ("norm", lambda x, y, w: functional.layer_norm(x, (x.shape[-1],))),
    "rms norm": ("norm", lambda x, y, w: functional.rms_norm(x, (x.shape[-1],), w, 1e-6)),
    "sum and rms norm": ("norm", rms_add),
    "sum and layer norm": ("norm", lambda x, y, w: layer_norm(x + y, w, w)),
    "rounded rms norm": ("norm", lambda x, y, w: w * rms(x).to(x.dtype)),
    "softmax": ("softmax", lambda x, y, w: torch.softmax(x, -1)),
}


def turned(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotated(x, cos, sin):
    return x * cos + turned(x) * sin


def heads_rotated(width, normed):
    """Of rows of three heads, whose width is known, as models have them."""

    def run(x, cos, sin, w):
        x = x.unflatten(-1, (3, width))
        if normed:
            x = w * rms(x).to(x.dtype)
        return rotated(x.transpose(1, 2), cos, sin)

    return run


# Kernels for rows, by name: norms and softmax of groups of elements, and what flat ranges compute.
GROUPS = [f"{t}_{n}{a}" for t in ("bf16", "f16") for a in ("", "_any") for n in (1, 2)]
GROUPS += ["f32_1", "f32_2"]
DENSE = [f"{t}_{n}" for t in ("bf16", "f16", "f32") for n in (4, 8, "groups")]
SINGLE = (
    *("copy", "exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"),
    *(f"{f}_{op}" for f in ("gate", "bias") for op in ("sigmoid", "silu", "gelu", "gelu_tanh")),
)
FORMS = (*SINGLE, "binary", "choose", "any")

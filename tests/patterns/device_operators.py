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

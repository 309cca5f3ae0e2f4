"""Recurrent layers, unrolled over time as ONNX defines them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx.host import Value
from vtc.graph.onnx.registry import rule

Activation = Callable[[Tensor], Any]
Step = Callable[..., tuple[Any, ...]]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """One of ONNX's activation functions with its parameters or their defaults."""
    a, b = alpha, beta
    table: dict[str, Activation] = {
        "affine": lambda x: (1.0 if a is None else a) * x + (b or 0.0),
        "relu": torch.relu,
        "leakyrelu": lambda x: F.leaky_relu(x, 0.01 if a is None else a),
        "thresholdedrelu": lambda x: torch.where(x > (1.0 if a is None else a), x, 0.0),
        "tanh": torch.tanh,
        "scaledtanh": lambda x: (
            (1.0 if a is None else a) * torch.tanh((1.0 if b is None else b) * x)
        ),
        "sigmoid": torch.sigmoid,
        "hardsigmoid": lambda x: torch.clamp(
            (0.2 if a is None else a) * x + (0.5 if b is None else b), 0, 1
        ),
        "elu": lambda x: F.elu(x, 1.0 if a is None else a),
        "softsign": F.softsign,
        "softplus": F.softplus,
    }
    return table[name.lower()]


def _activations(
    names: Sequence[str],
    alpha: Sequence[float] | None,
    beta: Sequence[float] | None,
    clip: float | None,
) -> list[Activation]:
    alphas, betas = list(alpha or ()), list(beta or ())
    made: list[Activation] = []
    for k, name in enumerate(names):
        fn = _activation(
            name,
            alphas[k] if k < len(alphas) else None,
            betas[k] if k < len(betas) else None,
        )
        made.append(fn if clip is None else functools.partial(_clipped, fn, clip))
    return made


def _clipped(fn: Activation, clip: float, x: Tensor) -> Any:
    return fn(torch.clamp(x, -clip, clip))


def _run(
    x: Tensor,
    lengths: Value,
    states: Sequence[Sequence[Tensor]],
    steps: Sequence[Step],
    direction: str,
    layout: int,
) -> tuple[Any, ...]:
    """All directions over time -> (outputs, final hidden state, final cell state, ...).

    x: (time, batch, size), batch first with layout 1. states: for each direction the initial
    states, each (batch, hidden). steps: for each direction the step on (x_t, *states).
    """
    x = x.transpose(0, 1) if layout else x
    outputs, finals = [], []
    for number, (state, step) in enumerate(zip(states, steps, strict=True)):
        backwards = direction == "reverse" or number == 1
        now = list(state)
        rows: list[Any] = [None] * x.shape[0]
        for t in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
            new = step(x[t], *now)
            if lengths is None:
                now, rows[t] = list(new), new[0]
                continue
            # Beyond its length a sequence keeps its state and gives zeros.
            live = (t < lengths).unsqueeze(1)
            now = [torch.where(live, n, o) for n, o in zip(new, now, strict=True)]
            rows[t] = torch.where(live, new[0], torch.zeros_like(new[0]))
        outputs.append(torch.stack(rows))
        finals.append(now)
    out = torch.stack(outputs, 1)  # (time, directions, batch, hidden)
    last = [torch.stack(parts) for parts in zip(*finals, strict=True)]
    if layout:
        return (out.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in last))
    return (out, *last)


def _initial(state: Value, x: Tensor, hidden: int, count: int, layout: int) -> list[Any]:
    batch = x.shape[0 if layout else 1]
    if state is None:
        return [torch.zeros(batch, hidden, dtype=x.dtype, device=x.device)] * count
    state = state.transpose(0, 1) if layout else state
    return [state[k] for k in range(count)]


def _biases(b: Value, k: int, hidden: int, gates: int) -> tuple[Any, Any]:
    if b is None:
        return None, None
    return b[k, : gates * hidden], b[k, gates * hidden :]


def _results(values: tuple[Any, ...], outputs: int) -> Any:
    return values[0] if outputs == 1 else values[:outputs]


@rule("RNN")
def rnn(
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    outputs: int,
) -> Any:
    count, hidden = r.shape[0], r.shape[-1]
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def step(k: int, x_t: Tensor, h: Tensor) -> tuple[Any, ...]:
        bias_w, bias_r = _biases(b, k, hidden, 1)
        return (functions[k](F.linear(x_t, w[k], bias_w) + F.linear(h, r[k], bias_r)),)

    states = [(h,) for h in _initial(initial_h, x, hidden, count, layout)]
    steps = [functools.partial(step, k) for k in range(count)]
    return _results(_run(x, sequence_lens, states, steps, direction, layout), outputs)


@rule("GRU")
def gru(
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Sigmoid", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    outputs: int,
) -> Any:
    count, hidden = r.shape[0], r.shape[-1]
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def step(k: int, x_t: Tensor, h: Tensor) -> tuple[Any, ...]:
        f, g = functions[2 * k : 2 * k + 2]
        bias_w, bias_r = _biases(b, k, hidden, 3)
        parts = [hidden] * 3
        xz, xr, xh = torch.split(F.linear(x_t, w[k], bias_w), parts, -1)
        rz, rr, rh = torch.split(r[k], parts, 0)
        bz, br, bh = (None,) * 3 if bias_r is None else torch.split(bias_r, parts, 0)
        update = f(xz + F.linear(h, rz, bz))
        reset = f(xr + F.linear(h, rr, br))
        if linear_before_reset:
            new = g(xh + reset * F.linear(h, rh, bh))
        else:
            new = g(xh + F.linear(reset * h, rh, bh))
        return ((1 - update) * new + update * h,)

    states = [(h,) for h in _initial(initial_h, x, hidden, count, layout)]
    steps = [functools.partial(step, k) for k in range(count)]
    return _results(_run(x, sequence_lens, states, steps, direction, layout), outputs)


@rule("LSTM")
def lstm(
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    initial_c: Value = None,
    p: Value = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    outputs: int,
) -> Any:
    count, hidden = r.shape[0], r.shape[-1]
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def step(k: int, x_t: Tensor, h: Tensor, c: Tensor) -> tuple[Any, ...]:
        f, g, last = functions[3 * k : 3 * k + 3]
        bias_w, bias_r = _biases(b, k, hidden, 4)
        gates = F.linear(x_t, w[k], bias_w) + F.linear(h, r[k], bias_r)
        gi, go, gf, gc = torch.split(gates, [hidden] * 4, -1)
        pi, po, pf = (0, 0, 0) if p is None else torch.split(p[k], [hidden] * 3, -1)
        into = f(gi + pi * c)
        forget = 1 - into if input_forget else f(gf + pf * c)
        cell = forget * c + into * g(gc)
        return f(go + po * cell) * last(cell), cell

    first = _initial(initial_h, x, hidden, count, layout)
    cells = _initial(initial_c, x, hidden, count, layout)
    states = list(zip(first, cells, strict=True))
    steps = [functools.partial(step, k) for k in range(count)]
    return _results(_run(x, sequence_lens, states, steps, direction, layout), outputs)

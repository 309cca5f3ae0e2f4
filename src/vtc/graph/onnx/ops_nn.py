"""Convolutions, matrix products and normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from vtc.graph.onnx.host import Value, number, tensors
from vtc.graph.onnx.registry import rule
from vtc.graph.onnx.windows import Pairs, explicit_pads, symmetric

CONV = (F.conv1d, F.conv2d, F.conv3d)
CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def _flat(pairs: Pairs) -> list[int]:
    """Pads of the spatial dimensions as `F.pad` takes them: the last dimension first."""
    return [n for pair in reversed(pairs) for n in pair]


@rule("Conv")
def conv(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    rank = x.dim() - 2
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = explicit_pads(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    padding = symmetric(pairs)
    if padding is None:
        x, padding = F.pad(x, _flat(pairs)), [0] * rank
    return CONV[rank - 1](x, w, b, strides, padding, dilations, group)


@rule("ConvTranspose")
def conv_transpose(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    rank = x.dim() - 2
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    extra = list(output_padding or [0] * rank)
    given = list(pads or [0] * (2 * rank))
    pairs = list(zip(given[:rank], given[rank:], strict=True))
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for d in range(rank):
            size = x.shape[2 + d]
            target = output_shape[d - rank] if output_shape is not None else size * strides[d]
            full = strides[d] * (size - 1) + extra[d] + (w.shape[2 + d] - 1) * dilations[d] + 1
            total = full - target
            low = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            pairs.append((low, total - low))
    padding = symmetric(pairs)
    run = CONV_TRANSPOSE[rank - 1]
    fits = all(e < max(s, t) for e, s, t in zip(extra, strides, dilations, strict=True))
    if padding is not None and fits and min(padding, default=0) >= 0:
        return run(x, w, b, strides, padding, extra, group, dilations)
    out = run(x, w, b, strides, 0, 0, group, dilations)
    if any(extra):
        out = _grown(out, extra, b)
    return F.pad(out, [-n for n in _flat(pairs)])


def _grown(out: Tensor, extra: Sequence[int], b: Value) -> Tensor:
    """`out` with `extra` positions, which hold nothing but the bias, at the end of each
    dimension."""
    amounts = [n for e in reversed(extra) for n in (0, e)]
    if b is None:
        return F.pad(out, amounts)
    bias = b.reshape(-1, *[1] * len(extra))
    return F.pad(out - bias, amounts) + bias


@rule("Gemm")
def gemm(
    a: Value,
    b: Value,
    c: Value = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803
) -> Any:
    if transA:
        a = a.t()
    if transB and alpha == 1.0 and (c is None or (beta == 1.0 and c.dim() == 1)):
        return F.linear(a, b, c)
    out = torch.matmul(a, b.t() if transB else b)
    out = out if alpha == 1.0 else alpha * out
    return out if c is None else out + (c if beta == 1.0 else beta * c)


@rule("MatMul")
def matmul(a: Value, b: Value) -> Any:
    return torch.matmul(*tensors(a, b))


@rule("Einsum")
def einsum(*inputs: Value, equation: str) -> Any:
    return torch.einsum(equation.replace(" ", ""), *tensors(*inputs))


@rule("Det")
def det(x: Value) -> Any:
    return torch.linalg.det(x)


# Normalisations.


@rule("BatchNormalization", since=7)
def batch_normalization(
    x: Value,
    scale: Value,
    b: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    outputs: int,
) -> Any:
    if not training_mode:
        y = F.batch_norm(x, mean, var, scale.to(mean.dtype), b.to(mean.dtype), False, 0.0, epsilon)
        return (y,) if outputs > 1 else y
    dims = [d for d in range(x.dim()) if d != 1]
    batch_mean, batch_var = torch.mean(x, dims), torch.var(x, dims, correction=0)
    y = F.batch_norm(x, batch_mean, batch_var, scale, b, False, 0.0, epsilon)
    kept = 1 - momentum
    running = mean * momentum + batch_mean * kept, var * momentum + batch_var * kept
    return (y, *running)[:outputs] if outputs > 1 else y


@rule("InstanceNormalization")
def instance_normalization(x: Value, scale: Value, b: Value, *, epsilon: float = 1e-5) -> Any:
    dims = list(range(2, x.dim()))
    mean = torch.mean(x, dims, keepdim=True)
    var = torch.var(x, dims, keepdim=True, correction=0)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    return (x - mean) * torch.rsqrt(var + epsilon) * scale.reshape(shape) + b.reshape(shape)


@rule("GroupNormalization", since=18)
def group_normalization_by_group(
    x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int
) -> Any:
    per_channel = x.shape[1] // num_groups
    scale, bias = (t.repeat_interleave(per_channel) for t in (scale, bias))
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@rule("GroupNormalization", since=21)
def group_normalization(
    x: Value,
    scale: Value,
    bias: Value,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> Any:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@rule("LayerNormalization")
def layer_normalization(
    x: Value,
    scale: Value,
    b: Value = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int,
) -> Any:
    d = axis % x.dim()
    shape = x.shape[d:]
    if outputs == 1:
        whole = scale.shape == shape and (b is None or b.shape == shape)
        if whole:
            return F.layer_norm(x, shape, scale, b, epsilon)
        y = F.layer_norm(x, shape, None, None, epsilon) * scale
        return y if b is None else y + b
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    dims = list(range(d, x.dim()))
    mean = torch.mean(wide, dims, keepdim=True)
    var = torch.var(wide, dims, keepdim=True, correction=0)
    inverse = torch.rsqrt(var + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return (y if b is None else y + b, mean, inverse)[:outputs]


@rule("RMSNormalization")
def rms_normalization(
    x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    d = axis % x.dim()
    dims = list(range(d, x.dim()))
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    normed = wide * torch.rsqrt(torch.mean(wide * wide, dims, keepdim=True) + epsilon)
    return normed.to(x.dtype) * scale


@rule("MeanVarianceNormalization")
def mean_variance_normalization(x: Value, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    mean = torch.mean(x, list(axes), keepdim=True)
    deviation = torch.sqrt(torch.mean(x * x, list(axes), keepdim=True) - mean * mean)
    return (x - mean) / (deviation + 1e-9)


@rule("LRN")
def lrn(x: Value, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Any:
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    spread = [0, 0] * (x.dim() - 2) + [low, high]
    squares = F.pad(x * x, spread)
    total = sum(torch.narrow(squares, 1, k, x.shape[1]) for k in range(size))
    return x / torch.pow(bias + alpha / size * total, beta)


@rule("Dropout", since=7)
def dropout_identity(x: Value, *, ratio: float = 0.5, outputs: int) -> Any:
    return (x, torch.ones_like(x, dtype=torch.bool)) if outputs > 1 else x


@rule("Dropout", since=12, host=(1, 2))
def dropout(
    x: Value,
    ratio: Value = None,
    training_mode: Value = None,
    *,
    seed: int | None = None,
    outputs: int,
) -> Any:
    share = number(ratio, 0.5)
    mask = torch.ones_like(x, dtype=torch.bool)
    if number(training_mode, False) and share > 0:
        mask = torch.rand_like(x, dtype=torch.float32) >= share
        x = torch.where(mask, x / (1 - share), torch.zeros_like(x))
    return (x, mask) if outputs > 1 else x


@rule("CausalConvWithState")
def causal_conv_with_state(
    x: Value,
    weight: Value,
    bias: Value = None,
    past_state: Value = None,
    *,
    activation: str = "none",
    outputs: int,
) -> Any:
    """Depthwise and causal; the state is the last positions of the input."""
    carried = weight.shape[-1] - 1
    if past_state is None:
        extended = F.pad(x, [carried, 0])
    else:
        extended = torch.cat([past_state.to(x.dtype), x], -1)
    out = F.conv1d(extended, weight, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        out = F.silu(out)
    state = torch.narrow(extended, -1, extended.shape[-1] - carried, carried)
    return (out, state) if outputs > 1 else out


@rule("GlobalAveragePool")
def global_average_pool(x: Value) -> Any:
    return torch.mean(x, list(range(2, x.dim())), keepdim=True)


@rule("GlobalMaxPool")
def global_max_pool(x: Value) -> Any:
    return torch.amax(x, list(range(2, x.dim())), keepdim=True)


@rule("GlobalLpPool")
def global_lp_pool(x: Value, *, p: int = 2) -> Any:
    return torch.linalg.vector_norm(x, p, dim=list(range(2, x.dim())), keepdim=True)


@rule("LinearAttention")
def linear_attention(
    query: Value,
    key: Value,
    value: Value,
    past_state: Value = None,
    decay: Value = None,
    beta: Value = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    outputs: int,
) -> Any:
    """The recurrence S = exp(g) S + beta k (v - S^T k), o = scale q S, token by token."""
    batch, steps, _ = query.shape
    wide = torch.float32 if query.dtype != torch.float64 else torch.float64

    def heads(x: Tensor, count: int) -> Tensor:
        return x.to(wide).reshape(batch, steps, count, -1).transpose(1, 2)

    q, k, v = heads(query, q_num_heads), heads(key, kv_num_heads), heads(value, kv_num_heads)
    gate = heads(decay, kv_num_heads) if decay is not None else None
    rate = heads(beta, min(kv_num_heads, beta.shape[-1])) if beta is not None else None
    shared = q_num_heads // kv_num_heads
    factor = scale or 1 / math.sqrt(q.shape[-1])
    state = torch.zeros(
        batch, kv_num_heads, k.shape[-1], v.shape[-1], dtype=wide, device=query.device
    )
    if past_state is not None:
        state = past_state.to(wide)
    rows = []
    for t in range(steps):
        k_t, v_t = k[:, :, t, :, None], v[:, :, t, None, :]
        if gate is not None and "gated" in update_rule:
            state = state * torch.exp(gate[:, :, t, :, None])
        if "delta" in update_rule:
            v_t = v_t - torch.matmul(k_t.transpose(-1, -2), state)
            v_t = v_t if rate is None else v_t * rate[:, :, t, :, None]
        state = state + k_t * v_t
        read = state.repeat_interleave(shared, 1) if shared > 1 else state
        rows.append(torch.matmul(q[:, :, t, None, :] * factor, read))
    out = torch.cat(rows, 2).transpose(1, 2).reshape(batch, steps, -1).to(query.dtype)
    return (
        (out, state.to(query.dtype if past_state is None else past_state.dtype))[:outputs]
        if (outputs > 1)
        else out
    )

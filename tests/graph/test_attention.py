"""Attention is recognised, as one operator or written out, and nothing else is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional

from vtc.graph.attention import Attention, find, rewrite
from vtc.graph.capture import capture
from vtc.graph.program import Program, value_of
from vtc.kernels.attention import OVERLOAD

aten = torch.ops.aten
BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 3, 11, 8


def captured(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Program:
    found: list[Program] = []

    def backend(graph_module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        found.append(capture(graph_module, examples))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)(*args)
    (program,) = found
    return program


def operands(dtype: torch.dtype = torch.float32, kv_heads: int = HEADS) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    query = torch.randn(BATCH, HEADS, QUERIES, DIM)
    key, value = torch.randn(2, BATCH, kv_heads, KEYS, DIM)
    mask = torch.where(torch.rand(BATCH, 1, QUERIES, KEYS) < 0.7, 0.0, torch.finfo(dtype).min)
    return tuple(t.to(dtype) for t in (query, key, value, mask))


def written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 0.5,
    softcap: float | None = None,
) -> Tensor:
    """The eager attention of transformers, with two heads on each key/value head or none."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (t[:, :, None].expand(-1, -1, repeats, -1, -1).reshape(*q.shape[:2], -1, DIM)
            for t in (k, v))  # fmt: skip
    logits = torch.matmul(q, k.transpose(2, 3)) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits = logits + mask
    weights = functional.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = functional.dropout(weights, p=0.0, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def run(program: Program, **args: Tensor) -> Tensor:
    """The result for arguments by name: a graph takes them in the order of their first use."""
    names = [n.meta["user_name"].removeprefix("l_").removesuffix("_") for n in program.inputs]
    (found,) = program.graph_module(*(args[name] for name in names))
    return found


def one(program: Program) -> Attention:
    (attention,) = find(program)
    return attention


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_is_written_out_becomes_one_operator(
    dtype: torch.dtype, masked: bool, softcap: float | None, kv_heads: int
) -> None:
    args = operands(dtype, kv_heads)[: 3 + masked]

    def f(*args: Tensor) -> Tensor:
        return written_out(*args, softcap=softcap)

    program = captured(f, args)
    attention = one(program)
    assert (attention.scale, attention.softcap, attention.causal) == (0.5, softcap, False)
    assert (attention.mask is not None) == masked
    names = [n.name for n in program.nodes]
    assert [n.name for n in attention.absorbed] == [
        n for n in names if n in {a.name for a in attention.absorbed}
    ]
    program = rewrite(program, {attention: {}}, OVERLOAD)
    targets = [n.target for n in program.nodes]
    assert targets.count(OVERLOAD) == 1
    gone = {aten.matmul.default, aten.softmax.int, aten.tanh.default, aten.dropout.default}
    assert not gone & set(targets)
    (found,) = program.graph_module(*args)
    want = written_out(*(a.double() for a in args), softcap=softcap)
    eager = written_out(*args, softcap=softcap)
    torch.testing.assert_close(
        found.double(), want, rtol=0, atol=2 * float((eager - want).abs().max()) + 1e-6
    )


@pytest.mark.parametrize("masked", [None, "bool", "float", "causal"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_library_call_becomes_one_operator(masked: str | None, scale: float | None) -> None:
    q, k, v, mask = operands(kv_heads=2)
    mask = (mask == 0) if masked == "bool" else mask

    def f(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        given = mask.expand(BATCH, HEADS, QUERIES, KEYS) if masked in ("bool", "float") else None
        return functional.scaled_dot_product_attention(
            q, k, v, given, is_causal=masked == "causal", scale=scale, enable_gqa=True
        )

    program = captured(f, (q, k, v, mask))
    attention = one(program)
    assert attention.scale == (scale or 1 / math.sqrt(DIM))
    if attention.mask is not None:
        assert value_of(attention.mask).shape[1] == 1, "the mask is read before it is expanded"
    program = rewrite(program, {attention: {"tiling": [16, 16, 1, 4, 2]}}, OVERLOAD)
    (node,) = (n for n in program.nodes if n.target is OVERLOAD)
    assert node.name == "scaled_dot_product_attention"
    torch.testing.assert_close(run(program, q=q, k=k, v=v, mask=mask), f(q, k, v, mask))


def test_the_layout_of_what_follows_is_that_of_the_operator() -> None:
    program = captured(written_out, operands())
    program = rewrite(program, {one(program): {}}, OVERLOAD)
    values = {n.target: value_of(n) for n in program.nodes}
    assert values[OVERLOAD].stride() == (QUERIES * HEADS * DIM, DIM, HEADS * DIM, 1)
    assert values[aten.transpose.int].is_contiguous()


def test_what_reads_the_result_as_a_view_of_another_layout_keeps_it() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1)
        return torch.matmul(weights, v).view(BATCH, HEADS * QUERIES, DIM)

    args = operands()[:3]
    program = captured(f, args)
    kept = rewrite(program, {one(program): {}}, OVERLOAD)
    assert OVERLOAD not in [n.target for n in kept.nodes]
    torch.testing.assert_close(run(kept, q=args[0], k=args[1], v=args[2]), f(*args))


def tokens_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scales: tuple[float, float] = (1.0, 1.0),
    softcap: float | None = None,
) -> Tensor:
    """The attention of YOLO11, on (batch, heads, d, tokens), behind the scaling of queries."""
    if scales[0] != 1:
        q = q * scales[0]
    logits = q.transpose(-2, -1) @ k
    if scales[1] != 1:
        logits = logits / (1 / scales[1])
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        logits = logits + mask
    return v @ logits.softmax(dim=-1).transpose(-2, -1)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.3, 1.0), (1.0, 0.6), (0.3, 0.6)])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_on_tokens_that_come_last_becomes_one_operator_between_views(
    dtype: torch.dtype, masked: bool, softcap: float | None, scales: tuple[float, float]
) -> None:
    q, k, v, mask = operands(dtype)
    v = v[..., :5]
    args = (q.mT.contiguous(), k.mT.contiguous(), v.mT.contiguous(), mask)[: 3 + masked]

    def f(*args: Tensor) -> Tensor:
        return tokens_last(*args, scales=scales, softcap=softcap)

    program = captured(f, args)
    attention = one(program)
    assert math.isclose(attention.scale, scales[0] * scales[1])
    assert (attention.softcap, attention.swapped) == (softcap, True)
    names = [n.name for n in program.nodes]
    absorbed = [n.name for n in attention.absorbed]
    assert absorbed == [n for n in names if n in absorbed]
    program = rewrite(program, {attention: {}}, OVERLOAD)
    assert attention.call.target is OVERLOAD
    targets = [n.target for n in program.nodes]
    assert set(targets) == {OVERLOAD, aten.transpose.int}
    (call,) = (n for n in program.nodes if n.target is OVERLOAD)
    assert call.meta["val"].stride() == (QUERIES * HEADS * 5, 5, HEADS * 5, 1)
    order = [int(re.findall(r"\d+", n.meta["user_name"])[0]) for n in program.inputs]
    (found,) = program.graph_module(*(args[k] for k in order))
    assert found.stride() == value_of(program.outputs[0]).stride()
    want = f(*(a.double() for a in args))
    eager = f(*args)
    torch.testing.assert_close(
        found.double(), want, rtol=0, atol=2 * float((eager - want).abs().max()) + 1e-6
    )


def test_images_of_channels_last_are_attended_without_a_copy() -> None:
    """Queries, keys and values are slices of one image, and the result is an image again."""

    def f(image: Tensor) -> Tensor:
        n, _, h, w = image.shape
        q, k, v = image.view(n, HEADS, -1, h * w).split([DIM, DIM, 2 * DIM], 2)
        return tokens_last(q, k, v, scales=(0.3, 1.0)).view(n, -1, h, w)

    torch.manual_seed(0)
    image = torch.randn(BATCH, HEADS * 4 * DIM, 3, 5).to(memory_format=torch.channels_last)
    program = captured(f, (image,))
    program = rewrite(program, {one(program): {}}, OVERLOAD)
    assert aten.matmul.default not in [n.target for n in program.nodes]
    assert all(bound.movement.view for bound in program.movements.values())
    (found,) = program.graph_module(image)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, f(image))


def test_keys_that_are_not_transposed_are_read_so() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(torch.softmax(torch.matmul(q, k), -1), v)

    q, k, v, _ = operands()
    program = captured(f, (q, k.mT.contiguous(), v))
    program = rewrite(program, {one(program): {}}, OVERLOAD)
    torch.testing.assert_close(
        run(program, q=q, k=k.mT.contiguous(), v=v), written_out(q, k, v, scale=1.0).transpose(1, 2)
    )


def two_uses(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1)
    return torch.matmul(weights, v), weights * 2


def returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1)
    return torch.matmul(weights, v), weights


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)), 1), v)


def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1) * 2, v)


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.sigmoid(torch.matmul(q, k.transpose(2, 3))), v)


def rows_from_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = torch.matmul(q[:, :, :1], k.transpose(2, 3)) + torch.ones(QUERIES, KEYS)
    return torch.matmul(torch.softmax(logits, -1), v)


def over_queries_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.mT @ torch.softmax(q @ k.mT, -2).mT


def two_uses_last(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1).mT
    return v.mT @ weights, weights + 1


def weights_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1).mT @ q


def with_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


def three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q[0], k[0], v[0])


@pytest.mark.parametrize(
    "fn",
    [
        two_uses,
        returned,
        over_heads,
        gated,
        sigmoid,
        rows_from_the_mask,
        over_queries_last,
        two_uses_last,
        weights_first,
        with_dropout,
        three_dimensions,
    ],
)
def test_what_is_no_such_attention_stays(fn: Callable[..., Any]) -> None:
    assert not find(captured(fn, operands()[:3]))


def test_a_cap_that_does_not_undo_its_division_is_no_softcap() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = torch.tanh(torch.matmul(q, k.transpose(2, 3)) / 3.0) * 2.0
        return torch.matmul(torch.softmax(logits, -1), v)

    assert not find(captured(f, operands()[:3]))


def test_scales_are_multiplied_or_divided_by() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(torch.softmax(torch.matmul(q, k.mT) / 4.0, -1), v)

    assert one(captured(f, operands()[:3])).scale == 0.25

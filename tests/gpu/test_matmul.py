"""Matmuls through maps on the device: every candidate, half precision, against float64."""

from __future__ import annotations

import pytest
import torch

from kernels import matmuls
from kernels.matmuls import Tensors
from vtc.index import axes
from vtc.kernels.epilogue import Body
from vtc.kernels.matmul import Config, Matmul, Part
from vtc.kernels.matmul_candidates import candidates
from vtc.kernels.matmul_text import build

pytestmark = pytest.mark.gpu


def sample(matmul: Matmul) -> list[Config]:
    """Every third candidate."""
    return candidates(matmul)[::3]


DTYPES = [torch.bfloat16, torch.float16]


@pytest.fixture(params=DTYPES, ids=str)
def tensors(request: pytest.FixtureRequest) -> Tensors:
    torch.manual_seed(1)
    return Tensors(torch.device("cuda"), request.param)


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """One rounding of the result, and f32 sums: relative to the largest element."""
    unit = torch.finfo(actual.dtype).eps
    scale = float(expected.abs().max())
    error = float((actual.double() - expected).abs().max())
    assert error <= (unit + 1e-4) * scale, (error / scale, unit)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1024, 4096), (2, 58, 58), (4, 512, 1000), (16, 1024, 4096), (33, 100, 72), (784, 116, 58),
     (300, 513, 129)],
)  # fmt: skip
def test_linear(tensors: Tensors, m: int, n: int, k: int) -> None:
    matmul, out = matmuls.linear(tensors, m, n, k, bias=True, scale=k**-0.5)
    expected = tensors.double(0) @ tensors.double(1).T + tensors.double(2)
    for config in sample(matmul):
        tensors.values[out].fill_(float("nan"))
        build(matmul, config)(tensors.values)
        check(tensors.values[out], expected)


@pytest.mark.parametrize("m", [1, 3, 16, 128])
def test_gate_and_up(tensors: Tensors, m: int) -> None:
    matmul, out = matmuls.gated(tensors, m, 264, 512, scale=512**-0.5)
    x, gate, up = (tensors.double(k) for k in range(3))
    expected = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    for config in sample(matmul):
        tensors.values[out].fill_(float("nan"))
        build(matmul, config)(tensors.values)
        check(tensors.values[out], expected)


@pytest.mark.parametrize("m", [1, 16])
def test_projections(tensors: Tensors, m: int) -> None:
    matmul, at = matmuls.projections(tensors, m, 256, 8, 2, 64, 48, scale=1 / 16)
    expected = [tensors.values[n] for n in at.expected]
    for config in sample(matmul):
        build(matmul, config)(tensors.values[: len(matmul.tensors)])
        check(tensors.values[at.query].view(m, 8, 64), expected[0])
        check(tensors.values[at.keys][:, :, at.position], expected[1])
        check(tensors.values[at.values][:, :, at.position], expected[2])


@pytest.mark.parametrize("m", [4, 784])
def test_concat_and_shuffle_equal_materialised_operands_bit_for_bit(
    tensors: Tensors, m: int
) -> None:
    a, b = tensors.random(m, 58), tensors.random(m, 58)
    i, j = axes(2)
    joined = matmuls.columns((a, b), m, (58, 58))
    shuffle = matmuls.IndexMap.single((m, 116), [i, j % 2 * 58 + j // 2]).compose({0: joined})
    left = shuffle.restrict((0, 58), (m, 116))
    value = torch.cat([tensors.values[a], tensors.values[b]], 1).view(m, 2, 58)
    dense = tensors.add(value.transpose(1, 2).reshape(m, 116)[:, 58:].contiguous())
    w = tensors.random(58, 58, scale=58**-0.5)
    outs = [tensors.empty(m, 58), tensors.empty(m, 58)]
    described = []
    for operand, out in zip((left, tensors.whole(dense)), outs, strict=True):
        body = Body()
        body.store(body.product(), tensors.whole(out))
        part = Part(58, (tensors.transposed(w),), body.build())
        described.append(Matmul((), m, 58, operand, (part,), tensors.described()))
    for config in sample(described[0]):
        for matmul, out in zip(described, outs, strict=True):
            tensors.values[out].fill_(float("nan"))
            build(matmul, config)(tensors.values)
        assert torch.equal(tensors.values[outs[0]], tensors.values[outs[1]]), config
        check(tensors.values[outs[0]], tensors.double(dense) @ tensors.double(w).T)


def test_a_captured_call_with_a_split_gives_the_same_bits_at_every_replay(
    tensors: Tensors,
) -> None:
    matmul, out = matmuls.linear(tensors, 16, 256, 8192, scale=8192**-0.5)
    split = [c for c in candidates(matmul) if c.splits > 1]
    assert split
    for config in split:
        launch = build(matmul, config)
        launch(tensors.values)
        first = tensors.values[out].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                launch(tensors.values)
        for _ in range(20):
            tensors.values[out].fill_(float("nan"))
            graph.replay()
            assert torch.equal(tensors.values[out], first), config
        check(first, tensors.double(0) @ tensors.double(1).T)


def test_a_batch(tensors: Tensors) -> None:
    a, b = tensors.random(6, 40, 72), tensors.random(6, 72, 48, scale=72**-0.5)
    out = tensors.empty(6, 40, 48)
    body = Body()
    body.store(body.product(), tensors.whole(out))
    part = Part(48, (tensors.whole(b),), body.build())
    matmul = Matmul((6,), 40, 72, tensors.whole(a), (part,), tensors.described())
    for config in sample(matmul):
        tensors.values[out].fill_(float("nan"))
        build(matmul, config)(tensors.values)
        check(tensors.values[out], tensors.double(a) @ tensors.double(b))

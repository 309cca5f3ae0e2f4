"""Sums of squares that a matmul stores beside its result, and a norm by sums that another adds up:
against float64, for every kind of tiling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.matmuls import Tensors
from kernels.offline import compile_offline
from kernels.test_matmul import request
from vtc.kernels.epilogue import Body
from vtc.kernels.matmul import Config, Matmul, Part
from vtc.kernels.matmul_candidates import LIKELY, candidates
from vtc.kernels.matmul_text import build
from vtc.program.dtypes import DType

CONFIGS = {
    "tile": Config(16, 32, 16),
    "swapped": Config(16, 32, 16, swapped=True),
    "split": Config(16, 32, 16, splits=3),
    "split, swapped": Config(16, 16, 16, splits=2, swapped=True),
    "stream": Config(0, 8, 32, stream=True),
}


def configured(name: str, m: int) -> Config:
    config = CONFIGS[name]
    return replace(config, rows=m) if config.stream else config


@pytest.fixture
def tensors(device: torch.device) -> Tensors:
    torch.manual_seed(0)
    return Tensors(device)


def storing(tensors: Tensors, m: int, n: int, k: int, width: int) -> tuple[Matmul, int, int]:
    """x @ w^T + r -> out, and the squares of that in sums of `width`."""
    x, w, r = tensors.random(m, k), tensors.random(n, k), tensors.random(m, n)
    out, sums = tensors.empty(m, n), tensors.empty(m, n // width, dtype=torch.float32)
    body = Body()
    value = body.scalar("add", body.product(), body.load(tensors.whole(r)))
    value = body.cast(value, DType.of(tensors.dtype))
    body.store(value, tensors.whole(out))
    body.store_sums(body.scalar("mul", value, value), tensors.whole(sums), width)
    part = Part(n, (tensors.transposed(w),), body.build())
    return Matmul((), m, k, tensors.whole(x), (part,), tensors.described()), out, sums


def scaled(tensors: Tensors, m: int, n: int, k: int, groups: int) -> tuple[Matmul, int]:
    """(x @ w^T) * the sums of the rows of s, in two parts of n / 2 columns each."""
    x, s = tensors.random(m, k), tensors.add(torch.rand(m, groups, device=tensors.device))
    out = tensors.empty(m, n)
    parts = []
    for first in (0, n // 2):
        w = tensors.random(n // 2, k)
        body = Body()
        value = body.scalar("mul", body.product(), body.row_sum(tensors.whole(s)))
        part = tensors.values[out][:, first : first + n // 2]
        body.store(value, tensors.view(out, part))
        parts.append(Part(n // 2, (tensors.transposed(w),), body.build()))
    return Matmul((), m, k, tensors.whole(x), tuple(parts), tensors.described()), out


SIZES = [(1, 40, 70), (3, 48, 48), (4, 16, 33)]
LARGER = [(37, 56, 20)]
# A stream is for few rows.
KERNELS = [
    (*size, name) for size in SIZES + LARGER for name in CONFIGS if size[0] <= 8 or name != "stream"
]


@pytest.mark.parametrize(("m", "n", "k", "name"), KERNELS)
def test_squares_are_summed_beside_the_result(
    tensors: Tensors, m: int, n: int, k: int, name: str
) -> None:
    matmul, out, sums = storing(tensors, m, n, k, 8)
    build(matmul, configured(name, m))(tensors.values)
    expected = tensors.double(0) @ tensors.double(1).T + tensors.double(2)
    torch.testing.assert_close(tensors.double(out), expected, rtol=1e-4, atol=1e-4)
    squares = tensors.double(out).square().unflatten(-1, (-1, 8)).sum(-1)
    torch.testing.assert_close(tensors.double(sums), squares, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k", "name"), KERNELS)
@pytest.mark.parametrize("groups", [1, 6, 16])
def test_rows_are_scaled_by_sums(
    tensors: Tensors, m: int, n: int, k: int, groups: int, name: str
) -> None:
    matmul, out = scaled(tensors, m, n, k, groups)
    build(matmul, configured(name, m))(tensors.values)
    weights = torch.cat([tensors.double(3), tensors.double(4)])
    expected = (tensors.double(0) @ weights.T) * tensors.double(1).sum(-1, keepdim=True)
    torch.testing.assert_close(tensors.double(out), expected, rtol=1e-4, atol=1e-4)


def test_tilings_hold_whole_sums() -> None:
    tensors = Tensors(torch.device("cpu"))
    for m in (1, 4, 16, 64):
        matmul, _, _ = storing(tensors, m, 96, 64, 8)
        found = candidates(matmul)
        assert found
        assert all(config.columns % 8 == 0 for config in found)
        tensors.values.clear()


def test_a_tiling_that_parts_a_sum_is_refused(tensors: Tensors) -> None:
    matmul, _, _ = storing(tensors, 3, 48, 16, 8)
    with pytest.raises(ValueError, match="8 divides"):
        build(matmul, Config(3, 4, 32, stream=True))


def test_rows_are_asked_for_ahead_of_the_products() -> None:
    """So that the end of a kernel waits for none."""
    matmul, _ = scaled(Tensors(torch.device("cpu")), 16, 64, 32, 6)
    source = build(matmul, CONFIGS["tile"]).source
    assert source.index("tl.load(x1") < source.index("for k0")


def test_every_tiling_of_a_model_compiles_for_hopper_without_spills() -> None:
    requests, names = [], []
    for m, width in ((1, 8), (16, 32)):
        for made in (storing, scaled):
            tensors = Tensors(torch.device("meta"), torch.bfloat16)
            matmul = made(tensors, m, 4096, 4096, width if made is storing else 4096 // width)[0]
            for config in candidates(matmul)[:LIKELY]:
                requests.append(request(matmul, config))
                names.append((m, made.__name__, config))
    for name, machine in zip(names, compile_offline(requests), strict=True):
        assert machine.spills == 0, name
        assert 16 in machine.loads, name

"""Matmuls through maps against float64, and with materialised operands bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy
import torch

from kernels import matmuls
from kernels.matmuls import Tensors
from kernels.offline import Request, compile_offline
from vtc.index import IndexMap, axes
from vtc.index.affine import Affine, Look
from vtc.kernels.epilogue import Body
from vtc.kernels.matmul import Config, Matmul, Part
from vtc.kernels.matmul_candidates import candidates
from vtc.kernels.matmul_text import build
from vtc.kernels.text import pointer_text
from vtc.program.dtypes import DType

TILE = Config(16, 32, 16)
SWAPPED = Config(16, 32, 16, swapped=True)
SPLIT = Config(16, 16, 16, splits=3, swapped=True)


def stream(m: int) -> Config:
    return Config(m, 8, 32, stream=True)


@pytest.fixture
def tensors(device: torch.device) -> Tensors:
    torch.manual_seed(0)
    return Tensors(device)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)


SIZES = [(1, 1, 1), (1, 40, 70), (4, 33, 48), (5, 16, 16), (37, 50, 20), (3, 8, 0)]
LINEAR = [(m, n, k, config) for m, n, k in SIZES for config in (TILE, SWAPPED, SPLIT)]
LINEAR += [(m, n, k, stream(m)) for m, n, k in SIZES if m <= 5]  # a stream is for few rows


@pytest.mark.parametrize(("m", "n", "k", "config"), LINEAR, ids=str)
def test_linear_with_bias(tensors: Tensors, m: int, n: int, k: int, config: Config) -> None:
    matmul, out = matmuls.linear(tensors, m, n, k, bias=True)
    build(matmul, config)(tensors.values)
    expected = tensors.double(0) @ tensors.double(1).T + tensors.double(2)
    close(tensors.values[out], expected)


def test_no_rows_is_no_launch(tensors: Tensors) -> None:
    matmul, _ = matmuls.linear(tensors, 0, 8, 8)
    build(matmul, TILE)(tensors.values)


@pytest.mark.parametrize("config", [TILE, SWAPPED, SPLIT, stream(3)], ids=str)
def test_gate_and_up_are_two_products_of_one_part(tensors: Tensors, config: Config) -> None:
    matmul, out = matmuls.gated(tensors, 3, 40, 64)
    build(matmul, config)(tensors.values)
    x, gate, up = (tensors.double(k) for k in range(3))
    close(tensors.values[out], torch.nn.functional.silu(x @ gate.T) * (x @ up.T))


@pytest.mark.parametrize("config", [TILE, SWAPPED, SPLIT, stream(2)], ids=str)
def test_projections_go_rotated_into_query_and_caches(tensors: Tensors, config: Config) -> None:
    matmul, at = matmuls.projections(tensors, 2, 40, heads=4, groups=2, width=8, context=7)
    build(matmul, config)(tensors.values[: len(matmul.tensors)])
    query, keys, values = (tensors.values[n] for n in (at.query, at.keys, at.values))
    expected = [tensors.values[n] for n in at.expected]
    close(query.view(2, 4, 8), expected[0])
    close(keys[:, :, at.position], expected[1])
    close(values[:, :, at.position], expected[2])
    # Nothing else in the caches was touched.
    for cache in (keys, values):
        others = [c for c in range(7) if c != at.position]
        assert cache[:, :, others].isnan().all()


def shuffled(tensors: Tensors, m: int, half: int) -> tuple[IndexMap, torch.Tensor]:
    """Channels of two tensors joined and shuffled in two groups, and the same in storage."""
    a, b = tensors.random(m, half), tensors.random(m, half)
    joined = matmuls.columns((a, b), m, (half, half))
    i, j = axes(2)
    shuffle = IndexMap.single((m, 2 * half), [i, j % 2 * half + j // 2])
    value = torch.cat([tensors.values[a], tensors.values[b]], 1)
    value = value.view(m, 2, half).transpose(1, 2).reshape(m, 2 * half)
    return shuffle.compose({0: joined}), value


@pytest.mark.parametrize("config", [TILE, SWAPPED, Config(16, 32, 32), stream(4)], ids=str)
@pytest.mark.parametrize("name", ["concat", "shuffle", "slice", "pad", "gather", "many"])
def test_maps_and_materialised_operands_are_bit_equal(
    tensors: Tensors, name: str, config: Config
) -> None:
    m, k, n = 4, 58, 24
    if name == "concat":
        left = matmuls.columns([tensors.random(m, w) for w in (29, 13, 16)], m, (29, 13, 16))
    elif name == "many":
        widths = (9, 10, 11, 12, 3, 13)
        left = matmuls.columns([tensors.random(m, w) for w in widths], m, widths)
    elif name == "shuffle":
        left, _ = shuffled(tensors, m, 29)
    elif name == "slice":
        wide = tensors.random(m, 100)
        left = tensors.view(wide, tensors.values[wide][:, 21:79])
    elif name == "pad":
        left = matmuls.padded_rows(tensors.random(2, k), 1, 2, 1, k)
    else:
        table, index = tensors.random(9, k), tensors.add(torch.tensor([3, -1, 0, 8]))
        tensors.values[index] = tensors.values[index].to(tensors.device)
        i, j = axes(2)
        left = IndexMap.single((m, k), [Affine(0, {Look(index, (i,)): 1}), j], table)
    w = tensors.random(n, k)
    mapped, dense = tensors.empty(m, n), tensors.empty(m, n)
    lookups = [v.cpu() for v in tensors.values]
    copy = left.materialize([v.cpu() for v in tensors.values], lookups).to(tensors.device)
    physical = tensors.add(copy.contiguous())
    if name == "shuffle":  # one column a piece: too many for a pipeline's shared memory
        config = replace(config, stages=1)
    if name in ("concat", "many"):
        config = replace(config, cut=False)
    for out, operand in ((mapped, left), (dense, tensors.whole(physical))):
        body, _ = matmuls.plain_body(tensors.whole(out))
        part = Part(n, (tensors.transposed(w),), body.build())
        matmul = Matmul((), m, k, operand, (part,), tensors.described())
        build(matmul, config)(tensors.values)
    close(tensors.values[mapped], copy.double() @ tensors.double(w).T)
    assert torch.equal(tensors.values[mapped], tensors.values[dense])


def test_groups_read_a_shuffle_in_runs(tensors: Tensors) -> None:
    m, half, n = 20, 18, 24
    left, value = shuffled(tensors, m, half)
    w, out = tensors.random(n, 2 * half), tensors.empty(m, n)
    body, _ = matmuls.plain_body(tensors.whole(out))
    part = Part(n, (tensors.transposed(w),), body.build())
    matmul = Matmul((), m, 2 * half, left, (part,), tensors.described())
    configs = candidates(matmul)
    assert {c.groups for c in configs} == {2}
    assert build(matmul, configs[0]).source.count("for k0 in") == 2
    build(matmul, Config(16, 16, 16, groups=2))(tensors.values)
    close(tensors.values[out], value.double() @ tensors.double(w).T)


def test_a_concat_cuts_the_loop_over_k_where_its_pieces_meet(
    tensors: Tensors, golden: Callable[[str, str], None]
) -> None:
    left = matmuls.columns([tensors.random(20, 58), tensors.random(20, 58)], 20, (58, 58))
    w, out = tensors.random(64, 116), tensors.empty(20, 64)
    body, _ = matmuls.plain_body(tensors.whole(out))
    part = Part(64, (tensors.transposed(w),), body.build())
    matmul = Matmul((), 20, 116, left, (part,), tensors.described())
    golden("matmul_concat", build(matmul, Config(16, 64, 64)).source.rstrip())


def test_results_go_into_slices_of_two_tensors(tensors: Tensors) -> None:
    m, n, k = 21, 30, 19
    x, w = tensors.random(m, k), tensors.random(n, k)
    first, second = tensors.empty(m, 12), tensors.empty(50, 40)
    split = matmuls.columns((first, second), m, (12, 18))
    whole = tensors.values[second]
    inner = tensors.view(second, whole[5 : 5 + m, 3:21])
    body = Body()
    value = body.product()
    body.store(value, split.compose({second: inner}))
    part = Part(n, (tensors.transposed(w),), body.build())
    build(Matmul((), m, k, tensors.whole(x), (part,), tensors.described()), TILE)(tensors.values)
    expected = tensors.double(x) @ tensors.double(w).T
    close(tensors.values[first], expected[:, :12])
    close(whole[5 : 5 + m, 3:21], expected[:, 12:])
    assert int(whole.isnan().sum()) == 50 * 40 - m * 18


@pytest.mark.parametrize("config", [TILE, SPLIT], ids=str)
def test_batches_and_grouped_operands(tensors: Tensors, config: Config) -> None:
    """A batch of 2 x 3 whose right operand is shared by the second batch dimension."""
    a, b = tensors.random(2, 3, 20, 24), tensors.random(2, 24, 17)
    out = tensors.empty(2, 20, 3, 17)
    p, q, i, j = axes(4)
    right = IndexMap.single((2, 3, 24, 17), [p, i, j], b)
    body = Body()
    body.store(body.product(), IndexMap.single((2, 3, 20, 17), [p, i, q, j], out))
    part = Part(17, (right,), body.build())
    matmul = Matmul((2, 3), 20, 24, tensors.whole(a), (part,), tensors.described())
    launch = build(matmul, config)
    for _ in range(2):  # the second launch finds the counters of the first as they must be
        tensors.values[out].fill_(float("nan"))
        launch(tensors.values)
        expected = tensors.double(a) @ tensors.double(b)[:, None]
        close(tensors.values[out].transpose(1, 2), expected)


@pytest.mark.parametrize("config", [Config(16, 16, 16), SPLIT], ids=str)
def test_a_symbolic_number_of_rows(tensors: Tensors, config: Config) -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    w = tensors.random(24, 40)
    x, out = tensors.random(50, 40), tensors.empty(50, 24)
    body = Body()
    body.store(body.product(), IndexMap.identity((s, 24), out))
    left = IndexMap.identity((s, 40), x)
    part = Part(24, (tensors.transposed(w),), body.build())
    matmul = Matmul((), s, 40, left, (part,), tensors.described())
    launch = build(matmul, config)
    for m in (1, 33, 50):
        tensors.values[out].fill_(float("nan"))
        launch(tensors.values, {"s0": m})
        close(tensors.values[out][:m], tensors.double(x)[:m] @ tensors.double(w).T)
        assert tensors.values[out][m:].isnan().all()


def test_a_symbolic_shape_and_a_wrong_operand_are_refused(tensors: Tensors) -> None:
    x, w = tensors.random(4, 8), tensors.random(6, 8)
    part = Part(6, (tensors.whole(w),), ())
    with pytest.raises(ValueError, match="right operand has shape"):
        Matmul((), 4, 8, tensors.whole(x), (part,), tensors.described())
    body = Body()
    body.scalar("fmod", body.product(), body.product())
    part = Part(6, (), body.build())
    with pytest.raises(ValueError, match="no Triton text"):
        Matmul((), 4, 8, tensors.whole(x), (part,), tensors.described())


def test_every_candidate_compiles_for_hopper_without_spills() -> None:
    """bf16: loads of weights are 16 bytes wide, and tensor cores are used where rows allow."""
    requests, configs = [], []
    for m, n, k in ((1, 4096, 4096), (16, 4096, 4096), (3136, 116, 116), (512, 1024, 1024)):
        tensors = Tensors(torch.device("meta"), torch.bfloat16)
        matmul, _ = matmuls.linear(tensors, m, n, k, bias=True)
        for config in candidates(matmul)[:4]:
            requests.append(request(matmul, config))
            configs.append((m, n, k, config))
    for (m, n, k, config), machine in zip(configs, compile_offline(requests), strict=True):
        assert machine.spills == 0, (m, n, k, config)
        if k % 8 == 0:
            assert 16 in machine.loads, (m, n, k, config, machine.loads)
        assert config.stream or machine.wgmma or machine.mma
        if config.swapped:
            assert machine.wgmma, (m, n, k, config)


def request(matmul: Matmul, config: Config) -> Request:
    launch = build(matmul, config)
    types = {f"x{n}": pointer_text(t.dtype) for n, t in enumerate(matmul.tensors)}
    if config.splits > 1:
        types |= {"sums": "*fp32", "counters": "*i32"}
    return Request(launch.source, "matmul", types, {}, launch.options)


def test_candidates_fit_their_matmul() -> None:
    for m, n, k in ((1, 128256, 4096), (2, 58, 58), (16, 4096, 14336), (784, 58, 58), (9, 1, 3)):
        tensors = Tensors(torch.device("meta"), torch.bfloat16)
        matmul, _ = matmuls.linear(tensors, m, n, k)
        found = candidates(matmul)
        assert found
        assert len(found) == len(set(found)) <= 24
        assert any(c.stream for c in found) == (m <= 4)
        for config in found:
            assert matmul.dtype is DType.BF16
            assert config.stream or config.depth >= 16
            stage = (config.rows + config.columns) * config.depth * 2
            assert config.stream or stage * config.stages <= 227 * 1024

"""Epilogues: the instructions of a tile program on a matmul's results, against torch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sympy
import torch

from kernels.matmuls import Tensors
from vtc.index import IndexMap
from vtc.kernels import epilogue
from vtc.kernels.epilogue import Body
from vtc.kernels.matmul import Config, Matmul, Part
from vtc.kernels.matmul_text import build
from vtc.program import tile
from vtc.program.dtypes import DType
from vtc.program.tile import Access, Bound, Instr, Term

M, N, K = 5, 24, 16


class Case:
    """x @ w^T over (M, N) and an epilogue."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(3)
        self.tensors = Tensors(device)
        self.x, self.w = self.tensors.random(M, K), self.tensors.random(N, K)
        self.product = self.tensors.double(self.x) @ self.tensors.double(self.w).T

    def run(
        self, body: Sequence[Instr], *, stream: bool = False, params: Sequence[float] = ()
    ) -> None:
        part = Part(N, (self.tensors.transposed(self.w),), tuple(body))
        left = self.tensors.whole(self.x)
        described = self.tensors.described()
        matmul = Matmul((), M, K, left, (part,), described, params=len(params))
        config = Config(M, 8, 16, stream=True) if stream else Config(16, 16, 16)
        build(matmul, config)(self.tensors.values, params=params)

    def out(self, number: int) -> torch.Tensor:
        return self.tensors.values[number].double()


@pytest.fixture
def case(device: torch.device) -> Case:
    return Case(device)


def dense(buffer: int) -> Access:
    return Access(buffer, 0, (N, 1))


@pytest.mark.parametrize("stream", [False, True])
def test_plain_accesses_with_masks_and_another_value(case: Case, stream: bool) -> None:
    bias, out = case.tensors.random(N), case.tensors.empty(M, N)
    inside = Access(bias, 3, (0, 1), mask=(Bound(1, 4, 20),))
    body = [
        Instr("matmul", constant=0),
        Instr("const", constant=-2.5),
        Instr("load", (1,), access=inside),
        Instr("mul", (0, 2)),
        Instr("store", (3,), access=dense(out)),
    ]
    case.run(body, stream=stream)
    other = torch.full((N,), -2.5, dtype=torch.float64, device=case.product.device)
    other[4:20] = case.tensors.double(bias)[7:23]
    torch.testing.assert_close(case.out(out), case.product * other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_stores_at_a_runtime_place_that_counts_from_the_end(case: Case, stream: bool) -> None:
    device = case.product.device
    rows = case.tensors.add(torch.tensor([7, -1, 0, 3, -4], device=device))
    out = case.tensors.empty(9, N)
    body = [
        Instr("matmul", constant=0),
        Instr("load", dtype=DType.I64, access=Access(rows, 0, (1, 0))),
        Instr("store", (0,), access=Access(out, 0, (0, 1), terms=(Term(1, N, 9),))),
    ]
    case.run(body, stream=stream)
    expected = torch.full((9, N), float("nan"), dtype=torch.float64, device=device)
    expected[torch.tensor([7, 8, 0, 3, 5], device=device)] = case.product
    torch.testing.assert_close(case.out(out), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_coordinates_parameters_comparisons_and_casts(case: Case) -> None:
    first, second = case.tensors.empty(M, N), case.tensors.empty(M, N, dtype=torch.float64)
    body = [
        Instr("matmul", constant=0),
        Instr("iota", dtype=DType.I64, constant=1),
        Instr("const", dtype=DType.I64, constant=10),
        Instr("lt", (1, 2), DType.BOOL),
        Instr("param", constant=0),
        Instr("mul", (0, 4)),
        Instr("select", (3, 5, 0)),
        Instr("store", (6,), access=dense(first)),
        Instr("cast", (0,), DType.F32, constant=DType.F16),
        Instr("store", (8,), access=dense(second)),
    ]
    case.run(body, params=[0.37])
    expected = case.product.clone()
    expected[:, :10] *= 0.37
    torch.testing.assert_close(case.out(first), expected, rtol=1e-5, atol=1e-5)
    half = case.product.to(torch.float16).double()
    torch.testing.assert_close(case.out(second), half, rtol=2e-3, atol=2e-3)
    assert torch.equal(case.out(second), case.out(second).half().double())


def test_a_constant_can_be_stored_through_a_map(case: Case) -> None:
    out = case.tensors.empty(M, N)
    body = Body()
    body.store(body.const(4.5), IndexMap.identity((M, N), out))
    case.run(body.build())
    assert (case.tensors.values[out] == 4.5).all()


def test_what_is_read_and_written_can_be_asked(case: Case) -> None:
    body = Body()
    value = body.scalar("add", body.product(), body.load(IndexMap.identity((M, N), 3)))
    body.store(value, IndexMap.identity((M, N), 5))
    instructions = [*body.build(), Instr("store", (value,), access=dense(4))]
    assert epilogue.tensors_of(instructions, "load") == {3}
    assert epilogue.tensors_of(instructions, "store") == {4, 5}
    assert epilogue.unsupported(instructions) is None
    assert "scan" in str(epilogue.unsupported([Instr("scan", (0,), constant="sum")]))


def test_an_access_of_a_tile_program_has_the_normal_form_of_maps() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    access = tile.Access(2, 7, (s, 1), mask=(Bound(0, 0, 3), Bound(1, 2, s)))
    found = epilogue.plain_access(access, (8, s))
    assert found.box == ((0, 3), (2, s))
    assert [(b.axis, b.low, b.high) for b in found.mask] == [(0, None, 3), (1, 2, None)]
    assert (found.source, found.base, found.stride) == (2, 7, (s, 1))

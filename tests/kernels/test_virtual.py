"""A user's own Triton kernel that takes virtual tensors."""

from __future__ import annotations

import torch

from index.chains import concat_map, gather_map
from kernels.test_io import dense
from vtc.index import Fill, IndexMap
from vtc.kernels import jit
from vtc.kernels.virtual import loader, storer
from vtc.program.dtypes import DType

SCALE = """
@triton.jit
def scale(x, y, load: tl.constexpr, store: tl.constexpr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    columns = tl.arange(0, BN)[None, :]
    valid = (rows < M) & (columns < N)
    value = load(x, rows, columns, valid)
    store(y, rows, columns, valid, value * 2)
"""


def test_a_kernel_reads_a_concat_of_a_gather_and_stores_into_two_tensors(
    device: torch.device,
) -> None:
    a, b = torch.randn(9, 5, device=device), torch.randn(6, 7, device=device)
    index = torch.randint(-9, 9, (6,), device=device)
    joined = concat_map([(0, (6, 5)), (1, (6, 7)), (Fill(1.5), (6, 2))], 1)
    read = joined.compose({0: gather_map((9, 5), 0, 6, 0), 1: IndexMap.identity((6, 7), 1)})
    write = concat_map([(0, (6, 4)), (1, (6, 10))], 1)
    load = loader(read, {0: dense((9, 5)), 1: dense((6, 7))}, DType.F32, lookups={0: dense((6,))})
    store = storer(write, {0: dense((6, 4)), 1: dense((6, 10))}, DType.F32)
    left, right = torch.empty(6, 4, device=device), torch.empty(6, 10, device=device)
    kernel = jit.load(SCALE, "scale")
    kernel[(2,)]((a, b, index), (left, right), load, store, 6, 14, BM=4, BN=16)
    fill = torch.full((6, 2), 1.5, device=device)
    expected = torch.cat([a[index], b, fill], 1) * 2
    assert torch.equal(torch.cat([left, right], 1), expected)

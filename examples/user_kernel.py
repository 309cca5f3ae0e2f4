"""A Triton kernel of your own that reads and writes virtual tensors.

The kernel below is a row softmax. It is written once, for "some tensor of M rows and N columns";
what that tensor is, is said from outside by index maps. Here its columns are the concatenation of
a gathered embedding and of a slice of a wider activation, and its result is split over two
tensors. None of gather, slice, concat and split runs: the kernel loads and stores through them.

    python examples/user_kernel.py                     # on a CUDA device
    TRITON_INTERPRET=1 python examples/user_kernel.py  # anywhere, in Triton's interpreter
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vtc.index import IndexMap, Layout, Lookup, Piece, coords
from vtc.kernels.virtual import loader, storer
from vtc.program.dtypes import DType


@triton.jit
def softmax(
    x,
    y,
    load: tl.constexpr,
    store: tl.constexpr,
    M,
    N,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """x and y are tuples of the tensors behind the virtual input and output."""
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)[:, None]
    columns = tl.arange(0, block_n)[None, :]
    valid = (rows < M) & (columns < N)
    value = tl.where(columns < N, load(x, rows, columns, valid), float("-inf"))
    power = tl.exp(value - tl.max(value, 1)[:, None])
    store(y, rows, columns, valid, power / tl.sum(power, 1)[:, None])


def layout(tensor: torch.Tensor) -> Layout:
    """Shape and strides, in elements from the tensor's own first one."""
    return Layout(tensor.shape, tensor.stride())


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, embedding, features, left = 37, 24, 40, 30
    table = torch.randn(100, embedding, device=device)
    index = torch.randint(0, 100, (rows,), device=device)
    wide = torch.randn(rows, 64, device=device)

    # Sources 0 and 1 are `table` and `wide`; runtime index 0 is `index`.
    i, j = coords(2)
    columns = embedding + features
    read = IndexMap(
        (rows, columns),
        [
            Piece((0, 0), (rows, embedding), 0, (Lookup(0, i), j)),
            Piece((0, embedding), (rows, columns), 1, (i, j - embedding + 16)),
        ],
    )
    write = IndexMap(
        (rows, columns),
        [
            Piece((0, 0), (rows, left), 0, (i, j)),
            Piece((0, left), (rows, columns), 1, (i, j - left)),
        ],
    )
    first = torch.empty(rows, left, device=device)
    second = torch.empty(rows, columns - left, device=device)

    load = loader(read, {0: layout(table), 1: layout(wide)}, DType.F32, lookups={0: layout(index)})
    store = storer(write, {0: layout(first), 1: layout(second)}, DType.F32)
    grid = (triton.cdiv(rows, 8),)
    softmax[grid](
        (table, wide, index), (first, second), load, store, rows, columns, block_m=8, block_n=64
    )

    joined = torch.cat([table[index], wide[:, 16 : 16 + features]], 1)
    expected = torch.softmax(joined, 1)
    torch.testing.assert_close(torch.cat([first, second], 1), expected)
    print(f"softmax over ({rows}, {columns}) read from three tensors, written to two: equal")


if __name__ == "__main__":
    main()

"""What NVIDIA's compute-sanitizer watches of the DVM's kernels (benchmarks/sanitize.py).

Small tensors of ragged shapes, each family of kernels in turn; what is expected is computed on
the CPU in float64, so that hardly a library's kernel runs under the sanitizer, which costs seconds.
"""

import pytest
import torch

import vtc
from patterns.device_operators import POINTWISE, ROW_OPERATORS, heads_rotated

pytestmark = pytest.mark.gpu
SHAPES = [(5, 7), (23, 333), (3, 4104)]
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}


def check(run, *args):
    """`run` by the DVM on the device, against float64 on the CPU."""
    torch._dynamo.reset()
    with torch.no_grad():
        found = vtc.compile(run, engine="dvm")(*(a.cuda() for a in args))
    expected = run(*(a.double() for a in args))
    pairs = zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, expected)), strict=True)
    for got, want in pairs:
        error = (got.cpu().double() - want).abs().max() / want.abs().max()
        assert error < CLOSE[args[0].dtype]


def operands(shape, dtype):
    generator = torch.Generator().manual_seed(shape[1])
    x, y = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return x, y, torch.randn(shape[1], generator=generator).to(dtype)


@pytest.mark.parametrize("kind", ["map", "norm", "softmax"])
def test_rows(kind):
    """Kernels that are one operation on rows, whose ends are no multiples of a vector."""
    for own, run in ROW_OPERATORS.values():
        for shape in SHAPES if own == kind else ():
            dtypes = (torch.bfloat16, torch.float32) if kind == "map" else (torch.bfloat16,)
            for dtype in dtypes:
                check(run, *operands(shape, dtype))


def test_rotary():
    x, cos, sin = torch.randn(2, 5, 192), *torch.randn(2, 5, 64)
    check(heads_rotated(64, True), x, cos, sin, torch.randn(64))


@pytest.mark.parametrize(
    "name", ["log_softmax", "sum_rows", "max_all", "cat", "flip", "pad", "where"]
)
def test_interpreted(name):
    """Kernels that are run by their words: folds, shifted and strided accesses."""
    function, count = POINTWISE[name]
    for shape in SHAPES:
        check(function, *operands(shape, torch.float32)[:count])


def test_together():
    """Several kernels in one launch, whose blocks wait for each other."""
    check(
        lambda x, y, w: ((x.sum(-1, keepdim=True) * y).sum(0), x.amax() + w),
        *operands((23, 333), torch.float32),
    )

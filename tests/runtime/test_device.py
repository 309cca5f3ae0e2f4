"""Whole operators as programs for a device, on this machine (see `vm.cuda_on_cpu`)."""

import pytest
import torch

from patterns.device_operators import POINTWISE, close, layer_norm, rms_add
from vm import cuda_on_cpu
from vtc.lowering.settings import Settings
from vtc.options import Options
from vtc.runtime import dvm_compile

SHAPES = [(4, 16), (3, 333), (5, 4097), (53, 8)]


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch.manual_seed(0)
    settings = Settings("latency", Options(), engine="dvm")

    def backend(graph, inputs):
        machine = cuda_on_cpu.Machine
        return dvm_compile.compile_graph(graph, list(inputs), settings, machine)

    return lambda function: dvm_compile.dynamic(function, backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_an_operator_equals_eager(compiled, name, dtype):
    function, count = POINTWISE[name]
    run = compiled(function)
    for shape in SHAPES:
        args = [torch.randn(shape).to(dtype) for _ in range(count)]
        got = run(*args)
        close(got, function(*(a.float() for a in args)).to(got.dtype), dtype)


@pytest.mark.parametrize("columns", [64, 333, 4096, 5000])
def test_norms_equal_eager(compiled, columns):
    dtype = torch.bfloat16
    w, b = (torch.randn(columns).to(dtype) for _ in range(2))
    normed, added = compiled(layer_norm), compiled(rms_add)
    for rows in (1, 5):
        x, y = (torch.randn(rows, columns).to(dtype) for _ in range(2))
        expected = layer_norm(x.float(), w.float(), b.float()).to(dtype)
        close(normed(x, w, b), expected, dtype)
        wide = rms_add(x.float(), y.float(), w.float())
        for got, one in zip(added(x, y, w), wide, strict=True):
            close(got, one.to(dtype), dtype)

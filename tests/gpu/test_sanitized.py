"""What NVIDIA's compute-sanitizer watches of our generated kernels (benchmarks/sanitize.py).

Small operands with ragged edges, a few tilings that differ most, and nothing else on the device:
each further kernel, a library's above all, costs seconds under the sanitizer. What is expected is
computed on the CPU in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from kernels import matmuls
from kernels.convolution_checks import Layer, case
from kernels.test_linear_attention import EPS, exact, operands
from vtc.kernels.convolution import Launch, Window
from vtc.kernels.convolution_dot import dot_kernels
from vtc.kernels.depthwise import depthwise_kernels
from vtc.kernels.depthwise_rolling import rolling_kernel, rolling_tiles
from vtc.kernels.linear_attention import OVERLOAD, as_argument, candidates
from vtc.kernels.matmul_candidates import candidates as matmul_candidates
from vtc.kernels.matmul_text import build

pytestmark = pytest.mark.gpu
DTYPE, CLOSE = torch.float16, 4e-3
DEVICE = "cuda"


def moved(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors on the device; those that share memory share it there."""
    storages: dict[int, Tensor] = {}
    found = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            storages[storage._cdata] = whole.to(DEVICE, copy=True)
        held = storages[storage._cdata].untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=DEVICE)
        found.append(empty.set_(held, tensor.storage_offset(), tensor.shape, tensor.stride()))
    return found


def spread(found: Sequence, count: int) -> list:
    """So many of them, the first and the last among these."""
    if len(found) <= count:
        return list(found)
    return [found[k * (len(found) - 1) // (count - 1)] for k in range(count)]


def check(actual: Tensor, expected: Tensor) -> None:
    error = (actual.cpu().double() - expected).abs().max() / expected.abs().max()
    assert error < CLOSE


def test_linear_attention() -> None:
    for layout in ("tokens", "channels"):
        given = [t.to(DTYPE) for t in operands(3, 2, 70, 24, 40, layout)]
        expected, there = exact(*given), moved(given)
        for tiling in spread(candidates(6, 70, 132), 2):
            check(OVERLOAD(*there, eps=EPS, tiling=as_argument(tiling)), expected)


def test_matmul() -> None:
    """Queries, keys and values of a token, rotated, with stores into caches."""
    torch.manual_seed(1)
    tensors = matmuls.Tensors(torch.device("cpu"), DTYPE)
    matmul, at = matmuls.projections(tensors, 3, 256, 8, 2, 64, 48, scale=1 / 16)
    query, keys, values = (tensors.values[n] for n in at.expected)
    there = moved(tensors.values[: len(matmul.tensors)])
    found = matmul_candidates(matmul)
    split = [c for c in found if c.splits > 1]
    whole = [c for c in found if c.splits == 1]
    assert split
    for config in (*spread(whole, 3), *spread(split, 2)):
        build(matmul, config)(there)
        check(there[at.query].view(3, 8, 64), query)
        check(there[at.keys][:, :, at.position], keys)
        check(there[at.values][:, :, at.position], values)


def run_layer(layer: Layer, launches: Iterable[Launch]) -> None:
    """Each launch on the layer's tensors, the third of which is the output. It lies in a buffer, of
    which nothing else may be written."""
    made = case(layer, torch.device("cpu"), DTYPE)
    *there, buffer = moved([*made.tensors, made.buffer])
    for launch in launches:
        launch(there)
        check(there[2], made.expected)
        assert buffer.cpu()[:, : layer.extra].isnan().all()
        assert buffer.cpu()[:, buffer.shape[1] - layer.extra :].isnan().all()


def test_convolution() -> None:
    window = Window((3, 3), padding=(1, 1))
    layer = Layer(1, (9, 11), 48, 40, window, 1, "silu", packed=True, extra=16)
    convolution = case(layer, torch.device("cpu"), DTYPE).convolution
    run_layer(layer, [k.launch() for k in spread(dot_kernels(convolution), 3)])


def test_pointwise_convolution_of_odd_channels() -> None:
    layer = Layer(1, (7, 9), 58, 116, Window((1, 1)), 1, "relu", extra=58)
    convolution = case(layer, torch.device("cpu"), DTYPE).convolution
    run_layer(layer, [k.launch() for k in spread(dot_kernels(convolution), 2)])


def test_depthwise() -> None:
    window = Window((3, 3), padding=(1, 1))
    layer = Layer(2, (9, 11), 58, 58, window, 58, "relu", scaled=True, extra=58)
    convolution = case(layer, torch.device("cpu"), DTYPE).convolution
    rolling = [rolling_kernel(convolution, t) for t in spread(rolling_tiles(convolution), 2)]
    kernels = [*spread(depthwise_kernels(convolution), 3), *rolling]
    assert rolling
    run_layer(layer, [k.launch() for k in kernels])

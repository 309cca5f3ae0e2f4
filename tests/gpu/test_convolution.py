"""On a CUDA device: every candidate of a convolution is right, also replayed from a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from kernels.convolution_checks import Layer, case
from vtc.kernels import cudnn
from vtc.kernels.convolution import Launch, Window
from vtc.kernels.convolution_candidates import candidates

pytestmark = pytest.mark.gpu
THREE = Window((3, 3), padding=(1, 1))
HALVED = Window((3, 3), (2, 2), (1, 1))
LAYERS = [
    Layer(2, (28, 28), 58, 58, THREE, 58, "relu", scaled=True, extra=58),
    Layer(1, (33, 31), 40, 40, Window((5, 5), padding=(2, 2)), 40, "hardswish", packed=True),
    Layer(1, (30, 30), 96, 96, HALVED, 96, "silu", residual=True),
    Layer(2, (16, 16), 576, 576, Window((1, 1)), 18),
    Layer(1, (20, 20), 64, 64, THREE, 2, "gelu", packed=True, extra=32),
    Layer(2, (40, 40), 64, 32, THREE, 1, "silu", packed=True, extra=32),
    Layer(1, (57, 60), 3, 24, HALVED, 1, "relu", scaled=True),
    Layer(1, (14, 14), 58, 116, Window((1, 1)), 1, "relu", extra=58),
    Layer(1, (16, 16), 48, 64, THREE, 1, "silu", residual=True, packed=True),
    Layer(1, (16, 16), 48, 64, THREE, 1, None, packed=True),
]
CLOSE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}


def runs(launch: Launch, tensors: list[torch.Tensor]) -> bool:
    """Run it once; False where it is a plan of cuDNN's that refuses to run."""
    try:
        launch(tensors)
    except RuntimeError:
        if not launch.name.startswith("cudnn"):
            raise
        return False
    return True


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_candidate_equals_float64(layer, dtype):
    torch.backends.cudnn.allow_tf32 = False
    made = case(layer, torch.device("cuda"), dtype)
    found = candidates(made.convolution, made.tensors)
    ours = [c for c in found if c.name.startswith(("dot", "depthwise"))]
    theirs = [c for c in found if not c.name.startswith(("dot", "depthwise"))]
    assert ours
    wrong = []
    for launch in (ours[0], ours[len(ours) // 2], *ours[-2:], *theirs[:2], *theirs[-2:]):
        made.reset()
        if runs(launch, made.tensors):
            try:
                made.check(rtol=CLOSE[dtype], atol=CLOSE[dtype])
            except AssertionError as error:
                wrong.append((launch.name, str(error).splitlines()[3]))
    assert not wrong


@pytest.mark.skipif(not cudnn.available(), reason="nvidia-cudnn-frontend is not installed")
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_cudnn_takes_dense_layers_on_slices(activation):
    layer = Layer(1, (40, 40), 64, 32, THREE, 1, activation, packed=True, extra=32)
    made = case(layer, torch.device("cuda"), torch.float16)
    launches = cudnn.cudnn_launches(made.convolution, made.tensors)
    assert any(runs(launch, made.tensors) for launch in launches)


@pytest.mark.parametrize("layer", LAYERS[:6], ids=str)
def test_a_captured_graph_reads_what_its_tensors_hold_at_the_replay(layer):
    made = case(layer, torch.device("cuda"), torch.float16)
    for launch in candidates(made.convolution, made.tensors)[::4]:
        if not runs(launch, made.tensors):
            continue
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(made.tensors)
        made.reset()
        graph.replay()
        made.check(rtol=2e-3, atol=2e-3)

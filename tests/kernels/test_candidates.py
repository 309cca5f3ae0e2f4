"""Candidates that compiling a whole model can afford: named as what they run, made when called."""

from __future__ import annotations

import pytest
import torch

from kernels.convolution_checks import Layer, case
from vtc.kernels import convolution_candidates
from vtc.kernels.convolution import Window
from vtc.kernels.convolution_candidates import likely

ONE, THREE = Window((1, 1)), Window((3, 3), padding=(1, 1))
LAYERS = [Layer(1, (9, 8), 12, 12, THREE, 12, "relu"), Layer(1, (4, 4), 16, 24, ONE, 1, "silu")]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_likely_kernel_is_made_once_when_it_is_called(layer, device, monkeypatch):
    made = []
    for name in ("dot_kernel", "depthwise_kernel", "rolling_kernel"):
        kernel = getattr(convolution_candidates, name)

        def noted(*arguments, kernel=kernel):
            made.append(kernel(*arguments))
            return made[-1]

        monkeypatch.setattr(convolution_candidates, name, noted)
    given = case(layer, device, torch.float32)
    launches = likely(given.convolution, given.tensors)
    assert not made
    assert len({launch.name for launch in launches}) == len(launches) >= 2
    for launch in launches[:1] + launches[-1:]:
        for _ in range(2):
            given.reset()
            launch(given.tensors)
            given.check()
        assert made[-1].name == launch.name
    assert len(made) == 2

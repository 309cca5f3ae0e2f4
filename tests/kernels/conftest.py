"""Where kernels run in these tests: on the CUDA device, or on the CPU in Triton's interpreter.

Triton decides at its first import whether it interprets, so the variable is set before that.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def device() -> torch.device:
    """The device that kernels run on."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    assert os.environ.get("TRITON_INTERPRET") == "1", "Triton was imported before tests/kernels"
    return torch.device("cpu")

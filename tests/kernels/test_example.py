"""The example of a user's own kernel runs and gives what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "user_kernel.py"


def test_the_example_of_a_users_kernel_runs(device: torch.device) -> None:
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if device.type == "cpu" else {})
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "equal" in done.stdout

"""Damaged programs never end the process: they are refused, or they are harmless."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtc.vm import machine

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(machine._native is None, reason="the native module is not built")
@pytest.mark.parametrize("first", [0, 1000])
def test_damaged_programs_do_no_harm(first):
    done = subprocess.run(
        [sys.executable, "-m", "vm.mutation", "--programs", "25", "--first", str(first)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused"] > 300
    assert counts["run"] > 50

"""All instruction sets that run here give results within their bounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtc.vm import machine

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
def test_generated_programs_agree_on_every_instruction_set(name, tmp_path):
    environment = {
        **os.environ,
        "VTC_ISA": name,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    probe = "from vtc.vm.machine import instruction_set; print(instruction_set())"
    found = subprocess.run(
        [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    if found != name:
        pytest.skip(f"this processor runs {found}")
    code = (
        "import json; from vm.conformance import check_many; "
        "o = check_many(range(7000, 7080), ('native',)); "
        "print(json.dumps([str(m) for m in o.mismatches]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_machine_names_its_instruction_set():
    assert machine.instruction_set() in ("baseline", "avx2", "avx512")

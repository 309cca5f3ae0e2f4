"""The examples run, and check themselves against eager PyTorch."""

import runpy
from pathlib import Path

from vtc.runtime.dvm import counters

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_mixture_of_experts_is_one_program_for_every_list():
    counters.reset()
    runpy.run_path(str(EXAMPLES / "mmoe.py"), run_name="__main__")
    assert (counters.captures, counters.eager, counters.compilations) == (1, 0, 0)
    assert counters.encodes >= 4

"""The device's interpreter, run on this machine (see `cuda_on_cpu`), against the meaning of
generated programs; and what NVRTC makes of it."""

import re
from collections import Counter

import pytest
import torch

from vm import conformance, cuda_on_cpu
from vtc.errors import EngineUnavailableError
from vtc.vm import device

REFUSALS = {
    "the device has no products of its own",
    "the device does not find places",
    "the device has no branches",
    "the device has no running folds",
}


def native(encoded, memory, case):
    pointers = [0 if t is None else t.data_ptr() for t in memory.tensors]
    encoded.run(pointers, list(case.params))


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setitem(conformance._RUN, "device", native)
    torch.set_num_threads(1)

    def check(seeds, large=False):
        total = conformance.Outcome()
        for seed in seeds:
            total.add(
                conformance.check(
                    seed, ("reference", "device"), large, cuda_on_cpu.Machine, may_refuse=True
                )
            )
        return total

    return check


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_generated_programs_mean_the_same_on_the_device(on_device, first):
    outcome = on_device(range(first, first + 20))
    assert outcome.mismatches == []
    assert set(outcome.refused) <= REFUSALS, Counter(outcome.refused)
    assert outcome.elements > 0


@pytest.mark.slow
def test_the_interpreter_compiles_without_a_gpu_within_its_registers():
    try:
        code, log = device.build("sm_90a", ("--ptxas-options=-v",))
    except EngineUnavailableError:
        pytest.skip("NVRTC is not installed")
    assert code[:4] == b"\x7fELF"
    (spilled,) = re.findall(r"vtc_run\n.*?(\d+) bytes spill stores", log)
    assert int(spilled) <= 384
    (registers,) = re.findall(r"Used (\d+) registers", log)
    assert int(registers) <= 168  # three blocks of 128 threads a processor

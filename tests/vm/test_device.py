"""The device's interpreter, run on this machine (see `cuda_on_cpu`), against the meaning of
generated programs; and what NVRTC makes of it."""

from collections import Counter

import pytest
import torch

from vm import conformance, cuda_on_cpu

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

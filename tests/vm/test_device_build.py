"""What NVRTC makes of the device's interpreter, without a GPU."""

import re

import pytest

from patterns.device_operators import DENSE, FORMS, GROUPS, SINGLE
from vtc.errors import EngineUnavailableError
from vtc.vm import device

# Of kernels that are operations on rows: what the threads of their largest blocks may have.
REGISTERS = {
    "vtc_map": 80,
    "vtc_map_halves": 42,
    "vtc_norm": 128,
    "vtc_softmax": 80,
    "vtc_rotary": 80,
    "vtc_pad": 32,
    "vtc_unpad": 32,
    **{f"vtc_norm_{g}": 128 for g in ("bf16_2_any", "f16_2_any", "f32_2")},
    **{f"vtc_norm_{g}": 80 for g in ("bf16_2", "f16_2", "bf16_1_any", "f16_1_any")},
    **{f"vtc_norm_{g}": 64 for g in ("bf16_1", "f16_1", "f32_1")},
    **{f"vtc_softmax_{g}": 80 if "f32" in g else 64 for g in GROUPS},
    **{f"vtc_flat_{t}_{f}": 40 for t in ("bf16", "f16", "f32") for f in FORMS},
    **{f"vtc_single_{t}_{f}": 32 for t in ("bf16", "f16", "f32") for f in SINGLE},
    **{f"vtc_dense_softmax_{g}": 64 for g in DENSE},
    **{f"vtc_dense_norm_{g}": 128 if g == "f32_groups" else 64 for g in DENSE},
}


@pytest.mark.slow
def test_the_interpreter_compiles_without_a_gpu_within_its_registers():
    try:
        code, log = device.build("sm_90a", ("--ptxas-options=-v",))
    except EngineUnavailableError:
        pytest.skip("NVRTC is not installed")  # it comes with PyTorch for CUDA alone
    assert code[:4] == b"\x7fELF"
    own = re.findall(r"for (\w+)\n.*?(\d+) bytes spill stores.*?Used (\d+) registers", log, re.S)
    found = {name: (int(spilled), int(registers)) for name, spilled, registers in own}
    spilled, registers = found.pop("vtc_run")
    assert spilled <= 256
    assert registers <= 128  # two blocks of 256 threads a processor
    assert found.keys() == REGISTERS.keys()
    for name, (spilled, registers) in found.items():
        assert spilled <= 16
        assert registers <= REGISTERS[name]

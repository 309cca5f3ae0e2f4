"""Run by test_precompile.py in a process whose kernels are compiled and not interpreted: compiles
matmuls by workers for a Hopper GPU that need not be there, then again in this process."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from matmuls import Tensors, linear
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from vtc.kernels.compile_worker import NoDevice
from vtc.kernels.matmul_candidates import candidates
from vtc.kernels.matmul_text import build
from vtc.kernels.precompile import begin


def entries() -> int:
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.cubin")))


def main() -> None:
    driver.set_active(NoDevice(GPUTarget("cuda", 90, 32)))
    tensors = Tensors(torch.device("cpu"), torch.bfloat16)
    matmul, _ = linear(tensors, 1, 64, 512)
    launches = [build(matmul, config) for config in candidates(matmul)[:5]]
    calls = [partial(launch, tensors.values) for launch in launches]
    done = begin([*calls, *calls], workers=2)()
    before = entries()
    for launch in launches:
        launch.compile()
    sys.stdout.write(json.dumps({"done": done, "before": before, "after": entries()}) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()

"""Run as a script: the attention kernels compiled for Hopper without a GPU, as JSON.

A process of its own, since the tests' process may interpret kernels.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# name -> kernel, and what differs from `CONSTANTS`
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "decode": ("decode_kernel", {}),
    "decode, bool mask": ("decode_kernel", {"MASK": 1, "SCAN": 1024}),
    "decode, head dimension 256, soft-cap": (
        "decode_kernel",
        {"D": 256, "DV": 256, "BLOCK_D": 256, "BLOCK_DV": 256, "BLOCK_N": 32, "MASK": 2}
        | {"SOFTCAP": 50.0, "SCAN": 1024},
    ),
    "decode, new rows": ("decode_kernel", {"STORES": True, "MASK": 1, "SCAN": 1024}),
    "decode, new rows, rotated": ("decode_kernel", {"STORES": True, "ROTATED": True, "MASK": 1}),
    "decode, new rows, joined": ("decode_kernel", {"STORES": True, "JOINED": True, "MASK": 1}),
    "combine": ("combine_kernel", {"BLOCK_DV": 64, "BLOCK_S": 64}),
    "prefill": ("prefill_kernel", {"BLOCK_M": 64, "CAUSAL": True}),
    "prefill, bias": ("prefill_kernel", {"BLOCK_M": 64, "MASK": 2}),
}
CONSTANTS = {
    "GROUP": 4,
    "D": 128,
    "DV": 128,
    "SCALE": 0.088,
    "SOFTCAP": 0.0,
    "WINDOW": 0,
    "CAUSAL": False,
    "MASK": 0,
    "ONE_MASK_ROW": True,
    "LENGTHS": False,
    "PAGE": 0,
    "SAFE": True,
    "WHOLE": False,
    "STORES": False,
    "ROTATED": False,
    "JOINED": False,
    "SCAN": 0,
    "BLOCK_M": 16,
    "BLOCK_N": 64,
    "BLOCK_D": 128,
    "BLOCK_DV": 128,
}
POINTERS = {
    "query": "*bf16",
    "key": "*bf16",
    "value": "*bf16",
    "new_key": "*bf16",
    "new_value": "*bf16",
    "places": "*i64",
    "cos": "*bf16",
    "sin": "*bf16",
    "mask": "*bf16",
    "lengths": "*i64",
    "table": "*i32",
    "out": "*bf16",
    "partial": "*fp32",
    "tops": "*fp32",
    "totals": "*fp32",
    "counters": "*i32",
}
UNIT_STRIDES = ("q_d", "k_d", "v_d", "nk_d", "nv_d", "c_d", "m_n")
UNALIGNED = ("queries", "keys", "kv_heads", "heads", "splits", "coming")


def compiled(kernel: str, changes: dict[str, Any], warps: int = 4, stages: int = 3) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vtc.kernels import attention_prefill, attention_splits, attention_triton

    modules = (attention_prefill, attention_splits, attention_triton)
    fn = next(found for m in modules if (found := vars(m).get(kernel)))
    constants = {k: v for k, v in (CONSTANTS | changes).items() if k in fn.arg_names}
    constants |= {name: 1 for name in UNIT_STRIDES if name in fn.arg_names}
    types = {**POINTERS}
    if constants.get("MASK") == 1:
        types["mask"] = "*i1"
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in fn.arg_names}
    aligned = [n for n in fn.arg_names if n not in constants and n not in UNALIGNED]
    attrs = {(fn.arg_names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def facts(made: Any) -> dict[str, Any]:
    """Registers, bytes of local memory and shared memory; which instructions there are."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptx = made.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        ptxas = get_ptxas(90)
        path = Path(ptxas.path if hasattr(ptxas, "path") else ptxas[0])
        command = [str(path.with_name("cuobjdump")), "-res-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(n) for name, n in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", shown)}
    return {
        "registers": usage["REG"],
        "local": usage["STACK"] + usage["LOCAL"],
        "shared": made.metadata.shared,
        "async16": len(re.findall(r"cp\.async\.cg\.shared\.global[^;]*, (?:0x10|16)[,;\s]", ptx)),
        "async4": len(re.findall(r"cp\.async\.ca\.shared\.global", ptx)),
        "loads": sorted(set(re.findall(r"ld\.global[\w.:]*", ptx))),
        "order": re.findall(r"st\.global|bar\.sync|cp\.async\.cg", ptx),
        "mma": "mma.sync" in ptx,
        "wgmma": "wgmma.mma_async" in ptx,
    }


def offline() -> dict[str, str]:
    """The environment of a process that compiles kernels."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**environment, "PYTHONPATH": path}


@functools.cache
def answers() -> dict[str, Any]:
    """What this script finds in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=False, env=offline()
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    found = {name: facts(compiled(*kernel)) for name, kernel in KERNELS.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

"""Run as a script: the linear attention kernels compiled for Hopper without a GPU, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from kernels.attention_offline import facts

KERNELS = ("sum_kernel", "result_kernel")
CONSTANTS = {"D": 32, "DV": 32, "BLOCK_D": 32, "BLOCK_DV": 32, "BLOCK_N": 64, "EPS": 1e-5}
POINTERS = {
    **dict.fromkeys(("query", "key", "value", "out"), "*fp16"),
    **dict.fromkeys(("products", "totals"), "*fp32"),
}
UNIT_STRIDES = ("qd", "kd", "vd")


def compiled(kernel: str) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vtc.kernels import linear_attention_triton

    fn = getattr(linear_attention_triton, kernel)
    names = fn.arg_names
    constants = {k: v for k, v in CONSTANTS.items() if k in names}
    constants |= {name: 1 for name in UNIT_STRIDES if name in names}
    signature = {n: "constexpr" if n in constants else POINTERS.get(n, "i32") for n in names}
    counts = ("heads", "tokens", "splits")
    aligned = [n for n in names if n not in constants and n not in counts]
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


if __name__ == "__main__":
    json.dump({name: facts(compiled(name)) for name in KERNELS}, sys.stdout)

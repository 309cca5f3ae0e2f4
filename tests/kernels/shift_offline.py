"""Run as a script: the kernels that move caches on, compiled for Hopper without a GPU, as JSON."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from typing import Any

from kernels.attention_offline import facts, offline

SLIDING = {
    "GROUP": 2,
    "D": 256,
    "DV": 256,
    "SCALE": 0.0625,
    "SOFTCAP": 50.0,
    "MASK": 2,
    "SAFE": False,
    "WHOLE": False,
    "ALIGNED": True,
    "BLOCK_M": 16,
    "BLOCK_N": 32,
    "BLOCK_D": 256,
    "BLOCK_DV": 256,
    "q_d": 1,
    "m_n": 1,
    "moved": 1,
}
SHIFT = {"D": 256, "BLOCK_N": 32, "BLOCK_D": 256, "ALIGNED": True}
KERNELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "attention, 256 wide": ("sliding_kernel", SLIDING, 4),
    "attention, blocks of 16": ("sliding_kernel", SLIDING | {"BLOCK_N": 16}, 4),
    "attention, blocks of 64": ("sliding_kernel", SLIDING | {"BLOCK_N": 64}, 8),
    "shift": ("shift_kernel", SHIFT, 4),
    "shift, one row": ("shift_kernel", SHIFT | {"BLOCK_N": 64, "rows": 1}, 8),
}
TYPES = {
    **dict.fromkeys(("query", "key", "value", "key_edges", "value_edges", "mask", "out"), "*bf16"),
    **dict.fromkeys(("cache", "edges"), "*bf16"),
    **dict.fromkeys(("partial", "tops", "totals"), "*fp32"),
}
UNALIGNED = ("queries", "keys", "kv_heads", "heads", "splits", "moved", "rows")


def compiled(name: str, constants: dict[str, Any], warps: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vtc.kernels import shift_triton, sliding_triton

    fn = getattr(sliding_triton if name == "sliding_kernel" else shift_triton, name)
    signature = {n: "constexpr" if n in constants else TYPES.get(n, "i32") for n in fn.arg_names}
    aligned = [n for n in fn.arg_names if n not in constants and n not in UNALIGNED]
    attrs = {(fn.arg_names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": warps, "num_stages": 1}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def described(made: Any) -> dict[str, Any]:
    """Bytes of local memory; how many instructions of a loop move single elements; is there a
    barrier between the last read of a row and the first write?"""
    ptx = made.asm["ptx"]
    body = ptx[ptx.index("$L__BB") :]
    narrow = re.findall(r"(?:ld|st)\.global\S*\.b16", body)
    words = [m[:2] for m in re.findall(r"(?:ld|st)\.global\S*\.v4\.b32|bar\.sync", body)]
    first = words.index("st")
    before = words[:first]
    last_read = len(before) - 1 - before[::-1].index("ld")
    return {
        "local": facts(made)["local"],
        "narrow": len(narrow),
        "ordered": "ba" in before[last_read:],
    }


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
    json.dump({name: described(compiled(*kernel)) for name, kernel in KERNELS.items()}, sys.stdout)


if __name__ == "__main__":
    main()

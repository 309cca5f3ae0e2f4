"""Compiles generated kernels for Hopper without a GPU, and says what the machine code looks like.

The compiler runs in a process of its own: the tests' process interprets kernels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """One kernel: its source text and name, the Triton type of every run-time argument
    ("*bf16", "i32"), the values of the constexpr ones, and the launch options."""

    source: str
    name: str
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """What was found: `loads` and `stores` count PTX instructions by bytes a thread moves at once
    (cp.async among the loads), `spills` are bytes of local memory, `shared` bytes a block."""

    loads: Mapping[int, int]
    stores: Mapping[int, int]
    spills: int
    shared: int
    wgmma: bool
    mma: bool
    ptx: str


def compile_offline(requests: Sequence[Request]) -> list[Machine]:
    """Compiles every kernel for sm_90a; raises AssertionError with the compiler's words."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([asdict(r) for r in requests]),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [_machine(**answer) for answer in json.loads(done.stdout.splitlines()[-1])]


def _machine(ptx: str, shared: int, resources: str) -> Machine:
    local = re.search(r"LOCAL:(\d+)", resources)
    return Machine(
        loads=_widths(ptx, r"ld\.global[\w.:]*"),
        stores=_widths(ptx, r"st\.global[\w.:]*"),
        spills=int(local.group(1)) if local else 0,
        shared=shared,
        wgmma="wgmma.mma_async" in ptx,
        mma=bool(re.search(r"(?<!wg)mma\.sync", ptx)),
        ptx=ptx,
    )


def _widths(ptx: str, pattern: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for word in re.findall(pattern, ptx):
        vector = re.search(r"\.v(\d)", word)
        bits = re.search(r"\.[bfus](\d+)$", word)
        assert bits, word
        size = int(bits.group(1)) // 8 * (int(vector.group(1)) if vector else 1)
        found[size] = found.get(size, 0) + 1
    if pattern.startswith("ld"):
        for size in re.findall(
            r"cp\.async\.c[ag]\.shared\.global[\w.:]* \[[^\]]*\], \[[^\]]*\], "
            r"(0x[0-9a-f]+|\d+)",
            ptx,
        ):
            width = int(size, 0)
            found[width] = found.get(width, 0) + 1
    return found


def _serve() -> None:
    import tempfile
    from pathlib import Path

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    from vtc.kernels import jit

    answers = []
    for request in json.load(sys.stdin):
        fn = jit.load(request["source"], request["name"], folder=Path(tempfile.mkdtemp()))
        names = fn.arg_names
        signature = {n: request["types"].get(n, "constexpr") for n in names}
        attrs = {
            (names.index(n),): [["tt.divisibility", 16]]
            for n, kind in request["types"].items()
            if kind.startswith("*")
        }
        constants = {(names.index(n),): v for n, v in request["constants"].items()}
        source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=request["options"])
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            tool = Path(get_ptxas(90).path if hasattr(get_ptxas(90), "path") else get_ptxas(90)[0])
            shown = subprocess.run(
                [str(tool.with_name("cuobjdump")), "-res-usage", file.name],
                capture_output=True,
                text=True,
                check=False,
            )
        answers.append(
            {
                "ptx": made.asm["ptx"],
                "shared": made.metadata.shared,
                "resources": shown.stdout + shown.stderr,
            }
        )
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    _serve()

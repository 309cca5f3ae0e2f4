"""NVIDIA's compute-sanitizer over a representative test of every family of our kernels.

    python benchmarks/sanitize.py [--tool memcheck] [--families decode,matmul] [--seconds 60]

Each family's test runs in a process of its own, first without the sanitizer, which compiles its
kernels, then under it; both have so many seconds together. What the sanitizer said goes to
results/gpu-sanitizer.json after each: "clean", "errors" with the first of them, or "refused" with
the reason (no such tool, a device that does not let itself be watched, a test that fails without
the tool, no time). Families of which the tool has told already are left out unless --again is
given.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "gpu-sanitizer.json"
FOUND = 86
"""The exit status by which the sanitizer says that it found errors."""
FAMILIES = {
    "decode": ("attention", "test_every_candidate_equals_float64 and shape0"),
    "prefill": ("attention", "test_prefill_equals_float64 and gemma"),
    "pages": ("attention", "test_pages_equal_float64"),
    "storing": ("storing", "test_every_candidate and shape0"),
    "sliding": ("shift", "test_every_candidate_of_attention and shape2"),
    "shift": ("shift", "test_every_candidate_moves and shape2-5"),
    "linear attention": ("sanitized", "test_linear_attention"),
    "matmul": ("sanitized", "test_matmul"),
    "convolution": ("sanitized", "convolution"),
    "depthwise": ("sanitized", "test_depthwise"),
    "dvm maps": ("sanitized_dvm", "test_rows and map"),
    "dvm norms": ("sanitized_dvm", "test_rows and (norm or softmax) or test_rotary"),
    "dvm interpreter": ("sanitized_dvm", "test_interpreted"),
    "dvm launches": ("sanitized_dvm", "test_together"),
}
"""Family -> the file of tests/gpu, and which of its tests."""


def checked(family: str, tool: str, seconds: float) -> dict[str, Any]:
    """What the sanitizer says of one family."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {"says": "refused", "why": "compute-sanitizer is not installed"}
    file, tests = FAMILIES[family]
    test = [sys.executable, "-m", "pytest", "-q", "-x", "-k", tests]
    test += [str(ROOT / "tests" / "gpu" / f"test_{file}.py")]
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND)]
    # What the test starts compiles kernels.
    command += ["--target-processes", "application-only", *test]
    # The allocator would hide reads beyond a tensor in what else it holds.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    started = time.perf_counter()
    try:
        # Kernels that were compiled before are found on disk.
        ahead = _run(test, dict(os.environ), seconds)
        if ahead.returncode:
            return {"says": "refused", "why": f"without the tool: {_last_line(ahead)}"}
        done = _run(command, environment, seconds - (time.perf_counter() - started))
    except subprocess.TimeoutExpired:
        return {"says": "refused", "why": f"not done in {seconds:.0f} s"}
    said = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", done.stdout)
    first = re.search(r"^=+ (Invalid|Error|Race|Uninitialized|Barrier)[^\n]*", done.stdout, re.M)
    if done.returncode == FOUND or (said and int(said[1])):
        return {"says": "errors", "why": first[0].strip("= ") if first else "see the tool's text"}
    if done.returncode or said is None:
        return {"says": "refused", "why": _last_line(done)}
    return {"says": "clean", "seconds": round(time.perf_counter() - started, 1)}


def _run(
    command: list[str], environment: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT / "tests",
        env=environment,
        capture_output=True,
        text=True,
        timeout=max(seconds, 0.1),
        check=False,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1][:200] if lines else "no output"


def main(
    tool: Annotated[str, typer.Option(help="memcheck, racecheck, initcheck, synccheck.")] = (
        "memcheck"
    ),
    families: Annotated[str, typer.Option(help="Separated by commas; all by default.")] = "",
    seconds: Annotated[float, typer.Option(help="For each family.")] = 60.0,
    again: Annotated[bool, typer.Option("--again", help="Check what is there already.")] = False,
    output: Annotated[Path, typer.Option(help="Result file.")] = RESULTS,
) -> None:
    """Run the sanitizer over our kernels' tests."""
    found: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    of_tool = found.setdefault(tool, {})
    for family in [f for f in families.split(",") if f] or list(FAMILIES):
        if of_tool.get(family, {}).get("says") in ("clean", "errors") and not again:
            continue
        of_tool[family] = checked(family, tool, seconds)
        Console().print(family, of_tool[family])
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    typer.run(main)

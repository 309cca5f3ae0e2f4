"""Compiles generated Triton kernels into Triton's cache; run as a script by `precompile`.

It reads one JSON object a line: the file, module and function of a kernel, what Triton says of the
specialisation to compile, and the device to compile for. It answers each with a line: an error's
first line, or nothing. It needs neither a GPU nor PyTorch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class NoDevice:
    """A driver of a device that is not there: kernels are compiled for it and not run."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _function(path: str, module: str, name: str) -> Any:
    """The kernel, under the module name that it has in the process that will launch it."""
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def _compile(job: dict[str, Any]) -> str:
    try:
        driver.set_active(NoDevice(GPUTarget(*job["target"])))
        _function(job["path"], job["module"], job["name"]).preload(job["specialization"])
    except Exception as error:  # the process that launches it meets the same, and judges
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_compile(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

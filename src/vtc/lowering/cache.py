"""The profile cache: region costs on disk, by device and versions.

One JSON file a key, written to a temporary name and renamed, so that processes that compile at the
same time neither wait for each other nor read half a file. A file that cannot be read is replaced;
a folder that cannot be written leaves the costs in memory. Each is said once, as a warning.
"""

from __future__ import annotations

import json
import math
import platform
import tempfile
import warnings
from pathlib import Path

import torch

from vtc import errors


class ProfileCache:
    """Costs in microseconds by key, for one device."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder / "profile" / environment(device)
        self.writable = True
        self.memory: dict[str, float] = {}

    def get(self, key: str) -> float | None:
        if key in self.memory:
            return self.memory[key]
        path = self.folder / f"{key}.json"
        try:
            value = json.loads(path.read_text())["microseconds"]
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"a cost of {value!r}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(errors.CacheCorruptWarning(path, reason), stacklevel=2)
            return None
        self.memory[key] = float(value)
        return self.memory[key]

    def put(self, key: str, microseconds: float) -> None:
        self.memory[key] = microseconds
        if not self.writable:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, suffix=".tmp", delete=False
            ) as file:
                try:
                    json.dump({"microseconds": microseconds}, file)
                    file.flush()  # a full disk is told here
                    Path(file.name).replace(self.folder / f"{key}.json")
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            self.writable = False
            warnings.warn(errors.CacheUnwritableWarning(self.folder, str(error)), stacklevel=2)


def environment(device: torch.device) -> str:
    """A folder name for what costs depend on beside the region: device, threads, versions."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        name = f"{platform.machine()}-{capability}-{torch.get_num_threads()}threads"
    text = f"{name}-torch{torch.__version__}"
    return "".join(c if c.isalnum() or c in ".-+" else "_" for c in text)

"""The device's interpreter, compiled as plain C++ for this machine: see `host.h`."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vtc.program.module import Module
from vtc.vm import _native
from vtc.vm.image import image_of

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O1", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-psabi")
LENGTH_WORDS = 2  # these of layout.h
LAUNCH_WORDS = 480


@functools.cache
def library() -> ctypes.CDLL:
    """The interpreter as a library, built once a process."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "these tests need a C++ compiler"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "interpreter.so")
        subprocess.run([compiler, *FLAGS, "-o", str(made), str(HERE / "run.cpp")], check=True)
        return ctypes.CDLL(str(made))


class Machine:
    """Encodes a module for the device; what it gives runs on this machine."""

    def __init__(self, module: Module) -> None:
        self.encoder = _native.Encoder(image_of(module))

    def encode(self, sizes: Sequence[int]) -> Encoded:
        return Encoded(self.encoder.encode(list(sizes), True))


class Encoded:
    """A program for the device."""

    def __init__(self, program: _native.Program) -> None:
        self.program = program
        self.launches = program.launches
        self.used = program.used
        self.words = program.words()

    def run(self, pointers: Sequence[int], params: Sequence[float] = (), grid: int = 3) -> None:
        """Runs every launch, with at most `grid` blocks that come one after another.

        Raises IndexError for an index out of range.
        """
        arena = torch.full((self.program.arena_bytes + 64,), 0xA5, dtype=torch.uint8)
        fault = np.zeros(1, np.uint64)
        longest = max((len(launch[0]) for launch in self.launches), default=0) + LENGTH_WORDS
        count = len(self.launches)
        slots = self.program.slots(
            pointers, params, arena.data_ptr(), fault.ctypes.data, count, longest
        )
        for n, (words, _, tasks, shared_bytes) in enumerate(self.launches):
            slot = slots[n * longest :]
            where = (None, slot) if len(words) > LAUNCH_WORDS else (slot[LENGTH_WORDS:], None)
            launch(*where, len(words), min(tasks, grid), shared_bytes)
        if fault[0]:
            raise IndexError(f"fault {int(fault[0]):#x}")


def launch(
    words: np.ndarray | None, slot: np.ndarray | None, count: int, grid: int, shared_bytes: int
) -> None:
    """Runs a launch whose block comes with it, or lies in a slot."""
    given, elsewhere = (
        ctypes.c_void_p(None if a is None else a.ctypes.data) for a in (words, slot)
    )
    library().vtc_run_on_host(given, count, elsewhere, grid, shared_bytes)

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
from vtc.vm.isa import HEAD_WORDS

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O1", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-psabi")
BLOCK_WORDS = 3  # kBlockWords of layout.h


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
        for words, buffers, tasks, shared_bytes in self.launches:
            words = words.copy()
            words[0] = fault.ctypes.data
            for n, buffer in enumerate(buffers):
                address = self._address(buffer, pointers, arena.data_ptr())
                words[BLOCK_WORDS + 2 * n] = address
                words[1] |= np.uint64((address % 16 != 0) << n)
            at = BLOCK_WORDS + 2 * len(buffers)
            words[at : at + len(params)] = np.array(params, np.float64).view(np.uint64)
            run = library().vtc_run_on_host
            run(ctypes.c_void_p(words.ctypes.data), len(words), min(tasks, grid), shared_bytes)
        if fault[0]:
            raise IndexError(f"fault {int(fault[0]):#x}")

    def _address(self, buffer: int, pointers: Sequence[int], arena: int) -> int:
        if buffer < 0:
            return arena
        kind, _, offset = map(int, self.words[HEAD_WORDS + 3 * buffer :][:3])
        return arena + offset if kind >> 8 & 1 else pointers[buffer]

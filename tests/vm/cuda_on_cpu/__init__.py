"""The device's interpreter, compiled as plain C++ for this machine: see `host.h`."""

from __future__ import annotations

import ctypes
import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vtc.errors import KernelFailedError
from vtc.program.module import Module
from vtc.vm import _native
from vtc.vm.device import GAVE_UP
from vtc.vm.image import image_of

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O1", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-psabi")
LAUNCH_WORDS = 480  # kLaunchWords of layout.h


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
    """A program for the device.

    by_rows: kernels that are operations on rows run as those, as on the device; else by the
    interpreter, as where it is replayed.
    """

    by_rows = True

    def __init__(self, program: _native.Program) -> None:
        self.program = program
        self.launches = program.launches
        self.used = program.used
        self.words = program.words()

    def rows(self, pointers: Sequence[int], arena: int, processors: int) -> list[Any]:
        """Of each kernel, what `launch_rows` takes, or None."""
        return self.program.rows(pointers, arena, processors)

    def run(self, pointers: Sequence[int], params: Sequence[float] = (), grid: int = 3) -> None:
        """Runs every kernel in a launch of its own of at most `grid` blocks.

        Raises IndexError for an index out of range.
        """
        arena, fault = self._memory()
        longest = max((words for words, *_ in self.launches), default=0)
        given = (pointers, params, arena.data_ptr(), fault.ctypes.data)
        slots = self.program.slots(*given, len(self.launches), longest)
        rows = self.rows(pointers, arena.data_ptr(), 1) if self.by_rows else []
        for n, (words, tasks, shared_bytes) in enumerate(self.launches):
            slot = slots[n * longest :][:longest]
            count = words if words <= LAUNCH_WORDS else -1
            if rows and rows[n] is not None:
                launch_rows(*rows[n])
                continue
            launch(slot, count, min(tasks, grid), shared_bytes)
        judge(fault)

    def run_together(
        self, pointers: Sequence[int], params: Sequence[float] = (), most: int = 3, absent: int = 0
    ) -> None:
        """Runs all kernels in one launch of at most `most` blocks, if it has room for them.

        absent: blocks that never come. Raises IndexError for an index out of range,
        KernelFailedError where blocks have waited in vain.
        """
        if sum(words for words, *_ in self.launches) > LAUNCH_WORDS:
            return self.run(pointers, params)
        arena, fault = self._memory()
        words, grid = self.program.together(
            pointers, params, arena.data_ptr(), fault.ctypes.data, most
        )
        shared_bytes = max((bytes_ for *_, bytes_ in self.launches), default=0)
        place = np.zeros(2, np.uint32)
        launch(words, len(words), grid, shared_bytes, place, grid - absent)
        judge(fault)
        assert place[0] == 0
        return None

    def _memory(self) -> tuple[torch.Tensor, np.ndarray]:
        arena = torch.full((self.program.arena_bytes + 64,), 0xA5, dtype=torch.uint8)
        return arena, np.zeros(1, np.uint64)


def judge(fault: np.ndarray) -> None:
    """Raises what a fault says."""
    word = int(fault[0])
    if word & 0xFFFFFFFF == GAVE_UP:
        raise KernelFailedError((word >> 32) - 1)
    if word:
        raise IndexError(f"fault {word:#x}")


def launch_rows(argument: bytes, function: int, blocks: int, threads: int) -> None:
    """Runs a kernel of rows.h or flat.h, a block after another."""
    library().vtc_rows_on_host(ctypes.c_char_p(argument), function, min(blocks, 1 << 30), threads)


def launch(
    words: np.ndarray,
    count: int,
    grid: int,
    shared_bytes: int,
    place: np.ndarray | None = None,
    there: int | None = None,
) -> None:
    """Runs `there` blocks of a launch of `grid`, whose words come with it, or lie in a slot if
    `count` is negative."""
    address = ctypes.c_void_p(None if place is None else place.ctypes.data)
    there = grid if there is None else there
    at = ctypes.c_void_p(words.ctypes.data)
    library().vtc_run_on_host(at, count, address, grid, there, shared_bytes)


class Native:
    """Of the native interpreter what copies matrices into aligned rows and out of them."""

    THREADS, GROUP = 256, 8  # kPadThreads of padded.h, kRun of layout.h

    def pad(self, matrices: Sequence[tuple[int, ...]], stream: int) -> None:
        first, given = 0, []
        for own in matrices:
            given.append((*own, first))
            first += self._blocks(own[5] * own[6])
        self._run(given, 0, first)

    def unpad(self, matrix: tuple[int, ...], stream: int) -> None:
        self._run([(*matrix, 0)], 1, self._blocks(matrix[2] * matrix[3]))

    def _blocks(self, elements: int) -> int:
        return -(-elements // (self.THREADS * self.GROUP))

    def _run(self, given: Sequence[tuple[int, ...]], unpad: int, blocks: int) -> None:
        words = b"".join(struct.pack("=QQ6i", *own) for own in given)
        library().vtc_pad_on_host(ctypes.c_char_p(words), len(given), unpad, blocks)

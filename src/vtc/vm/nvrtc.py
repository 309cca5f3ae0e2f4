"""Compiling CUDA C++ with NVRTC, which comes with PyTorch's CUDA wheels: no nvcc, no headers."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vtc.errors import EngineUnavailableError

# NVRTC has no standard library; this is what the interpreter takes of <cstdint>.
CSTDINT = """#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807ll - 1)
"""


def _candidates() -> Iterator[str]:
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for pattern in (
                "cu*/lib/libnvrtc.so.*",
                "cuda_nvrtc/lib/libnvrtc.so.*",
                "lib/libnvrtc*.so*",
            ):
                found = sorted(Path(folder).glob(pattern))
                yield from (str(p) for p in found if ".alt." not in p.name)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


@functools.cache
def _library() -> ctypes.CDLL:
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise EngineUnavailableError("dvm", "NVRTC, which builds its interpreter, does not load")


@functools.cache
def version() -> str:
    """The version of NVRTC, as "13.0". Raises EngineUnavailableError."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_cubin(
    source: str, headers: Mapping[str, str], architecture: str, options: tuple[str, ...] = ()
) -> tuple[bytes, str]:
    """Machine code of a CUDA C++ source for an architecture such as "sm_90a", and NVRTC's log.

    headers: the text of each file by the name that it is included by. Needs no GPU. Raises
    EngineUnavailableError where NVRTC does not load, RuntimeError with the log where it refuses.
    """
    library = _library()
    given = {"cstdint": CSTDINT, **headers}
    texts = (ctypes.c_char_p * len(given))(*(t.encode() for t in given.values()))
    names = (ctypes.c_char_p * len(given))(*(n.encode() for n in given))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"interpreter.cu", len(given), texts, names
    )
    flags = (f"--gpu-architecture={architecture}", "--std=c++20", "-default-device", *options)
    passed = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
    try:
        failed = library.nvrtcCompileProgram(program, len(flags), passed)
        log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        if failed:
            raise RuntimeError(f"NVRTC {version()} refuses the interpreter:\n{_line(log)}")
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), _line(log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _line(log: bytes) -> str:
    return log.rstrip(b"\0").decode()


def _text(size: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    count = ctypes.c_size_t()
    size(program, ctypes.byref(count))
    held = ctypes.create_string_buffer(count.value)
    read(program, held)
    return held.raw

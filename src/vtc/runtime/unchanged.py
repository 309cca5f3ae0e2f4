"""Whether tensors have changed since they were last looked at, in one pass of native code.

A change is seen by a tensor's address and by its version counter. Between two calls of a model its
weights leave the caches, so that looking at each in Python takes longer than many a program.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vtc.errors import EngineUnavailableError
from vtc.vm import machine

ADDRESS: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
VERSION: Callable[[torch.Tensor], int] = operator.attrgetter("_version")

# at::TensorBase::_version() const, and a function of libtorch's stable interface.
_VERSION, _DATA = "_ZNK2at10TensorBase8_versionEv", "aoti_torch_get_data_ptr"


@functools.cache
def _functions() -> tuple[int, int] | None:
    """The addresses of libtorch's functions; None where it does not export them."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        machine.native_module()
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        found = [ctypes.cast(getattr(library, n), ctypes.c_void_p).value for n in (_VERSION, _DATA)]
    except (OSError, AttributeError, EngineUnavailableError):
        return None
    version, data = found
    return (version, data) if version and data else None


def watch(tensors: Sequence[torch.Tensor], counted: Sequence[bool]) -> Callable[[], bool]:
    """A function that tells if every tensor is where it was, and at the version that it had where
    that is `counted`. Versions of inference tensors cannot be counted: RuntimeError.
    """
    kept = tuple(tensors)
    functions = _functions()
    if functions is not None:
        implementations = [t._cdata for t in kept]
        native = machine.native_module().TensorWatch(*functions, implementations, list(counted))
        return _Native(native, kept)
    versions = [t for t, own in zip(kept, counted, strict=True) if own]

    def state() -> list[int]:
        return [*map(ADDRESS, kept), *map(VERSION, versions)]

    before = state()
    return lambda: state() == before


class _Native:
    """A native watch, with the tensors that it looks at."""

    def __init__(self, native: Any, kept: tuple[torch.Tensor, ...]) -> None:
        self.native, self.kept = native, kept
        self.unchanged = native.unchanged

    def __call__(self) -> bool:
        return self.unchanged()

"""Whether tensors, or dictionaries, have changed since they were last looked at, in one pass of
native code.

A change of a tensor is seen by its address, its layout (shape, strides, dtype) and its version
counter; one of a dictionary by the version that CPython gives it. Between two calls of a model its
weights leave the caches, so that looking at each in Python takes longer than many a program.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from vtc.errors import EngineUnavailableError
from vtc.vm import machine

T = TypeVar("T")

ADDRESS: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
VERSION: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
LAYOUT = operator.attrgetter("shape", "dtype")

# at::TensorBase::_version() const, and functions of libtorch's stable interface, in the order of
# `TorchFunctions`.
_NAMES = (
    "_ZNK2at10TensorBase8_versionEv",
    *(f"aoti_torch_get_{what}" for what in ("data_ptr", "dim", "sizes", "strides", "dtype")),
)


@functools.cache
def _functions() -> tuple[int, ...] | None:
    """The addresses of libtorch's functions; None where it does not export them."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        machine.native_module()
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        found = [ctypes.cast(getattr(library, n), ctypes.c_void_p).value for n in _NAMES]
    except (OSError, AttributeError, EngineUnavailableError):
        return None
    known = tuple(address for address in found if address)
    return known if len(known) == len(_NAMES) else None


@functools.cache
def requires_grad_function() -> int | None:
    """The address of c10::TensorImpl::requires_grad() const; None if libc10 does not export it."""
    path = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        function = library._ZNK3c1010TensorImpl13requires_gradEv
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def watch(tensors: Sequence[torch.Tensor], counted: Sequence[bool]) -> Callable[[], bool]:
    """A function that tells if every tensor is where it was, laid out as it was, and at the version
    that it had where that is `counted`. Versions of inference tensors cannot be counted:
    RuntimeError.
    """
    kept = tuple(tensors)
    functions = _functions()
    if functions is not None:
        storages = list(map(_storage, kept))
        implementations = [t._cdata for t in kept]
        native = machine.native_module().TensorWatch(
            [*functions, 0], implementations, storages, list(counted)
        )
        return _Native(native, kept)
    versions = [t for t, own in zip(kept, counted, strict=True) if own]

    def state() -> list[Any]:
        strides = [t.stride() for t in kept]
        return [*map(ADDRESS, kept), *map(LAYOUT, kept), *strides, *map(VERSION, versions)]

    before = state()
    return lambda: state() == before


def watch_layouts(tensors: Sequence[torch.Tensor]) -> Callable[[], bool] | None:
    """A function that tells if every tensor is where it was, laid out as it was, and requires
    gradients if it did. It may be called only while each object still stands for the same
    TensorImpl. None where libtorch does not export what it needs."""
    functions, requires_grad = _functions(), requires_grad_function()
    if functions is None or requires_grad is None:
        return None
    native = machine.native_module().TensorWatch(
        [*functions, requires_grad],
        [t._cdata for t in tensors],
        list(map(_storage, tensors)),
        [False] * len(tensors),
    )
    return native.unchanged


MISSES = 8
"""Calls in a row that bring other tensors, after which nothing is noted any more."""


class Same(Generic[T]):
    """What was found about the tensors of a call, for the next one that brings the same tensors,
    each where it was and laid out as it was. They are not kept alive."""

    def __init__(self) -> None:
        self.misses = 0
        self.known: tuple[tuple[weakref.ref[torch.Tensor], ...], Callable[[], bool], T] | None
        self.known = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> T | None:
        """What was noted of these tensors; None if they are others, or not as they were."""
        known = self.known
        if known is None:
            return None
        references, unchanged, found = known
        if len(references) != len(tensors):
            return None
        held = [reference() for reference in references]
        # The watch looks at what the objects stand for, while they live.
        if any(map(operator.is_not, tensors, held)) or not unchanged():
            return None
        self.misses = 0
        return found

    def note(self, tensors: Sequence[torch.Tensor], found: T) -> None:
        """Look at these tensors in the next call."""
        self.known, self.misses = None, self.misses + 1
        if self.misses > MISSES:
            return
        references = tuple(map(weakref.ref, tensors))
        unchanged = watch_layouts(tensors)
        if unchanged is not None:
            self.known = references, unchanged, found


def _storage(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # as PyTorch raises for a tensor without storage
        return 0


class _Native:
    """A native watch, with the tensors that it looks at.

    PyTorch exchanges the insides of no tensor that has a weak reference.
    """

    def __init__(self, native: Any, kept: tuple[torch.Tensor, ...]) -> None:
        self.native, self.kept = native, kept
        self.references = tuple(map(weakref.ref, kept))
        self.unchanged = native.unchanged

    def __call__(self) -> bool:
        return self.unchanged()


def watch_dicts(dicts: Sequence[dict[Any, Any]]) -> Callable[[], bool]:
    """A function that tells if nothing was put into the dictionaries, replaced in them or taken
    out. It may say that something was when nothing was, and always does where this release of
    Python does not count changes, or the native module is not built."""
    try:
        native = machine.native_module()
    except EngineUnavailableError:
        return lambda: False
    if not native.dicts_are_counted():
        return lambda: False
    return _NativeDicts(native.DictWatch(list(dicts)), tuple(dicts))


class _NativeDicts:
    """A native watch, with the dictionaries that it looks at."""

    def __init__(self, native: Any, kept: tuple[dict[Any, Any], ...]) -> None:
        self.native, self.kept = native, kept
        self.unchanged = native.unchanged

    def __call__(self) -> bool:
        return self.unchanged()

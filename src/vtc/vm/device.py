"""The DVM on a CUDA device: the interpreter is built once an architecture, programs are launched.

The interpreter's machine code is kept on disk, keyed by its source, NVRTC's version and the
architecture. A program for known sizes is encoded with tiles for the device and launched on the
current stream; nothing is compiled then.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vtc.errors import EngineUnavailableError, KernelFailedError
from vtc.options import Options
from vtc.program.module import Module
from vtc.vm import isa, nvrtc
from vtc.vm.image import image_of
from vtc.vm.machine import index_error, native_module

# Streams, and captured launches of several kernels; beyond that kernels are launched one by one.
PLACES = 1 << 14
GAVE_UP = 0xFFFFFFFF  # kGaveUp of cuda/layout.h

SOURCES = Path(__file__).with_name("cuda")


def headers() -> dict[str, str]:
    """The interpreter's headers by the names that they are included by."""
    own = {p.name: p.read_text() for p in sorted(SOURCES.glob("*.*h"))}
    return {**own, "../native/isa.h": isa.header()}


def architecture(device: torch.device) -> str:
    """The architecture that the interpreter is built for on a device, as "sm_90a"."""
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        name = torch.cuda.get_device_name(device)
        raise EngineUnavailableError("dvm", f"it needs compute capability 8.0, which {name} lacks")
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def build(target: str, options: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """The interpreter's machine code for an architecture, and NVRTC's log. Needs no GPU."""
    return nvrtc.compile_cubin((SOURCES / "interpreter.cu").read_text(), headers(), target, options)


def _cached(target: str) -> bytes:
    parts = [nvrtc.version(), target, (SOURCES / "interpreter.cu").read_text(), *headers().values()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    path = Options().cache_dir / "dvm" / f"{key}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass
    code, _ = build(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    except OSError:
        pass  # it is built again by the next process
    return code


class _Interpreter:
    """The interpreter on one device. `fault` is memory that host and device both see."""

    def __init__(self, index: int) -> None:
        device = torch.device("cuda", index)
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # the context is there from now on
            self.fault = torch.zeros(1, dtype=torch.int64, pin_memory=True)
            processors = torch.cuda.get_device_properties(device).multi_processor_count
            code = _cached(architecture(device))
            # Where the blocks of a launch of several kernels meet: 64 bytes for each.
            self.places = torch.zeros(PLACES, 64, dtype=torch.uint8, device=device)
            torch.cuda.synchronize()
            self.native = native_module().DeviceInterpreter(
                code, processors, self.fault.data_ptr(), self.places.data_ptr(), PLACES
            )


@functools.cache
def interpreter(index: int) -> _Interpreter:
    """The interpreter on device `index`. Raises EngineUnavailableError."""
    return _Interpreter(index)


class DeviceEncoded:
    """A program for one choice of sizes on one device."""

    def __init__(self, program: Any, module: Module, device: torch.device) -> None:
        self.program, self.module, self.device = program, module, device
        index = device.index
        self.run = self._runner(interpreter(index).native, index)

    @property
    def used(self) -> list[bool]:
        """For each buffer, whether the program touches it at these sizes."""
        return self.program.used

    def _runner(self, native: Any, index: int) -> Callable[..., None]:
        """`run(pointers, params)`: launches on the current stream of the device.

        An index out of range that a kernel before this one has found raises IndexError: launches
        do not wait for what they launch.
        """
        launch, arena_bytes = self.program.launch, self.program.arena_bytes
        stream_of = torch._C._cuda_getCurrentRawStream
        device = self.device

        def run(pointers: Sequence[int], params: Sequence[float] = ()) -> None:
            arena = None
            if arena_bytes:
                arena = torch.empty(arena_bytes, dtype=torch.uint8, device=device)
            address = 0 if arena is None else arena.data_ptr()
            fault = launch(native, pointers, params, address, stream_of(index))
            if fault:
                raise failure(self.module, fault)

        return run


def raise_faults(index: int) -> None:
    """Raises what a kernel that has run on device `index` has found, as a launch does."""
    fault = interpreter(index).native.take_fault()
    if fault:
        raise failure(None, fault)


def failure(module: Module | None, fault: int) -> Exception:
    """What a fault says, which a kernel of any program has found; maybe one of `module`."""
    number = (fault >> 32) - 1
    if fault & 0xFFFFFFFF == GAVE_UP:
        return KernelFailedError(number)
    kernels = 0 if module is None else sum(1 for _ in module.kernels())
    if module is not None and number < kernels and fault >> 8 & 0xFFFFFF < len(module.buffers):
        return index_error(module, fault)
    return IndexError("an index of a program that ran before this one is out of bounds")


class DeviceMachine:
    """The encoder of one module for one device. Raises as `vtc.vm.machine.Machine` does."""

    def __init__(self, module: Module, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.module, self.device = module, torch.device("cuda", index)
        self._encode = native_module().Encoder(image_of(module)).encode

    def encode(self, sizes: Sequence[int]) -> DeviceEncoded:
        """The program for these values of the module's symbols, by integer arithmetic alone.

        Raises NotImplementedError for a kernel that the device has no instructions for, or that is
        beyond its limits.
        """
        return DeviceEncoded(self._encode(sizes, True), self.module, self.device)

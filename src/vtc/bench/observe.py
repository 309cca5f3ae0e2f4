"""What one call does beside taking time: kernels that only move data, and peak memory.

Both are read from the profiler. Kernels inside vendor libraries that move data (oneDNN's reorders
on a CPU) do not show there; on CUDA they do, as kernels of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from vtc.vm.machine import workspace_peak

# ATen operators that run a kernel which only moves values. Views run none.
MOVEMENT_OPERATORS = frozenset(
    {
        "_index_put_impl_",
        "_unsafe_index",
        "cat",
        "channel_shuffle",
        "clone",
        "constant_pad_nd",
        "copy_",
        "embedding",
        "flip",
        "gather",
        "im2col",
        "index",
        "index_copy",
        "index_copy_",
        "index_put",
        "index_put_",
        "index_select",
        "native_channel_shuffle",
        "pixel_shuffle",
        "pixel_unshuffle",
        "reflection_pad1d",
        "reflection_pad2d",
        "repeat",
        "repeat_interleave",
        "replication_pad1d",
        "replication_pad2d",
        "roll",
        "scatter",
        "scatter_",
        "select_scatter",
        "slice_scatter",
        "stack",
        "take",
        "take_along_dim",
        "tile",
        "unfold_copy",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
    }
)
# What else may stand in the name of a fused kernel that only moves values: views.
VIEWS = frozenset(
    {
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "contiguous",
        "copy",
        "detach",
        "diagonal",
        "expand",
        "flatten",
        "getitem",
        "lift_fresh_copy",
        "movedim",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "slice_copy",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
    }
)
_FUSED = re.compile(r"^(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_fused_(?P<names>.*?)(?:_\d+)?$")
_ALTERNATIVES = "|".join(sorted(MOVEMENT_OPERATORS | VIEWS, key=len, reverse=True))
_NAMES = re.compile(f"(?:(?:{_ALTERNATIVES})(?:_|$))+")
# Kernels of PyTorch and of NVIDIA's libraries that only move values. direct_copy also casts: then
# its name has a cast in it.
_CUDA_MOVEMENT = re.compile(
    r"direct_copy_kernel|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|convertTensor_kernel"
    r"|indexSelect|index_elementwise_kernel|index_copy_kernel|gather_kernel|scatter_gather"
    r"|roll_cuda_kernel|flip_kernel|constant_pad|reflection_pad|replication_pad|im2col"
    r"|upsample_nearest|channel_shuffle|pixel_shuffle|nhwcAddPadding|Memcpy DtoD"
    r"|batch_transpose|tensorTransformGeneric|transpose_kernel"
)
_CUDA_CAST = re.compile(r"LoadWithCast|StoreWithCast")
CALLS = 3


def is_movement_kernel(name: str) -> bool:
    """Whether a fused kernel's name, as Inductor builds it from operators, has movement only."""
    found = _FUSED.match(name)
    return bool(found and _NAMES.fullmatch(found["names"]))


def is_cuda_movement(name: str) -> bool:
    """Whether a CUDA kernel of this name only moves values."""
    if name.startswith("triton_"):
        return is_movement_kernel(name)
    return bool(_CUDA_MOVEMENT.search(name)) and not _CUDA_CAST.search(name)


def movement(
    run: Callable[[], object], device: torch.device, reset: Callable[[], None]
) -> tuple[int, float]:
    """Kernels of one call that only move data, and their milliseconds (means of some calls).

    `reset` is called before each call, outside what is recorded.
    """
    durations: list[float] = []
    with _fused_kernels_recorded():
        for _ in range(CALLS):
            reset()
            durations += _movement_us(run, device)
    return round(len(durations) / CALLS), sum(durations) / CALLS / 1e3


@dataclass(frozen=True)
class Kernel:
    """CUDA kernels of one name in a call: how many, their microseconds in all, and whether they
    only move values."""

    name: str
    calls: int
    microseconds: float
    moves: bool


def kernels(run: Callable[[], object], device: torch.device) -> list[Kernel]:
    """The CUDA kernels of one call, the longest first; none on a CPU."""
    if device.type != "cuda":
        return []
    found: dict[str, list[float]] = {}
    for name, microseconds in _cuda_kernels(run, device):
        found.setdefault(name, []).append(microseconds)
    listed = [Kernel(n, len(t), sum(t), is_cuda_movement(n)) for n, t in found.items()]
    return sorted(listed, key=lambda k: -k.microseconds)


def _cuda_kernels(run: Callable[[], object], device: torch.device) -> list[tuple[str, float]]:
    torch.cuda.synchronize(device)
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize(device)
    events = found.profiler.kineto_results.events()
    return [
        (event.name(), event.duration_ns() / 1e3)
        for event in events
        if event.device_type() == DeviceType.CUDA
    ]


def _movement_us(run: Callable[[], object], device: torch.device) -> list[float]:
    """Microseconds of each kernel of one call that only moves data."""
    if device.type == "cuda":
        return [time for name, time in _cuda_kernels(run, device) if is_cuda_movement(name)]
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    return [e.cpu_time_total for e in found.events() or () if _outermost_movement(e)]


def _outermost_movement(event: Any) -> bool:
    if not _moves(event.name):
        return False
    parent = event.cpu_parent
    while parent is not None:
        # A cast is a computation that happens to be written with copy_.
        if _moves(parent.name) or parent.name == "aten::_to_copy":
            return False
        parent = parent.cpu_parent
    return True


def _moves(name: str) -> bool:
    if name.startswith("aten::"):
        return name.removeprefix("aten::") in MOVEMENT_OPERATORS
    return is_movement_kernel(name)


@contextlib.contextmanager
def _fused_kernels_recorded() -> Iterator[None]:
    """Show Inductor's C++ kernels in the profile, by name, while the context lasts.

    Inductor can compile such records into its kernels (`cpp.enable_kernel_profile`), but then what
    is profiled is not what was timed. Here the names in the generated modules are replaced.
    """
    codecache = sys.modules.get("torch._inductor.codecache")  # absent: nothing was compiled
    modules = codecache.PyCodeCache.modules if codecache is not None else []
    replaced: list[tuple[Any, str, Any]] = []
    for module in modules:
        for name, kernel in list(vars(module).items()):
            if name.startswith("cpp_fused_") and callable(kernel):
                replaced.append((module, name, kernel))
                setattr(module, name, _recorded(name, kernel))
    try:
        yield
    finally:
        for module, name, kernel in replaced:
            setattr(module, name, kernel)


def _recorded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with record_function(name):
            return kernel(*args)

    return run


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most memory that a call needs beyond what PyTorch held before.

    What PyTorch allocates, and on a CPU the arenas and registers of the DVM's programs.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - held
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        workspace_peak()
        run()
        workspace = workspace_peak()
    current = peak = 0
    events = found.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=_start):
        current += event.nbytes()
        peak = max(peak, current)
    return peak + workspace


def _start(event: Any) -> int:
    return int(event.start_ns())


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what the profiler's C++ library writes to stderr when it starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device, not a path
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

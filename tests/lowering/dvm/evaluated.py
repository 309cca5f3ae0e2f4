"""Compiling for the DVM with the evaluator of tile programs in the place of the machine."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from arguments import fresh
from vtc.errors import FallbackWarning
from vtc.lowering.dvm import Plan
from vtc.lowering.settings import Settings
from vtc.program.evaluate import evaluate
from vtc.program.module import Module
from vtc.program.sizes import size_value
from vtc.program.verify import verify
from vtc.runtime import dvm, dvm_compile


class Evaluated:
    """A machine whose encodings are run by `vtc.program.evaluate`."""

    def __init__(self, module: Module) -> None:
        verify(module)
        self.module = module

    def encode(self, sizes: Sequence[int]) -> _Encoded:
        return _Encoded(self.module, dict(zip(self.module.symbols, sizes, strict=True)))


class _Encoded:
    def __init__(self, module: Module, sizes: dict[str, int]) -> None:
        self.module, self.sizes = module, sizes

    @property
    def used(self) -> list[bool]:
        return [True] * len(self.module.buffers)

    def run(self, pointers: Sequence[int], params: Sequence[float]) -> None:
        tensors: list[Tensor | None] = []
        for buffer, pointer in zip(self.module.buffers, pointers, strict=True):
            dtype, count = buffer.dtype.torch_dtype, size_value(buffer.extent, self.sizes)
            if buffer.kind == "temporary":
                tensors.append(None)
            elif count <= 0:
                tensors.append(torch.empty(0, dtype=dtype))
            else:
                raw = (ctypes.c_byte * (count * buffer.dtype.itemsize)).from_address(pointer)
                tensors.append(torch.frombuffer(raw, dtype=dtype))
        evaluate(self.module, self.sizes, tensors, params)


class Compiled:
    """A function compiled for the DVM; `plans` are those of its captured graphs."""

    def __init__(self, fn: Callable[..., Any], dynamic: bool = True) -> None:
        self.plans: list[Plan] = []

        def backend(graph_module: Any, inputs: Any) -> Any:
            run = dvm_compile.compile_graph(graph_module, inputs, Settings(), Evaluated)
            program = getattr(run, "run", None)
            if isinstance(run, dvm.Program):
                self.plans.append(run.plan)
            elif isinstance(program, dvm.Program):
                self.plans.append(program.plan)
            return run

        self.run = (
            dvm_compile.dynamic(fn, backend)
            if dynamic
            else torch.compile(fn, backend=backend, dynamic=False)
        )

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self.run(*args)

    @property
    def eager(self) -> set[str]:
        """The operators that run as eager PyTorch."""
        return {name for plan in self.plans for name in plan.eager}

    @property
    def text(self) -> str:
        return "\n".join(map(str, self.plans))


def check(
    fn: Callable[..., Any],
    *calls: Sequence[Any],
    eager: Sequence[str] = (),
    captures: int = 1,
    tolerance: float | None = None,
    dynamic: bool = True,
) -> Compiled:
    """`fn` compiled once gives what eager PyTorch gives on every tuple of arguments, updates them
    alike, and leaves these operators to eager PyTorch."""
    torch._dynamo.reset()
    compiled = Compiled(fn, dynamic)
    with warnings.catch_warnings():
        if not eager:
            warnings.simplefilter("error", FallbackWarning)
        _check_calls(compiled, fn, calls, tolerance)
    assert len(compiled.plans) == captures, compiled.text
    assert compiled.eager == set(eager), compiled.text
    return compiled


def _check_calls(
    compiled: Compiled,
    fn: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    tolerance: float | None,
) -> None:
    for args in calls:
        ours, theirs = fresh(args), fresh(args)
        for one, given in zip(ours, args, strict=True):
            if hasattr(given, "_dynamo_static_indices"):
                torch._dynamo.mark_static(one)
        with torch.no_grad():
            want = fn(*theirs)
        assert_close(compiled(*ours), want, tolerance)
        assert_close(ours, theirs, tolerance)


def assert_close(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Equal in shape, dtype and strides, and in value as far as the order of sums allows."""
    leaves, spec = pytree.tree_flatten(got)
    expected, expected_spec = pytree.tree_flatten(want)
    assert spec == expected_spec
    for one, two in zip(leaves, expected, strict=True):
        if not isinstance(two, Tensor):
            assert one == two
            continue
        moving = [d for d, s in enumerate(two.shape) if s > 1 and two.numel() > 0]
        assert [one.stride(d) for d in moving] == [two.stride(d) for d in moving]
        limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(one, two, equal_nan=True, **limits)


@contextmanager
def counted() -> Iterator[dvm.Counters]:
    """The counters, from zero."""
    dvm.counters.reset()
    yield dvm.counters

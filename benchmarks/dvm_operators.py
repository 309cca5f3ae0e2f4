"""The operators of dvm.py: what is computed, on which shapes, and how each system is timed.

An operator is a function of float32 tensors. Shapes lie in three bands by the bytes that a call
reads and writes: all of it fits the L2 caches, the L3 cache, or only memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numexpr
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from quiet import undisturbed
from torch import Tensor

import vtc
from vtc.bench.peers import fresh_compiler
from vtc.bench.timing import Effort, Timed, WallClock, interleave, spread

Function = Callable[..., Tensor | tuple[Tensor, ...]]
Shape = tuple[int, int]

BANDS: Mapping[str, tuple[Shape, ...]] = {
    "L2": ((448, 512), (421, 517)),
    "L3": ((1024, 1024), (1021, 1031)),
    "memory": ((4096, 4096), (4093, 4093)),
}
"""Rows and columns; four matrices of the first two fit 4 MiB, two cores' L2 caches. A second shape
of odd sizes fills no vector and aligns no row."""


@dataclass(frozen=True)
class Operator:
    """`function` of tensors whose shapes are `operands` of (rows, columns): "rc" a matrix, "r2c"
    one of twice the columns, "c" a value a column. kind: what it is judged with.

    numexpr: the expression over a, b, c and d, where it can express it, with the constants that it
    names (as float32: a Python float would make it compute in float64).
    """

    name: str
    kind: str
    function: Function
    operands: tuple[str, ...]
    numexpr: str | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    def inputs(self, shape: Shape, seed: int) -> list[Tensor]:
        """Operands for a shape, from a normal distribution."""
        generator = torch.Generator().manual_seed(seed)
        rows, columns = shape
        sizes = {"rc": (rows, columns), "r2c": (rows, 2 * columns), "c": (columns,)}
        return [torch.randn(sizes[o], generator=generator) for o in self.operands]


def add(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def add_mul_relu(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.relu((a + b) * c)


def chain_of_ten(a: Tensor, b: Tensor) -> Tensor:
    t = a * 1.5 + b
    t = torch.maximum(t, a) - 0.25
    t = t * b + a
    return (t * t - b) * 0.5 + t


def gelu(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a + b)


def gelu_tanh_chain(a: Tensor) -> Tensor:
    return 0.5 * a * (1 + torch.tanh(0.7978845608 * (a + 0.044715 * a * a * a)))


def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def swiglu(a: Tensor) -> Tensor:
    gate, up = a.chunk(2, -1)
    return F.silu(gate) * up


def if_else_add(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a > 0, a + b, a - b)


def layer_norm(a: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return F.layer_norm(a, (a.shape[-1],), c, d)


def rms_norm_add(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    total = a + b
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    return total, total * scale * c


def softmax(a: Tensor) -> Tensor:
    return torch.softmax(a, -1)


def row_sum(a: Tensor) -> Tensor:
    return a.sum(1)


def column_sum(a: Tensor) -> Tensor:
    return a.sum(0)


def var_mean(a: Tensor) -> tuple[Tensor, ...]:
    return torch.var_mean(a, -1)


SINGLE, CHAIN, NORM, REDUCTION = "single", "chain", "norm", "reduction"

OPERATORS: tuple[Operator, ...] = (
    Operator("add", SINGLE, add, ("rc", "rc"), "a + b"),
    Operator(
        "add_mul_relu", CHAIN, add_mul_relu, ("rc", "rc", "rc"),
        "where((a + b) * c > z, (a + b) * c, z)", {"z": 0.0},
    ),
    Operator(
        "chain_of_ten", CHAIN, chain_of_ten, ("rc", "rc"),
        "({t} * {t} - b) * h + {t}".replace(
            "{t}", "((where(a * k + b > a, a * k + b, a) - q) * b + a)"
        ),
        {"k": 1.5, "q": 0.25, "h": 0.5},
    ),
    Operator("gelu", CHAIN, gelu, ("rc", "c")),
    Operator(
        "gelu_tanh_chain", CHAIN, gelu_tanh_chain, ("rc",),
        "h * a * (o + tanh(k * (a + q * a * a * a)))",
        {"h": 0.5, "o": 1.0, "k": 0.7978845608, "q": 0.044715},
    ),
    Operator(
        "silu_mul", CHAIN, silu_mul, ("rc", "rc"), "a / (o + exp(-a)) * b", {"o": 1.0}
    ),
    Operator("swiglu", CHAIN, swiglu, ("r2c",)),
    Operator(
        "if_else_add", CHAIN, if_else_add, ("rc", "rc"), "where(a > z, a + b, a - b)", {"z": 0.0}
    ),
    Operator("layer_norm", NORM, layer_norm, ("rc", "c", "c")),
    Operator("rms_norm_add", NORM, rms_norm_add, ("rc", "rc", "c")),
    Operator("softmax", NORM, softmax, ("rc",)),
    Operator("row_sum", REDUCTION, row_sum, ("rc",), "sum(a, 1)"),
    Operator("column_sum", REDUCTION, column_sum, ("rc",), "sum(a, 0)"),
    Operator("var_mean", REDUCTION, var_mean, ("rc",)),
)  # fmt: skip

EFFORT = Effort(seconds=0.7, min_rounds=5, max_rounds=200, warm_up=2)
# Largest difference from float64 over the largest magnitude; sums of 2^24 products stay far below.
TOLERANCE = 1e-5


def measure(
    operator: Operator, shapes: Sequence[tuple[str, Shape]], done: Callable[[dict[str, Any]], None]
) -> None:
    """Times an operator on shapes (each with its band), giving each entry of the section
    `operators` to `done`.

    The compilers that take all shapes do so once, on the first; the others once a shape. Raises
    ValueError for a wrong result.
    """
    caches = torch._inductor.config.patch(force_disable_caches=True)
    with torch.no_grad(), fresh_compiler(), caches:
        dvm = vtc.compile(operator.function, engine="dvm")
        dynamic = torch.compile(operator.function, dynamic=True)
        for band, shape in shapes:
            inputs = operator.inputs(shape, seed=1)
            # Not the function that the other two compile: Dynamo keeps programs by the code object.
            static = torch.compile(_alias(operator.function), dynamic=False)
            systems = {
                "dvm_us": lambda: dvm(*inputs),  # noqa: B023 - used in this turn of the loop
                "eager_us": lambda: operator.function(*inputs),  # noqa: B023
                "inductor_us": lambda: static(*inputs),  # noqa: B023
                "inductor_dynamic_us": lambda: dynamic(*inputs),  # noqa: B023
                **_numexpr(operator, inputs),
            }
            first = {name: _milliseconds(run) for name, run in systems.items()}
            error = _error(operator, systems, inputs)
            timed = {name: Timed(run) for name, run in systems.items()}
            times = undisturbed(
                lambda: interleave(timed, WallClock(), EFFORT),  # noqa: B023
                lambda text: print(f"{operator.name} {shape}: {text}"),  # noqa: B023
            )
            medians = {name: spread(t).median_ms * 1e3 for name, t in times.items()}
            compile_ms = {name: max(first[name] - medians[name] * 1e-3, 0.0) for name in systems}
            done(
                {
                    "operator": operator.name,
                    "kind": operator.kind,
                    "band": band,
                    "shape": list(shape),
                    "dtype": "float32",
                    "numexpr_us": None,
                    "numexpr_re_evaluate_us": None,
                    **medians,
                    "compile_ms": compile_ms["dvm_us"],
                    "inductor_compile_ms": compile_ms["inductor_us"],
                    "inductor_dynamic_compile_ms": compile_ms["inductor_dynamic_us"],
                    "max_rel_error": error,
                }
            )


def _alias(function: Function) -> Function:
    def call(*args: Tensor) -> Any:
        return function(*args)

    return call


def _numexpr(operator: Operator, inputs: Sequence[Tensor]) -> dict[str, Callable[[], Any]]:
    """numexpr's two ways to evaluate an expression, on the same memory and as many threads."""
    if operator.numexpr is None:
        return {}
    numexpr.set_num_threads(torch.get_num_threads())
    names: dict[str, Any] = dict(zip("abcd", (t.numpy() for t in inputs), strict=False))
    names |= {name: np.float32(value) for name, value in operator.constants.items()}
    text = operator.numexpr

    def evaluate() -> Any:
        return numexpr.evaluate(text, local_dict=names, global_dict={})

    def re_evaluate() -> Any:
        return numexpr.re_evaluate(local_dict=names)

    evaluate()
    return {"numexpr_us": evaluate, "numexpr_re_evaluate_us": re_evaluate}


def _milliseconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def _error(
    operator: Operator, systems: Mapping[str, Callable[[], Any]], inputs: Sequence[Tensor]
) -> float:
    """The DVM's largest relative error; every system's result is checked against float64."""
    exact = _tensors(operator.function(*(t.double() for t in inputs)))
    errors = {}
    for name, run in systems.items():
        found = _tensors(run())
        errors[name] = max(
            float((f.double() - e).abs().max() / e.abs().max())
            for f, e in zip(found, exact, strict=True)
        )
        if not errors[name] < TOLERANCE:
            raise ValueError(f"{operator.name}: {name[:-3]} is wrong, by {errors[name]:.1e}")
    return errors["dvm_us"]


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, np.ndarray):
        return [torch.from_numpy(result)]
    return [result] if isinstance(result, Tensor) else list(result)

"""How far an interpreter may be from the evaluator: a running error bound for every element.

`Bounded` evaluates a module as `vtc.program.evaluate` does and carries with each value a bound of
its error (None: exact, so interpreters agree to the last bit). The rules:

* Arithmetic (+ - * /, sqrt), rounding, comparison, selection, casts, integers: exact on exact
  operands. `fma` may round once or twice.
* Other functions of floats: `ULPS` units in the last place between two implementations.
* Sums, products and contractions are folded in any order, in their type or a wider one.
* What is computed from inexact values has the bound that its function gives at the ends of its
  operands' intervals; where a comparison, a rounding or a cast could fall either way the bound is
  infinite, and the element is not compared.
* `sqrt` of f64 may be one unit off, `fmod` and `floordiv` of floats are compared only where the
  quotient fits in the type: there PyTorch itself is not exact. Attention is compared where all
  operands are finite, and a convolution with weights that are not only where its windows do not
  leave the input: 0 times such a weight may or may not count there.
* The sign of a zero that a fold, a minimum or a maximum gives is free, and so is a NaN's payload.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from program.convolutions import depth
from vtc.program import evaluate as evaluator
from vtc.program.dtypes import DType
from vtc.program.evaluate import cast_to
from vtc.program.module import Module, Step
from vtc.program.scalars import SCALARS
from vtc.program.sizes import size_value
from vtc.program.tile import (
    Access,
    Attention,
    Contraction,
    Convolution,
    Instr,
    TileKernel,
    operands,
)

ULPS = 4
EXACT = {
    "add", "sub", "mul", "div", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge", "and",
    "or", "xor", "not", "isnan", "isinf", "select", "neg", "abs", "sign", "floor", "ceil", "round",
    "trunc", "sqrt", "reciprocal", "floordiv", "fmod", "ipow", "shl", "shr",
}  # fmt: skip
DISCRETE = {"floor", "ceil", "round", "trunc", "floordiv", "fmod", "sign"}
INFINITE = float("inf")
TINY = 1e-300  # of a zero whose sign is free

Error = torch.Tensor | None
"""A bound for each element, f64; None where every element is exact."""


def bounded(
    module: Module,
    sizes: dict[str, int],
    tensors: Sequence[torch.Tensor | None],
    params: Sequence[float] = (),
) -> list[Error]:
    """Evaluates the module in place of `evaluate`; the bounds of each buffer's elements."""
    pairs = zip(module.buffers, tensors, strict=True)
    memory = [evaluator._memory(b, size_value(b.extent, sizes), t) for b, t in pairs]
    own = evaluator._Environment(module, dict(sizes), memory, tuple(params))
    errors: list[Error] = [None] * len(memory)
    _steps(module.steps, own, errors)
    return errors


def _steps(steps: Sequence[Step], own: evaluator._Environment, errors: list[Error]) -> None:
    for step in steps:
        if isinstance(step, TileKernel):
            sizes = tuple(size_value(s, own.sizes) for s in step.sizes)
            Bounded(own, step, sizes, memory_errors=errors).run()
        else:
            taken = step.then if bool(own.memory[step.predicate][0]) else step.otherwise
            _steps(taken, own, errors)


def ulp(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The unit in the last place of each element, f64; at least that of denormal numbers."""
    info = torch.finfo(dtype.torch_dtype)
    size = value.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return (size * info.eps).clamp(min=info.tiny * info.eps)


@dataclass
class Bounded(evaluator._Run):
    """A kernel whose values have bounds."""

    memory_errors: list[Error] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)

    def value(self, instr: Instr) -> torch.Tensor:
        value = super().value(instr)
        self.errors.append(_nothing_is_none(self.error(instr, value)))
        return value

    def error(self, instr: Instr, value: torch.Tensor) -> Error:
        args = [(self.values[a], self.errors[a]) for a in instr.args]
        if instr.op in SCALARS:
            return _scalar(instr.op, instr.dtype, value, args)
        if instr.op == "load":
            return self.load_error(instr)
        if instr.op == "cast":
            return _cast(args[0], self.kernel.body[instr.args[0]].dtype, instr.constant, value)
        if instr.op in ("reduce", "scan"):
            return self.fold_error(instr, value, args[0])
        if instr.op == "matmul":
            return self.matmul_error(instr, value)
        if instr.op == "convolution":
            return self.convolution_error(instr, value)
        if instr.op == "attention":
            return self.attention_error(instr.constant, instr.dtype, value)
        return None

    def load_error(self, instr: Instr) -> Error:
        access = cast(Access, instr.access)
        memory, other = self.memory_errors[access.buffer], None
        if instr.args:
            other = self.errors[instr.args[0]]
        if (memory is None and other is None) or (self.empty and not self.is_reduced[self.number]):
            return None
        other = torch.zeros((1,) * len(self.sizes), dtype=torch.float64) if other is None else other
        if memory is None:
            memory = torch.zeros(self.own.memory[access.buffer].numel(), dtype=torch.float64)
        held = self.own.memory[access.buffer]
        self.own.memory[access.buffer] = memory
        try:
            return self.gather(access.buffer, self.address(access), other)
        finally:
            self.own.memory[access.buffer] = held

    def skip(self) -> None:
        super().skip()
        self.errors.append(None)

    def store(self, instr: Instr) -> None:
        super().store(instr)
        self.errors.append(None)
        access = cast(Access, instr.access)
        space = self.space(self.number)
        memory, value = self.own.memory[access.buffer], self.values[instr.args[0]]
        error = self.errors[instr.args[0]]
        known = self.memory_errors[access.buffer]
        if 0 in space or (error is None and known is None):
            return
        if error is None:
            error = torch.zeros((1,) * len(space), dtype=torch.float64)
        if known is None:
            known = torch.zeros(memory.numel(), dtype=torch.float64)
        own = self.own.module.buffers[access.buffer].dtype
        error = _converted(value, error, own)
        points, index = self.address(access).at(space)
        known = known.clone()
        known[index] = error.expand(space).reshape(-1)[points]
        self.memory_errors[access.buffer] = known

    # Folds and anchors.

    def fold_error(
        self, instr: Instr, value: torch.Tensor, arg: tuple[torch.Tensor, Error]
    ) -> Error:
        operand, error = arg[0].expand(self.sizes), arg[1]
        name, dtype = instr.constant, instr.dtype
        if self.empty:
            return None
        if name in ("argmax", "argmin"):
            return None if error is None else torch.full_like(value, INFINITE, dtype=torch.float64)
        if not operand.is_floating_point():
            return None if error is None else torch.full_like(value, INFINITE, dtype=torch.float64)
        wide = operand.double().abs()
        size = wide.nan_to_num(0.0, 0.0, 0.0)
        error = torch.zeros((), dtype=torch.float64) if error is None else error
        error = error.expand(self.sizes)
        dims = sorted(self.kernel.reduced)
        info = torch.finfo(dtype.torch_dtype)
        if name in ("max", "min"):
            if instr.op == "scan":
                most = error.cummax(dims[0]).values
            else:
                most = error.amax(dims, keepdim=True)
            return most + _zero_sign(value, dtype)
        if name == "sum":
            fold = (lambda t: t.cumsum(dims[0])) if instr.op == "scan" else (
                lambda t: t.sum(dims, keepdim=True))  # fmt: skip
            most = fold(size)
            count = min(operand.numel(), 64)
            own = count * info.eps * most
            bound = fold(error) + own + _zero_sign(value, dtype)
        else:

            def fold(t: torch.Tensor) -> torch.Tensor:
                if instr.op == "scan":
                    return t.cumprod(dims[0])
                for d in dims:
                    t = t.prod(d, keepdim=True)
                return t

            most = fold(size.clamp(min=1.0))
            count = min(operand.numel(), 200)
            grown = fold((size + error).clamp(min=info.tiny))
            plain = fold(size.clamp(min=info.tiny))
            bound = (grown - plain).abs() * 1.01 + count * ulp(value, dtype)
            bound = bound + count * info.tiny * info.eps * most + _zero_sign(value, dtype)
            # Parts of the product that are tiny or huge may vanish or overflow in some order.
            small = fold(torch.where(size > 0, size, 1.0).clamp(max=1.0))
            bound[(small < info.tiny) & (value != 0)] = INFINITE
            bound[small < info.tiny] = INFINITE
        # A partial result may overflow in one order and not in another.
        bound[most > info.max * 0.5] = INFINITE
        return bound

    def matmul_error(self, instr: Instr, value: torch.Tensor) -> Error:
        product: Contraction = instr.constant
        depth = self.size(product.k)
        if self.empty or depth == 0:
            return None
        if any(self.memory_errors[a.buffer] is not None for a in (product.left, product.right)):
            return torch.full_like(value, INFINITE, dtype=torch.float64)
        most = _with_sizes_of(self, lambda: self.matmul(product))
        info = torch.finfo(instr.dtype.torch_dtype)
        bound = (depth + 2) * info.eps * most + depth * info.tiny * info.eps
        if product.dtype is DType.BF16:
            # The instruction for pairs of bf16 takes subnormal operands, and gives subnormal
            # sums, as 0.
            operands = (self.own.memory[a.buffer] for a in (product.left, product.right))
            finite = [t.double().nan_to_num(0.0, 0.0, 0.0).abs() for t in operands]
            largest = max(float(t.max()) if t.numel() else 0.0 for t in finite)
            if any(bool(((t > 0) & (t < info.tiny)).any()) for t in finite) and any(
                bool(self.own.memory[a.buffer].isinf().any()) for a in (product.left, product.right)
            ):
                return torch.full_like(value, INFINITE, dtype=torch.float64)
            bound += depth * info.tiny * (2 + largest)
        bound[most > info.max * 0.5] = INFINITE
        return bound

    def convolution_error(self, instr: Instr, value: torch.Tensor) -> Error:
        own: Convolution = instr.constant
        count = depth(own, self.size)
        if self.empty or count == 0:
            return None
        if any(self.memory_errors[a.buffer] is not None for a in operands(own)):
            return torch.full_like(value, INFINITE, dtype=torch.float64)
        most = _with_sizes_of(self, lambda: self.convolution(own))
        info = torch.finfo(instr.dtype.torch_dtype)
        bound = (count + 2) * info.eps * most + count * info.tiny * info.eps
        bound[most > info.max * 0.5] = INFINITE
        weights = {part.right.buffer for part in own.parts}
        if not all(bool(self.own.memory[b].isfinite().all()) for b in weights):
            for tap in itertools.product(*(range(self.size(w.taps)) for w in own.windows)):
                _, inside = self.windowed(own, tap)
                bound[~inside.expand(bound.shape)] = INFINITE
        return bound

    def attention_error(self, own: Attention, dtype: DType, value: torch.Tensor) -> Error:
        length, head = self.size(own.length), self.size(own.head_dim)
        if self.empty or length == 0:
            return None
        accesses = [own.query, own.key, own.value] + ([own.mask] if own.mask else [])
        if any(self.memory_errors[a.buffer] is not None for a in accesses):
            return torch.full_like(value, INFINITE, dtype=torch.float64)
        # exp turns an absolute error of a score into a relative one of its weight.
        finite = [self.own.memory[a.buffer].double().abs().nan_to_num(0.0, 0.0, 0.0)
                  for a in accesses]  # fmt: skip
        q, k, v = (float(t.max()) if t.numel() else 0.0 for t in finite[:3])
        mask = float(finite[3].max()) if own.mask is not None and finite[3].numel() else 0.0
        scale = head**-0.5 if own.scale is None else own.scale
        score = q * k * head * abs(scale)
        if own.softcap is not None:
            score = min(score, own.softcap) + 1e-3 * score
        eps = torch.finfo(dtype.torch_dtype).eps
        relative = eps * ((head + 4) * (score + mask + 1) + length + 16)
        bound = torch.full_like(value, min(relative, 2.0) * v, dtype=torch.float64)
        limit = torch.finfo(dtype.torch_dtype).max * 0.1
        whole = all(bool(self.own.memory[a.buffer].double().isfinite().all()) for a in accesses[:3])
        if not whole or max(score, v * length, mask) > limit:
            # Where NaN and infinity come up depends on what an online softmax sees first.
            bound[:] = INFINITE
        return bound


def _with_sizes_of(run: Bounded, compute: object) -> torch.Tensor:
    """`compute()` on the absolute values of every buffer, those that are not finite as 0."""
    held = list(run.own.memory)
    for n, tensor in enumerate(held):
        if tensor.is_floating_point():
            run.own.memory[n] = tensor.double().abs().nan_to_num(0.0, 0.0, 0.0)
    try:
        return compute()  # type: ignore[operator, no-any-return]
    finally:
        run.own.memory[:] = held


def _nothing_is_none(error: Error) -> Error:
    return None if error is None or not bool((error > 0).any()) else error.double()


def _zero_sign(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A tiny bound where the value is a zero, whose sign is free: 1 / x then has none."""
    return torch.where(value == 0, ulp(value, dtype), 0.0)


def _converted(value: torch.Tensor, error: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The bound behind a rounding to a narrower float."""
    if not dtype.is_float:
        return error
    narrow = dtype.torch_dtype
    ends = [(value.double() + sign * error).to(narrow).double() for sign in (-1, 1)]
    middle = value.to(narrow).double()
    spread = torch.stack([_distance(middle, end) for end in ends]).amax(0)
    spread = torch.where(error.isinf(), INFINITE, spread.clamp(min=TINY))
    return torch.where(error > 0, spread, 0.0)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """|a - b|; 0 for two NaNs or equal infinities, infinite where only one is one."""
    same = (a == b) | (a.isnan() & b.isnan())
    apart = (a - b).abs()
    return torch.where(same, 0.0, torch.where(apart.isnan(), INFINITE, apart))


def _cast(
    arg: tuple[torch.Tensor, Error], source: DType, target: DType, value: torch.Tensor
) -> Error:
    operand, error = arg
    if error is None:
        return None
    if not source.is_float:
        return torch.where(error > 0, INFINITE, 0.0)
    if target.is_float:
        return _converted(operand, error, target)
    ends = [cast_to(operand.double() + sign * error, target) for sign in (-1, 1)]
    same = (ends[0] == value) & (ends[1] == value) & error.isfinite()
    return torch.where(same, 0.0, INFINITE)


def _scalar(
    name: str, dtype: DType, value: torch.Tensor, args: list[tuple[torch.Tensor, Error]]
) -> Error:
    own = _own_error(name, dtype, value, args)
    if all(error is None for _, error in args):
        return own
    spread = _spread(name, dtype, value, args)
    if own is not None:
        spread = spread + own
    if dtype.is_float and name not in ("minimum", "maximum", "select", "neg", "abs"):
        spread = spread + torch.where(spread > 0, ulp(value, dtype), 0.0)
    return spread


def _own_error(
    name: str, dtype: DType, value: torch.Tensor, args: list[tuple[torch.Tensor, Error]]
) -> Error:
    """The bound of the operator itself on exact operands."""
    if not dtype.is_float:
        return None
    if name in ("minimum", "maximum"):
        return _zero_sign(value, dtype)
    operands = [a.double() for a, _ in args]
    if name in ("fmod", "floordiv"):
        # PyTorch's vector code loses itself where the quotient has more bits than the type.
        quotient = (operands[0] / operands[1]).abs()
        lost = (quotient > 1 / torch.finfo(dtype.torch_dtype).eps / 4) & quotient.isfinite()
        tiny = torch.finfo(dtype.torch_dtype).tiny
        lost = lost | ((operands[1].abs() < tiny) & (operands[1] != 0))
        lost = lost | ((operands[0].abs() < tiny) & (operands[0] != 0)) | operands[1].isinf()
        return torch.where(lost, INFINITE, 0.0)
    if name == "sqrt" and dtype is DType.F64:
        return ulp(value, dtype)  # PyTorch's vector code does not always round as IEEE has it
    if name in EXACT:
        return None
    if name == "fma":
        product = (operands[0] * operands[1]).abs()
        bound = ulp(product, dtype) + ulp(value, dtype)
        overflow = product > torch.finfo(dtype.torch_dtype).max * 0.5
        return torch.where(overflow, INFINITE, bound)
    bound = ULPS * ulp(value, dtype)
    if name == "pow":
        # (-inf) ** 0.5 is NaN in PyTorch and inf in C.
        bound = torch.where(operands[0] == -INFINITE, INFINITE, bound)
    largest = torch.finfo(dtype.torch_dtype).max
    # A result that is almost too large may be infinite, or the other way round.
    near = (value.double().abs() > largest * (1 - 1e-6)) & value.isfinite()
    return torch.where(near, INFINITE, bound)


def _spread(
    name: str, dtype: DType, value: torch.Tensor, args: list[tuple[torch.Tensor, Error]]
) -> torch.Tensor:
    """How far the result moves when operands move inside of their bounds."""
    errors = [torch.zeros((), dtype=torch.float64) if e is None else e for _, e in args]
    if name == "select":
        (condition, _), picked = args[0], torch.where(args[0][0], errors[1], errors[2])
        return torch.where(errors[0].expand(condition.shape) > 0, INFINITE, picked)
    floats = args[0][0].is_floating_point()
    if not floats:
        total = sum(errors[1:], errors[0])
        return torch.where(total > 0, INFINITE, 0.0).expand(value.shape)
    lost = sum((e.isinf() for e in errors[1:]), errors[0].isinf())
    most = torch.zeros(value.shape, dtype=torch.float64)
    choices = [(-1, 0, 1) if e is not None else (0,) for _, e in args]
    for signs in itertools.product(*choices):
        moved = [a.double() + s * e.nan_to_num(0.0, 0.0, 0.0)
                 for (a, _), s, e in zip(args, signs, errors, strict=True)]  # fmt: skip
        there = SCALARS[name].evaluate(*moved)
        if there.is_floating_point():
            there = there.to(value.dtype)
        most = torch.maximum(most, _distance(there.double(), value.double()))
    if name in ("sin", "cos", "tan"):
        turned = sum((e > 0.1 for e in errors[1:]), errors[0] > 0.1)
        lost = lost | turned
    # The operator is evaluated in f64 at the ends: its own rounding is not an error of operands.
    if name not in EXACT:
        most = most + ulp(value, dtype)
    if value.dtype is torch.bool or name in DISCRETE:
        most = torch.where(most > ulp(value, dtype) * 2 if name in DISCRETE else most > 0,
                           INFINITE, most)  # fmt: skip
    total = sum(errors[1:], errors[0])
    most = torch.where(total > 0, (most * 1.5).clamp(min=TINY), 0.0)
    return torch.where(lost, INFINITE, most)

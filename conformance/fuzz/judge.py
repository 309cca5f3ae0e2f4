"""Is what a compiled case gives what eager PyTorch gives?

Values with one right answer must be equal bit for bit (but for the sign of a zero and the bits of a
nan). Others may differ as rounding does: by a share of the largest element, or by some times what
eager PyTorch itself differs by from float64, or on arguments that are off by one rounding. Where
kernels round otherwise than eager PyTorch's, what an operator reads may be off by a rounding, too:
elements that are one in storage, or of one value, go off together with the arguments, and what
rounding leaves of their difference shows only so.
Strides must be eager PyTorch's, and so must be which outputs share storage with which arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import torch
from cases import MODULES, NAME, Case
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
TIMES = 8
ROUNDED = {
    "unary", "activation", "clip", "binary", "scalar", "reduce", "norm", "matmul", "linear",
    "convolution", "pool", "attention",
}  # fmt: skip
"""The kinds of statements that compute new tensors, with rounding."""
FLOATS = {
    torch.int16: (torch.float16, torch.bfloat16),
    torch.int32: (torch.float32,),
    torch.int64: (torch.float64,),
}


@dataclass(frozen=True)
class Run:
    """Outputs of one call, and the arguments afterwards."""

    outputs: list[Any]
    arguments: list[Any]

    @staticmethod
    def of(call: Callable[..., Any], args: list[Any]) -> Run:
        with torch.no_grad():
            return Run(list(call(*args)), args)


class Slack:
    """How far elements may be off: `limit`, or some times what eager PyTorch's own runs are apart.

    Elements that are finite, or the same, in some of those alone are not judged."""

    def __init__(self, theirs: Tensor, limit: float) -> None:
        self.theirs, self.least = theirs, limit
        self.apart = torch.zeros(theirs.shape, dtype=torch.float64, device=theirs.device)

    def add(self, others: Iterable[Tensor]) -> None:
        """Values of other runs."""
        for other in others:
            if other.shape == self.theirs.shape:
                off = _differences(other.to(self.theirs.dtype), self.theirs)
                self.apart = torch.maximum(self.apart, off)

    @property
    def limit(self) -> float:
        return max(self.least, TIMES * self._largest(self.apart))

    def off(self, ours: Tensor, theirs: Tensor) -> float:
        """The largest difference of two values; infinite for those of other shapes."""
        if ours.shape != theirs.shape:
            return math.inf
        return self._largest(_differences(ours, theirs.to(ours.dtype)))

    def _largest(self, off: Tensor) -> float:
        return float(torch.where(self.apart.isinf(), 0, off).max())


class Judge:
    """Eager PyTorch's answer to one world of a case, and what may differ from it."""

    def __init__(self, case: Case, world: int = 0, device: str = "cpu") -> None:
        self.case, self.world, self.device = case, world, device
        self.want = Run.of(case.function, case.args(world, device))

    def fault(self, got: Run, *, stock: bool = False, fused: bool = False) -> str | None:
        """What is wrong, or None. Stock TorchInductor returns two views of one value as two tensors
        where no gradients are recorded; `stock` allows that. `fused`: values of half precision may
        be kept in float32 between operators."""
        if len(got.outputs) != len(self.want.outputs):
            return f"{len(got.outputs)} outputs, not {len(self.want.outputs)}"
        for name, k, ours, theirs in self._pairs(got):
            if type(ours) is not type(theirs) and not isinstance(theirs, Tensor):
                return f"{name} is {ours}, not {theirs}"
            if isinstance(theirs, Tensor):
                found = _form(ours, theirs)
                if not found and k >= 0:
                    found = self._strides(k, ours, theirs)
                found = found or self._values(name, k, ours, theirs, stock, fused)
                if found:
                    return f"{name} {found}"
        return self._sharing(got, stock)

    def _pairs(self, got: Run) -> list[tuple[str, int, Any, Any]]:
        made = [
            (f"output {k} ({name})", k, ours, theirs)
            for k, (name, ours, theirs) in enumerate(
                zip(self.case.outputs, got.outputs, self.want.outputs, strict=True)
            )
        ]
        after = zip(self.case.arguments, got.arguments, self.want.arguments, strict=True)
        made += [
            (f"{a.name} afterwards", -1 - k, whole(ours), whole(theirs))
            for k, (a, ours, theirs) in enumerate(after)
        ]
        return made

    def _strides(self, k: int, ours: Tensor, theirs: Tensor) -> str | None:
        """Strides are eager PyTorch's, or those of its shape functions, which differ at times.

        A view of a value that was updated in place may have those of the functional operator. With
        symbolic sizes PyTorch traces other orders of strides for some operators, that of the first
        call goes for all, and a view may be a copy.
        """
        if strides(ours) == strides(theirs) or strides(ours) == self._traced[k]:
            return None
        others = [o for n, o in enumerate(self.want.outputs) if n != k]
        others += self.want.arguments
        viewed = not _dense(theirs) or any(_share(theirs, other) for other in others)
        if any(s.kind == "norm" for s in self.case.statements):
            return None  # these kernels choose by what their operand's strides are
        if self.world or (viewed and self.case.updates):
            return None
        if self.case.symbolic and (viewed or (_dense(ours) and _dense(theirs))):
            return None
        return f"has strides {ours.stride()}, not {theirs.stride()}"

    @property
    def misshapen(self) -> bool:
        """Do PyTorch's own shape functions refuse the case in a world, or give an output a wrong
        shape?

        Those of 2.11 keep a dimension of one element that a norm is to drop.
        """
        others = (Judge(self.case, w, self.device) for w in self.case.worlds if w != self.world)
        return any(judge._misshapen for judge in (self, *others))

    @property
    def _misshapen(self) -> bool:
        names = tuple(n for s in self.case.statements for n in s.makes)
        every = replace(self.case, outputs=names)
        try:
            outputs = self._shapes(every)
        except GuardOnDataDependentSymNode:  # an index that the fakes here do not hold
            return False
        except Exception:  # whatever it is, it is none of the compiler's
            return True
        wants = Run.of(every.function, every.args(self.world, self.device)).outputs
        pairs = zip(outputs, wants, strict=True)
        return any(isinstance(o, Tensor) and not _fits(o.shape, w.shape) for o, w in pairs)

    @cached_property
    def _traced(self) -> list[list[int]]:
        try:
            outputs = self._shapes(self.case)
        except Exception:  # as above
            outputs = [None] * len(self.want.outputs)
        return [strides(o) if isinstance(o, Tensor) else [-1] for o in outputs]

    def _shapes(self, case: Case) -> list[Any]:
        """The outputs as PyTorch's shape functions give them, without values but those of integer
        arguments that are one number, which may be indices: any other number that is read from a
        tensor is a symbol."""
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        args = case.args(self.world, self.device)
        fakes = {id(a): _faked(a, mode) for a in args}
        with mode, torch.no_grad():
            return list(case.function(*[fakes[id(a)] for a in args]))

    def _values(
        self, name: str, k: int, ours: Tensor, theirs: Tensor, stock: bool, fused: bool
    ) -> str | None:
        if theirs.numel() == 0 or _equal(ours, theirs):
            return None
        own = self.case.outputs[k] if k >= 0 else self.case.arguments[-1 - k].name
        if theirs.is_complex():
            return None if torch.allclose(ours, theirs, 1e-4, 1e-4) else "differs"
        off = float(_differences(ours, theirs).max())
        scale = float(theirs.double().nan_to_num(0, 0, 0).abs().max())
        bits = any(s.kind == "view_dtype" for s in self.case.statements)
        if own in self.case.exact or not (theirs.dtype.is_floating_point or bits):
            if self._contracted(theirs, off, scale) or (stock and self._without_denormals(k, ours)):
                return None
            if self._same_floats(ours, theirs):
                return None
            return f"differs by {off:.3g} where there is one right answer"
        limit = max(scale, 1e-3) * (
            self._coarsest if stock or fused else TOLERANCE.get(theirs.dtype, 0)
        )
        return None if off <= limit else self._rounded(k, ours, theirs, limit, stock, fused)

    def _rounded(
        self, k: int, ours: Tensor, theirs: Tensor, limit: float, stock: bool, fused: bool
    ) -> str | None:
        """What is wrong with a value that is off by more than `limit`."""
        slack = Slack(theirs, limit)
        slack.add(_value(run, k) for run in self._others)
        if (stock or fused) and slack.off(ours, theirs) > slack.limit:
            slack.add(_value(run, k) for run in self._others_within)
        limit, off = slack.limit, slack.off(ours, theirs)
        if off > limit and theirs.dtype is torch.bfloat16 and fused:
            off = min(off, slack.off(ours, self._answer_without_denormals(k)))
        if off > limit and fused:
            off = min([off, *(slack.off(ours, _value(run, k)) for run in self._others_as_right)])
        return None if off <= limit else f"differs by {off:.3g}, more than {limit:.3g}"

    def _contracted(self, theirs: Tensor, off: float, scale: float) -> bool:
        """Triton computes a product and a sum with one rounding where PyTorch has two."""
        if self.device == "cpu" or not theirs.dtype.is_floating_point:
            return False
        return off <= 4 * torch.finfo(theirs.dtype).eps * scale

    def _same_floats(self, ours: Tensor, theirs: Tensor) -> bool:
        """Are they the bits of the same floats, but for those of nans and signs of zeros?"""
        if not any(s.kind == "view_dtype" for s in self.case.statements):
            return False
        return any(
            _equal(ours.contiguous().view(dtype), theirs.contiguous().view(dtype))
            for dtype in FLOATS.get(theirs.dtype, ())
        )

    def _without_denormals(self, k: int, ours: Tensor) -> bool:
        """Is it the answer to arguments whose denormal numbers are zeros, as CUDA kernels that are
        generated take them?"""
        if self.device == "cpu":
            return False
        expected = self._answer_without_denormals(k)
        return bool(expected.shape == ours.shape and _equal(ours, expected))

    def _answer_without_denormals(self, k: int) -> Tensor:
        """To arguments whose denormal numbers are zeros. So processors' own instructions for
        products of bfloat16 take them, too."""
        args = _changed(self.case.args(self.world, self.device), _flushed)
        return _value(Run.of(self.case.function, args), k)

    @cached_property
    def _coarsest(self) -> float:
        """The tolerance of the narrowest type of a value: generated code keeps what is rounded to
        it in float32, where eager PyTorch goes on from the rounded value."""
        case = self.case
        every = (*(n for s in case.statements for n in s.makes), *(a.name for a in case.arguments))
        # Eagerly: shape functions do not come through where a number is read from a tensor.
        function = replace(case, outputs=every).function
        values = Run.of(function, case.args(self.world, self.device)).outputs
        dtypes = {v.dtype for v in values if isinstance(v, Tensor)}
        return max(TOLERANCE[d] for d in (torch.float32, *dtypes) if d in TOLERANCE)

    @cached_property
    def _others(self) -> list[Run]:
        """The function in float64, and on arguments that are off by a rounding."""
        ways = [partial(_changed, change=c) for c in (_precise, _nudged, _nudged)]
        return self._runs((self.case.function, way) for way in ways)

    @cached_property
    def _others_within(self) -> list[Run]:
        """The function with operands that are off by a rounding."""
        return self._runs((_nudged_within(self.case, sign), list) for sign in (1, -1))

    @cached_property
    def _others_as_right(self) -> list[Run]:
        """The function with half precision kept in float32, whose products honour denormal numbers,
        too; and with operands that have gaps, for which eager PyTorch takes other kernels."""
        return self._runs((_changed_within(self.case, c), list) for c in (_wide, _with_gaps))

    def _runs(self, ways: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]) -> list[Run]:
        runs = []
        for function, change in ways:
            args = change(self.case.args(self.world, self.device))
            try:
                runs.append(Run.of(function, args))
            except (RuntimeError, IndexError, ValueError):  # the code asks for a dtype
                continue
        return runs

    def _sharing(self, got: Run, stock: bool) -> str | None:
        names = [f"output {k}" for k in range(len(self.case.outputs))]
        names += [a.name for a in self.case.arguments]
        ours, theirs = ([*r.outputs, *r.arguments] for r in (got, self.want))
        for i, j in combinations(range(len(names)), 2):
            if i >= len(self.case.outputs):
                break
            pair = theirs[i], theirs[j]
            if not all(isinstance(t, Tensor) and t.numel() for t in pair):
                continue
            one, two = _share(ours[i], ours[j]), _share(*pair)
            # With symbolic sizes PyTorch copies where it does not know that a view will do.
            apart = self.case.symbolic or (stock and j < len(self.case.outputs))
            if one != two and not (two and apart):
                verb = "shares no" if two else "shares"
                return f"{names[i]} {verb} memory with {names[j]}"
        return None


def whole(value: Any) -> Any:
    """All of a tensor's storage, so that writes outside of the tensor show."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())


def _form(ours: Any, theirs: Tensor) -> str | None:
    if not isinstance(ours, Tensor):
        return f"is {ours}"
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    return None


def _fits(sizes: torch.Size, own: torch.Size) -> bool:
    """Are the sizes that are numbers those of a shape?"""
    return len(sizes) == len(own) and all(
        n == m for n, m in zip(sizes, own, strict=True) if isinstance(n, int)
    )


def strides(tensor: Tensor) -> list[int]:
    """The strides that an element shows."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [s for s, n in pairs if n > 1] if tensor.numel() else []


def _dense(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _faked(value: Any, mode: FakeTensorMode) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim() or value.dtype.is_floating_point or value.dtype.is_complex:
        return mode.from_tensor(value, static_shapes=True)
    number = value.item()
    with mode:  # which knows the values of tensors that are made of numbers
        return torch.tensor(number, dtype=value.dtype)


def _equal(ours: Tensor, theirs: Tensor) -> bool:
    if torch.equal(ours, theirs):
        return True
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    return bool(same.all())


def _differences(ours: Tensor, theirs: Tensor) -> Tensor:
    """Of each element; infinite where one is not finite and the other is not the same."""
    a, b = ours.double(), theirs.double()
    same = (a == b) | (a.isnan() & b.isnan())
    off = torch.where(same, 0, (a - b).abs())
    return off.nan_to_num(math.inf, math.inf)


def _value(run: Run, k: int) -> Tensor:
    """An output, or what an argument's storage holds afterwards."""
    value: Tensor = run.outputs[k] if k >= 0 else whole(run.arguments[-1 - k])
    return value


def _share(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _precise(t: Tensor) -> Tensor:
    return t.double()


def _flushed(t: Tensor) -> Tensor:
    return torch.where(t.abs() < torch.finfo(t.dtype).tiny, torch.zeros_like(t), t)


def _nudged(t: Tensor) -> Tensor:
    eps = torch.finfo(t.dtype).eps
    return t.mul_(1 + eps * (torch.rand(t.shape, device=t.device) * 2 - 1))


def _nudged_within(case: Case, sign: int) -> Callable[..., Any]:
    """The function, each element that an operator reads which rounds being off by a rounding, up or
    down; with the other `sign` it is the other way."""
    generator = torch.Generator().manual_seed(case.seed)

    def off(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return value
        ways = 2 * torch.randint(2, value.shape, generator=generator, dtype=torch.float64) - 1
        factors = 1 + sign * ways * torch.finfo(value.dtype).eps
        return value * factors.to(value.device, value.dtype)

    return _changed_within(case, off)


def _wide(value: Any) -> Any:
    halves = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if halves else value


def _with_gaps(value: Any) -> Any:
    return torch.stack([value] * 2, -1)[..., 0] if isinstance(value, Tensor) else value


def _changed_within(case: Case, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, each operand of an operator that rounds being changed."""
    changed = []
    for s in case.statements:
        if s.kind in ROUNDED and s.makes and not case.exact.issuperset(s.makes):
            makes, _, expression = s.text.partition(" = ")
            s = replace(s, text=f"{makes} = " + NAME.sub(r"change(\g<0>)", expression))
        changed.append(s)
    names = {**MODULES, "change": change}
    exec(replace(case, statements=tuple(changed)).code, names)
    return names["f"]  # type: ignore[return-value]


def _repeats(t: Tensor) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True))


def _changed(args: list[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    """The arguments, all storages of floats changed; tensors that share storage go on to, but those
    whose elements share theirs do not: their elements are changed each by itself."""
    made: dict[int, Any] = {}
    result = []
    for a in args:
        if isinstance(a, Tensor) and a.dtype.is_floating_point and _repeats(a):
            a = change(a.clone(memory_format=torch.contiguous_format))
        elif isinstance(a, Tensor) and a.dtype.is_floating_point:
            key = a.untyped_storage()._cdata
            if key not in made:
                made[key] = change(whole(a))
            a = made[key].as_strided(a.shape, a.stride(), a.storage_offset())
        result.append(a)
    return result

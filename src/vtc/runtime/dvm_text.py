"""The text of the function that runs a DVM plan, and what it calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from vtc import errors
from vtc.index import Size
from vtc.lowering.dvm.plan import EagerStep, ModuleStep, Plan, ScalarRef, TensorRef

# Where an empty tensor is said to be; nothing is read or written there.
NOWHERE = torch.empty(64, dtype=torch.uint8)

# What Inductor's code allocates with, past the dispatcher; None in releases that lack it.
ALLOCATE = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)

# PyTorch's own bindings take arguments faster than an operator's overload.
BOUND = {
    torch.ops.aten.linear.default: torch.nn.functional.linear,
    torch.ops.aten.mm.default: torch.mm,
    torch.ops.aten.bmm.default: torch.bmm,
    torch.ops.aten.addmm.default: torch.addmm,
    torch.ops.aten.scaled_dot_product_attention.default: (
        torch.nn.functional.scaled_dot_product_attention
    ),
}


def allocated(step: ModuleStep) -> list[int]:
    """The spaces that the module is the first to write."""
    return [
        space
        for buffer, space in zip(step.module.buffers, step.spaces, strict=True)
        if buffer.kind == "output" and space is not None
    ]


def updates(plan: Plan, step: ModuleStep) -> list[int]:
    """The spaces of the caller's tensors that a module writes."""
    stores = (i.access for k in step.module.kernels() for i in k.body if i.op == "store")
    spaces = (step.spaces[b] for b in sorted({a.buffer for a in stores if a is not None}))
    return [n for n in spaces if n is not None and plan.spaces[n].kind == "input"]


def prepacked(plan: Plan, step: ModuleStep) -> list[int]:
    """The numbers of the prepacked operands of a module, whose buffers are its first."""
    kinds = [None if n is None else plan.spaces[n] for n in step.spaces]
    found = [s.number for s in kinds if s is not None and s.kind == "prepacked"]
    assert all(s is not None and s.kind == "prepacked" for s in kinds[: len(found)])
    return found


def weights_of(plan: Plan, step: ModuleStep) -> list[int]:
    """The inputs from which the prepacked operands of a module are computed."""
    sources = (n for k in prepacked(plan, step) for n in plan.prepacked[k].sources)
    return sorted({n for n in sources if n >= 0})


def stage_symbols(plan: Plan, step: ModuleStep) -> list[str]:
    """The symbols that a module and the tensors it allocates depend on, sorted."""
    found = set(step.module.symbols)
    for number in allocated(step):
        space = plan.spaces[number]
        for size in (*space.shape, *space.stride):
            if isinstance(size, sympy.Expr):
                found |= {str(s) for s in size.free_symbols}
    return sorted(found)


class Writer:
    """The text of `run(*inputs)`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parameters = [f"a{i}" for i in range(plan.inputs)]
        self.lines: list[str] = []
        self.defined: set[int] = set()
        self.sized: set[str] = set()
        self.bounds = list(plan.bounds)
        self.laid_out = laid_out(plan)
        self.plain = plan.device.type == "cpu" and ALLOCATE is not None
        self.names: dict[str, Any] = {
            "empty_strided": ALLOCATE if self.plain else torch.empty_strided,
            "as_strided": torch.as_strided,
            "device": plan.device,
            "math": math,  # these two in printed sizes
            "torch": torch,
        }
        self.printer = PythonPrinter()
        # What an eager call gives may itself start inside its storage; what is allocated does not.
        self.views = {
            number
            for step in plan.steps
            if isinstance(step, EagerStep)
            for _, number in step.results
        }

    def text(self) -> tuple[str, dict[str, Any]]:
        plan = self.plan
        for k, constant in enumerate(plan.constants):
            self.names[f"a{plan.inputs + k}"] = constant
        for name, number, (kind, d) in plan.symbols:
            read = {
                "value": "",
                "size": f".shape[{d}]",
                "stride": f".stride({d})",
                "offset": ".storage_offset()",
            }
            self.lines.append(f"{name} = a{number}{read[kind]}")
            self.sized.add(name)
        self._bounds()
        for number in plan.unwritten:
            space = plan.spaces[number]
            self._allocated(number, self._tuple(space.shape), self._tuple(space.stride))
        for k, step in enumerate(plan.steps):
            if isinstance(step, ModuleStep):
                self._module(k, step)
            else:
                self._eager(k, step)
                self._bounds()
        outputs = "".join(f"{self._argument(o)}, " for o in plan.outputs)
        body = "\n    ".join([*self.lines, f"return ({outputs})"])
        return f"def run({', '.join(self.parameters)}):\n    {body}\n", self.names

    def _bounds(self) -> None:
        """The bounds of slices whose sizes are known by now, in the order of the program."""
        while self.bounds and self.bounds[0].needs <= self.sized:
            own = self.bounds.pop(0)
            given = (own.size, own.start, own.end, own.step)
            values = ", ".join("None" if v is None else self._size(v) for v in given)
            self.names["slice_bounds"] = slice_bounds
            self.lines.append(f"{own.begin}, {own.length} = slice_bounds({values})")
            self.sized |= {own.begin, own.length}

    def _module(self, k: int, step: ModuleStep) -> None:
        made = allocated(step)
        names = stage_symbols(self.plan, step)
        key = "".join(f"{n}, " for n in names)
        self.names[f"memo{k}"] = {}
        self.lines.append(f"key = ({key})")
        self.lines.append(f"known = memo{k}.get(key) or prepare{k}(memo{k}, key)")
        targets = "".join(f"shape{n}, stride{n}, " for n in made)
        packed = prepacked(self.plan, step)
        self.lines.append(f"call, {'packed, ' if packed else ''}{targets}= known")
        for number in made:
            self._allocated(number, f"shape{number}", f"stride{number}")
        pointers = ""
        if packed:
            # Held while the call runs, so that the copies stay.
            weights = "".join(f"a{n}, " for n in weights_of(self.plan, step))
            self.lines.append(f"ready = packed(({weights}))")
            pointers = "*ready.pointers, "
        pointers += "".join(
            "0, " if n is None else f"{self._address(n)}, " for n in step.spaces[len(packed) :]
        )
        self.lines.append(f"call(({pointers}), ())")
        self._updated(step)

    def _updated(self, step: ModuleStep) -> None:
        updated = "".join(f"{self._space(n)}, " for n in updates(self.plan, step))
        if updated:
            # As PyTorch's own in-place operators do: whoever watches the tensor is to know.
            self.names["increment_version"] = torch.autograd.graph.increment_version
            self.lines.append(f"increment_version(({updated}))")

    def _allocated(self, number: int, shape: str, stride: str) -> None:
        self.defined.add(number)
        self.names[f"dtype{number}"] = self.plan.spaces[number].dtype.torch_dtype
        rest = f"dtype{number}"
        if not self.plain:
            rest = f"dtype={rest}, device=device"
        self.lines.append(f"t{number} = empty_strided({shape}, {stride}, {rest})")

    def _eager(self, k: int, step: EagerStep) -> None:
        self.names[f"call{k}"] = BOUND.get(step.target, step.target)
        args = [self._argument(a) for a in step.args]
        args += [f"{name}={self._argument(a)}" for name, a in step.kwargs.items()]
        self.lines.append(f"r{k} = call{k}({', '.join(args)})")
        self.lines.append("counters.eager += 1")
        for part, number in step.results:
            value = f"r{k}" if part is None else f"r{k}[{part}]"
            self.lines.append(f"t{number} = {value}")
            self.defined.add(number)
        for name, part, d in step.symbols:
            value = f"r{k}" if part is None else f"r{k}[{part}]"
            self.lines.append(f"{name} = {value}" if d < 0 else f"{name} = {value}.shape[{d}]")
            self.sized.add(name)
        for _, number in step.results:
            if number not in self.laid_out:
                continue
            space = self.plan.spaces[number]
            shape, stride = self._tuple(space.shape), self._tuple(space.stride)
            t, dtype = f"t{number}", f"dtype{number}"
            self.names[dtype] = space.dtype.torch_dtype
            self.lines.append(
                f"if {t}.stride() != {stride} or {t}.dtype is not {dtype} or {t}.shape != {shape}:"
            )
            self.lines.append(f"    {t} = planned({t}, {shape}, {stride}, {dtype}, {step.name!r})")
            self.names["planned"] = planned

    def _address(self, number: int) -> str:
        """The address of a space. An empty tensor has none, though its strides span elements."""
        space = self.plan.spaces[number]
        text = f"{self._space(number)}.data_ptr()"
        if space.kind != "input" or all(isinstance(s, int) for s in space.shape):
            return text
        self.names["nowhere"] = NOWHERE.data_ptr()
        return f"{text} or nowhere"

    def _space(self, number: int) -> str:
        space = self.plan.spaces[number]
        if space.kind == "input":
            return f"a{space.number}"
        if number not in self.defined:  # no kernel writes a tensor without elements
            self._allocated(number, self._tuple(space.shape), self._tuple(space.stride))
        return f"t{number}"

    def _argument(self, value: Any) -> str:
        if isinstance(value, TensorRef):
            return self._tensor(value)
        if isinstance(value, ScalarRef):
            return f"{self._space(value.space)}.item()"
        if isinstance(value, sympy.Basic):
            return f"({self.printer.doprint(value)})"
        if isinstance(value, list | tuple):
            inner = "".join(f"{self._argument(v)}, " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        name = f"constant{len(self.names)}"
        self.names[name] = value
        return name

    def _tensor(self, value: TensorRef) -> str:
        name = self._space(value.space)
        if value.view is None:
            return name
        shape, stride, offset = value.view
        start = self._size(offset)
        if self.plan.spaces[value.space].kind == "input" or value.space in self.views:
            start = f"{name}.storage_offset() + {start}"
        return f"as_strided({name}, {self._tuple(shape)}, {self._tuple(stride)}, {start})"

    def _tuple(self, values: Sequence[Size]) -> str:
        return f"({''.join(f'{self._size(v)}, ' for v in values)})"

    def _size(self, size: Size) -> str:
        return str(size) if isinstance(size, int) else f"({self.printer.doprint(size)})"


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """Where the slice `[start:end:step]` of `size` elements begins, and how many it has."""
    taken = range(size)[start:end:step]
    return taken.start, len(taken)


def laid_out(plan: Plan) -> set[int]:
    """The spaces whose layout something relies on: a kernel, or a view."""
    found: set[int] = set()

    def note(value: Any) -> Any:
        if isinstance(value, TensorRef) and value.view is not None:
            found.add(value.space)
        return value

    fx.node.map_aggregate(list(plan.outputs), note)
    for step in plan.steps:
        if isinstance(step, EagerStep):
            fx.node.map_aggregate((step.args, step.kwargs), note)
        else:
            found.update(n for n in step.spaces if n is not None)
    return found


def planned(
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    operator: str,
) -> torch.Tensor:
    """What an eager call gave, with the strides and the dtype that the plan was made for: PyTorch's
    fake tensors do not always say what its kernels do. Raises UnexpectedResultError for another
    shape."""
    if tensor.shape != shape:
        raise errors.UnexpectedResultError(operator, tuple(tensor.shape), shape)
    same = (s == 1 or a == b for s, a, b in zip(shape, tensor.stride(), stride, strict=True))
    if tensor.dtype is dtype and (0 in shape or all(same)):
        return tensor
    made = torch.empty_strided(shape, stride, dtype=dtype, device=tensor.device)
    return made.copy_(tensor)

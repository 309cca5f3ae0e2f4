"""The text of the function that runs a DVM plan, and what it calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from vtc import errors
from vtc.index import Size
from vtc.lowering.dvm.calls import ATTENTION
from vtc.lowering.dvm.lifetimes import reached, shared_memory
from vtc.lowering.dvm.plan import EagerStep, ModuleStep, Plan, ScalarRef, TensorRef
from vtc.program.dtypes import DType
from vtc.runtime import products
from vtc.runtime.attention import additive, attention
from vtc.runtime.executable import read_symbol

# Where an empty tensor is said to be; nothing is read or written there.
NOWHERE = torch.empty(64, dtype=torch.uint8)


def allocator(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """What Inductor's code allocates with, past the dispatcher: on the current device, so that
    there may be only one. None where it cannot be used, and in releases that lack it."""
    if device.type == "cuda" and torch.cuda.device_count() != 1:
        return None
    return getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)


# PyTorch's own bindings take arguments faster than an operator's overload.
BOUND = {
    torch.ops.aten.linear.default: torch.nn.functional.linear,
    torch.ops.aten.mm.default: products.mm,
    torch.ops.aten.bmm.default: torch.bmm,
    torch.ops.aten.addmm.default: products.addmm,
    ATTENTION: torch.nn.functional.scaled_dot_product_attention,
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
    return [n for n in _written(step) if plan.spaces[n].kind == "input"]


def _written(step: ModuleStep) -> list[int]:
    """The spaces that a module writes and that others may read."""
    stores = (i.access for k in step.module.kernels() for i in k.body if i.op == "store")
    spaces = (step.spaces[b] for b in sorted({a.buffer for a in stores if a is not None}))
    return [n for n in spaces if n is not None]


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


def call_sizes(plan: Plan) -> Callable[..., tuple[Any, ...]]:
    """A function of a call's arguments that gives the values of all size symbols, and the arguments
    that are no tensors: calls that have these in common differ in what tensors hold alone."""
    tensors = {space.number for space in plan.spaces if space.kind == "input"}
    numbers = [f"a{i}" for i in range(plan.inputs) if i not in tensors]
    read = [read_symbol(f"a{number}", *source) for _, number, source in plan.symbols]
    own = "".join(f"{text}, " for text in dict.fromkeys([*numbers, *read]))
    parameters = ", ".join(f"a{i}" for i in range(plan.inputs))
    found: Callable[..., tuple[Any, ...]] = eval(f"lambda {parameters}: ({own})")
    return found


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
        allocate = allocator(plan.device)
        self.plain = allocate is not None
        self.names: dict[str, Any] = {
            "empty_strided": allocate or torch.empty_strided,
            "as_strided": torch.as_strided,
            "device": plan.device,
            "math": math,  # these two in printed sizes
            "torch": torch,
        }
        self.printer = PythonPrinter()
        self.memory = shared_memory(s for s in plan.steps if isinstance(s, EagerStep))
        self.masks: dict[tuple[str, DType], tuple[frozenset[int], str]] = {}
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
        for name, number, source in plan.symbols:
            self.lines.append(f"{name} = {read_symbol(f'a{number}', *source)}")
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
        written = reached(_written(step), self.memory)
        self.masks = {m: known for m, known in self.masks.items() if not written & known[0]}

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
        given = dict(enumerate(step.args)) | step.kwargs
        args = {name: self._argument(a) for name, a in given.items()}
        if step.target is ATTENTION and self.plan.device.type == "cuda":
            self.names[f"call{k}"] = attention
            mask = 3 if 3 in given else "attn_mask"
            if mask in given:
                args[mask] = self._additive(given[mask], args[mask], step.args[0])
        texts = (t if isinstance(name, int) else f"{name}={t}" for name, t in args.items())
        self.lines.append(f"r{k} = call{k}({', '.join(texts)})")
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

    def _additive(self, mask: Any, text: str, query: Any) -> str:
        """An attention's mask; one of booleans made one to be added, once for all that share it."""
        if not isinstance(mask, TensorRef) or not isinstance(query, TensorRef):
            return text
        space = self.plan.spaces[mask.space]
        if space.dtype is not DType.BOOL:
            return text
        dtype = self.plan.spaces[query.space].dtype
        known = self.masks.get((text, dtype))
        if known is None:
            known = reached([mask.space], self.memory), f"mask{len(self.lines)}"
            self.masks[text, dtype] = known
            self.names |= {"additive": additive, f"{known[1]}_dtype": dtype.torch_dtype}
            self.lines.append(f"{known[1]} = additive({text}, {known[1]}_dtype)")
        return known[1]

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

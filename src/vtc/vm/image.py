"""A module as a row of integers: what the native encoder parses, once a module.

The image is read by `native/module.cpp`: numbers of symbols and params; expressions, each a length
and a postfix code; buffers; steps. A size is the number of its expression.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import sympy
from torch.utils._sympy import functions as torch_functions

from vtc.index.sizes import Size
from vtc.program.dtypes import DType
from vtc.program.module import Module, Step
from vtc.program.tile import (
    Access,
    Attention,
    Contraction,
    Convolution,
    Instr,
    TileKernel,
    operands,
)
from vtc.vm.isa import BY_NAME, FOLDS, TYPES

_CONST, _SYMBOL, _ADD, _MUL, _FLOOR_DIV, _MOD, _MIN, _MAX = range(8)
_FOLDED: tuple[tuple[type | tuple[type, ...], int], ...] = (
    (sympy.Add, _ADD),
    (sympy.Mul, _MUL),
    ((sympy.Max, torch_functions.Max), _MAX),
    ((sympy.Min, torch_functions.Min), _MIN),
    (torch_functions.FloorDiv, _FLOOR_DIV),
    ((torch_functions.PythonMod, torch_functions.Mod), _MOD),
)
_TYPE = {dtype: number for number, dtype in enumerate(TYPES)}
_KIND = {"input": 0, "output": 1, "temporary": 2}
_OPS = {
    "load": "LOAD", "store": "STORE", "const": "CONST", "param": "PARAM", "iota": "IOTA",
    "cast": "CAST", "reduce": "REDUCE", "scan": "SCAN", "matmul": "MATMUL",
    "attention": "ATTENTION", "convolution": "CONVOLUTION",
}  # fmt: skip
_SOFTCAP, _CAUSAL, _WINDOW, _MASK, _DEFAULT_SCALE = 1, 2, 4, 8, 16


def float_bits(value: float) -> int:
    """The bits of an f64 as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def image_of(module: Module) -> list[int]:
    """The image of a module. Raises ValueError for a size that has a function of no integer."""
    return _Image(module).write()


class _Image:
    """The state of writing one image: expressions are numbered as they are met."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.symbols = {name: n for n, name in enumerate(module.symbols)}
        self.expressions: dict[Size, int] = {}
        self.codes: list[list[int]] = []
        self.kernels = 0

    def write(self) -> list[int]:
        module = self.module
        buffers = [
            number
            for b in module.buffers
            for number in (_KIND[b.kind], _TYPE[b.dtype], self.size(b.extent))
        ]
        steps = self.steps(module.steps)
        out = [len(module.symbols), module.params, len(self.codes)]
        for code in self.codes:
            out += [len(code), *code]
        return [*out, len(module.buffers), *buffers, *steps]

    def size(self, size: Size) -> int:
        """The number of a size's expression."""
        found = self.expressions.get(size)
        if found is None:
            code: list[int] = []
            self.postfix(size, code)
            found = self.expressions[size] = len(self.codes)
            self.codes.append(code)
        return found

    def postfix(self, size: Size, code: list[int]) -> None:
        """Appends (operator, number) pairs that leave the size on a stack."""
        if isinstance(size, int | sympy.Integer):
            code += [_CONST, int(size)]
        elif isinstance(size, sympy.Symbol):
            code += [_SYMBOL, self.symbols[size.name]]
        elif isinstance(size, sympy.Pow | torch_functions.PowByNatural):
            base, exponent = size.args
            self.folded(_MUL, [base] * int(exponent), code)
        else:
            op = next((op for kinds, op in _FOLDED if isinstance(size, kinds)), None)
            if op is None:
                raise ValueError(f"{type(size).__name__} is no function of sizes")
            self.folded(op, size.args, code)

    def folded(self, op: int, args: Sequence[Size], code: list[int]) -> None:
        if not args:
            code += [_CONST, 1]
            return
        self.postfix(args[0], code)
        for arg in args[1:]:
            self.postfix(arg, code)
            code += [op, 0]

    def steps(self, steps: tuple[Step, ...]) -> list[int]:
        out = [len(steps)]
        for step in steps:
            if isinstance(step, TileKernel):
                out += [0, *self.kernel(step)]
            else:
                out += [1, step.predicate, *self.steps(step.then), *self.steps(step.otherwise)]
        return out

    def kernel(self, kernel: TileKernel) -> list[int]:
        sizes = [self.size(s) for s in kernel.sizes]
        out = [self.kernels, len(sizes), *sizes, len(kernel.reduced), *sorted(kernel.reduced)]
        self.kernels += 1
        out.append(len(kernel.body))
        for instr in kernel.body:
            out += self.instr(instr)
        return out

    def instr(self, instr: Instr) -> list[int]:
        op = BY_NAME[_OPS.get(instr.op, instr.op)].number
        head = [op, _TYPE[instr.dtype], len(instr.args), *instr.args]
        constant = instr.constant
        if isinstance(constant, Contraction):
            panel = constant.panel
            head += [self.size(constant.k), 0, _TYPE[constant.dtype]]
            head += [panel.width, panel.depth] if panel else [0, 0]
            accesses = [constant.left, constant.right, constant.packed]
            given = [self.access(a) for a in accesses if a is not None]
            return [*head, len(given), *(n for access in given for n in access)]
        if isinstance(constant, Attention):
            return head + [0, 0, 0] + self.attention(constant)
        if isinstance(constant, Convolution):
            return head + [0, 0, _TYPE[constant.dtype]] + self.convolution(constant)
        head += [*self.constant(instr), 0]
        if instr.access is None:
            return [*head, 0]
        return [*head, 1, *self.access(instr.access)]

    def constant(self, instr: Instr) -> tuple[int, int]:
        """(constant, whether it is the number of an expression)."""
        value = instr.constant
        if value is None:
            return 0, 0
        if isinstance(value, DType):
            return _TYPE[value], 0
        if instr.op in ("reduce", "scan"):
            return FOLDS.index(value), 0
        if isinstance(value, sympy.Expr) and not value.is_number:
            return self.size(value), 1
        if instr.op == "const" and instr.dtype.is_float:
            return float_bits(float(value)), 0
        return int(value), 0

    def attention(self, a: Attention) -> list[int]:
        flags = _SOFTCAP if a.softcap is not None else 0
        flags |= _CAUSAL if a.causal else 0
        flags |= _WINDOW if a.window is not None else 0
        flags |= _MASK if a.mask is not None else 0
        flags |= _DEFAULT_SCALE if a.scale is None else 0
        out = [
            self.size(a.length),
            self.size(a.head_dim),
            self.size(a.shift),
            -1 if a.window is None else self.size(a.window),
            flags,
            float_bits(a.scale or 0.0),
            float_bits(a.softcap or 0.0),
        ]
        accesses = [a.query, a.key, a.value, *([] if a.mask is None else [a.mask])]
        out.append(len(accesses))
        for access in accesses:
            out += self.access(access)
        return out

    def convolution(self, own: Convolution) -> list[int]:
        out = [len(own.windows)]
        for w in own.windows:
            out.append(-1 if w.dim is None else w.dim)
            out += [self.size(s) for s in (w.taps, w.stride, w.dilation, w.pad, w.extent)]
        out += [len(own.parts), *(self.size(p.k) for p in own.parts)]
        out.append(own.panel.width if own.panel else 0)
        accesses = operands(own)
        out.append(len(accesses))
        for access in accesses:
            out += self.access(access)
        return out

    def access(self, access: Access) -> list[int]:
        out = [access.buffer, self.size(access.offset)]
        out += [len(access.stride), *(self.size(s) for s in access.stride)]
        out.append(len(access.terms))
        for term in access.terms:
            size = -1 if term.size is None else self.size(term.size)
            out += [term.value, self.size(term.stride), size]
        out.append(len(access.mask))
        for bound in access.mask:
            out += [bound.dim, self.size(bound.low), self.size(bound.high)]
        return out

"""What is well formed: checks a module before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn, get_args

from vtc.errors import VtcError
from vtc.program.dtypes import DType
from vtc.program.module import BufferKind, Module, Step
from vtc.program.scalars import FLOATS, REDUCTIONS, SCALARS
from vtc.program.sizes import faults
from vtc.program.tile import (
    ANCHORS,
    Access,
    Attention,
    Contraction,
    Convolution,
    Instr,
    TileKernel,
    operands,
)

SCANS = ("sum", "prod", "max", "min")


class ProgramError(VtcError, ValueError):
    """A tile program that breaks a rule: a bug in whatever built it."""

    def __init__(self, kernel: str | None, instruction: str | None, reason: str) -> None:
        """`instruction` is its number and operator, as in "%3 add"; None for a whole kernel."""
        self.kernel, self.instruction, self.reason = kernel, instruction, reason
        place = "the module" if kernel is None else f"kernel {kernel}"
        at = f", {instruction}" if instruction else ""
        super().__init__(f"malformed tile program: {place}{at}: {reason}")


def verify(module: Module) -> None:
    """Raises ProgramError for the first rule that the module breaks.

    Checked: numbers of values, buffers, dimensions and parameters; dtypes of operands and results;
    the symbols and functions of sizes; that temporaries are stored before they are loaded; that the
    points of a store do not share an address, as far as this shows without sizes.
    """
    _check_head(module)
    _check_steps(module, module.steps, set())


def _check_head(module: Module) -> None:
    if len(set(module.symbols)) != len(module.symbols):
        raise ProgramError(None, None, "two symbols have one name")
    if module.params < 0:
        raise ProgramError(None, None, f"{module.params} runtime scalars")
    names = set()
    for buffer in module.buffers:
        if buffer.name in names:
            raise ProgramError(None, None, f"two buffers are named {buffer.name}")
        names.add(buffer.name)
        if buffer.kind not in get_args(BufferKind):
            raise ProgramError(None, None, f"buffer {buffer.name} is of no kind {buffer.kind!r}")
        wrong = next(faults(buffer.extent, module.symbols), None)
        if wrong or (isinstance(buffer.extent, int) and buffer.extent < 0):
            reason = wrong or f"{buffer.extent} elements"
            raise ProgramError(None, None, f"extent of buffer {buffer.name}: {reason}")


def _check_steps(module: Module, steps: Iterable[Step], stored: set[int]) -> None:
    """`stored` gets the buffers that are stored whichever way the branches go."""
    for step in steps:
        if isinstance(step, TileKernel):
            _Checker(module, step, stored).check()
            stored |= {i.access.buffer for i in step.body if i.op == "store" and i.access}
            continue
        if not 0 <= step.predicate < len(module.buffers):
            raise ProgramError(None, None, f"a branch reads buffer {step.predicate} of none")
        predicate = module.buffers[step.predicate]
        if predicate.dtype is not DType.BOOL:
            raise ProgramError(None, None, f"a branch reads {predicate.name}: {predicate.dtype}")
        if predicate.kind != "input" and step.predicate not in stored:
            raise ProgramError(None, None, f"a branch reads {predicate.name} before its store")
        arms = []
        for arm in (step.then, step.otherwise):
            arms.append(set(stored))
            _check_steps(module, arm, arms[-1])
        stored |= arms[0] & arms[1]


@dataclass
class _Checker:
    """The rules of one kernel. `number` is the instruction at hand, -1 for the kernel itself."""

    module: Module
    kernel: TileKernel
    stored: set[int]
    number: int = -1
    reduced: tuple[bool, ...] = field(init=False, default=())

    def fail(self, reason: str) -> NoReturn:
        place = None
        if self.number >= 0:
            place = f"%{self.number} {self.kernel.body[self.number].op}"
        raise ProgramError(self.kernel.name, place, reason)

    def need(self, holds: bool, reason: str) -> None:
        if not holds:
            self.fail(reason)

    def size(self, size: object, what: str) -> None:
        for wrong in faults(size, self.module.symbols):
            self.fail(f"{what}: {wrong}")

    @property
    def rank(self) -> int:
        return len(self.kernel.sizes)

    def check(self) -> None:
        kernel = self.kernel
        for size in kernel.sizes:
            self.size(size, "size of the domain")
            self.need(not (isinstance(size, int) and size < 0), f"size {size} of the domain")
        inside = all(0 <= d < self.rank for d in kernel.reduced)
        self.need(inside, f"reduced dimensions {sorted(kernel.reduced)} of {self.rank}")
        anchors = [i for i in kernel.body if i.op in ANCHORS]
        self.need(len(anchors) <= 1, f"{len(anchors)} anchors")
        self.need(any(i.op == "store" for i in kernel.body), "it stores nothing")
        for number, instr in enumerate(kernel.body):
            self.number = number
            self.check_args(instr)
            rule = _RULES.get(instr.op)
            if rule is not None:
                rule(self, instr)
            elif instr.op in SCALARS:
                _scalar(self, instr)
            else:
                self.fail("there is no such operator")
        self.check_stores()

    def check_args(self, instr: Instr) -> None:
        for arg in instr.args:
            if not 0 <= arg < self.number:
                self.fail(f"operand %{arg} is no earlier value")
            if self.kernel.body[arg].op == "store":
                self.fail(f"operand %{arg} is a store")
        if not isinstance(instr.dtype, DType):
            self.fail(f"{instr.dtype!r} is no dtype")
        if instr.op != "store" and instr.dtype.compute is not instr.dtype:
            self.fail(f"{instr.dtype} is no compute type")

    def arity(self, instr: Instr, *counts: int) -> None:
        if len(instr.args) not in counts:
            self.fail(f"{len(instr.args)} operands, not {' or '.join(map(str, counts))}")

    def operand(self, instr: Instr, which: int = 0) -> DType:
        return self.kernel.body[instr.args[which]].dtype

    def result(self, instr: Instr, dtype: DType) -> None:
        if instr.dtype is not dtype:
            self.fail(f"the result is {dtype}, not {instr.dtype}")

    def access(self, access: Access | None, rank: int, loads: bool) -> DType:
        """Checks an access of `rank` strides, and gives the dtype of its buffer."""
        if access is None:
            self.fail("it has no access")
        count = len(self.module.buffers)
        self.need(0 <= access.buffer < count, f"buffer {access.buffer} of {count}")
        buffer = self.module.buffers[access.buffer]
        self.size(access.offset, "offset")
        self.need(len(access.stride) == rank, f"{len(access.stride)} strides, not {rank}")
        for stride in access.stride:
            self.size(stride, "stride")
        for bound in access.mask:
            self.need(0 <= bound.dim < rank, f"bound of dimension {bound.dim}")
            self.size(bound.low, "low bound")
            self.size(bound.high, "high bound")
        for term in access.terms:
            self.need(0 <= term.value < self.number, f"term %{term.value} is no earlier value")
            found = self.kernel.body[term.value]
            integer = found.op != "store" and found.dtype in (DType.I32, DType.I64)
            self.need(integer, f"term %{term.value} is no integer")
            self.size(term.stride, "stride of a term")
            if term.size is not None:
                self.size(term.size, "size of a term")
        absent = buffer.kind != "input" and access.buffer not in self.stored
        if loads and absent and buffer.extent != 0:
            self.fail(f"{buffer.name} is loaded before its store")
        return buffer.dtype

    def check_stores(self) -> None:
        """A store's points have addresses of their own, and an anchor's operands stay."""
        if 0 in self.kernel.sizes:
            return
        reduced = self.kernel.is_reduced()
        anchor = self.kernel.anchor
        read = {a.buffer for a in operands(anchor.constant)} if anchor else set()
        for number, instr in enumerate(self.kernel.body):
            access = instr.access
            if instr.op != "store" or access is None:
                continue
            self.number = number
            self.need(access.buffer not in read, "it stores into an operand of the anchor")
            if access.terms:
                continue
            for dim, size in enumerate(self.kernel.sizes):
                if dim in self.kernel.reduced and reduced[number]:
                    continue
                several = isinstance(size, int) and size > 1
                bounded = any(bound.dim == dim for bound in access.mask)
                if several and access.stride[dim] == 0 and not bounded:
                    self.fail(f"all {size} points along dimension {dim} store to one address")


def _load(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0, 1)
    dtype = check.access(instr.access, check.rank, loads=True)
    check.result(instr, dtype.compute)
    if instr.args:
        other = check.operand(instr)
        check.need(other is instr.dtype, f"the other value is {other}, not {instr.dtype}")


def _store(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 1)
    dtype = check.access(instr.access, check.rank, loads=False)
    value = check.operand(instr)
    check.need(value is dtype.compute, f"a {value} value is stored to a buffer of {dtype}")


def _const(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0)
    value = instr.constant
    if instr.dtype.is_float:
        check.need(not isinstance(value, complex | str | None), f"{value!r} is no number")
        if isinstance(value, float | bool):
            return
    elif instr.dtype is DType.BOOL:
        check.need(isinstance(value, bool), f"{value!r} is no bool")
        return
    value = int(value) if isinstance(value, bool) else value
    check.size(value, "constant")
    low, high = {DType.I32: (-(2**31), 2**31 - 1)}.get(instr.dtype, (-(2**63), 2**63 - 1))
    if isinstance(value, int):
        check.need(low <= value <= high, f"{value} does not fit in {instr.dtype}")


def _param(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0)
    count, number = check.module.params, instr.constant
    check.need(isinstance(number, int) and 0 <= number < count, f"runtime scalar {number!r}")


def _iota(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0)
    check.result(instr, DType.I64)
    dim = instr.constant
    check.need(isinstance(dim, int) and 0 <= dim < check.rank, f"dimension {dim!r}")


def _cast(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 1)
    check.need(isinstance(instr.constant, DType), f"{instr.constant!r} is no dtype")
    check.result(instr, instr.constant.compute)


def _reduce(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 1)
    row = REDUCTIONS.get(instr.constant)
    if row is None:
        check.fail(f"there is no reduction {instr.constant!r}")
    value = check.operand(instr)
    check.need(value in row.dtypes, f"{row.name} of {value}")
    check.result(instr, DType.I64 if row.name in ("argmax", "argmin") else value)
    check.need(bool(check.kernel.reduced), "the kernel reduces no dimension")


def _scan(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 1)
    check.need(instr.constant in SCANS, f"there is no scan {instr.constant!r}")
    value = check.operand(instr)
    check.need(value is not DType.BOOL, f"scan of {value}")
    check.result(instr, value)
    count = len(check.kernel.reduced)
    check.need(count == 1, f"a scan runs along one reduced dimension, not {count}")


def _matmul(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0)
    product = instr.constant
    if not isinstance(product, Contraction):
        check.fail(f"{product!r} is no contraction")
    check.need(check.rank > 0, "a product over no dimension")
    for name, access in (("left", product.left), ("right", product.right)):
        dtype = check.access(access, check.rank + 1, loads=True)
        check.need(dtype is product.dtype, f"{name} is {dtype}, not {product.dtype}")
    check.size(product.k, "k")
    check.need((product.packed is None) is (product.panel is None), "panels without an access")
    if product.packed is not None and product.panel is not None:
        dtype = check.access(product.packed, check.rank + 1, loads=True)
        check.need(dtype is product.dtype, f"packed is {dtype}, not {product.dtype}")
        check.need(not (product.packed.terms or product.packed.mask), "panels with terms or masks")
        panel = product.panel
        check.need(panel.width > 0 and panel.depth > 0, f"panels of {panel.width} by {panel.depth}")
        step = product.packed.stride[check.rank]
        check.need(step == panel.width * panel.depth, f"rows of panels lie {step} apart")
    check.need(product.dtype.compute in FLOATS, f"a product of {product.dtype}")
    check.result(instr, product.dtype.compute)


def _attention(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0)
    own = instr.constant
    check.need(isinstance(own, Attention), f"{own!r} is no attention")
    check.need(check.rank >= 2, "attention over fewer than two dimensions")
    s, d, t = check.rank - 2, check.rank - 1, check.rank
    dtypes = set()
    for name, access, still in (
        ("query", own.query, t), ("key", own.key, s), ("value", own.value, s)
    ):  # fmt: skip
        dtypes.add(check.access(access, check.rank + 1, loads=True))
        check.need(access.stride[still] == 0, f"{name} moves in dimension {still}")
    check.need(len(dtypes) == 1, f"operands of {', '.join(sorted(map(str, dtypes)))}")
    dtype = dtypes.pop()
    check.need(dtype.compute in FLOATS, f"attention of {dtype}")
    if own.mask is not None:
        mask = check.access(own.mask, check.rank + 1, loads=True)
        check.need(mask is DType.BOOL or mask.is_float, f"a mask of {mask}")
        check.need(own.mask.stride[d] == 0, f"mask moves in dimension {d}")
    for name, size in (
        ("length", own.length), ("head_dim", own.head_dim), ("shift", own.shift),
        ("window", 1 if own.window is None else own.window),
    ):  # fmt: skip
        check.size(size, name)
    check.need(own.causal or own.window is None, "a window without causal")
    check.result(instr, dtype.compute)


def _convolution(check: _Checker, instr: Instr) -> None:
    check.arity(instr, 0)
    own = instr.constant
    if not isinstance(own, Convolution):  # its text is long: it is written for a fault only
        check.fail(f"{own!r} is no convolution")
    check.need(check.rank > 0, "a convolution over no dimension")
    check.need(bool(own.parts), "a convolution of nothing")
    dims = [w.dim for w in own.windows if w.dim is not None]
    inside = all(0 <= d < check.rank - 1 for d in dims) and len(set(dims)) == len(dims)
    check.need(inside, f"windows along dimensions {dims}")
    for window in own.windows:
        for name in ("taps", "stride", "dilation", "pad", "extent"):
            check.size(getattr(window, name), f"{name} of a window")
    for part in own.parts:
        for name, access in (("left", part.left), ("right", part.right)):
            dtype = check.access(access, check.rank + len(own.windows) + 1, loads=True)
            check.need(dtype is own.dtype, f"{name} is {dtype}, not {own.dtype}")
            check.need(not access.terms and not access.mask, f"{name} has terms or a mask")
        if own.panel is not None:
            check.need(own.panel.width > 0 and own.panel.depth == 1, f"panels of {own.panel}")
        still = all(part.left.stride[d] == 0 for d in dims)
        check.need(still, "left moves in the dimension of a window")
        check.size(part.k, "k")
    check.need(own.dtype.compute in FLOATS, f"a convolution of {own.dtype}")
    check.result(instr, own.dtype.compute)


def _scalar(check: _Checker, instr: Instr) -> None:
    row = SCALARS[instr.op]
    check.arity(instr, row.arity)
    dtypes = [check.operand(instr, k) for k in range(row.arity)]
    if instr.op == "select":
        condition = dtypes.pop(0)
        check.need(condition is DType.BOOL, f"the condition is {condition}")
    if dtypes.count(dtypes[0]) != len(dtypes):
        check.fail(f"operands of {' and '.join(map(str, dtypes))}")
    if dtypes[0] not in row.dtypes:
        check.fail(f"{instr.op} of {dtypes[0]}")
    check.result(instr, DType.BOOL if row.result == "bool" else dtypes[0])


_RULES: dict[str, Callable[[_Checker, Instr], Any]] = {
    "load": _load,
    "store": _store,
    "const": _const,
    "param": _param,
    "iota": _iota,
    "cast": _cast,
    "reduce": _reduce,
    "scan": _scan,
    "matmul": _matmul,
    "attention": _attention,
    "convolution": _convolution,
}

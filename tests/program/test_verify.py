"""Every rule of the verifier refuses what breaks it, and names the kernel and instruction."""

import math
import pickle
from dataclasses import replace

import pytest
import sympy
from torch.utils._sympy.functions import ModularIndexing

from program.building import Kernel, buffer, module
from vtc.errors import VtcError
from vtc.program.dtypes import DType
from vtc.program.module import Branch, Buffer, Module
from vtc.program.tile import Access, Attention, Bound, Contraction, Instr, Term, TileKernel
from vtc.program.verify import ProgramError, verify

F32, F64, I32, I64, BOOL = DType.F32, DType.F64, DType.I32, DType.I64, DType.BOOL
s0, s9 = sympy.symbols("s0 s9", integer=True, positive=True)
X = Access(0, 0, (4, 1))
LOAD = Instr("load", (), F32, X)
INDEX = Instr("load", (), I64, Access(1, 0, (1, 0)))
STORE = Instr("store", (0,), F32, Access(3, 0, (4, 1)))
BUFFERS = (
    Buffer("x", "input", F32, 12),
    Buffer("index", "input", I64, 3),
    Buffer("flag", "input", BOOL, 1),
    Buffer("y", "output", F32, 12),
    Buffer("t", "temporary", F32, 12),
    Buffer("places", "output", I64, 12),
)


def kernel(*body, sizes=(3, 4), reduced=()):
    return TileKernel("k", sizes, frozenset(reduced), body)


def checked(*steps, buffers=BUFFERS, symbols=("s0",), params=1):
    verify(Module(symbols, buffers, steps, params))


def body_of(*instrs):
    """The instructions behind a load of x, with a store of the load last."""
    return kernel(LOAD, *instrs, STORE)


def test_the_examples_that_are_broken_below_are_right():
    checked(body_of(INDEX))
    checked(kernel(LOAD, STORE), Branch(2, (kernel(LOAD, STORE),), ()))


def const(value, dtype=F32):
    return Instr("const", (), dtype, constant=value)


def load(dtype=F32, args=(), **changed):
    return Instr("load", args, dtype, replace(X, **changed))


ATTENTION = Attention(
    Access(0, 0, (4, 1, 0)), Access(0, 0, (0, 1, 4)), Access(0, 0, (0, 1, 4)), None, 3, 4, None
)
WRONG = [
    # Operands and operators.
    (Instr("frobnicate", (0,), F32), "there is no such operator"),
    (Instr("add", (0,), F32), "1 operands, not 2"),
    (Instr("add", (0, 7), F32), "operand %7 is no earlier value"),
    (Instr("add", (0, -1), F32), "operand %-1 is no earlier value"),
    (Instr("neg", (0,), F64), "the result is f32, not f64"),
    (Instr("neg", (0,), DType.BF16), "bf16 is no compute type"),
    (Instr("neg", (0,), "f32"), "'f32' is no dtype"),
    (Instr("lt", (0, 0), F32), "the result is bool, not f32"),
    (Instr("and", (0, 0), F32), "and of f32"),
    (Instr("select", (0, 0, 0), F32), "the condition is f32"),
    # Loads.
    (Instr("load", (), F32), "it has no access"),
    (load(F64), "the result is f32, not f64"),
    (load(buffer=9), "buffer 9 of 6"),
    (load(buffer=4), "t is loaded before its store"),
    (load(buffer=3), "y is loaded before its store"),
    (load(stride=(1,)), "1 strides, not 2"),
    (load(stride=(s9, 1)), "stride: the symbol s9 in s9 is not one of the module's"),
    (load(offset=0.5), "offset: 0.5 is no size"),
    (load(offset=ModularIndexing(s0, 2, 3)), "ModularIndexing in .* is no function of sizes"),
    (load(offset=2**s0), "Pow in .* is no function of sizes"),
    (load(mask=(Bound(2, 0, 1),)), "bound of dimension 2"),
    (load(mask=(Bound(0, s9, 1),)), "low bound: the symbol s9"),
    (load(mask=(Bound(0, 0, s9),)), "high bound: the symbol s9"),
    (load(terms=(Term(0, 1),)), "term %0 is no integer"),
    (load(terms=(Term(5, 1),)), "term %5 is no earlier value"),
    # Values without operands.
    (const("1"), "'1' is no number"),
    (const(1, BOOL), "1 is no bool"),
    (const(2**31, I32), "2147483648 does not fit in i32"),
    (const(0.5, I64), "0.5 is no size"),
    (const(s9, I64), "the symbol s9"),
    (Instr("param", (), F32, constant=1), "runtime scalar 1"),
    (Instr("iota", (), I64, constant=2), "dimension 2"),
    (Instr("iota", (), F32, constant=0), "the result is i64, not f32"),
    (Instr("cast", (0,), F32, constant="f32"), "'f32' is no dtype"),
    (Instr("cast", (0,), F32, constant=DType.I8), "the result is i32, not f32"),
    # Folds and anchors.
    (Instr("reduce", (0,), F32, constant="mean"), "there is no reduction 'mean'"),
    (Instr("reduce", (0,), F32, constant="any"), "any of f32"),
    (Instr("reduce", (0,), F32, constant="sum"), "the kernel reduces no dimension"),
    (Instr("reduce", (0,), F32, constant="argmax"), "the result is i64, not f32"),
    (Instr("scan", (0,), F32, constant="any"), "there is no scan 'any'"),
    (Instr("scan", (0,), F32, constant="sum"), "runs along one reduced dimension, not 0"),
    (Instr("matmul", (), F32, constant=None), "None is no contraction"),
    (Instr("matmul", (), F32, constant=Contraction(X, X, 4, F32)), "2 strides, not 3"),
    (
        Instr("matmul", (), F32, constant=Contraction(ATTENTION.query, ATTENTION.key, 4, F64)),
        "left is f32, not f64",
    ),
    (Instr("attention", (), F32, constant=None), "None is no attention"),
    (
        Instr("attention", (), F32, constant=replace(ATTENTION, key=ATTENTION.query)),
        "key moves in dimension 0",
    ),
    (Instr("attention", (), F32, constant=replace(ATTENTION, window=2)), "a window without causal"),
    (
        Instr("attention", (), F32, constant=replace(ATTENTION, mask=Access(1, 0, (1, 0, 0)))),
        "a mask of i64",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("instr", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_instructions(instr, reason):
    with pytest.raises(ProgramError, match=reason) as caught:
        checked(body_of(instr))
    assert caught.value.kernel == "k"
    assert caught.value.instruction == f"%1 {instr.op}"
    assert "kernel k, %1" in str(caught.value)


STORES = [
    ((), Instr("store", (0, 0), F32, Access(3, 0, (4, 1))), "2 operands, not 1"),
    ((), Instr("store", (0,), F32, Access(5, 0, (4, 1))), "a f32 value is stored to .* i64"),
    ((), Instr("store", (0,), F32, Access(3, 0, (4, 0))), "all 4 points along dimension 1"),
    ((1,), Instr("store", (0,), F32, Access(3, 0, (1, 0))), "all 4 points along dimension 1"),
    ((), Instr("store", (1,), F32, Access(3, 0, (4, 1))), "operand %1 is no earlier value"),
]


@pytest.mark.parametrize(("reduced", "store", "reason"), STORES)
def test_stores(reduced, store, reason):
    with pytest.raises(ProgramError, match=reason):
        checked(kernel(LOAD, store, reduced=reduced))


KERNELS = [
    (kernel(LOAD), "kernel k: it stores nothing"),
    (kernel(LOAD, STORE, sizes=(3, 4), reduced=(2,)), r"reduced dimensions \[2\] of 2"),
    (kernel(LOAD, STORE, sizes=(3, -4)), "size -4 of the domain"),
    (kernel(LOAD, STORE, sizes=(3, s9)), "size of the domain: the symbol s9"),
    (
        kernel(*[Instr("attention", (), F32, constant=ATTENTION)] * 2, STORE),
        "kernel k: 2 anchors",
    ),
    (
        kernel(Instr("attention", (), F32, constant=ATTENTION),
               Instr("store", (0,), F32, Access(0, 0, (4, 1)))),
        "it stores into an operand of the anchor",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "reason"), KERNELS, ids=[reason for _, reason in KERNELS])
def test_kernels(wrong, reason):
    with pytest.raises(ProgramError, match=reason):
        checked(wrong)


MODULES = [
    ({"buffers": (*BUFFERS, BUFFERS[0])}, "two buffers are named x"),
    (
        {"buffers": (*BUFFERS[:5], Buffer("z", "register", F32, 1))},
        "buffer z is of no kind 'register'",
    ),
    ({"buffers": (*BUFFERS[:5], Buffer("z", "input", F32, -1))}, "extent of buffer z: -1"),
    ({"buffers": (*BUFFERS[:5], Buffer("z", "input", F32, s9))}, "extent of buffer z: the symbol"),
    ({"symbols": ("s0", "s0")}, "two symbols have one name"),
    ({"params": -1}, "-1 runtime scalars"),
]


@pytest.mark.parametrize(("changed", "reason"), MODULES, ids=[reason for _, reason in MODULES])
def test_heads(changed, reason):
    with pytest.raises(ProgramError, match=f"the module: {reason}"):
        checked(kernel(LOAD, STORE), **changed)


def test_branches():
    for predicate, reason in ((9, "reads buffer 9"), (0, "reads x: f32"), (4, "reads t: f32")):
        with pytest.raises(ProgramError, match=reason):
            checked(Branch(predicate, (), ()))
    flagged = (*BUFFERS[:5], Buffer("chosen", "temporary", BOOL, 1))
    with pytest.raises(ProgramError, match="reads chosen before its store"):
        checked(Branch(5, (), ()), buffers=flagged)


def test_what_only_one_arm_stores_is_not_there_behind_the_branch():
    store = kernel(LOAD, Instr("store", (0,), F32, Access(4, 0, (4, 1))))
    read = kernel(load(buffer=4), STORE)
    checked(Branch(2, (store, read), ()))
    checked(Branch(2, (store,), (store,)), read)
    with pytest.raises(ProgramError, match="t is loaded before its store"):
        checked(Branch(2, (store,), ()), read)


def test_errors_survive_pickling():
    error = ProgramError("k", "%3 add", "it is wrong")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, VtcError)
    assert str(again) == str(error)
    assert (again.kernel, again.instruction, again.reason) == ("k", "%3 add", "it is wrong")


def test_numbers_that_are_no_integers_are_floats_only():
    k = Kernel("constants", (2,))
    for value in (math.inf, math.nan, -0.0, 3, True, s0):
        k.store(0, k.const(value), 1)
    made = module(k, buffers=[buffer("y", F32, 2)], symbols=("s0",))
    assert "const f32 inf" in str(made)

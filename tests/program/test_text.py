"""The text of modules, against golden files (pytest --update-golden writes them)."""

import sympy

from program.building import Kernel, buffer, module
from program.test_evaluate import norm, softmax
from vtc.index.sizes import FloorDiv
from vtc.program.dtypes import DType
from vtc.program.module import Branch
from vtc.program.tile import Access, Attention, Bound, Term

F32, BF16, I64, BOOL = DType.F32, DType.BF16, DType.I64, DType.BOOL
s0, s1 = sympy.symbols("s0 s1", integer=True, positive=True)


def test_softmax(golden):
    golden("softmax", str(softmax()))


def test_layer_norm(golden):
    golden("layer_norm", str(norm(True, BF16)))


def test_lookups_masks_and_scalars(golden):
    k = Kernel("gathered", (s0, 2 * s1))
    index = k.load(1, 1, 0, dtype=I64)
    half = FloorDiv(s1, sympy.Integer(2))
    low = k.load(0, 0, 1, terms=(Term(index, 2 * s1, s0),), mask=(Bound(1, 0, s1),))
    high = k.load(0, 2 * s1, 1, offset=half, other=low, mask=(Bound(1, s1, 2 * s1),))
    row = k.cast(k.op("add", k.iota(0), k.const(s0 + 1, I64)), F32)
    value = k.op("fma", high, k.param(0), row)
    k.store(2, k.cast(value, BF16), 2 * s1, 1, terms=(Term(index, 1),))
    buffers = [buffer("x", F32, 4 * s0 * s1), buffer("x_index", I64, s0),
               buffer("y", BF16, 4 * s0 * s1)]  # fmt: skip
    golden("lookups", str(module(k, buffers=buffers, symbols=("s0", "s1"), params=1)))


def test_anchors_and_branches(golden):
    linear = Kernel("linear", (s0, 8))
    left, right = Access(0, 0, (16, 0, 1)), Access(1, 0, (0, 16, 1))
    linear.store(3, linear.op("tanh", linear.matmul(left, right, 16, BF16)), 8, 1)
    attend = Kernel("attend", (2, s0, 4))
    own = Attention(
        Access(3, 0, (4, 8, 1, 0)), Access(3, 0, (4, 0, 1, 8)), Access(3, 0, (4, 0, 1, 8)), None,
        s0, 4, None, causal=True,
    )  # fmt: skip
    attend.store(4, attend.attention(own, BF16), 4, 8, 1)
    zero = Kernel("zero", (8 * s0,))
    zero.store(4, zero.const(0.0), 1)
    buffers = [buffer("x", BF16, 16 * s0), buffer("x_weight", BF16, 128), buffer("x_flag", BOOL, 1),
               buffer("t", BF16, 8 * s0), buffer("y", BF16, 8 * s0)]  # fmt: skip
    made = module(linear, Branch(2, (attend.done(),), (zero.done(),)), buffers=buffers,
                  symbols=("s0",))  # fmt: skip
    golden("anchors", str(made))

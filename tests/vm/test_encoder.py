"""What the encoder makes of shapes: merged dimensions, tiles, arena, barriers."""

import pytest
import sympy
import torch

from program.building import Kernel, buffer, module
from vm.running import encoded, native
from vtc.program.dtypes import DType
from vtc.program.module import Branch
from vtc.program.tile import Term
from vtc.vm import decode, isa
from vtc.vm.machine import Machine

A, B, C = sympy.symbols("a b c", integer=True, positive=True)


def names(program):
    """The steps of a program by name, and the kernels it has."""
    words = program.words
    at = isa.HEAD_WORDS + isa.BUFFER_WORDS * (int(words[4]) & 0xFFFF)
    steps, kernels = [], []
    while True:
        op = isa.BY_NUMBER[isa.field(int(words[at]), "op")]
        steps.append(op.name)
        if op.name == "END":
            return steps, kernels
        if op.name == "KERNEL":
            kernels.append(decode.kernel(words, at))
            at = kernels[-1].end
        else:
            at += isa.field(int(words[at]), "length")


def opcodes(program):
    """Instructions of all kernels, prologues first."""
    return [
        op.name
        for kernel in names(program)[1]
        for start in (kernel.prologue, kernel.body)
        for _, op in decode.instructions(program.words, start)
    ]


def copy_of(strides, sizes, offset=0):
    kernel = Kernel("copy", sizes)
    kernel.store(1, kernel.load(0, *strides, offset=offset), B * C, C, 1)
    extent = A * B * C
    buffers = [buffer("x", DType.F32, extent + offset), buffer("y", DType.F32, extent)]
    return module(kernel, buffers=buffers, symbols=("a", "b", "c"))


def test_jointly_contiguous_dimensions_become_one():
    program = encoded(copy_of((B * C, C, 1), (A, B, C)), 2, 3, 5)
    (kernel,) = names(program)[1]
    assert kernel.sizes == (30,)


def test_dimensions_of_one_element_disappear():
    made = copy_of((B * C, C, 1), (A, B, C))
    assert names(encoded(made, 1, 1, 7))[1][0].sizes == (7,)
    assert names(encoded(made, 1, 1, 1))[1][0].sizes == ()


def test_a_transposed_operand_keeps_its_dimensions():
    program = encoded(copy_of((C, A * C, 1), (A, B, C)), 4, 6, 10)
    assert names(program)[1][0].sizes == (4, 6, 10)


def test_a_masked_dimension_stays_itself_only_where_the_mask_cuts():
    from vtc.program.tile import Bound

    kernel = Kernel("pad", (A, B))
    kernel.store(1, kernel.load(0, B, 1, mask=(Bound(1, 0, C),)), B, 1)
    buffers = [buffer("x", DType.F32, A * B), buffer("y", DType.F32, A * B)]
    made = module(kernel, buffers=buffers, symbols=("a", "b", "c"))
    assert names(encoded(made, 4, 6, 6))[1][0].sizes == (24,)
    assert names(encoded(made, 4, 6, 5))[1][0].sizes == (4, 6)


def test_no_kernel_is_emitted_for_no_points():
    assert names(encoded(copy_of((B * C, C, 1), (A, B, C)), 3, 0, 4))[0] == ["END"]


def test_rows_that_fit_are_reduced_in_one_pass_and_long_ones_in_a_loop():
    kernel = Kernel("softmax", (A, B), (1,))
    x = kernel.load(0, B, 1)
    e = kernel.op("exp", kernel.op("sub", x, kernel.reduce("max", x)))
    kernel.store(1, kernel.op("div", e, kernel.reduce("sum", e)), B, 1)
    buffers = [buffer("x", DType.F32, A * B), buffer("y", DType.F32, A * B)]
    made = module(kernel, buffers=buffers, symbols=("a", "b"))
    short = opcodes(encoded(made, 64, 512))
    assert short.count("REDUCE") == 2
    assert "LOOP" not in short
    long = opcodes(encoded(made, 64, 100_000))
    assert long.count("LOOP") == 3
    assert long.count("exp") == 2, "what a later phase needs is computed again"
    one = encoded(made, 1, 1_000_000)
    assert opcodes(one).count("MERGE") == 3
    assert names(one)[0] == ["KERNEL", "BARRIER", "KERNEL", "BARRIER", "KERNEL", "END"]


def chain(*, apart):
    """t0 = x + x; then y = t0 * t0, or (apart) y = x * x."""
    first = Kernel("first", (A,))
    x = first.load(0, 1)
    first.store(1, first.op("add", x, x), 1)
    second = Kernel("second", (A,))
    t = second.load(0 if apart else 1, 1)
    second.store(2, second.op("mul", t, t), 1)
    kind = "y0" if apart else "t0"
    buffers = [buffer("x", DType.F32, A), buffer(kind, DType.F32, A), buffer("y1", DType.F32, A)]
    return module(first, second, buffers=buffers, symbols=("a",))


def test_barriers_stand_only_where_a_kernel_needs_another():
    assert names(encoded(chain(apart=False), 100))[0] == ["KERNEL", "BARRIER", "KERNEL", "END"]
    assert names(encoded(chain(apart=True), 100))[0] == ["KERNEL", "KERNEL", "END"]


def test_temporaries_share_the_arena_when_their_lives_do_not_meet():
    kernels = []
    for n in range(4):
        kernel = Kernel(f"k{n}", (A,))
        x = kernel.load(n, 1)
        kernel.store(n + 1, kernel.op("add", x, x), 1)
        kernels.append(kernel)
    buffers = [buffer("x", DType.F32, A)]
    buffers += [buffer(f"t{n}", DType.F32, A) for n in range(3)]
    buffers += [buffer("y", DType.F32, A)]
    program = encoded(module(*kernels, buffers=buffers, symbols=("a",)), 1000)
    assert program.arena_bytes == 2 * 4032


def test_what_is_the_same_in_every_task_is_computed_once_a_thread():
    kernel = Kernel("scale", (A, B))
    scale = kernel.op("exp", kernel.load(1, 0, 1))
    kernel.store(2, kernel.op("mul", kernel.load(0, B, 1), scale), B, 1)
    sizes = [A * B, B, A * B]
    buffers = [buffer(n, DType.F32, e) for n, e in zip(("x0", "x1", "y"), sizes, strict=True)]
    program = encoded(module(kernel, buffers=buffers, symbols=("a", "b")), 1000, 300)
    (head,) = names(program)[1]
    prologue = [op.name for _, op in decode.instructions(program.words, head.prologue)]
    assert prologue == ["LOAD", "exp", "DONE"]


def test_a_branch_jumps_over_its_arms():
    predicate = Kernel("p", ())
    zero = predicate.const(0.0)
    predicate.store(2, predicate.op("gt", predicate.load(0), zero))
    arms = []
    for value in (1.0, 2.0):
        arm = Kernel(f"arm{value:g}", (A,))
        arm.store(1, arm.const(value), 1)
        arms.append(arm.done())
    buffers = [buffer("x", DType.F32, 1), buffer("y", DType.F32, A), buffer("t", DType.BOOL, 1)]
    branch = Branch(2, (arms[0],), (arms[1],))
    program = encoded(module(predicate, branch, buffers=buffers, symbols=("a",)), 5)
    steps = names(program)[0]
    assert steps == [
        "KERNEL", "BARRIER", "BRANCH", "KERNEL", "BARRIER", "JUMP", "KERNEL", "BARRIER", "END"
    ]  # fmt: skip


def test_sizes_are_checked():
    machine = Machine(chain(apart=True))
    with pytest.raises(ValueError, match="one size a symbol"):
        machine.encode([])


def test_more_dimensions_than_the_machine_has_are_refused():
    sizes = sympy.symbols("s0:9", integer=True, positive=True)
    kernel = Kernel("many", sizes)
    strides = [sympy.Mul(*sizes[n + 1 :]) for n in range(9)]
    kernel.store(1, kernel.load(0, *([0, 1] * 4 + [0])), *strides)
    extent = sympy.Mul(*sizes)
    buffers = [buffer("x", DType.F32, extent), buffer("y", DType.F32, extent)]
    made = module(kernel, buffers=buffers, symbols=tuple(s.name for s in sizes))
    with pytest.raises(NotImplementedError, match="8 dimensions"):  # an EncodeError
        encoded(made, *[2] * 9)


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (1, 5), (0, 6)])
def test_an_address_outside_of_its_buffer_is_refused(offset: int, size: int):
    """Whatever made the module: nothing else's memory is touched."""
    kernel = Kernel("beyond", (A,))
    kernel.store(1, kernel.load(0, 1), 1, offset=offset)
    made = module(
        kernel, buffers=[buffer("x", DType.F32, A), buffer("y", DType.F32, 5)], symbols=("a",)
    )
    encoded(made, 4) if offset == 0 else None
    with pytest.raises(NotImplementedError, match="outside of its buffer"):  # an EncodeError
        encoded(made, size)


def test_what_is_folded_over_nothing_is_read_inside_of_its_buffer():
    """What does not move along the dimension is read once, however many points it has."""

    def fold(stride, extent):
        kernel = Kernel("fold", (A, B), (1,))
        kernel.store(1, kernel.reduce("sum", kernel.load(0, stride, 0)), 1, 0)
        buffers = [buffer("x", DType.F32, extent), buffer("y", DType.F32, A)]
        return module(kernel, buffers=buffers, symbols=("a", "b"))

    assert native(fold(0, B), [torch.ones(2)], 3, 2)[0].tolist() == [2, 2, 2]
    with pytest.raises(NotImplementedError, match="outside of its buffer"):
        encoded(fold(0, B), 3, 0)
    for rows in (1, 3, 40):
        assert not native(fold(1, A), [torch.ones(rows)], rows, 0)[0].any()


def test_terms_name_the_registers_of_their_values():
    kernel = Kernel("gather", (A, B))
    index = kernel.load(1, 1, 0, dtype=DType.I64)
    kernel.store(2, kernel.load(0, 0, 1, terms=(Term(index, B, C),)), B, 1)
    buffers = [
        buffer("x0", DType.F32, C * B),
        buffer("x1", DType.I64, A),
        buffer("y", DType.F32, A * B),
    ]
    program = encoded(module(kernel, buffers=buffers, symbols=("a", "b", "c")), 5, 7, 11)
    (head,) = names(program)[1]
    loads = [at for at, op in decode.instructions(program.words, head.body) if op.name == "LOAD"]
    access, _ = decode.access(program.words, loads[1] + 2)
    assert access.terms[0].size == 11
    assert access.terms[0].kind == isa.ROW
    assert access.terms[0].register == isa.field(int(program.words[loads[0]]), "dst")


def test_values_that_no_store_needs_are_not_computed():
    kernel = Kernel("dead", (A,))
    x = kernel.load(0, 1)
    kernel.op("exp", kernel.op("neg", x))
    kernel.store(1, kernel.op("sqrt", x), 1)
    buffers = [buffer("x", DType.F32, A), buffer("y", DType.F32, A)]
    program = encoded(module(kernel, buffers=buffers, symbols=("a",)), 10)
    assert opcodes(program) == ["DONE", "LOAD", "BIND", "sqrt", "STORE", "DONE"]


def test_short_reduced_rows_are_folded_down_columns():
    kernel = Kernel("sum", (A, B), (1,))
    kernel.store(1, kernel.reduce("sum", kernel.load(0, B, 1)), 1, 0)
    buffers = [buffer("x", DType.F32, A * B), buffer("y", DType.F32, A)]
    made = module(kernel, buffers=buffers, symbols=("a", "b"))
    short, long = (names(encoded(made, 1000, n))[1][0] for n in (4, 400))
    assert (short.sizes[short.row], short.sizes[short.column]) == (4, 1000)
    assert (long.sizes[long.row], long.sizes[long.column]) == (1000, 400)


def test_tiles_lie_along_the_large_operand_however_many_small_ones_there_are():
    """Of a fold of rows, three results a row are contiguous down the rows; its operand is not."""
    kernel = Kernel("rows", (A, B), reduced=(1,))
    total = kernel.reduce("sum", kernel.load(0, B, 1))
    for n in range(1, 4):
        kernel.store(n, total, 1, 0)
    buffers = [buffer("x", DType.F32, A * B)] + [buffer(f"y{n}", DType.F32, A) for n in range(3)]
    program = encoded(module(kernel, buffers=buffers, symbols=("a", "b", "c")), 64, 256, 1)
    (head,) = names(program)[1]
    assert head.sizes[head.column] == 256

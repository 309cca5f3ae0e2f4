"""The device's interpreter, run on this machine (see `cuda_on_cpu`), against the meaning of
generated programs."""

from collections import Counter

import numpy as np
import pytest
import torch

from patterns.device_operators import (
    DENSE,
    FORMS,
    GROUPS,
    ROW_OPERATORS,
    SINGLE,
    heads_rotated,
    rotated,
    turned,
)
from program.generate import generate
from vm import conformance, cuda_on_cpu
from vtc import Options
from vtc.errors import KernelFailedError
from vtc.lowering.settings import Settings
from vtc.program.module import Branch
from vtc.runtime import dvm_compile

REFUSALS = {
    "the device has no products of its own",
    "the device has no running folds",
}


def native(encoded, memory, case):
    pointers = [0 if t is None else t.data_ptr() for t in memory.tensors]
    encoded.run(pointers, list(case.params))


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setitem(conformance._RUN, "device", native)
    torch.set_num_threads(1)

    def check(seeds, large=False):
        total = conformance.Outcome()
        for seed in seeds:
            total.add(
                conformance.check(
                    seed, ("reference", "device"), large, cuda_on_cpu.Machine, may_refuse=True
                )
            )
        return total

    return check


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_generated_programs_mean_the_same_on_the_device(on_device, first):
    outcome = on_device(range(first, first + 20))
    assert outcome.mismatches == []
    assert set(outcome.refused) <= REFUSALS, Counter(outcome.refused)
    assert outcome.elements > 0


def test_a_program_too_long_for_a_launch_is_read_from_memory(on_device, monkeypatch):
    monkeypatch.setattr(cuda_on_cpu, "LAUNCH_WORDS", 0)
    outcome = on_device(range(100, 106))
    assert outcome.mismatches == []
    assert outcome.elements > 0


def test_a_launch_runs_nothing_where_its_slot_is_empty():
    words = np.zeros(16, np.uint64)
    cuda_on_cpu.launch(words, -1, grid=2, shared_bytes=1 << 10)
    assert not words.any()


def test_slots_hold_the_kernels_of_a_program_and_refuse_what_does_not_fit():
    case = next(c for s in range(100) if launched(c := generate(s, False)))
    program = cuda_on_cpu.Machine(case.module).encode(list(case.sizes.values())).program
    pointers = [64 * (n + 1) for n in range(len(case.module.buffers))]
    longest = max(words for words, *_ in program.launches)
    count = len(program.launches)
    given = (pointers, case.params, 64, 128)
    slots = program.slots(*given, count + 1, longest).reshape(count + 1, -1)
    assert all(slots[:count, 0] > 0)
    assert not slots[count].any()
    with pytest.raises(ValueError, match="too many kernels"):
        program.slots(*given, count - 1, longest)
    with pytest.raises(ValueError, match="too long"):
        program.slots(*given, count, longest - 1)


def test_programs_mean_the_same_when_their_kernels_are_one_launch(on_device, monkeypatch):
    monkeypatch.setattr(cuda_on_cpu.Encoded, "run", cuda_on_cpu.Encoded.run_together)
    outcome = on_device(range(200, 212))
    assert outcome.mismatches == []
    assert outcome.elements > 0


def test_blocks_that_wait_in_vain_end_and_name_the_kernel():
    case, encoded = next(own for s in range(100) if (own := waiting(generate(s, False))))
    memory = conformance.Memory.of(case)
    pointers = [0 if t is None else t.data_ptr() for t in memory.tensors]
    with pytest.raises(KernelFailedError, match=r"kernel \d+ of a program has waited in vain"):
        encoded.run_together(pointers, list(case.params), absent=1)
    assert list(memory.overrun()) == []


def waiting(case):
    """The case and its program, if blocks of it wait for each other."""
    if not launched(case):
        return None
    encoded = cuda_on_cpu.Machine(case.module).encode(list(case.sizes.values()))
    count, pointers = len(encoded.launches), [64] * len(case.module.buffers)
    words, grid = encoded.program.together(pointers, list(case.params), 64, 64, 3)
    at, waits = 0, False
    for length, *_ in encoded.launches:
        waits |= bool(words[at + 1] >> np.uint64(63))
        at += length
    fits = count > 1 and at <= cuda_on_cpu.LAUNCH_WORDS
    return (case, encoded) if waits and grid > 1 and fits else None


def launched(case):
    """Has the device kernels for a case?"""
    try:
        encoded = cuda_on_cpu.Machine(case.module).encode(list(case.sizes.values()))
    except NotImplementedError:  # the encoder's, of what is beyond the machine
        return False
    return bool(encoded.launches)


def test_places_are_those_of_the_first_largest(on_device):
    finding = [s for s in range(2000, 2400) if finds_places(generate(s, False).module)][:10]
    outcome = on_device(finding)
    assert outcome.mismatches == []
    assert len(outcome.refused) < len(finding)


def finds_places(module):
    return any("arg" in str(kernel) for kernel in module.kernels())


@pytest.mark.parametrize("together", [False, True])
def test_branches_mean_the_same_on_the_device(on_device, monkeypatch, together):
    if together:
        monkeypatch.setattr(cuda_on_cpu.Encoded, "run", cuda_on_cpu.Encoded.run_together)
    branching = [s for s in range(1000, 1200) if has_branch(generate(s, False).module)][:8]
    outcome = on_device(branching)
    assert outcome.mismatches == []
    assert len(outcome.refused) < len(branching)
    assert outcome.elements > 0


def has_branch(module):
    return any(isinstance(step, Branch) for step in module.steps)


def on_the_twin(run, *args):
    """`run(*args)` by the device's interpreter, in three blocks; how many kernels are plain."""
    settings, plain = Settings("latency", Options(), engine="dvm"), []

    class Machine(cuda_on_cpu.Machine):
        def encode(self, sizes):
            encoded = super().encode(sizes)
            pointers = [64] * len(self.module.buffers)
            count, longest = len(encoded.launches), max(n for n, *_ in encoded.launches)
            for words in encoded.program.slots(pointers, [], 64, 128, count, longest).reshape(
                count, -1
            ):
                block = words[2 + (int(words[0]) >> 32) :]
                head = int(block[int(block[2]) >> 16 & 0xFFFF])
                plain.append(head >> 56 & 1 and head >> 48 & 0xFF)
            return encoded

        def __init__(self, module):
            super().__init__(module)
            self.module = module

    def backend(graph, inputs):
        return dvm_compile.compile_graph(graph, list(inputs), settings, Machine)

    torch._dynamo.reset()
    with torch.no_grad():
        return dvm_compile.dynamic(run, backend)(*args), sum(map(bool, plain))


def norm_add(x, y, w):
    z = x + y
    return z, torch.nn.functional.rms_norm(z, (z.shape[-1],), w, 1e-6)


def layer_norm(x, y, w):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, w)


STREAMS = {
    "copy": lambda x, y, w: x.clone(),
    "add": lambda x, y, w: x + y,
    "swiglu": lambda x, y, w: torch.nn.functional.silu(x) * y,
    "gelu": lambda x, y, w: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": lambda x, y, w: torch.nn.functional.gelu(x + w),
    "branch": lambda x, y, w: torch.where(x > 0, x + y, x - y),
    "norm_add": norm_add,
    "layer_norm": layer_norm,
    "softmax": lambda x, y, w: torch.softmax(x, -1),
}
ROWS = ("gelu_erf", "norm_add", "layer_norm", "softmax")  # tasks are rows


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels run by their words, as where a graph replays them."""
    monkeypatch.setattr(cuda_on_cpu.Encoded, "by_rows", False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [40, 41, 269])
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.usefixtures("interpreted")
def test_many_whole_tiles_in_a_row_are_right(name, rows, dtype):
    """Three blocks take 13 tasks each, or 89 and 90, which are run in pairs where their values
    fit; of 4100 columns the last flat tile is not whole."""
    run = STREAMS[name]
    columns = 4096 if rows == 40 or name in ROWS else 4100
    torch.manual_seed(rows)
    args = [torch.randn(rows, columns, dtype=dtype) for _ in range(2)]
    args.append(torch.randn(columns, dtype=dtype))
    found, plain = on_the_twin(run, *args)
    expected = run(*args)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert plain or name == "gelu_erf"  # of few rows, whose tasks are along two dimensions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [7, 333, 1155, 4099])
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("by_rows", [True, False])
def test_rows_of_any_length_anywhere_are_right(monkeypatch, name, columns, dtype, by_rows):
    """Rows begin at any multiple of their elements' size, and so do the tensors."""
    run = STREAMS[name]
    monkeypatch.setattr(cuda_on_cpu.Encoded, "by_rows", by_rows)
    torch.manual_seed(columns)
    wide = [torch.randn(23, columns + 5, dtype=dtype) for _ in range(2)]
    args = [wide[0][:, 3:-2], wide[1][:, :columns], torch.randn(columns + 1, dtype=dtype)[1:]]
    found, _ = on_the_twin(run, *args)
    expected = run(*(a.float() for a in args))
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}[dtype]
    for got, want in zip(tuples(found), tuples(expected), strict=True):
        torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)
        assert got.dtype == dtype


def tanh_gate(x):
    inner = 0.7978845608 * (x + 0.044715 * (x * x * x))
    curve = torch.tanh(inner)
    return x * (0.5 * (1 + curve)), curve


FUSED = {
    "silu": torch.nn.functional.silu,
    "silu and its gate": lambda x: (x * torch.sigmoid(x), torch.sigmoid(x)),
    "gate of another": lambda x: (x + 1) * torch.sigmoid(x),
    "gelu": torch.nn.functional.gelu,
    "gelu by tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu by tanh and its curve": tanh_gate,
    "squares": lambda x: (x * x).sum(-1),
    "squares that are wanted": lambda x: ((x * x).sum(-1), x * x),
    "a mean of squares": lambda x: torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * x,
    "a mean that is wanted": lambda x: ((x * x).mean(-1), (x * x).sum(-1)),
    "quotients by powers of two": lambda x: (x / 8, x / -0.5, x.sum(-1) / 1024, x / 3),
    "choices": lambda x: (torch.where(x > 0, x + 1, x * 2), torch.where(x < 0, 1.0, x - 1)),
    "a choice both ways": lambda x: torch.where(x > 0, torch.exp(-x), torch.where(x < -1, x, -x)),
}


@pytest.mark.parametrize("rows", [7, 300])
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.usefixtures("interpreted")
def test_operators_that_are_one_on_the_device_mean_the_same(name, rows):
    run = FUSED[name]
    x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows))
    found, expected = on_the_twin(run, x)[0], run(x.double())
    for got, want in zip(tuples(found), tuples(expected), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [n for n in FUSED if "gelu" in n or "silu" in n])
@pytest.mark.parametrize("by_rows", [True, False])
def test_activations_of_numbers_that_are_none_or_without_end(monkeypatch, name, by_rows):
    monkeypatch.setattr(cuda_on_cpu.Encoded, "by_rows", by_rows)
    end = torch.inf
    x = torch.tensor([torch.nan, end, -end, 0.0, 1e30, -1e30, 1e-40, 30.0, -30.0]).repeat(60)
    found, expected = on_the_twin(FUSED[name], x)[0], FUSED[name](x.double())
    for got, want in zip(tuples(found), tuples(expected), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-6, equal_nan=True)


def tuples(result):
    return result if isinstance(result, tuple) else (result,)


def test_quotients_of_zeros_keep_their_sign():
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, -0.0, 3.0]).repeat(50)
    y = torch.tensor([2.0, 2.0, -3.0, -3.0, -7.0, torch.inf]).repeat(50)
    found, _ = on_the_twin(lambda x, y: (x / y, x / 3.0, x / -3.0), x, y)
    for got, expected in zip(found, (x / y, x / 3.0, x / -3.0), strict=True):
        assert torch.equal(got.signbit(), expected.signbit())
        torch.testing.assert_close(got, expected)


def rows_of(monkeypatch, run, *args):
    """What `run` gives on the twin, and the functions of rows.h that its kernels are, or None."""
    kinds = []

    def noted(self, *given):
        found = self.program.rows(*given)
        kinds.extend(own and own[1] for own in found)
        return found

    monkeypatch.setattr(cuda_on_cpu.Encoded, "rows", noted)
    return on_the_twin(run, *args)[0], kinds


TYPES = ("bf16", "f16", "f32")
# RowsFunction of device_rows.h, by name.
FUNCTIONS = [
    *("map", "map_halves", "norm", "softmax", "rotary"),
    *(f"{kind}_{g}" for kind in ("norm", "softmax") for g in GROUPS),
    *(f"flat_{t}_{f}" for t in TYPES for f in FORMS),
    *(f"single_{t}_{f}" for t in TYPES for f in SINGLE),
    *(f"dense_{kind}_{g}" for kind in ("norm", "softmax") for g in DENSE),
]
ROTARY = FUNCTIONS.index("rotary")
functional = torch.nn.functional
ROW_SHAPES = [
    (1, 73),
    (5, 7),
    (23, 333),
    (9, 4096),
    (40, 512),
    (600, 40),
    (2, 5120),
    (2, 7777),
    (1030, 255),
]
FORM_OF = {
    "copy": "copy",
    "unary": "exp",
    "two unary ones": "any",
    "binary": "binary",
    "by a number": "binary",
    "gate": "gate_silu",
    "gate the other way round": "any",
    "bias and activation": "bias_gelu",
    "square of itself": "binary",
    "choice": "choose",
    "choice of operands": "choose",
}


def expected_function(name, shape, dtype):
    """The function that contiguous operands of a shape call for, on a device of one processor."""
    kind, columns = ROW_OPERATORS[name][0], shape[1]
    short = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    if kind == "map":
        form = FORM_OF[name]
        single = form in SINGLE and shape[0] * columns <= 1 << 18
        return f"{'single' if single else 'flat'}_{short}_{form}"
    if columns % 8 == 0:
        return f"dense_{kind}_{short}_groups"
    if columns > 4096:
        return kind if dtype == torch.float32 else f"{kind}_{short}_2_any"
    return f"dense_{kind}_{short}_{8 if shape[0] * columns > 1 << 17 else 4}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_operations_on_rows_are_kernels_of_their_own(monkeypatch, name, dtype):
    run = ROW_OPERATORS[name][1]
    for shape in ROW_SHAPES:
        generator = torch.Generator().manual_seed(shape[1])
        x, y = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        w = torch.randn(shape[1], generator=generator).to(dtype)
        found, kinds = rows_of(monkeypatch, run, x, y, w)
        assert [FUNCTIONS[kind] for kind in kinds] == [expected_function(name, shape, dtype)]
        expected = run(x.float(), y.float(), w.float())
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}[dtype]
        for got, want in zip(tuples(found), tuples(expected), strict=True):
            torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)
            assert got.dtype == dtype


NOT_OF_ROWS = {
    "three operands": lambda x, y, w: x * y + w,
    "a column": lambda x, y, w: x + y[:, :1],
    "a fold alone": lambda x, y, w: x.sum(-1),
    "a fold of columns": lambda x, y, w: torch.softmax(x, 0),
    "a norm by another's root": lambda x, y, w: x * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1),
    "a softmax of another's most": lambda x, y, w: torch.exp(x - y.amax(-1, keepdim=True)),
    "integers": lambda x, y, w: x.int() + 1,
    "a choice by another": lambda x, y, w: torch.where(w > 0, x, y),
    "a long row": lambda x, y, w: torch.softmax(x.reshape(1, -1).expand(2, -1), -1),
}


@pytest.mark.parametrize("name", NOT_OF_ROWS)
def test_other_kernels_are_interpreted(monkeypatch, name):
    x, y = (torch.randn(12, 1000, generator=torch.Generator().manual_seed(n)) for n in range(2))
    found, kinds = rows_of(monkeypatch, NOT_OF_ROWS[name], x, y, y[0])
    assert None in kinds
    for got, want in zip(tuples(found), tuples(NOT_OF_ROWS[name](x, y, y[0])), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_strided_rows_and_rows_in_a_buffer_of_others_are_operations_on_rows(monkeypatch):
    wide = torch.randn(19, 3, 72)
    for run in (lambda x, y, w: torch.softmax(x, -1), lambda x, y, w: x + y, layer_norm):
        given = wide[:, 1, :64], wide[:, 2, :64], wide[0, 0, :64]
        found, kinds = rows_of(monkeypatch, run, *given)
        assert None not in kinds
        torch.testing.assert_close(found, run(*given), rtol=1e-5, atol=1e-5)


AXES = {
    "transposed": lambda x: x.permute(0, 2, 1, 3).contiguous(),
    "repeated": lambda x: x[:, :, None].expand(2, 3, 4, 5, 72).reshape(2, 12, 5, 72),
    "repeated and transposed": lambda x: x.transpose(1, 2)[:, :, None].repeat(1, 1, 2, 1, 1),
    "softmax": lambda x: torch.softmax(x.permute(2, 0, 1, 3), -1),
    "norm": lambda x: functional.layer_norm(x[:, :, ::2], (72,), x[0, 0, 0], x[0, 0, 1]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", AXES)
def test_rows_along_several_axes_are_operations_on_rows(monkeypatch, name, dtype):
    x = torch.randn(2, 3, 5, 72, generator=torch.Generator().manual_seed(1)).to(dtype)
    found, kinds = rows_of(monkeypatch, AXES[name], x)
    assert None not in kinds
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, AXES[name](x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("normed", [False, True])
def test_rows_that_are_turned_by_positions_are_kernels_of_their_own(
    monkeypatch, normed, width, dtype
):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(2, 5, 3 * width, generator=generator).to(dtype)
    cos, sin = (torch.randn(5, width, generator=generator).to(dtype) for _ in range(2))
    w = torch.randn(width, generator=generator).to(dtype)
    run, args = heads_rotated(width, normed), (x, cos, sin, w)
    found, kinds = rows_of(monkeypatch, run, *args)
    assert kinds[-1] == ROTARY
    expected = run(*(a.float() for a in args))
    tolerance = {torch.bfloat16: 5e-2, torch.float16: 6e-3, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


NOT_ROTARY = {
    "turned the other way": lambda x, c, s: x * c + torch.cat((x[..., 32:], -x[..., :32]), -1) * s,
    "not halves": lambda x, c, s: x * c + torch.cat((-x[..., 24:], x[..., :24]), -1) * s,
    "of another": lambda x, c, s: x * c + turned(x + 1) * s,
    "less": lambda x, c, s: x * c - turned(x) * s,
}


@pytest.mark.parametrize("name", NOT_ROTARY)
def test_rows_that_are_turned_otherwise_are_interpreted(monkeypatch, name):
    x, c, s = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(3))
    found, kinds = rows_of(monkeypatch, NOT_ROTARY[name], x, c, s)
    assert ROTARY not in kinds
    torch.testing.assert_close(found, NOT_ROTARY[name](x, c, s), rtol=1e-5, atol=1e-5)


def test_rows_that_are_turned_are_interpreted_where_groups_cannot_be_moved(monkeypatch):
    x, cos, sin = (torch.randn(7 * 64 + 1)[1:].view(7, 64) for _ in range(3))
    found, kinds = rows_of(monkeypatch, rotated, x, cos, sin)
    assert kinds == [None]
    torch.testing.assert_close(found, rotated(x, cos, sin), rtol=1e-5, atol=1e-5)

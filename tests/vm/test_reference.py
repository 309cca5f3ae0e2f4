"""The reference interpreter on programs written by hand, against eager PyTorch."""

import math

import pytest
import torch

from vm.assembling import access, instr, kernel, program
from vm.examples import (
    attention,
    branch,
    lookups,
    packed_product,
    product,
    scan,
    softmax,
    split_fold,
)
from vtc.vm import isa
from vtc.vm.reference import run


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("rows", "columns", "chunk"), [(7, 20, 6), (3, 6, 6), (1, 1, 1), (2, 0, 4)]
)
def test_loops_and_accumulators(rows, columns, chunk):
    x, y = torch.randn(rows, columns), torch.full((rows, columns), math.nan)
    run(softmax(rows, columns, chunk), [x, y])
    torch.testing.assert_close(y, torch.softmax(x, 1))


@pytest.mark.parametrize("count", [1, 5, 16, 17])
def test_tasks_that_share_a_reduction(count):
    x = torch.randn(count)
    x[count // 2] = x.max()
    for fold, function in ((0, torch.sum), (1, torch.prod), (2, torch.amax), (6, torch.argmax)):
        y = torch.zeros(1, dtype=torch.int64 if fold == 6 else torch.float32)
        run(split_fold(fold, count, 5), [x, y])
        torch.testing.assert_close(y[0], function(x))


def test_the_first_place_wins_and_nan_beats_numbers():
    for values, place in (([1, 3, 3, 2], 1), ([3, math.nan, math.nan, 9], 1), ([2, 2, 2, 2], 0)):
        y = torch.zeros(1, dtype=torch.int64)
        run(split_fold(6, 4, 2), [torch.tensor(values, dtype=torch.float32), y])
        assert y.item() == place
        run(split_fold(7, 4, 2), [-torch.tensor(values, dtype=torch.float32), y])
        assert y.item() == place


def test_lookups_masks_and_parameters():
    x, y = torch.randn(4, 5).bfloat16(), torch.zeros(3, 5)
    run(lookups(), [x, torch.tensor([2, -1, 0]), y], [3.0])
    wanted = torch.full((3, 5), -1.0)
    wanted[:, :3] = x[[2, 3, 0], :3].float()
    torch.testing.assert_close(y, wanted * 3.0 + 0.5)
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds .* of size 4"):
            run(lookups(), [x, torch.tensor([0, wrong, 0]), y], [3.0])


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken):
    y = torch.zeros(1)
    run(branch(), [torch.tensor([taken]), None, y])
    assert y.item() == (1.0 if taken else 2.0)


@pytest.mark.parametrize(("columns", "step"), [(10, 4), (8, 4), (3, 5), (1, 1)])
def test_scans_go_on_from_tile_to_tile(columns, step):
    x, y = torch.randn(3, columns), torch.zeros(3, columns)
    run(scan(3, columns, step), [x, y])
    torch.testing.assert_close(y, x.cumsum(1))


def test_products():
    a, b, y = torch.randn(5, 6), torch.randn(7, 6), torch.zeros(5, 7)
    run(product(5, 7, 6), [a, b, y])
    torch.testing.assert_close(y, a @ b.T)


@pytest.mark.parametrize(("width", "depth"), [(4, 1), (4, 2), (8, 3), (16, 1)])
def test_products_with_a_packed_operand(width, depth):
    a, b, y = torch.randn(5, 6), torch.randn(6, 7), torch.zeros(5, 7)
    panels = torch.nn.functional.pad(b, (0, -7 % width, 0, -6 % depth))
    packed = panels.view(-(-6 // depth), depth, -(-7 // width), width).permute(2, 0, 3, 1)
    run(packed_product(5, 7, 6, width, depth), [a, packed.flatten(), y])
    torch.testing.assert_close(y, a @ b)


@pytest.mark.parametrize("flags", [0, 1, 2, 2 | 4, 8, 1 | 2 | 4 | 8])
def test_attention(flags):
    q, k, v, mask = torch.randn(5, 4), torch.randn(6, 4), torch.randn(6, 4), torch.rand(5, 6) < 0.6
    y = torch.zeros(5, 4)
    run(attention(5, 4, 6, flags), [q, k, v, mask, y])
    scores = q @ k.T / 2
    if flags & 1:
        scores = 1.5 * torch.tanh(scores / 1.5)
    rows, keys = torch.arange(5)[:, None], torch.arange(6)
    seen = torch.ones(5, 6, dtype=torch.bool)
    seen &= keys <= rows + 1 if flags & 2 else True
    seen &= keys > rows - 1 if flags & 4 else True
    seen &= mask if flags & 8 else True
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), 1).nan_to_num(0.0)
    torch.testing.assert_close(y, weights @ v)


def one(*body, registers=(64, 64), size=8):
    """A kernel over `size` elements of two f32 buffers."""
    return program([("f32", size)] * 2, kernel([(size, size)], (None, 0), registers, body))


LOAD = instr("LOAD", 0, *access(0, 1), type="f32", type2="f32", dst=0, kind_dst="column")
STORE = instr("STORE", 0, *access(1, 1), type="f32", type2="f32", a=0, kind_a="column",
              kind_dst="column")  # fmt: skip


def test_an_interpreter_may_ignore_an_allowance():
    bind = instr("BIND", *access(1, 1), type="f32", dst=0, kind_dst="column")
    x, y = torch.randn(8), torch.zeros(8)
    run(one(bind, LOAD, STORE), [x, y])
    assert torch.equal(x, y)


FAULTS = [
    ([LOAD, STORE], {"registers": (16,)}, "LOAD: register 0 holds 16 of 32 bytes"),
    ([LOAD, instr("neg", type="f32", dst=3)], {}, "neg: there is no register 3"),
    ([instr("LOAD", 0, *access(0, 1, offset=1), type="f32", type2="f32", dst=0,
            kind_dst="column")], {}, "LOAD: element 8 of a buffer of 8"),
    ([instr("STORE", 0, *access(1, -1), type="f32", type2="f32", a=0, kind_a="column",
            kind_dst="column")], {}, "STORE: element -1 of a buffer of 8"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "changed", "reason"), FAULTS)
def test_faults_name_the_instruction(body, changed, reason):
    with pytest.raises(ValueError, match=f"kernel 0, word [0-9]+ {reason}"):
        run(one(*body, **changed), [torch.randn(8), torch.zeros(8)])


def test_words_that_are_no_program():
    words = one(LOAD, STORE)
    for wrong in ([], words[:3], words[:-1], [0, *words[1:]]):
        with pytest.raises(ValueError, match="no program"):
            run(wrong, [torch.randn(8), torch.zeros(8)])
    with pytest.raises(ValueError, match=r"buffer 1 of torch.float32 is not given"):
        run(words, [torch.randn(8), None])


def test_every_instruction_has_a_meaning():
    from vtc.vm.reference import _INSTRUCTIONS

    named = {op.name for op in isa.OPS if op.family not in ("scalar", "step", "flow")}
    assert set(_INSTRUCTIONS) == named

"""Damaged programs never end the process: they are refused, or they are harmless.

Programs written by hand go where chance seldom does: numbers at which addresses wrap, and registers
that share bytes. Those of the second kind are defined, which only a sanitizer can tell.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vm.assembling import MASK, access, instr, kernel, number, program
from vm.examples import attention, branch, split_fold
from vm.mutation import steps
from vtc.vm import decode, isa, machine

TESTS = Path(__file__).parents[1]
COLUMN = {"type": "f32", "type2": "f32", "kind_dst": "column"}

pytestmark = pytest.mark.skipif(machine._native is None, reason="the native module is not built")


@pytest.mark.parametrize("first", [1000, 2000])
def test_damaged_programs_do_no_harm(first):
    done = subprocess.run(
        [sys.executable, "-m", "vm.mutation", "--programs", "25", "--first", str(first)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused"] > 300
    assert counts["run"] > 50


def validated(words):
    return machine._native.Program.from_words(np.array(words, dtype=np.uint64))


def run(words, *arrays):
    """One run on copies of the arrays, which are given back."""
    held = [a.copy() for a in arrays]
    validated(words).run([a.ctypes.data for a in held], [], 1)
    return held


def masked_store(low, high, offset=0):
    """y[i + offset] = 7 where low <= i < high, in two tiles of four elements."""
    constant = instr("CONST", number(7.0), dst=0, type="f32", kind_dst="column")
    masks = [(0, low & MASK, high & MASK)]
    store = instr("STORE", 0, *access(0, 1, offset=offset, masks=masks), a=0, kind_a="column",
                  **COLUMN)  # fmt: skip
    return program([("f32", 8)], kernel([(8, 4)], (None, 0), [16], [constant, store]))


@pytest.mark.parametrize(
    "bounds", [(0, -(2**63)), (0, 1 - 2**63), (-(2**63), 0), (2**63 - 1, 8), (0, 2**63 - 1)]
)
def test_bounds_of_masks_from_which_a_coordinate_cannot_be_taken_are_refused(bounds):
    # The far end of the first, less a coordinate, is far on the other side: nothing is masked off.
    with pytest.raises(ValueError, match="bounds of a mask"):
        validated(masked_store(*bounds, offset=10**9))


@pytest.mark.parametrize("bounds", [(2, 6), (-(2**62), 3), (5, 2**62), (0, -(2**62)), (2**62, 8)])
def test_far_bounds_of_masks_are_bounds(bounds):
    y = np.zeros(8, np.float32)
    low, high = bounds
    wanted = [7.0 if low <= i < high else 0.0 for i in range(8)]
    assert run(masked_store(*bounds), y)[0].tolist() == wanted


@pytest.mark.parametrize("offset", [2**61, 2**63 - 1, -(2**61)])
def test_addresses_of_what_is_masked_off_may_be_any(offset):
    y = np.zeros(8, np.float32)
    assert not run(masked_store(3, 3, offset), y)[0].any()


def strided_lookup(stride, name="LOAD", columns=5):
    """A move of x[index + stride * j], j < columns, whose address has a runtime term, or of a line
    of a product's operand."""
    term = (1, "i64", "scalar", 1, 8)
    index = instr("LOAD", 0, *access(2, 0), type="i64", type2="i64", dst=1)
    if name == "product":
        left = access(1, 0, 0)
        right = access(0, 0, stride, terms=[term])
        move = instr("MATMUL", columns, 0, *left, *right, dst=0, **COLUMN)
        return program(
            [("f32", 8), ("f32", 8), ("i64", 1)],
            kernel([(1, 1)], (None, 0), [64, 8], [index, move]),
        )
    size = {"type": "bool", "type2": "bool", "kind_dst": "column"}
    there = access(0, stride, terms=[term])
    plain = access(1, 1)
    move = [
        instr("LOAD", 0, *(there if name == "LOAD" else plain), dst=0, **size),
        instr("STORE", 0, *(plain if name == "LOAD" else there), a=0, kind_a="column", **size),
    ]
    return program(
        [("bool", 8), ("bool", 8), ("i64", 1)],
        kernel([(columns, columns)], (None, 0), [64, 8], [index, *move]),
    )


@pytest.mark.parametrize("name", ["LOAD", "STORE", "product"])
@pytest.mark.parametrize("stride", [2**62, -(2**62), -(2**63)])
def test_strides_at_which_a_run_wraps_into_its_buffer_are_refused(name, stride):
    # Of five elements the first and the last are in the buffer, the others anywhere.
    with pytest.raises(ValueError, match="a stride that addresses wrap at"):
        validated(strided_lookup(stride, name))


@pytest.mark.parametrize("name", ["LOAD", "STORE", "product"])
def test_a_run_behind_its_buffer_is_an_index_error(name):
    buffers = [np.ones(8, np.float32 if name == "product" else np.bool_) for _ in range(2)]
    for stride in (2, -1, 2**40):
        words = strided_lookup(stride, name)
        pointers = [a.ctypes.data for a in [*buffers, np.zeros(1, np.int64)]]
        assert validated(words).run(pointers, [], 1)


@pytest.mark.parametrize("word", [6, 7])
@pytest.mark.parametrize("value", [2**63, 2**63 - 1, 2**62])
def test_windows_of_attention_are_no_farther_than_addresses(word, value):
    words = attention(5, 4, 6, 1 | 2 | 4 | 8)
    at = decode.kernel(words, isa.HEAD_WORDS + 5 * isa.BUFFER_WORDS).body
    words[at + word] = value
    with pytest.raises(ValueError, match="window"):
        validated(words)


SHARING = {
    "a move": [instr("MOVE", dst=1, a=0, kind_a="column", **COLUMN)],
    "a cast": [instr("CAST", dst=1, a=0, kind_a="column", **COLUMN)],
    "other values of a load": [
        instr("LOAD", 1, *access(0, 1, masks=[(0, 1, 1)]), dst=1, a=0, kind_a="column", **COLUMN)
    ],
    "an accumulator": [
        instr("INIT", 2, dst=1, **COLUMN),
        instr("ACCUM", 2, dst=1, a=0, kind_a="column", **COLUMN),
        instr("FINISH", 2, dst=0, a=1, **COLUMN),
    ],
}


@pytest.mark.parametrize("columns", [1, 5, 16, 40, 300])
@pytest.mark.parametrize("apart", [0, 8, 64])
@pytest.mark.parametrize("name", SHARING)
def test_registers_that_share_bytes_do_no_harm(name, apart, columns):
    x, y = np.arange(1.0, columns + 1, dtype=np.float32), np.zeros(columns + 2, np.float32)
    body = [
        instr("LOAD", 2, *access(0, 1), dst=0, **COLUMN),
        *SHARING[name],
        instr("STORE", 0, *access(1, 1, offset=1), a=1, kind_a="column", **COLUMN),
    ]
    size = 4 * columns
    own = kernel([(columns, columns)], (None, 0), [size, size], body)
    own[9] = apart | size << 32  # the place of register 1, of which register 0 has some
    found = run(program([("f32", columns), ("f32", columns + 2)], own), x, y)[1]
    assert found[[0, -1]].tolist() == [0, 0]
    assert set(found[1:-1]) <= {*x.tolist(), 0.0, -np.inf}


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "bool", "bf16"])
@pytest.mark.parametrize("columns", [1, 5, 40, 300])
@pytest.mark.parametrize("flags", [0, 2])
@pytest.mark.parametrize("by", [-9, -1, 0, 1, 9])
def test_a_store_over_what_it_reads_does_no_harm(by, flags, columns, dtype):
    """x[i + by] = x[i], read where it is: the register points into the buffer."""
    wide = {"bf16": "f32"}.get(dtype, dtype)
    kinds = {"type": wide, "type2": dtype, "kind_dst": "column"}
    body = [
        instr("LOAD", 0, *access(0, 1, offset=10), dst=0, **kinds),
        instr("STORE", flags, *access(0, 1, offset=10 + by), a=0, kind_a="column", **kinds),
    ]
    extent = columns + 20
    size = 8 * columns
    words = program([(dtype, extent)], kernel([(columns, columns)], (None, 0), [size], body))
    itemsize = {"f32": 4, "f64": 8, "i64": 8, "bool": 1, "bf16": 2}[dtype]
    x = np.zeros((extent, itemsize), np.uint8)
    x[10 : 10 + columns] = 1
    found = run(words, x)[0]
    assert set(found.flatten()) <= {0, 1}
    kept = np.ones(extent, bool)
    kept[10 + by : 10 + by + columns] = False
    assert np.array_equal(found[kept], x[kept])


@pytest.mark.parametrize("name", ["BARRIER", "BRANCH", "JUMP", "END"])
@pytest.mark.parametrize("length", [0, 4, 255])
def test_steps_are_as_long_as_their_heads_say(name, length):
    # Or else a reader that goes by the head would read other steps than those that were checked.
    words = split_fold(0, 17, 5) if name == "BARRIER" else branch()
    low, bits = isa.LAYOUT["length"]
    at = next(at for at, op in steps(words) if op.name == name)
    words[at] = words[at] & ~(((1 << bits) - 1) << low) | length << low
    with pytest.raises(ValueError, match="length of a step"):
        validated(words)

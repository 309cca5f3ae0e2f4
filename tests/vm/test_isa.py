"""The instruction set's table, its header, and reading words back."""

from pathlib import Path

from vtc.program.dtypes import DType
from vtc.program.scalars import SCALARS
from vtc.vm import decode, isa

NATIVE = Path(isa.__file__).with_name("native")


def test_the_committed_header_is_the_tables():
    assert NATIVE.joinpath("isa.h").read_text() == isa.header(), "run python -m vtc.vm.isa"


def test_every_scalar_operator_has_an_instruction():
    assert set(SCALARS) <= set(isa.BY_NAME)
    numbers = [op.number for op in isa.OPS]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 256


def test_fields_do_not_overlap_and_fill_the_word():
    bits = [b for low, count in isa.LAYOUT.values() for b in range(low, low + count)]
    assert sorted(bits) == list(range(64))


def test_fields_come_back_from_a_head_word():
    word = isa.head("select", type=3, dst=7, a=200, c=255, kind_b=2, kind_dst=3, length=1)
    found = {name: isa.field(word, name) for name in isa.LAYOUT}
    assert found["op"] == isa.BY_NAME["select"].number
    assert (found["type"], found["dst"], found["a"], found["c"]) == (3, 7, 200, 255)
    assert (found["kind_b"], found["kind_dst"], found["kind_a"]) == (2, 3, 0)


def test_an_access_comes_back_from_its_words():
    minus = (1 << 64) - 5
    packed = 9 | 1 << 16 | 1 << 24 | 2 << 40
    term = 4 | isa.TYPES.index(DType.I64) << 8 | isa.ROW << 16 | 1 << 24
    words = [0, packed, 3, minus, 1, term, 16, 100, 1, minus, 8]
    access, end = decode.access(words, 1)
    assert end == len(words)
    assert (access.buffer, access.offset, access.strides) == (9, 3, (-5, 1))
    assert access.terms == (decode.TermWords(4, DType.I64, isa.ROW, 16, 100),)
    assert access.masks == ((1, -5, 8),)


def test_f32_sums_are_accumulated_in_f64():
    assert isa.accumulator_type("sum", DType.F32) is DType.F64
    assert isa.accumulator_type("max", DType.F32) is DType.F32
    assert isa.accumulator_type("sum", DType.I32) is DType.I32

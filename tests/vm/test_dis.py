"""The disassembler's text, and that the page of the instruction set is current."""

import re
from pathlib import Path

import pytest

from vm import examples
from vtc.vm import isa
from vtc.vm.dis import disassemble
from vtc.vm.page import page

PAGE = Path(__file__).parents[2] / "docs" / "isa.md"
EXAMPLES = {
    "softmax": (examples.softmax(24, 500, 128), ["x", "y"], ["softmax"]),
    "split_argmax": (examples.split_fold(6, 1000, 128), ["x", "y"], ["keep", "merge"]),
    "lookups": (examples.lookups(), ["table", "index", "y"], ["lookup"]),
    "branch": (examples.branch(), ["flag", "t", "y"], ["one", "two", "copy"]),
    "scan": (examples.scan(3, 100, 32), ["x", "y"], ["cumsum"]),
    "product": (examples.product(5, 7, 6), ["a", "b", "y"], ["linear"]),
    "packed_product": (examples.packed_product(5, 7, 6, 4, 2), ["a", "b", "y"], ["linear"]),
    "attention": (examples.attention(5, 4, 6, 15), ["q", "k", "v", "seen", "y"], ["attend"]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_text(name, golden):
    golden(name, disassemble(*EXAMPLES[name]))


def test_names_are_optional():
    text = disassemble(EXAMPLES["softmax"][0])
    assert "load b0[500*d0 + d1]" in text
    assert "kernel 0 over [d0=24/3, d1=500]" in text


def test_lines_are_numbered_by_words():
    words = EXAMPLES["lookups"][0]
    for line in disassemble(words).splitlines():
        found = re.match(r" *([0-9]+) +(r[0-9]+: \S+ = )?(\w+)", line)
        if found:
            op = isa.BY_NUMBER[isa.field(words[int(found[1])], "op")]
            assert op.name.lower() in (found[3].lower(), "loop", "endloop")


def test_page_is_current():
    """`python -m vtc.vm.page > docs/isa.md` brings it up to date."""
    assert PAGE.read_text() == page()


def test_page_lists_every_instruction():
    text = page()
    for op in isa.OPS:
        assert f"| {op.number} | `{op.name}` |" in text

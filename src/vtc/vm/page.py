"""The documentation page of the instruction set, from its table.

`python -m vtc.vm.page > docs/isa.md` brings it up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from vtc.program.dtypes import DType
from vtc.program.scalars import REDUCTIONS, SCALARS
from vtc.vm import isa

_FAMILIES = {
    "step": ("Steps", "Run by all threads, one after another."),
    "flow": ("Flow", "Inside of a kernel's prologue and body."),
    "data": ("Data", "Memory, constants and conversions."),
    "fold": ("Folds", "Reductions of a tile, accumulators over tiles and over tasks, scans."),
    "anchor": ("Anchors", "Contractions; an epilogue works on the tile that they give."),
    "scalar": (
        "Scalar operators",
        "Elementwise on registers; an operand may be of a smaller kind.",
    ),
}


def page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Instruction set"
    yield ""
    yield "Generated from `src/vtc/vm/isa.py` by `python -m vtc.vm.page > docs/isa.md`."
    yield "`vtc dis MODEL` prints the programs of a model; `vtc.vm.reference` defines what they do."
    yield ""
    yield from (isa.__doc__ or "").strip().splitlines()
    yield ""
    yield "## Head word"
    yield ""
    yield "| field | lowest bit | bits |"
    yield "|---|---|---|"
    yield from (f"| {name} | {low} | {bits} |" for name, (low, bits) in isa.LAYOUT.items())
    yield ""
    yield "## Types"
    yield ""
    yield "| number | type | bytes in memory | in registers | rounded when |"
    yield "|---|---|---|---|---|"
    for number, dtype in enumerate(isa.TYPES):
        narrow = "stored, cast" if dtype.compute is not dtype else ""
        yield f"| {number} | {dtype} | {dtype.itemsize} | {dtype.compute} | {narrow} |"
    yield ""
    yield "## Reductions"
    yield ""
    yield "| number | name | types | accumulator of f32 | meaning |"
    yield "|---|---|---|---|---|"
    for number, name in enumerate(isa.FOLDS):
        row = REDUCTIONS[name]
        types = ", ".join(map(str, row.dtypes))
        wide = isa.accumulator_type(name, DType.F32)
        yield f"| {number} | {name} | {types} | {wide} | {row.meaning} |"
    for family, (title, text) in _FAMILIES.items():
        yield from ("", f"## {title}", "", text, "")
        yield from _table(family)
    yield from _CONFORMANCE


_CONFORMANCE = """
## Conformance

`PYTHONPATH=tests python -m vm.conformance --seeds 20000` runs generated programs on the reference
interpreter and the native one and compares every element with `vtc.program.evaluate`; a seed names
a program for good. `PYTHONPATH=tests python -m vm.mutation --programs 1000` feeds damaged programs
to the validator and runs those that it accepts.

| what | agrees |
|---|---|
| loads, stores, casts, comparison, selection, rounding, integers | to the bit |
| `add` `sub` `mul` `div` `reciprocal` `sqrt` of f32 | to the bit; one rounding, as IEEE has it |
| `fma` | rounded once or twice |
| other functions of floats | 4 units in the last place between two interpreters |
| `sum` `prod` `scan`, products | folded in any order; f32 no less exact than in f32 |
| attention | as an online softmax in f32, where operands are finite |
| `max` `min` `argmax` `argmin`, integer folds | to the bit; the sign of a zero is free |
| NaN | in the same places, with any payload |

What is computed from values that may differ has the bound that its operands' errors give; where a
comparison, a rounding or a cast could fall either way an element is not compared. An index out of
range raises IndexError in all interpreters, unless nothing that is stored depends on it.
""".splitlines()


def _table(family: str) -> Iterator[str]:
    last = "types" if family == "scalar" else "words behind the head"
    yield f"| number | name | fields | {last} | meaning |"
    yield "|---|---|---|---|---|"
    for op in isa.OPS:
        if op.family == family:
            more = op.words
            if family == "scalar":
                more = ", ".join(map(str, SCALARS[op.name].dtypes))
            cells = (str(op.number), f"`{op.name}`", " ".join(op.fields), more, op.meaning)
            yield "| " + " | ".join(c.replace("|", r"\|") for c in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())

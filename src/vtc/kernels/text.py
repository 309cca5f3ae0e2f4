"""Lines of generated Triton text, and how sizes, numbers and types are written in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._sympy.printers import PythonPrinter

from vtc.index.sizes import Size
from vtc.program.dtypes import DType

_TYPES = {
    DType.F64: "tl.float64",
    DType.F32: "tl.float32",
    DType.BF16: "tl.bfloat16",
    DType.F16: "tl.float16",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
}
_POINTERS = {dtype: name.removeprefix("tl.") for dtype, name in _TYPES.items()} | {
    DType.F64: "fp64", DType.F32: "fp32", DType.BF16: "bf16", DType.F16: "fp16",
    DType.I64: "i64", DType.I32: "i32", DType.I16: "i16", DType.I8: "i8", DType.U8: "u8",
    DType.BOOL: "i1",
}  # fmt: skip


class Lines:
    """Text under construction: indented lines and fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self._count: dict[str, int] = {}

    def add(self, line: str) -> None:
        """One line at the current indentation."""
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head` (ending in a colon) and, indented, what is added inside the `with`."""
        self.add(head)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, prefix: str) -> str:
        """A name that was not given before: prefix0, prefix1, ..."""
        number = self._count.get(prefix, 0)
        self._count[prefix] = number + 1
        return f"{prefix}{number}"

    def bind(self, prefix: str, expression: str) -> str:
        """Adds `name = expression` and returns the fresh name."""
        name = self.name(prefix)
        self.add(f"{name} = {expression}")
        return name

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def type_text(dtype: DType) -> str:
    """The Triton type: "tl.bfloat16"."""
    return _TYPES[dtype]


def pointer_text(dtype: DType) -> str:
    """The Triton type of a pointer argument: "*bf16"."""
    return f"*{_POINTERS[dtype]}"


def size_text(size: Size) -> str:
    """A size as a factor: its symbols are names of kernel arguments."""
    if isinstance(size, int):
        return str(size) if size >= 0 else f"({size})"
    text = PythonPrinter().doprint(size)
    return text if text.isidentifier() else f"({text})"


def number_text(value: float | int | bool, dtype: DType) -> str:
    """A constant of the type's kind."""
    if dtype is DType.BOOL:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    value = float(value)
    finite = value == value and abs(value) != float("inf")
    return repr(value) if finite else f"float('{value}')"

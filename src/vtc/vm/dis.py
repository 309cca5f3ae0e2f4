"""The disassembler: encoded programs as text.

    kernel 0 softmax over [d0=24/3, d1=512], rows d0, columns d1, tile 3 x 512, 8 tasks
      prologue
        r3: f32 = const 0.5
      body
        r0: f32[r,c] = load x[512*d0 + d1]
        r1: f32[r] = reduce max r0
        ...
        store y[512*d0 + d1] = r2

A dimension is size/span: a task covers span elements of it. A register has its compute type and
the axes of the tile along which it varies; `[r,c]` is full.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsInt

from vtc.program.dtypes import DType
from vtc.program.module import Module, kernel_text
from vtc.vm import decode, isa
from vtc.vm.decode import AccessWords

_AXES = {isa.FULL: "[r,c]", isa.ROW: "[r]", isa.COLUMN: "[c]", isa.SCALAR: ""}


def disassemble(
    words: Iterable[SupportsInt], buffers: Sequence[str] = (), kernels: Sequence[str] = ()
) -> str:
    """The text of a program; `buffers` and `kernels` are names in the order of their numbers.

    The words must be a valid program.
    """
    return "\n".join(_Listing([int(w) for w in words], buffers, kernels).lines())


def listing(module: Module, words: Iterable[SupportsInt]) -> str:
    """The program, each kernel below the symbolic one that it was encoded from."""
    names = [b.name for b in module.buffers]
    symbolic = {n: kernel_text(k, tuple(names)) for n, k in enumerate(module.kernels())}
    kernels = [k.name for k in module.kernels()]
    view = _Listing([int(w) for w in words], names, kernels, symbolic)
    return "\n".join(view.lines())


@dataclass
class _Listing:
    words: list[int]
    names: Sequence[str] = ()
    kernels: Sequence[str] = ()
    symbolic: dict[int, list[str]] | None = None

    def lines(self) -> Iterator[str]:
        words = self.words
        yield (
            f"program of {len(words)} words: arena {words[2]:,} bytes, "
            f"registers {words[3]:,} bytes a thread, "
            f"{_count(words[4] >> 16 & 0xFFFF, 'runtime scalar')}"
        )
        buffers = decode.buffers(words)
        for number, buffer in enumerate(buffers):
            place = ""
            if buffer.kind != "callers":
                room = "the arena" if buffer.kind == "arena" else self.buffer(buffer.host)
                place = f" at byte {buffer.offset} of {room}"
            yield f"  buffer {self.buffer(number)}: {buffer.dtype}[{buffer.extent}]{place}"
        at = isa.HEAD_WORDS + len(buffers) * isa.BUFFER_WORDS
        while at < len(words):
            op = isa.BY_NUMBER[isa.field(words[at], "op")]
            if op.name == "KERNEL":
                yield from self.kernel(at)
                at = decode.kernel(words, at).end
            else:
                yield f"{at:5} {self.step(op.name, at)}"
                at += decode.length_at(words, at)

    def buffer(self, number: int) -> str:
        return self.names[number] if number < len(self.names) else f"b{number}"

    def step(self, name: str, at: int) -> str:
        if name == "JUMP":
            return f"jump to {self.words[at + 1]}"
        if name == "BRANCH":
            return f"unless {self.buffer(self.words[at + 1])}[0] go to {self.words[at + 2]}"
        return name.lower()

    def kernel(self, at: int) -> Iterator[str]:
        kernel = decode.kernel(self.words, at)
        pairs = list(zip(kernel.sizes, kernel.spans, strict=True))
        sizes = [
            f"d{d}={size}" + ("" if span >= size else f"/{span}")
            for d, (size, span) in enumerate(pairs)
        ]
        tasks = math.prod(-(-size // span) for size, span in pairs)
        name = ""
        if kernel.number < len(self.kernels):
            name = f" {self.kernels[kernel.number]}"
        axes = [f"rows d{kernel.row}"] if kernel.row is not None else []
        axes += [f"columns d{kernel.column}"] if kernel.column is not None else []
        text = [f"kernel {kernel.number}{name} over [{', '.join(sizes)}]", *axes]
        text += [f"tile {kernel.rows} x {kernel.columns}", _count(tasks, "task")]
        yield ""
        if self.symbolic is not None:
            yield from (f"{'':5} ; {line}" for line in self.symbolic.get(kernel.number, []))
        yield f"{at:5} {', '.join(text)}"
        for part, start in (("prologue", kernel.prologue), ("body", kernel.body)):
            code = list(decode.instructions(self.words, start))
            if part == "body" or len(code) > 1:
                yield f"{'':5}   {part}"
                yield from self.code(code)

    def code(self, code: list[tuple[int, isa.Op]]) -> Iterator[str]:
        depth = 0
        for at, op in code[:-1]:
            depth -= op.name == "ENDLOOP"
            yield f"{at:5}     {'  ' * depth}{self.instruction(at, op)}"
            depth += op.name == "LOOP"

    # One instruction.

    def instruction(self, at: int, op: isa.Op) -> str:
        word = self.words[at]
        if op.name == "LOOP":
            return f"for d{isa.field(word, 'dst')} by {self.words[at + 1]}"
        if op.name == "ENDLOOP":
            return "end"
        if op.name == "STORE":
            access, _ = decode.access(self.words, at + 2)
            narrow = isa.TYPES[isa.field(word, "type2")]
            flags = self.words[at + 1]
            how = " (bound)" if flags & 1 else ""
            how += " past the caches" if flags & 2 else ""
            return f"store {_narrow(narrow)}{self.access(access)} = r{isa.field(word, 'a')}{how}"
        return (
            f"{self.result(at, word, op)}{op.name.lower()} {self.operands(at, word, op)}".rstrip()
        )

    def result(self, at: int, word: int, op: isa.Op) -> str:
        """`r3: f32[r,c] = `, or nothing."""
        if "dst" not in op.fields:
            return ""
        axes = _AXES[isa.field(word, "kind_dst")]
        fold = self.words[at + 1] if op.family == "fold" else 0
        return f"r{isa.field(word, 'dst')}: {self.result_type(word, op, fold)}{axes} = "

    def result_type(self, word: int, op: isa.Op, fold: int) -> DType:
        dtype, other = isa.TYPES[isa.field(word, "type")], isa.TYPES[isa.field(word, "type2")]
        if op.family == "scalar":
            return DType.BOOL if op.meaning.endswith("(a bool)") else dtype
        if op.name == "CAST":
            return other.compute
        if op.name in ("INIT", "ACCUM", "MERGE"):
            return other
        if op.name in ("REDUCE", "FINISH") and isa.FOLDS[fold].startswith("arg"):
            return DType.I64
        return dtype

    def operands(self, at: int, word: int, op: isa.Op) -> str:
        words, behind = self.words, self.words[at + 1 : at + decode.length_at(self.words, at)]
        registers = [f"r{isa.field(word, n)}" for n in "abc" if n in op.fields]
        match op.name:
            case "CONST":
                dtype = isa.TYPES[isa.field(word, "type")]
                return str(_float(behind[0]) if dtype.is_float else decode.signed(behind[0]))
            case "PARAM":
                return str(behind[0])
            case "IOTA":
                return f"d{behind[0]}"
            case "LOAD":
                access, _ = decode.access(words, at + 2)
                wide = isa.TYPES[isa.field(word, "type2")]
                other = f" else {registers[0]}" if behind[0] & 1 else ""
                return _narrow(wide) + self.access(access) + other
            case "BIND":
                access, _ = decode.access(words, at + 1)
                return self.access(access)
            case "CAST":
                return f"{isa.TYPES[isa.field(word, 'type2')]} {registers[0]}"
            case "REDUCE" | "INIT" | "ACCUM" | "FINISH" | "SCAN" | "SPILL" | "MERGE":
                return self.fold(op.name, word, behind)
            case "MATMUL":
                left, after = decode.access(words, at + 3)
                right, _ = decode.access(words, after)
                width, depth = behind[1] & 0xFFFFFFFF, behind[1] >> 32
                sides = " ".join(self.access(a) for a in (left, right))
                panels = f" in panels of {width}" + (f" by {depth}" if depth > 1 else "")
                return f"k={behind[0]} {sides}" + (panels if width else "")
            case "ATTENTION":
                return self.attention(at, behind)
            case "CONVOLUTION":
                return self.convolution(at)
        return ", ".join(registers)

    def fold(self, name: str, word: int, behind: Sequence[int]) -> str:
        fold = isa.FOLDS[behind[0]]
        a, b = f"r{isa.field(word, 'a')}", f"r{isa.field(word, 'b')}"
        places = f" places {b}" if fold.startswith("arg") and name != "REDUCE" else ""
        if name == "SCAN":
            return f"{fold} {a} along d{behind[1]} from {b}"
        if name == "SPILL":
            return f"{fold} {a}{places} to byte {behind[1]} + {behind[2]} * task"
        if name == "MERGE":
            first = f"task // {behind[4]} * {behind[3]}"
            where = f"byte {behind[1]} + {behind[2]} * ({first})"
            return f"{fold}{places} of {behind[3]} tasks from {where}"
        return fold + (f" {a}" if name != "INIT" else "") + places

    def attention(self, at: int, behind: Sequence[int]) -> str:
        length, head, scale, flags, softcap, shift, window, dim = behind[:8]
        text = [f"keys={length} head={head} scale={_float(scale):g}"]
        text += [f"softcap={_float(softcap):g}"] if flags & 1 else []
        if flags & 2:
            text += [
                f"causal s={'0' if dim == isa.NO_DIM else f'd{dim}'} shift={decode.signed(shift)}"
            ]
        text += [f"window={window}"] if flags & 4 else []
        at += 9
        for name in ("query", "key", "value", "mask")[: 4 if flags & 8 else 3]:
            access, at = decode.access(self.words, at)
            text.append(f"\n{'':15}{name} {self.access(access)}")
        return " ".join(text)

    def convolution(self, at: int) -> str:
        own = decode.convolution(self.words, at)
        names = {}
        for number, digit in enumerate(own.digits):
            value = f"d{digit.dim}"
            value += f"//{digit.divisor}" if digit.divisor != 1 else ""
            names[number] = f"({value}%{digit.size})"
        word = self.words[at]
        text = ["sum"]
        text[0] += f" * r{isa.field(word, 'a')}" if own.scaled else ""
        text[0] += f" + r{isa.field(word, 'b')}" if own.shifted else ""
        text[0] += f" at least {own.low:g}" if own.low > float("-inf") else ""
        text[0] += f" at most {own.high:g}" if own.high < float("inf") else ""
        for number, window in enumerate(own.windows):
            point = next((names[n] for n, d in enumerate(own.digits) if d.window == number), "0")
            text.append(
                f"w{number}: {window.taps} taps of {_scaled(window.stride, point)}, dilation "
                f"{window.dilation}, pad {window.pad} of {window.extent}"
            )
        behind = [*(f"w{n}" for n in range(len(own.windows))), "k"]
        left = [*names.values(), *behind]
        dims = len(own.parts[0].right.strides) - len(behind) if own.parts else 0
        right = [*(f"d{n}" for n in range(dims)), *behind]
        for part in own.parts:
            sides = f"{self.access(part.left, left)} * {self.access(part.right, right)}"
            panels = f" in panels of {own.width}" if own.width else ""
            text.append(f"k={part.k} {sides}{panels}")
        return f"\n{'':15}".join(text)

    def access(self, access: AccessWords, names: Sequence[str] = ()) -> str:
        """`x[512*d0 + d1 + r2[100]] if 0 <= d1 < 3`; in an anchor's, the dimension behind those
        of the kernel is the contracted one. `names` are given to what strides count."""
        parts = [str(access.offset)] if access.offset else []
        for dim, stride in enumerate(access.strides):
            if stride:
                parts.append(_scaled(stride, names[dim] if names else f"d{dim}"))
        for term in access.terms:
            size = "" if term.size is None else f"[{term.size}]"
            parts.append(_scaled(term.stride, f"r{term.register}{size}"))
        text = f"{self.buffer(access.buffer)}[{' + '.join(parts) or '0'}]"
        for dim, low, high in access.masks:
            text += f" if {low} <= d{dim} < {high}"
        return text


def _narrow(memory: DType) -> str:
    """The type in memory where it is not that of registers."""
    return "" if memory.compute is memory else f"{memory} "


def _scaled(stride: int, text: str) -> str:
    return text if stride == 1 else f"{stride}*{text}"


def _float(word: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", word))[0]
    return value


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

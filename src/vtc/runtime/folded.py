"""The code that Dynamo made of a module's `forward`, with what it reads of the module read already.

That code begins by fetching each weight through the dictionaries of the modules above it, a chain
of reads that have all left the caches. While the module is watched the chain ends at the same
weight: the code is run through once on what is known, and what is left is written out as a new
function.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from torch import nn

from vtc.runtime.direct import GRAPH, UTILITIES
from vtc.runtime.guard_watch import GuardWatch


class _Unknown(Exception):  # noqa: N818 - not an error: the code is run as it is
    """The code does something that is not followed here."""


@dataclass(frozen=True)
class _Value:
    """A value on the stack: an expression of the new function, and the object if it is known."""

    text: str
    known: bool = False
    value: Any = None


_NULL = _Value("")
_SKIPPED = frozenset({"RESUME", "NOP", "PRECALL", "CACHE", "EXTENDED_ARG"})
_BUILT = {"BUILD_LIST": "[{}]", "BUILD_TUPLE": "({})"}


def folded(function: FunctionType, module: nn.Module, watch: GuardWatch) -> Callable[..., Any]:
    """`function`, whose first parameter is `module`, with what `watch` knows of that already read.
    It is `function` itself where its code does something else than reads, calls and lists."""
    code = function.__code__
    try:
        return _Folding(code, function.__globals__, module, watch).function()
    except _Unknown:
        return function


@dataclass
class _Folding:
    code: CodeType
    names: dict[str, Any]
    module: nn.Module
    watch: GuardWatch
    stack: list[_Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def function(self) -> Callable[..., Any]:
        """The new function. Raises _Unknown."""
        code = self.code
        flags = {"*": inspect.CO_VARARGS, "**": inspect.CO_VARKEYWORDS}
        stars = [star for star, flag in flags.items() if code.co_flags & flag]
        count = code.co_argcount
        if code.co_kwonlyargcount or code.co_posonlyargcount or not count:
            raise _Unknown
        parameters = code.co_varnames[: count + len(stars)]
        self.locals = {name: _Value(f"l_{name}") for name in parameters}
        self.locals[parameters[0]] = _Value("l_" + parameters[0], True, self.module)
        for instruction in dis.get_instructions(code):
            if instruction.opname == "RETURN_VALUE":
                self.lines.append(f"return {self.stack.pop().text}")
                break
            self.follow(instruction)
        starred = zip(stars, parameters[count:], strict=True)
        signature = [f"l_{n}" for n in parameters[:count]] + [f"{s}l_{n}" for s, n in starred]
        body = "\n    ".join(self.lines)
        made: dict[str, Any] = self.constants
        text = f"def run({', '.join(signature)}):\n    {body}"
        exec(compile(text, "<vtc folded code>", "exec"), made)
        return made["run"]

    def follow(self, one: dis.Instruction) -> None:
        name, arg, stack = one.opname, one.arg or 0, self.stack
        if name in _SKIPPED:
            return
        if name == "PUSH_NULL":
            stack.append(_NULL)
        elif name == "LOAD_CONST":
            stack.append(self.constant(one.argval))
        elif name == "LOAD_FAST" and one.argval in self.locals:
            stack.append(self.locals[one.argval])
        elif name == "STORE_FAST":
            self.locals[one.argval] = stack.pop()
        elif name == "DELETE_FAST":
            del self.locals[one.argval]
        elif name == "LOAD_GLOBAL" and one.argval in self.names and self.is_ours(one.argval):
            stack.extend([_NULL] * (arg & 1))
            stack.append(self.constant(self.names[one.argval]))
        elif name == "LOAD_ATTR" and not one.argrepr.startswith("NULL"):
            stack.append(self.attribute(stack.pop(), one.argval))
        elif name == "BINARY_SUBSCR":
            key = stack.pop()
            stack.append(self.item(stack.pop(), key))
        elif name == "COPY":
            stack.append(stack[-arg])
        elif name == "SWAP":
            stack[-arg], stack[-1] = stack[-1], stack[-arg]
        elif name == "POP_TOP":
            stack.pop()
        elif name in _BUILT:
            text = "".join(f"{v.text}, " for v in self.pop(arg))
            stack.append(self.made(_BUILT[name].format(text)))
        elif name == "BUILD_MAP":
            pairs = iter([v.text for v in self.pop(2 * arg)])
            text = ", ".join(f"{key}: {value}" for key, value in zip(pairs, pairs, strict=True))
            stack.append(self.made(f"{{{text}}}"))
        elif name == "LIST_EXTEND":
            more = stack.pop()
            self.lines.append(f"{stack[-arg].text}.extend({more.text})")
        elif name == "UNPACK_SEQUENCE" and arg:
            parts = [self.made("None") for _ in range(arg)]
            self.lines.append(f"{', '.join(p.text for p in parts)}, = {stack.pop().text}")
            stack.extend(reversed(parts))
        elif name == "CALL":
            self.call(arg)
        else:
            raise _Unknown

    def is_ours(self, name: str) -> bool:
        """Is a global one that Dynamo made for this code? Others may change."""
        return name.startswith((GRAPH, UTILITIES))

    def pop(self, count: int) -> list[_Value]:
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def call(self, count: int) -> None:
        given = self.pop(count)
        function = self.stack.pop()
        if not self.stack or self.stack.pop() is not _NULL or function is _NULL:
            raise _Unknown  # a method
        self.stack.append(self.made(f"{function.text}({', '.join(self.arguments(given))})"))

    def arguments(self, given: list[_Value]) -> Iterator[str]:
        """The texts of arguments; those that are known and follow each other are one tuple."""
        run: list[Any] = []
        for value in (*given, None):
            if value is not None and value.known:
                run.append(value.value)
                continue
            if run:
                yield "*" + self.constant(tuple(run)).text
                run = []
            if value is not None:
                yield value.text

    def attribute(self, of: _Value, name: str) -> _Value:
        if of.known and type(of.value) is SimpleNamespace:  # Dynamo's utilities, a copy of ours
            return self.constant(getattr(of.value, name))
        if of.known and isinstance(of.value, nn.Module) and self.watch.watches(of.value):
            own = vars(of.value)
            hidden = hasattr(inspect.getattr_static(type(of.value), name, None), "__get__")
            if name in own and self.watch.watches(own) and not hidden:
                return self.constant(own[name])
        return self.made(f"{of.text}.{name}")

    def item(self, of: _Value, key: _Value) -> _Value:
        if (
            of.known
            and key.known
            and type(key.value) in (str, int)
            and self.watch.watches(of.value)
        ):
            return self.constant(dict.__getitem__(of.value, key.value))
        return self.made(f"{of.text}[{key.text}]")

    def constant(self, value: Any) -> _Value:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return _Value(name, True, value)

    def made(self, text: str) -> _Value:
        """A value of the new function, computed here."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return _Value(name)

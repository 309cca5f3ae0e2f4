"""Calls of a compiled function that go past `torch.compile`'s wrapper.

That wrapper looks, in Python, at each state in which a call may be none of a compiled function
(tracing, exporting, stances), and has the interpreter's hook find the compiled code by its guards.
Where the tensors of a call fill the caches the wrapper takes longer than many a program. Here the
same guards, those that Dynamo made, are checked on the arguments, and the same code is run; any
other call is `torch.compile`'s.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo import eval_frame, utils

KEPT = 8  # compiled codes of one function; a call that none of the last fits is torch.compile's

_UTILITIES = f"__import_{utils.__name__.replace('.', '_dot_')}"
_UTILITY_FUNCTIONS = SimpleNamespace(
    **(vars(utils) | {"call_size": torch.Tensor.size, "call_stride": torch.Tensor.stride})
)
_GRAPH = "__compiled_fn"
_RESUME = "__resume_at"


class Code:
    """Code that Dynamo made of a function, and the guards under which it may run."""

    def __init__(self, function: FunctionType, code: CodeType, manager: Any) -> None:
        self.manager, self.check = manager, manager.root.check
        self.run = FunctionType(code, _globals(function, code), function.__name__)

    @property
    def valid(self) -> bool:
        """Dynamo takes the cache entry away when an object that it guards is no more, and when it
        is reset."""
        return self.manager.cache_entry is not None


def _globals(function: FunctionType, code: CodeType) -> dict[str, Any]:
    """The globals of the code: the function's, or those few that it needs without the wrappers
    that keep Dynamo from tracing them."""
    found = {}
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "MAKE_FUNCTION"):
            return function.__globals__
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if name == _UTILITIES:
                found[name] = _UTILITY_FUNCTIONS
            elif name.startswith(_GRAPH):
                graph = function.__globals__[name]
                found[name] = getattr(graph, "_torchdynamo_orig_callable", graph)
            else:
                return function.__globals__
    return found | {"__builtins__": function.__globals__["__builtins__"]}


class Codes:
    """What Dynamo has made of one function, the last first."""

    def __init__(self, function: FunctionType) -> None:
        self.function, self.known = function, tuple[Code, ...]()

    def add(self, of: CodeType, found: Any) -> None:
        """Notes what Dynamo's compilation of the code `of` gave; that of another code, or one in
        pieces, whose other pieces Dynamo is to find, is left to `torch.compile`."""
        guarded = getattr(found, "guarded_code", None)
        if of is not self.function.__code__ or guarded is None:
            return
        if any(name.startswith(_RESUME) for name in guarded.code.co_names):
            return
        made = Code(self.function, guarded.code, guarded.guard_manager)
        self.known = (made, *(code for code in self.known if code.valid))[:KEPT]


def suits(function: Any) -> bool:
    """Can calls of `function` be made directly? Of a plain function, whose arguments are all
    positional and that reads no variable of another."""
    if type(function) is not FunctionType or hasattr(function, "_torchdynamo_orig_callable"):
        return False
    code = function.__code__
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return not (variadic or code.co_kwonlyargcount or code.co_freevars)


def direct(
    function: FunctionType, compiled: Callable[..., Any], codes: Codes
) -> Callable[..., Any]:
    """`compiled`, which `torch.compile` made of `function`, with direct calls of `codes`.

    What traces a call without a dispatch mode (FX, `torch.jit.trace`, functorch) hands it values
    that no guard on a plain tensor accepts.
    """
    code = function.__code__
    count = code.co_argcount
    names = code.co_varnames[:count]
    modes = torch._C._len_torch_dispatch_stack

    def call(*args: Any, **kwargs: Any) -> Any:
        stance = eval_frame._stance
        plain = not kwargs and len(args) == count and stance.stance == "default"
        if not plain or stance.backend is not None or modes():
            return compiled(*args, **kwargs)
        before = set_eval_frame(None)
        try:
            values = dict(zip(names, args, strict=True))
            for known in codes.known:
                if known.valid and known.check(values):
                    return known.run(*args)
        finally:
            set_eval_frame(before)
        return compiled(*args)

    eval_frame.skip_code(call.__code__)  # or a caller that Dynamo traces would have it compiled
    made: Any = functools.wraps(compiled)(call)
    made._torchdynamo_wrapper_id = id(made)
    return made

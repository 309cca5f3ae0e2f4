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
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo import eval_frame, utils

KEPT = 8  # compiled codes of one function; a call that none of the last fits is torch.compile's

# Names of globals that Dynamo makes: the module of its utilities, and compiled graphs.
UTILITIES = f"__import_{utils.__name__.replace('.', '_dot_')}"
_UTILITY_FUNCTIONS = SimpleNamespace(
    **(vars(utils) | {"call_size": torch.Tensor.size, "call_stride": torch.Tensor.stride})
)
GRAPH = "__compiled_fn"
_RESUME = "__resume_at"
_OWN = "_vtc_"
_CALL = """\
def call({signature}):
    {defaults}
    _vtc_stance = _vtc_frames._stance
    if _vtc_stance.stance != "default" or _vtc_stance.backend is not None or _vtc_modes():
        return _vtc_stock({arguments})
    _vtc_before = _vtc_set(None)
    try:
        _vtc_values = {{{values}}}
        for _vtc_known in _vtc_codes.known:
            if _vtc_known.manager.cache_entry is not None and _vtc_known.check(_vtc_values):
                return _vtc_known.run({all_arguments})
    finally:
        _vtc_set(_vtc_before)
    return _vtc_stock({arguments})
"""
# Defaults are the function's at the time of the call.
_DEFAULTS = """if {missing}:
        if _vtc_function.__defaults__ is not _vtc_defaults:
            _vtc_given = {{{values}}}.items()
            return _vtc_compiled(**{{n: v for n, v in _vtc_given if v is not _vtc_missing}}{more})
        {fill}"""


class Code:
    """Code that Dynamo made of a function, and the guards under which it may run."""

    def __init__(self, function: FunctionType, code: CodeType, manager: Any) -> None:
        self.manager, self.check = manager, manager.root.check
        self.plain = FunctionType(code, _globals(function, code), function.__name__)
        self.run: Callable[..., Any] = self.plain

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
            if name == UTILITIES:
                found[name] = _UTILITY_FUNCTIONS
            elif name.startswith(GRAPH):
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
        made = self.made(guarded.code, guarded.guard_manager)
        self.known = (made, *(code for code in self.known if code.valid))[:KEPT]

    def made(self, code: CodeType, manager: Any) -> Code:
        """The code as it is to be run."""
        return Code(self.function, code, manager)


def suits(function: Any) -> bool:
    """Can calls of `function` be made directly? Of a plain function that has no keyword-only
    parameters, and that reads no variable of another."""
    if type(function) is not FunctionType or hasattr(function, "_torchdynamo_orig_callable"):
        return False
    code = function.__code__
    unnamed = code.co_posonlyargcount and function.__defaults__  # cannot be passed on by name
    if code.co_kwonlyargcount or code.co_freevars or unnamed:
        return False
    names = (*code.co_varnames[: code.co_argcount], *_variadic(code).values())
    return not any(name.startswith(_OWN) for name in names)


def _variadic(code: CodeType) -> dict[str, str]:
    """The parameters that take any number of arguments: "*" and "**" to their names."""
    names = iter(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    stars = {"*": inspect.CO_VARARGS, "**": inspect.CO_VARKEYWORDS}
    return {star: next(names) for star, flag in stars.items() if code.co_flags & flag}


def _without_defaults(
    compiled: Callable[..., Any], names: Sequence[str], defaults: Sequence[Any]
) -> Callable[..., Any]:
    """`compiled`, called with its parameters in order, without those that have their defaults:
    Dynamo takes a default for a constant, but a number that is passed for one that changes."""
    if not defaults:
        return compiled
    required = len(names) - len(defaults)

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            return compiled(*args, **kwargs)
        last = zip(names[required:], args[required:], defaults, strict=True)
        given = {name: value for name, value, default in last if value is not default}
        return compiled(*args[:required], **given, **kwargs)

    return call


def direct(
    function: FunctionType,
    compiled: Callable[..., Any],
    codes: Codes,
    module: torch.nn.Module | None = None,
) -> Callable[..., Any]:
    """`compiled`, which `torch.compile` made of `function`, with direct calls of `codes`. With a
    `module` both are calls of it: the first parameter of `function`, which `compiled` lacks.

    It is written out with the parameters of `function`, so that a call packs no arguments. What
    traces a call without a dispatch mode (FX, `torch.jit.trace`, functorch) hands it values that no
    guard on a plain tensor accepts.
    """
    code, defaults = function.__code__, function.__defaults__ or ()
    bound = module is not None
    names = code.co_varnames[: code.co_argcount]
    given = names[bound:]
    variadic = _variadic(code)
    starred = [star + name for star, name in variadic.items()]
    pairs, more = ([f"{n!r}: {n}" for n in some] for some in (given, variadic.values()))
    own = [f"{names[0]!r}: _vtc_module"] if bound else []
    left_out = names[len(names) - len(defaults) :]
    signature = [f"{n}=_vtc_missing" if n in left_out else n for n in given]
    if code.co_posonlyargcount > bound:
        signature.insert(code.co_posonlyargcount - bound, "/")
    fill = [f"if {n} is _vtc_missing: {n} = _vtc_defaults[{k}]" for k, n in enumerate(left_out)]
    text = _CALL.format(
        signature=", ".join((*signature, *starred)),
        defaults=_DEFAULTS.format(
            missing=" or ".join(f"{name} is _vtc_missing" for name in left_out),
            values=", ".join(pairs),
            more=f", **{variadic['**']}" if "**" in variadic else "",
            fill="\n        ".join(fill),
        )
        if left_out
        else "",
        arguments=", ".join((*given, *starred)),
        all_arguments=", ".join((*["_vtc_module"] * bound, *given, *starred)),
        values=", ".join((*own, *pairs, *more)),
    )
    made: dict[str, Any] = {
        "_vtc_frames": eval_frame,
        "_vtc_modes": torch._C._len_torch_dispatch_stack,
        "_vtc_set": set_eval_frame,
        "_vtc_codes": codes,
        "_vtc_compiled": compiled,
        "_vtc_stock": _without_defaults(compiled, given, defaults),
        "_vtc_missing": object(),
        "_vtc_function": function,
        "_vtc_defaults": function.__defaults__,
        "_vtc_module": module,
    }
    exec(compile(text, "<vtc call>", "exec"), made)
    call: Any = made["call"]
    eval_frame.skip_code(call.__code__)  # or a caller that Dynamo traces would have it compiled
    functools.update_wrapper(call, compiled)
    call._torchdynamo_wrapper_id = id(call)
    return call

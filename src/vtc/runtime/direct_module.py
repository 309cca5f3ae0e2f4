"""Calls of a compiled module past `torch.compile`'s wrapper and past most of Dynamo's guards.

`torch.compile` checks for each call what a model was when it was compiled, module by module and
weight by weight. Here that is watched (`guard_watch.py`): while nothing has changed only the guards
on arguments, globals and modes are checked, and the same code is run. When something has, Dynamo's
guards say whether it matters, and the watch begins anew from what is there then. What a call of a
module looks at outside of guards (hooks, another `forward`) is watched beside it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules import module as module_calls

from vtc.runtime.direct import Code, Codes, direct, suits
from vtc.runtime.folded import folded
from vtc.runtime.guard_watch import GuardWatch, can_watch, watch_guards

# A watch is begun so many times, not counting those that then served for so many calls: to begin
# takes longer than to check guards.
PATIENCE, WORTH = 32, 100

_CALLS = {name: inspect.getattr_static(nn.Module, name) for name in ("__call__", "_call_impl")}
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
# Dictionaries that are there for good.
_GLOBAL_HOOKS = tuple(getattr(module_calls, f"_global{name}") for name in _HOOKS)


def called_directly(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The same module of `torch.compile`'s, whose calls are direct where they can be.

    Only a copy that shares nothing with it (`copy.deepcopy`, pickle) calls through the wrapper.
    """
    if not isinstance(compiled, OptimizedModule) or not can_watch():
        return compiled
    model = compiled._orig_mod
    function = inspect.getattr_static(type(model), "forward", None)
    names = getattr(getattr(function, "__code__", None), "co_argcount", 0)
    lazy = inspect.getattr_static(model, "_initialize_hook", None) is not None
    if not suits(function) or not names or lazy or "forward" in vars(model):
        return compiled
    codes = _ModuleCodes(model, function, _innermost(compiled.dynamo_ctx.callback))
    stock = compiled.forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        with _hooks_guarded():
            result = stock(*args, **kwargs)
        codes.note()
        return result

    noted.__dict__.update(vars(stock))
    compiled.forward = direct(function, noted, codes, model)
    return compiled


@contextlib.contextmanager
def _hooks_guarded() -> Iterator[None]:
    """Dynamo leaves out the guards that modules without hooks still have none: where they are
    watched they cost nothing, and a hook that comes later is called as in eager PyTorch."""
    config = torch._dynamo.config
    before = config.skip_nnmodule_hook_guards
    config.skip_nnmodule_hook_guards = False
    try:
        yield
    finally:
        config.skip_nnmodule_hook_guards = before


def _innermost(callback: Any) -> Any:
    """The backend inside of what Dynamo wraps around it."""
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback


class _ModuleCodes(Codes):
    """What Dynamo has made of one module's `forward` with one backend."""

    def __init__(self, model: nn.Module, function: FunctionType, backend: Any) -> None:
        super().__init__(function)
        self.model, self.code, self.backend = model, function.__code__, backend

    def note(self) -> None:
        """Takes up what Dynamo has made since the last time."""
        known = {id(code.manager) for code in self.known}
        for entry in reversed(_debug_get_cache_entry_list(self.code)):
            made_by = getattr(entry, "backend", None)
            if made_by is self.backend and id(entry.guard_manager) not in known:
                self.add(self.code, _Guarded(entry))

    def made(self, code: Any, manager: Any) -> Code:
        return _ModuleCode(self, code, manager)


class _Guarded:
    """A cache entry of Dynamo's, as its compilation would give it."""

    def __init__(self, entry: Any) -> None:
        self.guarded_code = self
        self.code, self.guard_manager = entry.code, entry.guard_manager


class _ModuleCode(Code):
    """Code that Dynamo made of a module's `forward`, with a watch of its guards on the module."""

    def __init__(self, codes: _ModuleCodes, code: Any, manager: Any) -> None:
        super().__init__(codes.function, code, manager)
        self.codes, self.guards = codes, manager.root
        self.check = self.holds
        self.watch: GuardWatch | None = None
        self.patience, self.served = PATIENCE, 0

    def holds(self, values: dict[str, Any]) -> bool:
        """May the code run on these arguments, `forward`'s parameters by name?"""
        if not self.called_plainly():
            return False
        watch = self.watch
        if watch is not None:
            if watch():
                self.served += 1
                return watch.check(values)
            self.watch, self.run = None, self.plain
        if self.hooked() or not self.guards.check(values):
            return False
        # Begun before the guards are checked: what changes meanwhile is seen by the next call.
        watch = self.begun()
        if not self.guards.check(values):
            return False
        if watch is not None:
            self.watch, self.run = watch, folded(self.plain, self.codes.model, watch)
        return True

    def begun(self) -> GuardWatch | None:
        self.patience -= self.served < WORTH
        self.served = 0
        if self.patience < 0:
            return None
        codes, model = self.codes, self.codes.model
        more = [getattr(model, name) for name in _HOOKS]
        return watch_guards(self.guards, codes.code.co_varnames[0], model, more)

    def called_plainly(self) -> bool:
        """Would `model(...)` call the function that was compiled, and nothing else?"""
        codes = self.codes
        kind = type(codes.model)
        return (
            kind.forward is codes.function
            and codes.function.__code__ is codes.code
            and kind.__call__ is _CALLS["__call__"]
            and kind._call_impl is _CALLS["_call_impl"]
            and not any(_GLOBAL_HOOKS)
            and torch._C._get_tracing_state() is None
        )

    def hooked(self) -> bool:
        """Has the module hooks, or a `forward` of its own? While it is watched it has none."""
        own = vars(self.codes.model)
        return (
            any(own[name] for name in _HOOKS)
            or "forward" in own
            or own.get("_compiled_call_impl") is not None
        )

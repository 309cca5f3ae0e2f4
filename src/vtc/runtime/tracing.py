"""What makes PyTorch's tracers faster on graphs whose sizes are symbols, while a frame is traced.

Both only leave out work whose result is known: an answer that cannot be told from PyTorch's own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo import symbolic_convert
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode

# Of PyTorch's operators on two sizes, those that its tensors ask for.
_BINARY = ("add", "sub", "mul", "eq", "ne", "ge", "gt", "le", "lt", "sym_max", "sym_min")
Memo = dict[tuple[Any, ...], SymNode]
Binary = Callable[[SymNode, SymNode], SymNode]


@contextlib.contextmanager
def quick_tracing() -> Iterator[None]:
    """Sizes are computed once, and no source file is parsed for a message that nobody gets.

    Each tensor that a tracer makes asks for products and comparisons of its sizes and strides,
    whether it is contiguous for one: 30,000 times for a language model of four layers, with 400
    different answers.
    """
    memo: Memo = {}
    with contextlib.ExitStack() as stack:
        for name in _BINARY:
            stock = getattr(SymNode, f"_{name}", None)
            if stock is not None:
                stack.enter_context(_replaced(SymNode, f"_{name}", _once(name, stock, memo)))
        if not _log_of_calls():
            stack.enter_context(_replaced(symbolic_convert, "get_funcname", lambda *_: None))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner` with another attribute, if it has one of this name."""
    stock = getattr(owner, name, None)
    if stock is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, stock)


def _once(name: str, stock: Binary, memo: Memo) -> Binary:
    """The operator on two sizes of known hints, its result computed once for equal ones.

    Each result is a node of its own: tracers tell nodes from one another.
    What a proxy records is left to PyTorch, as are sizes that depend on data, whose hints may be
    told later, and what translation validation notes.
    """

    def once(self: SymNode, other: SymNode) -> SymNode:
        if not _plain(self) or not _plain(other) or get_proxy_mode():
            return stock(self, other)
        key = (name, self.shape_env, self.expr, other.expr, self.hint, other.hint)
        known = memo.get(key)
        if known is None:
            known = stock(self, other)
            if known.fx_node:
                return known
            memo[key] = known
        found = object.__new__(SymNode)
        found.__dict__.update(known.__dict__)
        return found

    return once


def _plain(node: SymNode) -> bool:
    return type(node) is SymNode and node.pytype is int and type(node.hint) is int


def _log_of_calls() -> bool:
    """Does Dynamo log which line an operator comes from?"""
    names = ("trace_call_log", "trace_source_log")
    logs = [getattr(symbolic_convert, name, None) for name in names]
    return any(log is None or log.isEnabledFor(logging.DEBUG) for log in logs)

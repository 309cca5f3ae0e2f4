"""The value of a symbolic size, and which sizes tile programs may hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import sympy
from torch.utils._sympy import functions as torch_functions

from vtc.index.sizes import Size

# Functions of integers that an encoder can evaluate; sums and products beside them.
_FUNCTIONS: dict[type, Callable[..., int]] = {
    torch_functions.FloorDiv: lambda a, b: a // b,
    torch_functions.PythonMod: lambda a, b: a % b,
    torch_functions.Mod: lambda a, b: a % b,
    torch_functions.Max: max,
    torch_functions.Min: min,
    sympy.Max: max,
    sympy.Min: min,
    torch_functions.PowByNatural: pow,
    sympy.Pow: pow,
    sympy.Add: lambda *terms: sum(terms),
    sympy.Mul: lambda *factors: math.prod(factors),
}


def size_value(size: Size, values: Mapping[str, int]) -> int:
    """The size with its symbols replaced by their values, by name.

    Raises KeyError for a symbol without a value, ZeroDivisionError, and ValueError for a function
    that tile programs do not have.
    """
    if isinstance(size, int):
        return size
    return _value(size, values)


def _value(size: Any, values: Mapping[str, int]) -> int:
    if isinstance(size, sympy.Symbol):
        return values[size.name]
    if isinstance(size, sympy.Integer):
        return int(size)
    function = _function(size)
    if function is None:
        raise ValueError(f"{size.func.__name__} is no function of sizes")
    return function(*(_value(a, values) for a in size.args))


def _function(size: Any) -> Callable[..., int] | None:
    """The function of a node; its class may derive from the one in the table."""
    if isinstance(size, sympy.Pow | torch_functions.PowByNatural):
        exponent = size.args[1]
        if not (isinstance(exponent, sympy.Integer) and exponent >= 0):
            return None
    return next((f for kind, f in _FUNCTIONS.items() if isinstance(size, kind)), None)


def faults(size: object, symbols: Collection[str]) -> Iterator[str]:
    """What keeps `size` from being a size over `symbols`, in words; nothing if it is one."""
    if isinstance(size, bool) or not isinstance(size, int | sympy.Expr):
        yield f"{size!r} is no size"
    elif isinstance(size, sympy.Expr):
        for node in sympy.preorder_traversal(size):
            if isinstance(node, sympy.Symbol):
                if node.name not in symbols:
                    yield f"the symbol {node.name} in {size} is not one of the module's"
            elif not isinstance(node, sympy.Integer) and _function(node) is None:
                yield f"{node.func.__name__} in {size} is no function of sizes"

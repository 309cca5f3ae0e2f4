"""The tensors that a stream hands out before their values are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vtc import errors


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


class Owner(Protocol):
    """What computes the values of pending tensors."""

    def flush(self) -> None:
        """Computes them all."""

    def handle(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Records or runs an operator."""


class Pending(Tensor):
    """A tensor with sizes, strides and a dtype, whose value its stream has still to compute.

    It owns no memory: what reads it through the dispatcher or by the methods of a tensor has the
    value computed first, on any thread, and C++ that takes its address by other ways gets none.
    When the stream has run, the object becomes a plain tensor, unless C++ holds it just then; until
    it does, operators on it run on the plain tensor behind it.

    `_node`: its number in the stream's program, -1 once that has run. `_real`: the plain tensor.
    """

    _owner: Owner
    _node: int
    _real: Tensor | None
    _error: BaseException | None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tensors_in((*args, *kwargs.values())):
            if type(value) is Pending:
                return value._owner.handle(func, args, kwargs)
        return eager(func, args, kwargs)


def pending(owner: Owner, node: int, shape: Any, stride: Any, offset: int, dtype: Any) -> Pending:
    """A tensor of that layout, the value of the owner's node."""
    made = _make(Pending, shape, stride, offset, None, dtype)
    made._owner = owner
    made._node = node
    made._real = made._error = None
    return made


_make: Callable[..., Any] = torch.Tensor._make_wrapper_subclass


def real(value: Pending) -> Tensor:
    """The plain tensor of a value, computed if it is not. Raises LostValueError."""
    if value._real is None and value._error is None:
        value._owner.flush()
        if type(value) is not Pending:
            return value  # the object is a plain tensor now
    if value._real is None:
        raise errors.LostValueError(str(value._error)) from value._error
    return value._real


def settle(value: Pending, plain: Tensor | None = None) -> bool:
    """Gives a pending tensor its value. True if the object is a plain tensor from here on."""
    if plain is None:
        plain = value._real
        assert plain is not None
    value._real, value._node = plain, -1
    if value.requires_grad or value._use_count() != 1:
        return False
    torch._C._swap_tensor_impl(value, plain)
    for name in ("_owner", "_node", "_real", "_error"):
        del value.__dict__[name]
    value.__class__ = Tensor
    return True


def eager(func: Any, args: Any, kwargs: Any) -> Any:
    """The operator run by PyTorch, on plain tensors."""
    if not any(type(t) is Pending for t in tensors_in((*args, *kwargs.values()))):
        return func(*args, **kwargs)
    originals: dict[int, Pending] = {}

    def plain(value: Any) -> Any:
        if type(value) is not Pending:
            return value
        found = real(value)
        originals[id(found)] = value
        return found

    own_args, own_kwargs = pytree.tree_map_only(Tensor, plain, (args, kwargs))
    result = func(*own_args, **own_kwargs)
    if not originals:
        return result
    if torch.Tag.inplace_view in getattr(func, "tags", ()):
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
    return pytree.tree_map_only(Tensor, lambda t: originals.get(id(t), t), result)


def _reading(name: str) -> Any:
    """A method that reads memory, or hands it out, as one of the plain tensor."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(real(self), name)(*args, **kwargs)

    return method


# What gets at the memory of a tensor beside the dispatcher.
_READS = (
    "__array__", "__deepcopy__", "__dlpack__", "__format__", "__reduce_ex__", "__repr__", "__str__",
    "_typed_storage", "apply_", "const_data_ptr", "data_ptr", "is_shared", "map2_", "map_",
    "mutable_data_ptr", "numpy", "share_memory_", "storage", "tolist", "untyped_storage",
)  # fmt: skip
for _name in _READS:
    if hasattr(Tensor, _name):
        setattr(Pending, _name, _reading(_name))

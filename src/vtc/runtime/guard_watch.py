"""Dynamo's guards on a module, watched instead of checked.

Most guards of a model look at its modules: at types, dictionaries, numbers and weights, thousands
of small objects that have left the caches when the next call comes. What they say can only have
changed if one of these objects has. A `GuardWatch` looks at that in native code: at the version of
each dictionary, at the type of each module and where its attributes are, and of each weight at its
type, address, layout, dispatch keys and whether it requires gradients. That a module has no hooks
is told by PyTorch's count of all hooks that were ever registered.

Guards are left to the watch only where each step from the module to what they look at is one of
those, and the guard is a function of what is watched. All others (on arguments, globals, modes, or
anything unknown) stay guards of Dynamo's, in a copy of its tree without those that are watched. Not
watched is one thing that bears on no answer: whether a weight's sizes were marked as dynamic.
"""

from __future__ import annotations

import ast
import ctypes
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from vtc.errors import EngineUnavailableError
from vtc.runtime.unchanged import watch_layouts
from vtc.vm import machine

_SHARED = frozenset({"TYPE_MATCH", "ID_MATCH", "NOT_NONE", "NOT_NONE_MATCH"})
# By kind of value, the guards that are functions of what is watched of it.
_GUARDS = {
    "constant": _SHARED
    | {"EQUALS_MATCH", "LENGTH_CHECK", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH", "FLOAT_IS_NAN"},
    "dict": _SHARED
    | {"LENGTH_CHECK", "DICT_LENGTH", "DICT_CONTAINS", "DICT_VERSION", "MAPPING_KEYS_MATCH"},
    "module": _SHARED,
    "tensor": _SHARED | {"TENSOR_MATCH", "DIMENSION_DYNAMIC_MARKING_GUARD"},
}
_CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_DICTS = (dict, OrderedDict)
_TENSORS = (torch.Tensor, nn.Parameter)
_MISSING = object()

_WORD = 8
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_TYPE_PLACE = object.__basicsize__ - _WORD  # of the type in an object
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT
_MANAGED_PLACE = -3 * _WORD  # of such a dictionary, before the object
_IMPLEMENTATION_WORDS = 24  # that are searched for a tensor's dispatch keys


class GuardWatch:
    """What the guards on one module have seen, and those guards that are left.

    Calling it tells if nothing has changed that the watched guards look at. `check` are the other
    guards, on the values of the frame's variables by name.
    """

    def __init__(self, tree: _Tree, check: Callable[[dict[str, Any]], bool]) -> None:
        native = machine.native_module()
        self.check = check
        tensors = list(tree.tensors.values())
        layouts = watch_layouts(tensors)
        if layouts is None:
            raise Unwatchable
        keys = _keys_places(tensors)  # raises for a tensor of another kind than it takes it for
        # Strong references: what is watched stays in its place.
        self._kept: tuple[dict[int, Any], ...] = (tree.dicts, tree.modules, tree.tensors)
        objects = [*map(_type_place, tree.modules.values()), *map(_type_place, tensors)]
        objects += map(_dict_place, tree.modules.values())
        objects += map(_implementation_place, tensors)
        self._natives = (
            native.DictWatch(list(tree.dicts.values())),
            native.WordWatch(objects),
            native.WordWatch(keys),
        )
        dicts, words, keyed = (n.unchanged for n in self._natives)
        # In this order: the last two look at what the objects stand for.
        self._parts = dicts, words, keyed, layouts
        self._hooks, self._registered = list(tree.hooks.values()), tree.registered

    def __call__(self) -> bool:
        dicts, words, keys, layouts = self._parts
        registered = RemovableHandle.next_id == self._registered or self._unhooked()
        return registered and dicts() and words() and keys() and layouts()

    def _unhooked(self) -> bool:
        """Have other modules, or tensors, got the hooks that were registered since?"""
        registered = RemovableHandle.next_id
        if any(self._hooks):
            return False
        self._registered = registered
        return True

    def watches(self, value: Any) -> bool:
        """Is the value a dictionary, a module or a tensor whose changes are seen?"""
        return any(id(value) in kept for kept in self._kept)


class Unwatchable(Exception):  # noqa: N818 - not an error: the guards are checked then
    """What would have to be watched cannot be, in this release of Python or PyTorch."""


def can_watch() -> bool:
    """Does this Python tell what is watched? CPython up to 3.12, which counts what is done to
    dictionaries and keeps the attributes of an object whose `__dict__` was asked for in that."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False
    try:
        return bool(machine.native_module().dicts_are_counted())
    except EngineUnavailableError:
        return False


def watch_guards(
    root: Any, name: str, module: nn.Module, more: list[dict[Any, Any]]
) -> GuardWatch | None:
    """A watch of the guards under the root manager `root` on the frame's variable `name`, which is
    `module`; of its own dictionary and those of `more` besides. None where it cannot be watched."""
    sources = Counter(m.get_source() for m in _managers(root))
    tree = _Tree(sources)
    managers = root.get_child_managers()
    accessors = root.get_accessors()
    if len(managers) != len(accessors):
        return None
    try:
        for accessor, manager in zip(accessors, managers, strict=True):
            if accessor.repr().startswith(f"FrameLocalsGuardAccessor(key='{name}'"):
                tree.visit(manager, module)  # finds what is seen, of which aliases speak
                tree.watched.clear()
                tree.keys.clear()
                tree.visit(manager, module)
        tree.note(module)
        for own in (vars(module), *more):
            tree.dicts[id(own)] = own
        left = root.clone_manager(lambda manager: manager.get_source() not in tree.watched)
        return GuardWatch(tree, left.check)
    except (Unwatchable, AttributeError):
        return None


def _managers(manager: Any) -> Iterator[Any]:
    yield manager
    for child in manager.get_child_managers():
        yield from _managers(child)
    for pair in _items(manager).values():
        for child in filter(None, pair):
            yield from _managers(child)


def _items(manager: Any) -> dict[int, tuple[Any, Any]]:
    """Of guards on a dictionary by position, the managers of keys and values."""
    if not hasattr(manager, "get_key_value_managers"):
        return {}
    return manager.get_key_value_managers()


@dataclass
class _Tree:
    """A walk of guard managers beside the objects that they look at.

    sources: how many managers have a source text. watched: the sources of managers that are left to
    the watch, with all below. dicts, modules, tensors: what is to be watched, by id. keys: texts of
    the dispatch keys that a guard is kept for. seen: the sources of all that is watched. hooks:
    empty dictionaries of hooks, by id. registered: how many hooks there had been at the beginning.
    """

    sources: Counter[str]
    watched: set[str] = field(default_factory=set)
    dicts: dict[int, dict[Any, Any]] = field(default_factory=dict)
    modules: dict[int, nn.Module] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    hooks: dict[int, dict[Any, Any]] = field(default_factory=dict)
    registered: int = field(default_factory=lambda: RemovableHandle.next_id)

    def visit(self, manager: Any, value: Any) -> bool:
        """Notes what is watched at and below a manager; tells if that is all that it looks at."""
        kind = self.note(value)
        if kind is None:
            return False
        accessors, children = manager.get_accessors(), manager.get_child_managers()
        if len(accessors) != len(children):
            return False
        self.seen.add(manager.get_source())
        leaves = manager.get_leaf_guards()
        whole = all(self._follows(leaf, _GUARDS[kind]) for leaf in leaves)
        whole = not (kind == "tensor" and self._first_of_its_keys(leaves)) and whole
        for accessor, child in zip(accessors, children, strict=True):
            below = _step(accessor, kind, value)
            whole = below is not _MISSING and self.visit(child, below) and whole
        for position, pair in _items(manager).items():
            if type(value) is not dict:  # others have an order that no version tells
                return False
            item = list(value.items())[position]
            for child, below in zip(pair, item, strict=True):
                whole = (child is None or self.visit(child, below)) and whole
        source = manager.get_source()
        if whole and self.sources[source] == 1:
            self.watched.add(source)
            return True
        return False

    def _follows(self, leaf: Any, known: frozenset[str]) -> bool:
        """Does a guard follow from what is watched? That two things are one does if both are."""
        if type(leaf).__name__ != "OBJECT_ALIASING":
            return type(leaf).__name__ in known
        parts = [part.partition("#")[0].split(" is ") for part in leaf.verbose_code_parts()]
        return all(len(two) == 2 and {t.strip() for t in two} <= self.seen for two in parts)

    def note(self, value: Any) -> str | None:
        """The kind of a value, which is watched from now on; None for one that cannot be."""
        if _constant(value):
            return "constant"
        if type(value) in _DICTS:
            if id(value) not in self.hooks:
                self.dicts[id(value)] = value
            return "dict"
        if type(value) in _TENSORS:
            self.tensors[id(value)] = value
            return "tensor"
        if isinstance(value, nn.Module):
            self.modules[id(value)] = value
            own = object.__getattribute__(value, "__dict__")
            found = (own.get(name) for name in _HOOKS)
            self.hooks |= {
                id(hooks): hooks for hooks in found if type(hooks) in _DICTS and not hooks
            }
            return "module"
        return None

    def _first_of_its_keys(self, leaves: list[Any]) -> bool:
        """Is this the first tensor of its dispatch keys? Its guard stays: how the thread's state
        (inference mode, say) changes the keys of tensors is not watched."""
        kept = [leaf for leaf in leaves if type(leaf).__name__ == "TENSOR_MATCH"]
        if not kept:
            return False
        text = "".join(part for leaf in kept for part in leaf.verbose_code_parts())
        found = re.search(r"DispatchKeySet\([^)]*\)", text)
        keys = found[0] if found else text
        first = keys not in self.keys
        self.keys.add(keys)
        return first


def _constant(value: Any) -> bool:
    if type(value) in (tuple, torch.Size):
        return all(map(_constant, value))
    return type(value) in _CONSTANTS


def _step(accessor: Any, kind: str, value: Any) -> Any:
    """What an accessor gives of a value, if it is a step that is watched."""
    name = type(accessor).__name__
    if name == "GetGenericDictGuardAccessor" and kind == "module":
        return object.__getattribute__(value, "__dict__")
    found = re.fullmatch(rf"{name}\((.*)\)", accessor.repr(), re.DOTALL)
    if found is None:
        return _MISSING
    try:
        key = ast.literal_eval(found[1])
    except (SyntaxError, ValueError):
        return _MISSING
    if name == "DictGetItemGuardAccessor" and kind == "dict" and type(key) in (str, int):
        return dict.get(value, key, _MISSING)
    if name == "TupleGetItemGuardAccessor" and type(value) is tuple and type(key) is int:
        return value[key] if 0 <= key < len(value) else _MISSING
    return _MISSING


def _word(place: int) -> int:
    return ctypes.c_uint64.from_address(place).value


def _type_place(value: Any) -> int:
    place = id(value) + _TYPE_PLACE
    if _word(place) != id(type(value)):
        raise Unwatchable
    return place


def _dict_place(module: nn.Module) -> int:
    """Where an object keeps its dictionary of attributes."""
    own = object.__getattribute__(module, "__dict__")  # makes it, if there is none yet
    kind = type(module)
    if kind.__flags__ & _MANAGED_DICT:
        place = id(module) + _MANAGED_PLACE
    elif kind.__dictoffset__ > 0:
        place = id(module) + kind.__dictoffset__
    else:
        raise Unwatchable
    if _word(place) != id(own):
        raise Unwatchable
    return place


def _implementation_place(tensor: torch.Tensor) -> int:
    """Where a tensor's object keeps the address of its TensorImpl."""
    place = id(tensor) + object.__basicsize__
    if _word(place) != tensor._cdata:
        raise Unwatchable
    return place


def _keys_places(tensors: list[torch.Tensor]) -> list[int]:
    """Where TensorImpls keep their dispatch keys: the one word that is them, at one offset."""
    if not tensors:
        return []
    offsets: set[int] = set(range(_IMPLEMENTATION_WORDS))
    for tensor in tensors:
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        offsets = {k for k in offsets if _word(tensor._cdata + k * _WORD) == keys}
    if len(offsets) != 1:
        raise Unwatchable
    (offset,) = offsets
    return [t._cdata + offset * _WORD for t in tensors]

"""Checks of result files: the place where a value departs from the schema, as a `ValueError`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NUMBER = (int, float)


def keys(value: Any, names: Iterable[str], place: str) -> None:
    """Exactly these keys: a misspelt one would be missing and unknown."""
    if not isinstance(value, dict):
        raise ValueError(f"{place} is {type(value).__name__}, not an object")
    wanted = set(names)
    if missing := sorted(wanted - set(value)):
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    if extra := sorted(set(value) - wanted):
        raise ValueError(f"{place} has unknown {', '.join(extra)}")


def typed(value: Any, kinds: tuple[type, ...], place: str, null: bool = False) -> None:
    """A value of one of these types, or null where that may be."""
    if value is None and null:
        return
    # In Python a bool is an int: a truth value is no measurement.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{place} is {value!r}, not {' or '.join(k.__name__ for k in kinds)}")

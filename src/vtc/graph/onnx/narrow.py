"""Integers of less than a byte (INT4, UINT2, ...), which torch does not compute with.

They are carried in bytes of their own. An operator has to know of it (the dtype says nothing), or
do nothing but move elements; any other is refused, as it would compute with a wider type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vtc.graph.onnx.dtypes import PACKED
from vtc.graph.onnx.registry import Rule

MOVES = (
    *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat"),
    *("Split", "Slice", "Expand", "Gather"),
)


class Refusal(Exception):  # noqa: N818 - becomes an error that knows the node
    """An operator that cannot be given such values."""


class Narrow:
    """Which values of an import are of such a type: known by identity, and kept alive."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, int]] = {}

    def note(self, value: Any, kind: int | None) -> None:
        if kind in PACKED:
            self.held[id(value)] = (value, kind)

    def kind(self, value: Any) -> int | None:
        """The type of a value, None for all that are not narrow."""
        found = self.held.get(id(value))
        return found[1] if found else None


def result_kind(rule: Rule, given: Sequence[int | None], wanted: Sequence[int]) -> int | None:
    """The narrow type of an operator's results; None for others.

    `given` are the types of its inputs, and `wanted` those that its attributes ask for. Raises
    `Refusal`.
    """
    if not wanted and not any(given):
        return None
    if "bits" in rule.special:  # the second or third input is an example of the result
        return next(iter([*wanted, *filter(None, given[1:])]), None)
    if rule.name in MOVES and (len(set(given)) == 1 or not any(given[1:])):
        return given[0]
    if rule.name == "DequantizeLinear" and not wanted:
        return None
    raise Refusal("it computes with elements of less than a byte")

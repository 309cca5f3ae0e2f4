"""Control flow, sequences and optional values. A sequence is a Python list.

Conditions and trip counts that are known while tracing leave no trace; others are read from the
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtc.graph.onnx import host
from vtc.graph.onnx.control import Subgraph, call
from vtc.graph.onnx.host import Host, Value, ints, number, tensor, tensors
from vtc.graph.onnx.registry import ALL, rule


def _results(values: Sequence[Value], outputs: int) -> Any:
    return values[0] if outputs == 1 else tuple(values)


@rule("If", host=(ALL,))
def if_(cond: Value, *, then_branch: Subgraph, else_branch: Subgraph, outputs: int) -> Any:
    return _results(call(then_branch if bool(number(cond)) else else_branch), outputs)


@rule("Loop", host=(ALL,))
def loop(
    trip_count: Value = None, cond: Value = None, *carried: Value, body: Subgraph, outputs: int
) -> Any:
    limit = number(trip_count)
    going = bool(number(cond, True))
    state: list[Value] = list(carried)
    scanned: list[list[Value]] = [[] for _ in range(outputs - len(carried))]
    step = 0
    while going and (limit is None or step < limit):
        goes_on, *results = call(body, host.scalar(step), host.scalar(True, torch.bool), *state)
        going = bool(number(goes_on))
        state = results[: len(state)]
        for rows, row in zip(scanned, results[len(state) :], strict=True):
            rows.append(tensor(row))
        step += 1
    return _results([*state, *(_stacked(rows) for rows in scanned)], outputs)


def _stacked(rows: list[Value], axis: int = 0) -> Any:
    return torch.stack(rows, axis) if rows else torch.empty(0)


@rule("Scan", since=9)
def scan(
    *inputs: Value,
    body: Subgraph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    outputs: int,
) -> Any:
    count = len(inputs) - num_scan_inputs
    state = list(inputs[:count])
    read = tensors(*inputs[count:])
    axes = list(scan_input_axes or [0] * len(read))
    backwards = list(scan_input_directions or [0] * len(read))
    steps = read[0].shape[axes[0]]
    scanned: list[list[Value]] = [[] for _ in range(outputs - count)]
    for step in range(steps):
        at = [steps - 1 - step if b else step for b in backwards]
        rows = [torch.select(x, a, i) for x, a, i in zip(read, axes, at, strict=True)]
        results = call(body, *state, *rows)
        state = list(results[:count])
        for made, row in zip(scanned, results[count:], strict=True):
            made.append(tensor(row))
    out_axes = list(scan_output_axes or [0] * len(scanned))
    out_backwards = list(scan_output_directions or [0] * len(scanned))
    joined = [
        _stacked(rows[::-1] if b else rows, a)
        for rows, a, b in zip(scanned, out_axes, out_backwards, strict=True)
    ]
    return _results([*state, *joined], outputs)


# Sequences.


@rule("SequenceEmpty")
def sequence_empty(*, dtype: torch.dtype | None = None) -> Any:
    return []


@rule("SequenceConstruct")
def sequence_construct(*inputs: Value) -> Any:
    return list(inputs)


@rule("SequenceLength")
def sequence_length(sequence: Value) -> Any:
    return host.scalar(len(sequence))


@rule("SequenceAt", host=(1,))
def sequence_at(sequence: Value, position: Value) -> Any:
    return sequence[number(position)]


@rule("SequenceInsert", host=(2,))
def sequence_insert(sequence: Value, x: Value, position: Value = None) -> Any:
    at = number(position, len(sequence))
    at = at + len(sequence) if at < 0 else at
    return [*sequence[:at], x, *sequence[at:]]


@rule("SequenceErase", host=(1,))
def sequence_erase(sequence: Value, position: Value = None) -> Any:
    at = number(position, -1) % len(sequence)
    return [*sequence[:at], *sequence[at + 1 :]]


@rule("ConcatFromSequence")
def concat_from_sequence(sequence: Value, *, axis: int, new_axis: int = 0) -> Any:
    parts = tensors(*sequence)
    return torch.stack(parts, axis) if new_axis else torch.cat(parts, axis)


@rule("SplitToSequence", host=(1,))
def split_to_sequence(x: Value, split: Value = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    x = tensor(x)
    if split is None:
        parts = torch.split(x, 1, axis)
        return list(parts) if keepdims else [p.squeeze(axis) for p in parts]
    sizes = ints(split)
    scalar = split.shape in ((), torch.Size([]))
    return list(torch.split(x, sizes[0] if scalar else sizes, axis))


@rule("SequenceMap")
def sequence_map(first: Value, *others: Value, body: Subgraph, outputs: int) -> Any:
    columns: list[list[Value]] = [[] for _ in range(outputs)]
    for k, item in enumerate(first):
        rest = [o[k] if isinstance(o, list) else o for o in others]
        for column, value in zip(columns, call(body, item, *rest), strict=True):
            column.append(value)
    return _results(columns, outputs)


# Optional values: None is an empty one, and what it holds is itself.


@rule("Optional")
def optional(x: Value = None, *, type: object = None) -> Any:
    return x


@rule("OptionalHasElement")
def optional_has_element(x: Value = None) -> Any:
    return Host((x is not None,), (), torch.bool)


@rule("OptionalGetElement")
def optional_get_element(x: Value) -> Any:
    return x

"""`vtc.save`: an exported model of the DVM's as one file.

What is written are the words of its programs at the exported signature, the tensors that they read
(weights as they lie, and prepacked operands), and where arguments and results go.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vtc.errors import SaveError
from vtc.lowering.dvm.plan import EagerStep, ModuleStep, Plan, ScalarRef, TensorRef
from vtc.lowering.storage import extent_of
from vtc.runtime import artifact
from vtc.runtime.bound import Bound
from vtc.runtime.calls import OverlapGuard, WeightWatch
from vtc.runtime.dvm import Program
from vtc.runtime.dvm_text import allocated
from vtc.runtime.exported import Exported
from vtc.runtime.signature import (
    ConstantFacts,
    Expected,
    MappingFacts,
    SequenceFacts,
    Signature,
    TensorFacts,
    path_of,
)
from vtc.vm import machine


def save(compiled: Any, path: str | os.PathLike[str]) -> None:
    """Write a model that `vtc.export(..., engine="dvm")` gave to a file, for `vtc.load`.

    The file holds the programs for the exported signature, and the weights with their packed
    copies, all as they are now; it appears as a whole or not at all. Raises SaveError for what is
    no such model, for one with operators that run as eager PyTorch, with sizes that depend on
    values, or on another device than a CPU, and for arguments and results other than tensors,
    numbers, texts, lists and dictionaries of these; OSError. docs/artifacts.md lists every reason.
    """
    if not isinstance(compiled, Exported):
        name = type(compiled).__name__
        raise SaveError(name, "only what vtc.export(model, args, engine='dvm') gives can be saved")
    signature = described(compiled.name, compiled.signature)
    program = compiled.current(*example_of(compiled.signature)).graph.run
    while isinstance(program, OverlapGuard | WeightWatch | Bound):
        program = program.program if isinstance(program, Bound) else program.run
    if not isinstance(program, Program):
        raise SaveError(compiled.name, "it does not run on the DVM; export it with engine='dvm'")
    description, parts = _Saver(compiled, program).describe(signature)
    artifact.write(Path(path), description, parts)


class _Saver:
    """The state of writing one program."""

    def __init__(self, exported: Exported, program: Program) -> None:
        self.exported, self.program, self.plan = exported, program, program.plan
        self.name = exported.name
        self.parts = artifact.Parts()
        self.tensors: list[dict[str, Any]] = []
        self.known: dict[Any, int] = {}
        self.sources = exported.trace.graph.sources
        self.weights = self._weights()

    def fail(self, reason: str) -> SaveError:
        return SaveError(self.name, reason)

    def describe(self, signature: dict[str, Any]) -> tuple[dict[str, Any], artifact.Parts]:
        plan = self.plan
        for name in plan.eager:
            raise self.fail(f"{name} runs as eager PyTorch in it")
        if plan.symbols:
            raise self.fail("its sizes are symbols")
        if plan.device.type != "cpu":
            raise self.fail(f"it runs on {plan.device}")
        steps = [self.step(k, s) for k, s in enumerate(plan.steps) if isinstance(s, ModuleStep)]
        outputs = [self.output(o) for o in plan.outputs]
        needed = {n for s in steps for kind, n in s["buffers"] if kind == "input"}
        needed |= {plan.spaces[o["space"]].number for o in outputs
                   if "space" in o and plan.spaces[o["space"]].kind == "input"}  # fmt: skip
        description = {
            "name": self.name,
            "isa": machine.isa_version(),
            "machine": machine.features(),
            "signature": signature,
            "inputs": {str(n): self.input(n) for n in sorted(needed)},
            "spaces": [self.space(n) for n in range(len(plan.spaces))],
            "steps": steps,
            "updates": sorted(updated_inputs(plan)),
            "outputs": outputs,
            "result": self.result(),
        }
        description["tensors"] = self.tensors
        return description, self.parts

    # What is read.

    def _weights(self) -> dict[int, torch.Tensor]:
        """The graph inputs that are weights: those of the model, and constants of the graph."""
        plan = self.plan
        found = {plan.inputs + k: c for k, c in enumerate(plan.constants)}
        return found | self.exported.live_weights()

    def input(self, number: int) -> dict[str, Any]:
        if number in self.weights:
            return {"tensor": self.tensor(self.weights[number])}
        source = self.sources[number]
        place = path_of(source)
        if place is None:
            raise self.fail(f"it takes a tensor out of {source}")
        return {"argument": place}

    def tensor(self, tensor: torch.Tensor) -> int:
        """The number of a tensor that is part of the file."""
        shape, stride = list(tensor.shape), list(tensor.stride())
        key = (tensor.data_ptr(), tuple(shape), tuple(stride), tensor.dtype)
        if key not in self.known:
            extent = extent_of(shape, stride) if tensor.numel() else 0
            flat = torch.as_strided(tensor.detach(), (extent,), (1,))
            self.known[key] = len(self.tensors)
            self.tensors.append(
                {
                    "at": self.parts.add(flat),
                    "extent": extent,
                    "dtype": _name(tensor.dtype),
                    "shape": shape,
                    "stride": stride,
                }
            )
        return self.known[key]

    # What is run.

    def step(self, k: int, step: ModuleStep) -> dict[str, Any]:
        module = step.module
        encoded = self.program.machines[k].encode(())
        words = torch.from_numpy(encoded.words.view("int64").copy())  # type: ignore[attr-defined]
        buffers = [
            self.buffer(space, used) for space, used in zip(step.spaces, encoded.used, strict=True)
        ]
        return {
            "words": self.parts.add(words),
            "count": words.numel(),
            "buffers": buffers,
            "made": allocated(step),
            "kernels": [kernel.name for kernel in module.kernels()],
            "names": [buffer.name for buffer in module.buffers],
        }

    def buffer(self, number: int | None, used: bool) -> list[Any]:
        """Whose memory a buffer is: ["none", 0], or a tensor of the file, an input or a space."""
        if number is None:
            return ["none", 0]
        space = self.plan.spaces[number]
        if space.kind == "made":
            return ["made", number]
        if not used:
            return ["none", 0]
        if space.kind == "input":
            return ["input", space.number]
        operand = self.program.operands[space.number]
        with self.program.lock:
            copy = operand.copy([self.weights[n] for n in operand.numbers])
        return ["tensor", self.tensor(copy.tensor)]

    def space(self, number: int) -> dict[str, Any]:
        space = self.plan.spaces[number]
        return {
            "kind": space.kind,
            "number": space.number,
            "dtype": _name(space.dtype.torch_dtype),
            "shape": [int(s) for s in space.shape],
            "stride": [int(s) for s in space.stride],
        }

    # What goes in and out.

    def output(self, value: Any) -> dict[str, Any]:
        if isinstance(value, TensorRef):
            view = None
            if value.view is not None:
                shape, stride, offset = value.view
                view = [[int(s) for s in shape], [int(s) for s in stride], int(offset)]
            return {"space": value.space, "view": view}
        if isinstance(value, ScalarRef):
            return {"space": value.space, "scalar": True}
        if value is None or isinstance(value, bool | int | float):
            return {"value": value}
        raise self.fail(f"a result of it is {type(value).__name__}")

    def result(self) -> Any:
        """How a call's result is put together of the graph's outputs: the exported function is run
        on a graph that gives marked tensors."""
        marks = [torch.empty(()) for _ in self.plan.outputs]
        args, kwargs = example_of(self.exported.signature)
        made = self.exported.trace.rebuilt(marks, args, kwargs)
        number = {id(mark): k for k, mark in enumerate(marks)}

        def tree(value: Any) -> Any:
            if id(value) in number:
                return {"output": number[id(value)]}
            if value is None or isinstance(value, bool | int | float | str):
                return {"value": value}
            if type(value) in (list, tuple):
                return {type(value).__name__: [tree(v) for v in value]}
            if type(value) is dict and all(isinstance(k, str) for k in value):
                return {"dict": {k: tree(v) for k, v in value.items()}}
            named = pytree.tree_flatten(value)[0] != [value] and hasattr(value, "items")
            if named:  # a dictionary with attributes, as transformers returns
                return {"dict": {str(k): tree(v) for k, v in value.items()}}
            raise self.fail(f"its result holds a {type(value).__name__} that is no output")

        return tree(made)


def described(model: str, signature: Signature) -> dict[str, Any]:
    """A signature as the file has it. Raises SaveError for arguments of other kinds."""

    def facts(name: str, own: Expected) -> dict[str, Any]:
        match own:
            case TensorFacts():
                return {"tensor": [list(own.shape), list(own.stride), _name(own.dtype)]}
            case ConstantFacts(value=None | bool() | int() | float() | str()):
                return {"value": own.value}
            case SequenceFacts():
                return {"items": [facts(name, f) for f in own.items]}
            case MappingFacts() if all(isinstance(k, str) for k in own.items):
                return {"mapping": {k: facts(name, f) for k, f in own.items.items()}}
        kinds = "a tensor, number, text, list or dictionary of these"
        raise SaveError(model, f"argument {name} is not {kinds}")

    return {
        "args": [facts(name, own) for name, own in signature.positional],
        "kwargs": {name: facts(name, own) for name, own in signature.keywords.items()},
        "autocast": [[kind, _name(dtype)] for kind, dtype in signature.autocast],
    }


def updated_inputs(plan: Plan) -> set[int]:
    """The numbers of the graph inputs that the programs write."""
    from_steps = (s for s in plan.steps if not isinstance(s, EagerStep))
    stored = (
        step.spaces[i.access.buffer]
        for step in from_steps
        for kernel in step.module.kernels()
        for i in kernel.body
        if i.op == "store" and i.access is not None
    )
    spaces = (plan.spaces[n] for n in stored if n is not None)
    return {s.number for s in spaces if s.kind == "input"}


def example_of(signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a signature; the values of tensors are whatever memory holds."""
    return (
        tuple(_example(facts) for _, facts in signature.positional),
        {name: _example(facts) for name, facts in signature.keywords.items()},
    )


def _example(facts: Expected) -> Any:
    match facts:
        case TensorFacts():
            return torch.empty_strided(facts.shape, facts.stride, dtype=facts.dtype)
        case ConstantFacts():
            return facts.value
        case SequenceFacts():
            return [_example(f) for f in facts.items]
        case MappingFacts():
            return {k: _example(f) for k, f in facts.items.items()}
    raise TypeError(facts)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

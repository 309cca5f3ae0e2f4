"""`vtc.load`: a saved program, mapped, validated and ready to be called.

Nothing in the file is trusted. Words go through the validator, which admits only programs that
stay inside of their buffers; that the buffers are as large as the words say is checked here, for
those of the file at once and for arguments by the signature. The description is read as data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vtc.errors import ArtifactError, SignatureError
from vtc.lowering.storage import extent_of
from vtc.program.dtypes import DType
from vtc.runtime import artifact
from vtc.runtime.calls import overlapping
from vtc.runtime.signature import (
    ConstantFacts,
    Expected,
    MappingFacts,
    SequenceFacts,
    Signature,
    TensorFacts,
)
from vtc.vm import machine

MOST_NESTED = 64


def load(path: str | os.PathLike[str], *, check: bool = True) -> Loaded:
    """A model that `vtc.save` wrote, called like the model.

    Its weights are mapped from the file, not copied, and are no one else's. check: compare the
    checksum of the file's data, which reads all of them once. Raises ArtifactError for a file that
    is none of `vtc.save`'s or is damaged, whose bytecode the validator refuses, that another
    version wrote, or that was made for other vector instructions than this processor has; OSError.
    A call raises SignatureError for arguments of another signature. docs/artifacts.md lists every
    reason.
    """
    contents = artifact.read(Path(path), check)
    wanted = contents.description
    if wanted.get("isa") != machine.isa_version():
        raise ArtifactError(contents.path, "another version of the instruction set wrote it")
    if wanted.get("machine") != machine.features():
        here, there = _features(machine.features()), _features(wanted.get("machine"))
        raise ArtifactError(contents.path, f"it was saved for {there}, and this machine is {here}")
    try:
        return Loaded(contents)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        reason = str(error).partition("\n")[0]
        raise ArtifactError(contents.path, f"its description is damaged ({reason})") from error


def _features(value: Any) -> str:
    if not isinstance(value, dict):
        return "no machine"
    return ", ".join(f"{k} {v}" for k, v in sorted(value.items()))


class Loaded:
    """A saved model. Raises SignatureError for arguments of another signature."""

    def __init__(self, contents: artifact.Contents) -> None:
        own = contents.description
        self.path, self.name = contents.path, str(own["name"])
        self.signature = _signature(own["signature"])
        self.tensors = [_tensor(contents, t) for t in own["tensors"]]
        self.inputs: dict[int, torch.Tensor | tuple[Any, ...]] = {}
        for number, source in own["inputs"].items():
            if "tensor" in source:
                self.inputs[int(number)] = self.tensors[source["tensor"]]
            else:
                self.inputs[int(number)] = _place(source["argument"])
        self.spaces = [_Space(s) for s in own["spaces"]]
        self.known: set[int] = set()  # spaces that steps up to here make
        self.steps = [_Step(self, contents, s) for s in own["steps"]]
        self.updates = frozenset(map(int, own["updates"]))
        self.outputs = [_output(self, o) for o in own["outputs"]]
        self.result = _result(own["result"], len(self.outputs))

    def facts(self, number: int) -> TensorFacts:
        """What is known of a graph input."""
        source = self.inputs[number]
        if isinstance(source, torch.Tensor):
            return TensorFacts.of(source)
        kind, first, *rest = source
        named = dict(self.signature.positional) if kind == "args" else self.signature.keywords
        found: Any = named[f"args[{first}]" if kind == "args" else first]
        for key in rest:
            found = found.items[key]
        if not isinstance(found, TensorFacts):
            raise ValueError("an input is no tensor")
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.signature.check(args, kwargs)
        given = {"args": args, "kwargs": kwargs}
        inputs: dict[int, torch.Tensor] = {}
        for number, source in self.inputs.items():
            if isinstance(source, tuple):
                value: Any = given
                for key in source:
                    value = value[key]
                inputs[number] = value
            else:
                inputs[number] = source
        if self.updates and overlapping(list(inputs.values()), self._updated(inputs)):
            raise SignatureError("args", "storage", "apart from what is updated", "shared")
        made: dict[int, torch.Tensor] = {}
        for step in self.steps:
            step(inputs, made)
        if self.updates:
            torch.autograd.graph.increment_version([inputs[n] for n in self.updates])
        return self.result([give(inputs, made) for give in self.outputs])

    def _updated(self, inputs: dict[int, torch.Tensor]) -> set[int]:
        return {k for k, number in enumerate(inputs) if number in self.updates}


class _Space:
    """A tensor that the programs make, or a graph input."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.kind, self.number = own["kind"], int(own["number"])
        self.dtype = _dtype(own["dtype"])
        self.shape, self.stride = _sizes(own["shape"]), _sizes(own["stride"])
        if self.kind not in ("made", "input", "prepacked") or len(self.shape) != len(self.stride):
            raise ValueError("a space")

    def make(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


class _Step:
    """One program with the tensors that its buffers are."""

    def __init__(self, own: Loaded, contents: artifact.Contents, step: dict[str, Any]) -> None:
        words = contents.part(step["words"], int(step["count"]), torch.int64)
        try:
            self.encoded = machine.from_words(words.numpy().view(np.uint64))
        except ValueError as error:
            raise ArtifactError(own.path, f"a program in it is refused: {error}") from error
        self.made = [(int(n), own.spaces[n]) for n in step["made"]]
        self.kernels, self.names = list(step["kernels"]), list(step["names"])
        buffers = [(str(kind), int(n)) for kind, n in step["buffers"]]
        types, extents = self.encoded.types, self.encoded.extents
        if len(buffers) != len(types) or any(s.kind != "made" for _, s in self.made):
            raise ValueError("buffers of a program")
        own.known.update(n for n, _ in self.made)
        self.fixed = [0] * len(buffers)
        self.free: list[tuple[int, str, int]] = []
        for b, (kind, number) in enumerate(buffers):
            known = self._room(own, kind, number)
            if known is None:
                # The machine itself refuses a buffer of the caller's without memory.
                continue
            dtype, room = known
            if DType.of(dtype) is not types[b] or room < extents[b]:
                raise ValueError(f"buffer {b} of a program is not what it is bound to")
            if kind == "tensor":
                self.fixed[b] = own.tensors[number].data_ptr()
            else:
                self.free.append((b, kind, number))

    @staticmethod
    def _room(own: Loaded, kind: str, number: int) -> tuple[torch.dtype, int] | None:
        """The dtype of what a buffer is bound to, and how many elements it has."""
        if kind == "none":
            return None
        if kind == "tensor":
            tensor = own.tensors[number]
            return tensor.dtype, extent_of(tensor.shape, tensor.stride()) if tensor.numel() else 0
        if kind == "input":
            facts = own.facts(number)
            empty = 0 in facts.shape
            return facts.dtype, 0 if empty else extent_of(facts.shape, facts.stride)
        space = own.spaces[number]
        if kind != "made" or number not in own.known:
            raise ValueError("a buffer of a program")
        return space.dtype, 0 if 0 in space.shape else extent_of(space.shape, space.stride)

    def __call__(self, inputs: dict[int, torch.Tensor], made: dict[int, torch.Tensor]) -> None:
        for number, space in self.made:
            made[number] = space.make()
        pointers = list(self.fixed)
        for b, kind, number in self.free:
            pointers[b] = (inputs if kind == "input" else made)[number].data_ptr()
        fault = self.encoded.run(pointers, ())
        if fault:
            kernel, buffer = (fault >> 32) - 1, fault >> 8 & 0xFFFFFF
            raise IndexError(
                f"kernel {self.kernels[kernel]}: an index is out of bounds for a dimension of "
                f"{self.names[buffer]} (runtime term {fault & 0xFF})"
            )


Give = Callable[[dict[int, torch.Tensor], dict[int, torch.Tensor]], Any]


def _output(own: Loaded, output: dict[str, Any]) -> Give:
    """How one output of the graph comes to be."""
    if "value" in output:
        value = output["value"]
        return lambda inputs, made: value
    number, space = int(output["space"]), own.spaces[output["space"]]
    view = output.get("view")
    if space.kind == "input":
        source = space.number
        own.facts(source)

        def base(inputs: dict[int, torch.Tensor], made: dict[int, torch.Tensor]) -> torch.Tensor:
            return inputs[source]

    elif number in own.known:

        def base(inputs: dict[int, torch.Tensor], made: dict[int, torch.Tensor]) -> torch.Tensor:
            return made[number]

    else:
        raise ValueError("an output")
    if output.get("scalar"):
        return lambda inputs, made: base(inputs, made).item()
    if view is None:
        return base
    shape, stride, offset = _sizes(view[0]), _sizes(view[1]), int(view[2])

    def viewed(inputs: dict[int, torch.Tensor], made: dict[int, torch.Tensor]) -> torch.Tensor:
        tensor = base(inputs, made)
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)

    return viewed


def _result(tree: Any, count: int, depth: int = 0) -> Callable[[Sequence[Any]], Any]:
    """What puts outputs together as the model returns them."""
    if depth > MOST_NESTED or len(tree) != 1:
        raise ValueError("the result")
    ((kind, own),) = tree.items()
    if kind == "output":
        number = int(own)
        if not 0 <= number < count:
            raise ValueError("the number of an output")
        return lambda outputs: outputs[number]
    if kind == "value":
        return lambda outputs: own
    if kind == "dict":
        parts = {k: _result(v, count, depth + 1) for k, v in own.items()}
        return lambda outputs: {k: part(outputs) for k, part in parts.items()}
    make = {"list": list, "tuple": tuple}[kind]
    items = [_result(v, count, depth + 1) for v in own]
    return lambda outputs: make(part(outputs) for part in items)


def _signature(own: dict[str, Any]) -> Signature:
    return Signature.of(
        [_facts(f) for f in own["args"]],
        {str(name): _facts(f) for name, f in own["kwargs"].items()},
        tuple((str(kind), _dtype(dtype)) for kind, dtype in own["autocast"]),
    )


def _facts(own: dict[str, Any], depth: int = 0) -> Expected:
    if depth > MOST_NESTED:
        raise ValueError("an argument is nested too deep")
    if "tensor" in own:
        shape, stride, dtype = own["tensor"]
        return TensorFacts(_sizes(shape), _sizes(stride), _dtype(dtype), torch.device("cpu"))
    if "items" in own:
        return SequenceFacts(tuple(_facts(f, depth + 1) for f in own["items"]))
    if "mapping" in own:
        return MappingFacts({str(k): _facts(f, depth + 1) for k, f in own["mapping"].items()})
    return ConstantFacts(own["value"])


def _tensor(contents: artifact.Contents, own: dict[str, Any]) -> torch.Tensor:
    flat = contents.part(int(own["at"]), int(own["extent"]), _dtype(own["dtype"]))
    shape, stride = _sizes(own["shape"]), _sizes(own["stride"])
    if 0 not in shape and extent_of(shape, stride) > flat.numel():
        raise ValueError("a tensor larger than its data")
    return flat.as_strided(shape, stride)


def _place(own: Sequence[Any]) -> tuple[Any, ...]:
    kind, *keys = own
    if kind not in ("args", "kwargs") or not keys:
        raise ValueError("the place of an argument")
    return (kind, *(k if isinstance(k, str) else int(k) for k in keys))


def _sizes(own: Sequence[Any]) -> tuple[int, ...]:
    found = tuple(map(int, own))
    if any(not 0 <= n < 1 << 44 for n in found):
        raise ValueError("a size")
    return found


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name}")
    return found
